"""Writes of a run: what one would change becomes a copy first, whoever writes.

A link on the way to a file leads to the user's own. Python says by audit events what it is about to
change. Native code and other programs say nothing: the kernel asks a `WriteGuard` in the process of
the proof before a call of theirs goes on. Source: seccomp_unotify(2), Linux 5.5 and later; without
it, audit events are all there is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import shutil
import socket
import struct
import sys
import threading
from contextlib import suppress
from typing import Any, NamedTuple

from fastfeed.core.unix import fcntl
from fastfeed.errors import FeedError, StateError

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
FREE_SHARE = 0.5  # of the free disk that the copy of one file may take
# Events of audit hooks that change files, by the number of their paths.
CHANGES = {"os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.truncate": 1, "os.rename": 2}

# linux/seccomp.h, linux/bpf_common.h, linux/audit.h, linux/prctl.h
NO_NEW_PRIVS, SET_FILTER, LISTENER, KEEP_SPECULATION = 38, 1, 1 << 3, 1 << 2
RECEIVE, SEND, GO_ON = 0xC0502100, 0xC0182101, 1
QUESTION, ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
LOAD, IF_EQUAL, IF_BITS, RESULT_IS = 0x20, 0x15, 0x45, 0x06
ALLOW, ASK = 0x7FFF0000, 0x7FC00000
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
AT_FDCWD = -100
PATH_NBYTES = 4096


class SystemCall(NamedTuple):
    """A call that may change a file: which argument names it, which holds flags of open(2), and
    whether the one before the name is the descriptor of a folder."""

    path: int
    flags: int | None = None
    makes_folder: bool = False

    @property
    def has_folder(self) -> bool:
        return self.path == 1


OPEN, OPENAT, CREAT = SystemCall(0, 1), SystemCall(1, 2), SystemCall(0)
MKDIR, MKDIRAT = SystemCall(0, makes_folder=True), SystemCall(1, makes_folder=True)
OPENAT2, TRUNCATE = SystemCall(1), SystemCall(0)
# By machine: its number in audits, that of seccomp(2), and those of the calls.
MACHINES: dict[str, tuple[int, int, dict[int, SystemCall]]] = {
    "x86_64": (
        0xC000003E,
        317,
        {2: OPEN, 76: TRUNCATE, 83: MKDIR, 85: CREAT, 257: OPENAT, 258: MKDIRAT, 437: OPENAT2},
    ),
    "aarch64": (0xC00000B7, 277, {34: MKDIRAT, 45: TRUNCATE, 56: OPENAT, 437: OPENAT2}),
}


class WriteGuard:
    """Answers of this process to the kernel, about all writes below `folder` of a run that has
    called `ask_before_writes` with `descriptor`. Close it after the run."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._own, self._other = socket.socketpair()
        self.descriptor = self._other.fileno()
        self.refused = ""  # why a write did not go on
        self._thread = threading.Thread(target=self._serve, name="fastfeed-writes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more: nothing of the run is left."""
        self._other.close()
        self._thread.join()

    def _serve(self) -> None:
        with self._own:
            _, descriptors, *_ = socket.recv_fds(self._own, 1, 1)
            if not descriptors:
                return  # the kernel asks nothing
            (listener,) = descriptors
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            poll.register(self._own, 0)  # hears its end
            try:
                while poll.poll() == [(listener, select.POLLIN)]:
                    self._answer(listener)
            finally:
                os.close(listener)

    def _answer(self, listener: int) -> None:
        request, error = bytearray(QUESTION.size), 0
        try:
            fcntl.ioctl(listener, RECEIVE, request)
        except OSError:
            return  # who asked has ended
        number, process, _, call, _, _, *given = QUESTION.unpack(request)
        try:
            self._before(process, call=MACHINES[platform.machine()][2][call], given=given)
        except (FeedError, OSError) as found:
            self.refused, error = str(found), -errno.EACCES
        with suppress(OSError):
            fcntl.ioctl(listener, SEND, ANSWER.pack(number, 0, error, 0 if error else GO_ON))

    def _before(self, process: int, *, call: SystemCall, given: list[int]) -> None:
        try:
            with open(f"/proc/{process}/mem", "rb", 0) as memory:
                memory.seek(given[call.path])
                name = os.fsdecode(memory.read(PATH_NBYTES).split(b"\0")[0])
            folder = ctypes.c_int(given[0]).value if call.has_folder else AT_FDCWD
            at = "cwd" if folder == AT_FDCWD else f"fd/{folder}"
            path = os.path.abspath(os.path.join(os.readlink(f"/proc/{process}/{at}"), name))
        except OSError:
            return  # no such memory or folder: the call fails by itself
        if path.startswith(self._folder + os.sep):
            _make_own(self._folder, path, file=not call.makes_folder)


def ask_before_writes(folder: str, descriptor: int) -> None:
    """Let no write of this process, its threads and children change what links below a folder lead
    to: it becomes a copy first. `descriptor`: that of the WriteGuard, which is closed."""
    _listen_to_python(folder)
    with socket.socket(fileno=descriptor) as guard:
        listener = _listener()
        if listener >= 0:
            socket.send_fds(guard, [b"+"], [listener])
            os.close(listener)


def _listener() -> int:
    """Let the kernel ask before calls that write; return the descriptor of its questions, or -1."""
    release = tuple(int(one) for one in platform.release().split("-")[0].split(".")[:2])
    if sys.platform != "linux" or platform.machine() not in MACHINES or release < (5, 5):
        return -1
    machine, seccomp, calls = MACHINES[platform.machine()]
    code = _filter(machine, calls)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
        return -1
    found: int = library.syscall(seccomp, SET_FILTER, LISTENER | KEEP_SPECULATION, program)
    return found


def _filter(machine: int, calls: dict[int, SystemCall]) -> bytes:
    """Return the program that the kernel runs for each call. With O_NOFOLLOW no link is followed:
    shared memory is opened so, for every batch of a DataLoader's workers."""
    lines = [(LOAD, 0, 0, MACHINE_AT), (IF_EQUAL, 1, 0, machine), (RESULT_IS, 0, 0, ALLOW)]
    for number, call in calls.items():
        asks = [(RESULT_IS, 0, 0, ASK)]
        if call.flags is not None:
            asks = [
                (LOAD, 0, 0, ARGUMENTS_AT + 8 * call.flags),
                (IF_BITS, 2, 0, os.O_NOFOLLOW),
                (IF_BITS, 0, 1, WRITES),
                *asks,
                (RESULT_IS, 0, 0, ALLOW),
            ]
        lines += [(LOAD, 0, 0, NUMBER_AT), (IF_EQUAL, 0, len(asks), number), *asks]
    lines.append((RESULT_IS, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _listen_to_python(folder: str) -> None:
    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if not (flags & WRITES if isinstance(flags, int) else set("wax+") & set(mode or "")):
                return
            paths = [path]
        elif event in CHANGES:
            paths = list(args[: CHANGES[event]])
        else:
            return
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)):
                name = os.path.abspath(os.fsdecode(path))
                if name.startswith(folder + os.sep):
                    _make_own(folder, name, file=event in ("open", "os.truncate"))

    sys.addaudithook(audit)


def _make_own(folder: str, name: str, *, file: bool) -> None:
    """Let no link be on the way from a folder to a name, nor the `file` itself be one: a folder
    becomes one with links of its files, a file its copy. Raise StateError if it is too large."""
    below = os.path.relpath(name, folder).split(os.sep)
    for count in range(1, len(below)):
        part = os.path.join(folder, *below[:count])
        if os.path.islink(part) and os.path.isdir(part):
            real = os.path.realpath(part)
            os.unlink(part)
            os.mkdir(part)
            for one in os.listdir(real):
                os.symlink(os.path.join(real, one), os.path.join(part, one))
    if file and os.path.islink(name) and os.path.isfile(name):
        real = os.path.realpath(name)
        nbytes, free = os.path.getsize(real), shutil.disk_usage(folder).free
        if nbytes > FREE_SHARE * free:
            raise StateError(
                f"{real} is opened for writing, and each run would need a copy of its "
                f"{nbytes:,} bytes ({free:,} are free): give the runs their own place for it, with "
                "--prove-env NAME=VALUE ({run} in VALUE is the folder of the run)"
            )
        os.unlink(name)
        shutil.copy2(real, name)
