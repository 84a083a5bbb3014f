"""What the threads of any Python process do, through py-spy: for a training without a runner, which
has no socket."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, NamedTuple

from fastfeed.errors import OptionError
from fastfeed.probes import pyspy
from fastfeed.producers.activity import LIBRARIES

SPY_S = 10.0


class Spied(NamedTuple):
    """A thread: whether it is on a core and holds the interpreter lock, its innermost frame, and the
    innermost one of the user's code."""

    name: str
    tid: int
    active: bool
    owns_gil: bool
    inner: str
    own: str


def threads_of(pid: int) -> list[Spied]:
    """Return the threads of a process, which goes on meanwhile; those at work come first.

    Raise OptionError with one sentence that says what is missing: py-spy, the permission, or a
    Python process.
    """
    program = pyspy.find()
    if not program:
        raise OptionError(
            f"process {pid} has no socket of fastfeed, and others can be observed only with "
            "py-spy: pip install py-spy"
        )
    # without a stop its stacks may change under the reader: then with one
    for more in (("--nonblocking",), ()):
        command = [program, "dump", "--json", "--pid", str(pid), *more]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SPY_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OptionError(f"py-spy cannot read process {pid}: {error}") from error
        if done.returncode == 0:
            break
    else:
        raise OptionError(_reason(pid, done.stderr))
    try:
        found = [_thread(one) for one in json.loads(done.stdout)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            f"py-spy gave something that cannot be read ({error}): needed 0.3.8 or newer"
        ) from error
    return sorted(
        found, key=lambda t: (not t.active, not t.owns_gil, t.name != "MainThread", t.name)
    )


def _reason(pid: int, said: str) -> str:
    if not os.path.exists(f"/proc/{pid}"):
        return f"there is no process {pid}"
    if pyspy.PERMISSION.search(said):
        return f"py-spy cannot read process {pid}: {pyspy.reason(said)}"
    if "Failed to find python version" in said or "not a python" in said.lower():
        return f"process {pid} is no Python process"
    last = [
        line.strip()
        for line in said.splitlines()
        if line.strip() and "backtrace" not in line.lower()
    ]
    return f"py-spy cannot read process {pid}: {(last or ['it did not say why'])[0]}"


def _thread(one: dict[str, Any]) -> Spied:
    frames = [(f["name"], f["filename"], f["line"]) for f in one["frames"]]
    texts = [f"{name} {os.path.basename(path)}:{line}" for name, path, line in frames]
    own = [text for text, (_, path, _) in zip(texts, frames, strict=True) if _is_users(path)]
    name = one.get("thread_name") or f"thread {one.get('os_thread_id') or one['thread_id']}"
    inner = texts[0] if texts else ""
    return Spied(
        *(name, int(one.get("os_thread_id") or 0), bool(one["active"]), bool(one["owns_gil"])),
        *(inner, own[0] if own else ""),
    )


def _is_users(path: str) -> bool:
    """Return True for a path of the user; the other process may have another Python."""
    return not (path.startswith(LIBRARIES) or "site-packages" in path or "/lib/python3" in path)
