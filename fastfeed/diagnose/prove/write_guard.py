"""Changes of files by a run: what is the user's stays as it is, whoever changes it.

A link in the copy becomes a copy itself before it is written to, and what leads out of the copy is
refused. Python says by audit events what it is about to change. Native code and other programs say
nothing: the kernel asks a `WriteGuard` in the process of the proof before a call of theirs goes on.
Source: seccomp_unotify(2), Linux 5.5 and later; without it, audit events are all there is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from fastfeed.core.unix import fcntl
from fastfeed.diagnose.prove.own_files import AT_FDCWD, OwnFiles
from fastfeed.errors import FeedError

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Events of audit hooks that change files: for each path, its place and that of its folder's
# descriptor in the arguments, and if it changes what the path leads to, not the name itself.
CHANGES: dict[str, tuple[tuple[int, int, bool], ...]] = {
    "os.mkdir": ((0, 2, False),),
    "os.remove": ((0, 1, False),),
    "os.rmdir": ((0, 1, False),),
    "os.rename": ((0, 2, False), (1, 3, False)),
    "os.link": ((0, 2, True), (1, 3, False)),
    "os.symlink": ((1, 2, False),),
    "os.truncate": ((0, -1, True),),
    "os.chmod": ((0, 2, True),),
    "os.chown": ((0, 3, True),),
    "os.utime": ((0, 3, True),),
    "os.setxattr": ((0, -1, True),),
}
LEAVING = ("os.remove", "os.rmdir", "os.rename")  # a name is something else then, or nothing

# linux/seccomp.h, linux/bpf_common.h, linux/audit.h, linux/prctl.h
NO_NEW_PRIVS, SET_FILTER, LISTENER, KEEP_SPECULATION = 38, 1, 1 << 3, 1 << 2
RECEIVE, SEND, GO_ON = 0xC0502100, 0xC0182101, 1
QUESTION, ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
LOAD, IF_EQUAL, IF_BITS, RESULT_IS = 0x20, 0x15, 0x45, 0x06
ALLOW, ASK = 0x7FFF0000, 0x7FC00000
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
PATH_NBYTES = 4096
DEVICES, SHARED_MEMORY = "/dev/", "/dev/shm/"
# A file that must be new, and no link: shared memory is made so, for every batch of a DataLoader's
# workers, and nothing that exists can be changed by it.
NEW_FILE = (os.O_CREAT, os.O_EXCL, os.O_NOFOLLOW)


class SystemCall(NamedTuple):
    """A call that may change a file: which arguments name it, and hold the descriptor of its
    folder, flags of open(2), if it changes what the name leads to, if the name is something else
    then, or nothing, and another file that it changes."""

    path: int
    folder: int | None = None
    flags: int | None = None
    inner: bool = True
    leaves: bool = False
    other: SystemCall | None = None


OPEN, CREAT, TRUNCATE = SystemCall(0, flags=1), SystemCall(0), SystemCall(0)
OPENAT, OPENAT2 = SystemCall(1, 0, flags=2), SystemCall(1, 0)
MKDIR, MKDIRAT = SystemCall(0, inner=False), SystemCall(1, 0, inner=False)
REMOVE, REMOVEAT = MKDIR._replace(leaves=True), MKDIRAT._replace(leaves=True)  # also folders
RENAME = REMOVE._replace(other=REMOVE._replace(path=1))
RENAMEAT = REMOVEAT._replace(other=REMOVEAT._replace(path=3, folder=2))
CHMOD, CHMODAT = SystemCall(0), SystemCall(1, 0)
# By machine: its number in audits, that of seccomp(2), and those of the calls.
MACHINES: dict[str, tuple[int, int, dict[int, SystemCall]]] = {
    "x86_64": (
        0xC000003E,
        317,
        {
            **{2: OPEN, 85: CREAT, 257: OPENAT, 437: OPENAT2, 76: TRUNCATE},
            **{83: MKDIR, 258: MKDIRAT, 82: RENAME, 264: RENAMEAT, 316: RENAMEAT},
            **{87: REMOVE, 84: REMOVE, 263: REMOVEAT},
            **{90: CHMOD, 268: CHMODAT, 452: CHMODAT, 280: CHMODAT},  # 280: utimensat
        },
    ),
    "aarch64": (
        0xC00000B7,
        277,
        {
            **{56: OPENAT, 437: OPENAT2, 45: TRUNCATE, 34: MKDIRAT, 38: RENAMEAT, 276: RENAMEAT},
            **{53: CHMODAT, 452: CHMODAT, 88: CHMODAT, 35: REMOVEAT},
        },
    ),
}


class WriteGuard:
    """Answers of this process to the kernel, about all writes of a run that has called
    `ask_before_writes` with `descriptor`. Close it after the run."""

    def __init__(self, files: OwnFiles) -> None:
        self._files = files
        self._own, self._other = socket.socketpair()
        self.descriptor = self._other.fileno()
        self.refused = ""  # why a write did not go on
        self.is_asked = False  # by the kernel, about all writes
        self._reads = False  # this process may read the memory of the run
        self._thread = threading.Thread(target=self._serve, name="fastfeed-writes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more: nothing of the run is left."""
        self._files.stop()
        self._other.close()
        self._thread.join()

    def _serve(self) -> None:
        with self._own:
            _, descriptors, *_ = socket.recv_fds(self._own, 1, 1)
            if not descriptors:
                return  # the kernel asks nothing
            (listener,) = descriptors
            self.is_asked = True
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            poll.register(self._own, 0)  # hears its end
            try:
                # A copy may have to wait for a process that has a question of its own.
                with ThreadPoolExecutor(1, thread_name_prefix="fastfeed-copies") as copies:
                    while poll.poll() == [(listener, select.POLLIN)]:
                        self._hear(listener, copies)
            finally:
                os.close(listener)

    def _hear(self, listener: int, copies: Executor) -> None:
        question = bytearray(QUESTION.size)
        try:
            fcntl.ioctl(listener, RECEIVE, question)
        except OSError:
            return  # who asked has ended
        number, process, _, call, _, _, *given = QUESTION.unpack(question)

        def answer(may_wait: bool) -> bool:
            error = 0
            try:
                for one in _changes_of(MACHINES[platform.machine()][2][call]):
                    path = self._path(process, one, given=given)
                    about = {"inner": one.inner, "leaves": one.leaves}
                    if not self._files.settle(path, **about, may_wait=may_wait):
                        return False
            except Exception as found:  # whatever it is, the run must get an answer
                self.refused, error = str(found), -errno.EACCES
            with suppress(OSError):
                fcntl.ioctl(listener, SEND, ANSWER.pack(number, 0, error, 0 if error else GO_ON))
            return True

        if not answer(may_wait=False):
            copies.submit(answer, may_wait=True)

    def _path(self, process: int, call: SystemCall, *, given: list[int]) -> str:
        """Return what a call names, from the root on; "" if it names nothing."""
        try:
            name = _text_at(process, given[call.path])
            if name.startswith(SHARED_MEMORY) and os.pardir not in name:
                return ""  # workers remove some for every batch
            folder = AT_FDCWD if call.folder is None else ctypes.c_int(given[call.folder]).value
            at = "cwd" if folder == AT_FDCWD else f"fd/{folder}"
            base = os.readlink(f"/proc/{process}/{at}")
            self._reads = True
        except PermissionError:
            if self._reads:
                raise
            self.is_asked = False
            return ""  # this kernel shows no other process, so that audit events are all there is
        except (OSError, OverflowError, ValueError):
            return ""  # no such memory or folder: the call fails by itself
        begin = os.sep.join(name.split(os.sep)[:3])
        if begin.startswith(DEVICES) and os.path.islink(begin):  # /dev/stdout, /dev/fd
            name = os.path.join(DEVICES, os.readlink(begin)) + name.removeprefix(begin)
        for begin in ("/proc/self/", "/proc/thread-self/"):
            if name.startswith(begin):
                name = f"/proc/{process}/{name.removeprefix(begin)}"
        return os.path.join(base, name) if name else ""


