"""What the threads of any Python process do, through py-spy: for a training that has no runner, and
so no socket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from fastfeed.errors import OptionError
from fastfeed.producers.activity import LIBRARIES

SPY_S = 10.0


class Spied(NamedTuple):
    """A thread: whether it is on a core, holds the interpreter lock, its innermost frame, and the
    user's."""

    name: str
    tid: int
    active: bool
    owns_gil: bool
    inner: str
    own: str


def threads_of(pid: int) -> list[Spied]:
    """The threads of a process, those at work first. It goes on meanwhile.

    Raises OptionError, whose one sentence says what is missing: py-spy, the permission, or a Python
    process.
    """
    binary = py_spy()
    if binary is None:
        raise OptionError(
            f"process {pid} has no socket of fastfeed, and others can be observed only with "
            "py-spy: pip install py-spy"
        )
    # without a stop its stacks may change under the reader: then with one
    for more in (("--nonblocking",), ()):
        command = [binary, "dump", "--json", "--pid", str(pid), *more]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SPY_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OptionError(f"py-spy cannot look into process {pid}: {error}") from error
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


def py_spy() -> str | None:
    """The program, on the PATH or beside this interpreter."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def _reason(pid: int, said: str) -> str:
    if not os.path.exists(f"/proc/{pid}"):
        return f"there is no process {pid}"
    if "ermission" in said or "ptrace" in said or "not permitted" in said:
        return (
            f"py-spy may not look into process {pid}: run as its user with "
            "kernel.yama.ptrace_scope=0, or as root; in a container with --cap-add SYS_PTRACE"
        )
    if "Failed to find python version" in said or "not a python" in said.lower():
        return f"process {pid} is no Python process"
    last = [
        line.strip()
        for line in said.splitlines()
        if line.strip() and "backtrace" not in line.lower()
    ]
    return f"py-spy cannot look into process {pid}: {(last or ['it did not say why'])[0]}"


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
    """By the path alone: the other process may have another Python."""
    return not (path.startswith(LIBRARIES) or "site-packages" in path or "/lib/python3" in path)
