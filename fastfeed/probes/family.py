"""The processes that descend from the script, and what each of them is."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import NamedTuple

from fastfeed.probes import procfs

# they serve other processes, and make no data
HELPER_MODULES = ("multiprocessing.resource_tracker", "loky.backend.resource_tracker")
FORKSERVER = re.compile(
    r"multiprocessing\.forkserver|fastfeed[./]producers[./]process[./]forkserver"
)
PYTHON_COMMAND = re.compile(r"python[\d.]*$|/python")
SIGNALED = 0x7F


class Kin(NamedTuple):
    """A process that descends from the script's; `born`: when, in ticks, because pids are
    reused."""

    pid: int
    parent: int
    command: str
    python: bool
    born: int


def descendants(pid: int) -> list[Kin]:
    """Return all descendants, except those that serve only multiprocessing itself."""
    found: list[Kin] = []
    below = [(child, pid, "") for child in _children(pid)]
    while below:
        child, parent, above = below.pop()
        command = procfs.text_of(f"/proc/{child}/cmdline").replace("\0", " ").strip()
        below += [(one, child, command) for one in _children(child)]
        # children of a fork server have its own command line
        server = FORKSERVER.search(command) is not None and not FORKSERVER.search(above)
        # a process that has ended, and waits for its parent, has no command line any more
        if command and not server and not any(name in command for name in HELPER_MODULES):
            found.append(Kin(child, parent, command, _is_python(child), _born(child)))
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [
        int(word)
        for task in tasks
        for word in procfs.text_of(f"/proc/{pid}/task/{task}/children").split()
    ]


def _born(pid: int) -> int:
    fields = procfs.text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def _is_python(pid: int) -> bool:
    try:
        return PYTHON_COMMAND.search(os.path.basename(os.readlink(f"/proc/{pid}/exe"))) is not None
    except OSError:
        return False


class Silence:
    """A process that may never have sent anything: it has written nothing and has neither a socket
    nor shared memory since it was observed first, so that no batch can have come from it."""

    def __init__(self, pid: int) -> None:
        self._pid, self._written = pid, _written(pid)

    def holds(self) -> bool:
        """Return True if that still holds."""
        if not self._written or _written(self._pid) != self._written:
            return False
        return not _sockets(self._pid) and "rw-s" not in procfs.text_of(f"/proc/{self._pid}/maps")


def _written(pid: int) -> str:
    lines = procfs.text_of(f"/proc/{pid}/io").splitlines()
    return next((line for line in lines if line.startswith("wchar")), "")


def _sockets(pid: int) -> bool:
    try:
        return any(
            procfs.target_of(pid, int(fd)) == "socket"
            for fd in os.listdir(f"/proc/{pid}/fd")
            if int(fd) > 2
        )
    except OSError:
        return True


def exit_of(stat: bytes, pid: int) -> str:
    """Return how a process ended, from a zombie's stat or from multiprocessing; "gone" if
    unknown."""
    fields = stat.rpartition(b")")[2].split()
    if len(fields) > 49 and fields[0] == b"Z":
        return spoken(int(fields[49]))
    code = _returncode(pid)
    if code is None:
        return "gone"
    return f"exit code {code}" if code >= 0 else _signal(-code)


def spoken(status: int) -> str:
    """Return a wait status in words: "exit code 1", "SIGKILL"."""
    number = status & SIGNALED
    return _signal(number) if number else f"exit code {status >> 8}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _returncode(pid: int) -> int | None:
    """Return the exit code that multiprocessing has seen; nothing is awaited or reaped here."""
    module = sys.modules.get("multiprocessing.process")
    for process in list(getattr(module, "_dangling", ())):
        popen = getattr(process, "_popen", None)
        code = getattr(popen, "returncode", None)
        if getattr(popen, "pid", None) == pid and code is not None:
            return int(code)
    return None


def name_of(kin: Kin) -> str:
    """Return a process's name for a report: multiprocessing's, else that of its program."""
    module = sys.modules.get("multiprocessing.process")
    for process in list(getattr(module, "_dangling", ())):
        if getattr(getattr(process, "_popen", None), "pid", None) == kin.pid:
            return str(process.name)
    words = kin.command.split()
    return os.path.basename(words[0]) if words else f"process {kin.pid}"
