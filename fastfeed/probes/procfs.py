"""Threads as the kernel shows them: files of /proc that are opened once and read often."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import threading
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fastfeed.core.unix import TICKS_S, resource

BUFFER_NBYTES = 4096
MAX_TID = 2**22  # of Linux
# Bytes of the C library's thread descriptor. glibc for x86-64 has the kernel's number at 720.
DESCRIPTOR_NBYTES = 2048
RUNNING = "running"
COUNTER_FILES = ("stat", "schedstat")
KEPT_FILES = (*COUNTER_FILES, "syscall")
# The system calls in which a thread waits: their numbers on x86_64, and on aarch64.
WAITING_CALLS = {
    "read": ((0,), (63,)),
    "write": ((1,), (64,)),
    "pread": ((17,), (67,)),
    "pwrite": ((18,), (68,)),
    "readv": ((19,), (65,)),
    "writev": ((20,), (66,)),
    "select": ((23, 270), (72,)),
    "poll": ((7, 232, 271, 281, 441), (22, 73, 441)),
    "sleep": ((35, 230), (101, 115)),
    "futex": ((202, 449), (98, 449)),
    "connect": ((42,), (203,)),
    "accept": ((43, 288), (202, 242)),
    "send": ((44, 46), (206, 211)),
    "recv": ((45, 47, 299), (207, 212, 243)),
    "child": ((61, 247), (95, 260)),
    "pause": ((34, 128, 130), (133, 137)),
}
MACHINE = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
CALL_NAMES = {
    number: name
    for name, numbers in WAITING_CALLS.items()
    for number in (() if MACHINE is None else numbers[MACHINE])
}
NEVER_DISK = frozenset(("futex", "sleep", "poll", "select", "recv", "accept", "pause", "child"))


class DescriptorReader:
    """Reads a descriptor from its start without releasing the interpreter lock.

    Every release costs up to a switch interval beside a thread that holds the lock, and the values
    would no longer be of one moment.
    """

    def __init__(self) -> None:
        self._pread = ctypes.PyDLL(None).pread
        self._pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
        self._pread.restype = ctypes.c_ssize_t
        self._buffer = ctypes.create_string_buffer(BUFFER_NBYTES)
        self._address = ctypes.addressof(self._buffer)

    def read(self, fd: int) -> bytes:
        """Return the first 4 KiB, or b"" if the file is empty or cannot be read."""
        if fd < 0:
            return b""
        count = self._pread(fd, self._address, BUFFER_NBYTES, 0)
        return ctypes.string_at(self._address, count) if count > 0 else b""

    def queued_s(self, fd: int) -> float:
        """Return the seconds for which a thread waited for a core, from its schedstat, else 0."""
        words = self.read(fd).split()
        return int(words[1]) / 1e9 if len(words) > 1 else 0.0


class Counters(NamedTuple):
    """What one or several threads have used since their start."""

    cpu_s: float = 0.0
    queued_s: float = 0.0
    runs: int = 0  # how often they got a core

    def plus(self, other: Counters) -> Counters:
        """Return the sum of both."""
        return Counters._make(a + b for a, b in zip(self, other, strict=True))

    def since(self, before: Counters) -> Counters:
        """Return what was used since `before`."""
        return Counters._make(a - b for a, b in zip(self, before, strict=True))


class ThreadFiles:
    """The files of one thread of any process; an unreadable file reads as empty.

    They are opened for each reading, until `keep` keeps them open, as long as the script has
    enough descriptors.
    """

    def __init__(self, pid: int, tid: int) -> None:
        self.folder = f"/proc/{pid}/task/{tid}"
        self._open: dict[str, int] = {}

    def keep(self, names: Sequence[str] = KEPT_FILES) -> None:
        """Keep these files open, because they are read often."""
        for name in names:
            if name not in self._open:
                self._open[name] = _opened(f"{self.folder}/{name}")

    def read(self, name: str, reader: DescriptorReader) -> bytes:
        """Return the content of one of them."""
        fd = self._open.get(name, -1)
        return reader.read(fd) if fd >= 0 else text_of(f"{self.folder}/{name}").encode()

    def close(self) -> None:
        """Close the open files."""
        for fd in self._open.values():
            if fd >= 0:
                os.close(fd)
        self._open = {}


def _opened(path: str) -> int:
    """Open a file, unless the script may soon need the descriptor."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    if fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
        return fd
    os.close(fd)
    return -1


def readable(pid: int, tid: int) -> tuple[bool, bool]:
    """Return for schedstat and syscall of a thread if it can be read; opening proves nothing."""
    folder = f"/proc/{pid}/task/{tid}"
    return bool(text_of(f"{folder}/schedstat")), bool(text_of(f"{folder}/syscall"))


def threads_of(pid: int | str) -> set[int]:
    """Return the kernel's numbers of a process's threads; none if it does not exist."""
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except OSError:
        return set()


