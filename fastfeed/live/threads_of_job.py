"""The threads of any Python process, through py-spy, for a training without a runner."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, NamedTuple

from fastfeed.core.user_code import is_users
from fastfeed.errors import OptionError
from fastfeed.probes import pyspy


class SampledThread(NamedTuple):
    """A thread and the place of its execution."""

    name: str
    tid: int
    active: bool  # on a core
    owns_gil: bool
    innermost: str  # frame
    user_line: str  # innermost frame of the user's code


def threads_of(pid: int) -> list[SampledThread]:
    """Return the threads of a process without stopping it, those at work first.

    Raise OptionError if py-spy or a permission is missing, or if it is no Python process.
    """
    program = pyspy.find()
    if not program:
        raise OptionError(
            f"process {pid} has no socket of fastfeed, and others can be observed only with "
            "py-spy: pip install py-spy"
        )
    # Stacks may change during the reading. If that fails, stop the process meanwhile.
    for mode in (("--nonblocking",), ()):
        try:
            done = pyspy.run_dump(program, pid, "--json", *mode)
        except (OSError, subprocess.SubprocessError) as error:
            raise OptionError(f"py-spy cannot read process {pid}: {error}") from error
        if done.returncode == 0:
            break
    else:
        raise OptionError(_reason(pid, done.stderr))
    try:
        found = [_thread(one) for one in json.loads(done.stdout)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            f"the output of py-spy cannot be read ({error}): it must be 0.3.8 or newer"
        ) from error
    return sorted(
        found, key=lambda t: (not t.active, not t.owns_gil, t.name != "MainThread", t.name)
    )


def _reason(pid: int, stderr: str) -> str:
    if not os.path.exists(f"/proc/{pid}"):
        return f"there is no process {pid}"
    if pyspy.PERMISSION.search(stderr):
        return f"py-spy cannot read process {pid}: {pyspy.reason(stderr)}"
    if "Failed to find python version" in stderr or "not a python" in stderr.lower():
        return f"process {pid} is no Python process"
    messages = [
        line.strip()
        for line in stderr.splitlines()
        if line.strip() and "backtrace" not in line.lower()
    ]
    return f"py-spy cannot read process {pid}: {(messages or ['it did not say why'])[0]}"


def _thread(one: dict[str, Any]) -> SampledThread:
    frames = [(f["name"], f["filename"], f["line"]) for f in one["frames"]]
    lines = [
        (f"{name} {os.path.basename(path)}:{line}", is_users(path, name))
        for name, path, line in frames
    ]
    return SampledThread(
        name=one.get("thread_name") or f"thread {one.get('os_thread_id') or one['thread_id']}",
        tid=int(one.get("os_thread_id") or 0),
        active=bool(one["active"]),
        owns_gil=bool(one["owns_gil"]),
        innermost=next((text for text, _ in lines), ""),
        user_line=next((text for text, is_user_code in lines if is_user_code), ""),
    )