def _changes_of(call: SystemCall) -> Iterator[SystemCall]:
    yield call
    if call.other is not None:
        yield call.other


def _text_at(process: int, address: int) -> str:
    with open(f"/proc/{process}/mem", "rb", 0) as memory:
        memory.seek(address)
        return os.fsdecode(memory.read(PATH_NBYTES).split(b"\0")[0])


def ask_before_writes(files: OwnFiles, descriptor: int) -> None:
    """Let no write of this process, its threads and children change what is the user's.
    `descriptor`: that of the WriteGuard, which is closed."""
    _listen_to_python(files)
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
    """Return the program that the kernel runs for each call."""
    lines = [(LOAD, 0, 0, MACHINE_AT), (IF_EQUAL, 1, 0, machine), (RESULT_IS, 0, 0, ALLOW)]
    for number, call in calls.items():
        asks = [(RESULT_IS, 0, 0, ASK)]
        if call.flags is not None:
            new = [(IF_BITS, 0, len(NEW_FILE) - i, flag) for i, flag in enumerate(NEW_FILE)]
            asks = [
                (LOAD, 0, 0, ARGUMENTS_AT + 8 * call.flags),
                *new,
                (RESULT_IS, 0, 0, ALLOW),
                (IF_BITS, 0, 1, WRITES),
                *asks,
                (RESULT_IS, 0, 0, ALLOW),
            ]
        lines += [(LOAD, 0, 0, NUMBER_AT), (IF_EQUAL, 0, len(asks), number), *asks]
    lines.append((RESULT_IS, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _listen_to_python(files: OwnFiles) -> None:
    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if flags & WRITES if isinstance(flags, int) else set("wax+") & set(mode or ""):
                with _as_the_kernel_says():
                    files.settle(_named(path, -1), inner=True)
        elif event in CHANGES:
            for at, folder_at, inner in CHANGES[event]:
                folder = args[folder_at] if 0 <= folder_at < len(args) else -1
                with _as_the_kernel_says():
                    files.settle(_named(args[at], folder), inner=inner, leaves=event in LEAVING)

    sys.addaudithook(audit)


@contextmanager
def _as_the_kernel_says() -> Iterator[None]:
    """Raise what a call raises that may not change a file: libraries know it."""
    try:
        yield
    except FeedError as error:
        raise PermissionError(errno.EACCES, str(error)) from None


def _named(path: Any, folder: int) -> str:
    """Return a path of an audit event, below its folder; "" for an open file."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    base = os.getcwd() if folder < 0 else os.readlink(f"/proc/self/fd/{folder}")
    return os.path.join(base, os.fsdecode(path))