def text_of(path: str) -> str:
    """Return the text of a small file, "" if it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read().decode(errors="replace")
    return ""


def children_of(pid: int) -> list[int]:
    """Return the processes that the threads of a process have started and that are not reaped."""
    files = [f"/proc/{pid}/task/{tid}/children" for tid in threads_of(pid)]
    return [int(word) for file in files for word in text_of(file).split()]


class Stat(NamedTuple):
    """The stat file of a process or a thread. `status` is that of a process that has ended, as
    os.waitpid returns it. All is empty if it is gone."""

    name: str = ""
    state: str = ""  # a letter: R, S, D, Z...
    user_s: float = 0.0
    system_s: float = 0.0
    start_ticks: int = 0  # since boot
    status: int = 0

    @property
    def cpu_s(self) -> float:
        """Seconds on a core."""
        return self.user_s + self.system_s


def parse_stat(text: str) -> Stat:
    """Return what a stat file tells. The name may hold spaces and brackets."""
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        return Stat()
    user, system = (int(ticks) / TICKS_S for ticks in fields[11:13])
    status = int(fields[49]) if len(fields) > 49 else 0
    return Stat(name, fields[0], user, system, int(fields[19]), status)


def stat_of(pid: int | str) -> Stat:
    """Return the stat of a process."""
    return parse_stat(text_of(f"/proc/{pid}/stat"))


def times(stat: bytes, schedstat: bytes) -> Counters:
    """Return the counters of a thread: from schedstat, in nanoseconds; without it, the CPU time is
    from stat, in ticks."""
    waits = schedstat.split()
    if len(waits) > 2:
        return Counters(int(waits[0]) / 1e9, int(waits[1]) / 1e9, int(waits[2]))
    return Counters(parse_stat(stat.decode(errors="replace")).cpu_s)


def state_char(stat: bytes) -> str:
    """Return the letter of a thread's state (R, S, D, Z...), or "" if unknown."""
    return stat.rpartition(b")")[2][1:2].decode()


def call_of(syscall: bytes) -> tuple[str, int]:
    """Return the system call in which a thread waits, and its first argument, often a descriptor.

    Return ("running", 0) for a thread that has a core or waits for one, ("", 0) if unknown.
    """
    words = syscall.split()
    if not words:
        return "", 0
    if words[0] == b"running":
        return RUNNING, 0
    number = int(words[0])
    first = int(words[1], 16) if len(words) > 3 else 0
    return CALL_NAMES.get(number, f"call {number}"), first


def target_of(pid: int | str, fd: int) -> str:
    """Return the kind of a descriptor: "pipe", "socket", "file" or ""."""
    try:
        name = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
    kind = name.partition(":")[0]
    return kind if kind in ("pipe", "socket") else "file" if name.startswith("/") else ""


def has_internet_sockets(pid: int) -> bool:
    """Return True if a process has sockets of TCP or UDP, or if that is unknown."""
    tables = (text_of(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6", "udp", "udp6"))
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    inodes = {f"socket:[{row[9]}]" for row in rows if len(row) > 9}
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return True
    for fd in fds:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{fd}") in inodes:
                return True
    return False


def tid_of(ident: int) -> int:
    """Return the kernel's number of a thread; 0 if it is unknown, as that of one that is gone.

    `ident` is its threading.get_ident().
    """
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    if thread is not None and thread.native_id:
        return int(thread.native_id)
    return _number_in("self", ident)


def thread_name(ident: int) -> str:
    """Return the name of a thread, or "" if Python did not start it."""
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return "" if thread is None or isinstance(thread, threading._DummyThread) else str(thread.name)


def kernel_number(pid: int, ident: int) -> int:
    """Return the kernel's number of a thread of a process that py-spy calls `ident`.

    Before Python 3.11, `ident` is the number of the C library. Return `ident` itself if the number
    is unknown.
    """
    found = _number_in(str(pid), ident) if ident >= MAX_TID else 0
    return found if found and os.path.exists(f"/proc/{pid}/task/{found}") else ident


def _number_in(process: str, ident: int) -> int:
    """Return the kernel's number in the thread descriptor at an address; 0 if it cannot be read.

    The kernel reads it: a thread may end at any moment, and its descriptor is memory no more.
    """
    if _offset() >= 0:
        with (
            contextlib.suppress(OSError, OverflowError),
            open(f"/proc/{process}/mem", "rb", buffering=0) as memory,
        ):
            memory.seek(ident + _offset())
            return int.from_bytes(memory.read(4), "little")
    return 0


@cache
def _offset() -> int:
    """Return the offset of the kernel's number in a thread descriptor of the C library, else -1.

    This thread's own descriptor shows it.
    """
    own, number = threading.get_ident(), threading.get_native_id()
    if os.uname().machine not in ("x86_64", "aarch64"):
        return -1
    # The descriptor begins at the ident. The one of musl is shorter than that of glibc: read only
    # as much as needed.
    for offset in range(0, DESCRIPTOR_NBYTES, 4):
        if ctypes.c_int.from_address(own + offset).value == number:
            return offset
    return -1
