"""Descendants of the script's process: their commands, names, ends and silence."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import Any, NamedTuple

from fastfeed.probes import procfs

# Processes that serve other processes and produce no data.
HELPER_MODULES = ("multiprocessing.resource_tracker", "loky.backend.resource_tracker")
FORKSERVER = re.compile(
    r"multiprocessing\.forkserver|fastfeed[./]producers[./]process[./]forkserver"
)
EXEC_S, POLL_EXEC_S = 0.2, 0.001  # for the program of a process to begin
ENDED = ("", "Z", "X")  # states of processes that are gone, or not reaped
PYTHON_COMMAND = re.compile(r"python[\d.]*$|/python")


class Descendant(NamedTuple):
    """A process that descends from the script's.

    Pids are reused: pid and start, in clock ticks, identify a process.
    """

    pid: int
    parent: int
    command: str
    python: bool
    start_ticks: int


def descendants(pid: int) -> list[Descendant]:
    """Return all descendants, except those that serve only multiprocessing itself."""
    found: list[Descendant] = []
    below = [(child, pid, "") for child in procfs.children_of(pid)]
    while below:
        child, parent, above = below.pop()
        process = process_of(child, parent=parent)
        command = process.command
        below += [(one, child, command) for one in procfs.children_of(child)]
        # Children of a fork server have its command line.
        is_server = FORKSERVER.search(command) is not None and not FORKSERVER.search(above)
        # A zombie has no command line.
        if command and not is_server and not any(name in command for name in HELPER_MODULES):
            found.append(process)
    return found


def process_of(pid: int, *, parent: int = 0) -> Descendant:
    """Return a process by its pid; one that is gone or a zombie has no command."""
    command = _command_of(pid)
    return Descendant(pid, parent, command, _is_python(pid), procfs.stat_of(pid).start_ticks)


def _command_of(pid: int) -> str:
    """Return the command line of a process. One that begins a program has none for a moment, though
    its parent goes on already."""
    end_s = time.monotonic() + EXEC_S
    while True:
        command = procfs.text_of(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        if command or procfs.stat_of(pid).state in ENDED or time.monotonic() > end_s:
            return command
        time.sleep(POLL_EXEC_S)


def _is_python(pid: int) -> bool:
    try:
        return PYTHON_COMMAND.search(os.path.basename(os.readlink(f"/proc/{pid}/exe"))) is not None
    except OSError:
        return False


class SilentProcess:
    """A process that may have sent no data since it was observed first.

    It has written nothing and has neither a socket nor shared memory: no batch can come from it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._written = _written(pid)

    def is_silent(self) -> bool:
        """Return True if the process still has sent nothing."""
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
    """Return the end of a process in words, or "gone" if unknown.

    It is known from a zombie's stat or from multiprocessing.
    """
    found = procfs.parse_stat(stat.decode(errors="replace"))
    if found.state == "Z":
        return exit_text(os.waitstatus_to_exitcode(found.status))
    code = _returncode(pid)
    return "gone" if code is None else exit_text(code)


def exit_text(code: int) -> str:
    """Return an exit code in words; a negative one is a signal: "exit code 1", "SIGKILL"."""
    return f"exit code {code}" if code >= 0 else signal_name(-code)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _returncode(pid: int) -> int | None:
    """Return the exit code that multiprocessing knows, without reaping the process."""
    codes = (getattr(process._popen, "returncode", None) for process in _multiprocessing_of(pid))
    return next((int(code) for code in codes if code is not None), None)


def _multiprocessing_of(pid: int) -> list[Any]:
    """Return the process objects of multiprocessing with this pid."""
    module = sys.modules.get("multiprocessing.process")
    known = list(getattr(module, "_dangling", ()))
    return [p for p in known if getattr(getattr(p, "_popen", None), "pid", None) == pid]


def name_of(process: Descendant) -> str:
    """Return a process's name for a report: multiprocessing's, else that of its program."""
    known = _multiprocessing_of(process.pid)
    if known:
        return str(known[0].name)
    words = process.command.split()
    return os.path.basename(words[0]) if words else f"process {process.pid}"
