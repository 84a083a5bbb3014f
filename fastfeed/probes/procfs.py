"""Threads as the kernel shows them: files of /proc that are opened once and read often."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
from collections.abc import Sequence
from typing import Any, NamedTuple

TICKS_S = os.sysconf("SC_CLK_TCK")
BUFFER_NBYTES = 4096
RUNNING = "running"
COUNTER_FILES = ("stat", "schedstat")
KEPT_FILES = (*COUNTER_FILES, "syscall")
# system calls that a thread waits in, by number
CALLS_BY_MACHINE = {
    "x86_64": {
        **{
            0: "read",
            1: "write",
            7: "poll",
            17: "pread",
            18: "pwrite",
            19: "readv",
            20: "writev",
            23: "select",
        },
        **{
            35: "sleep",
            42: "connect",
            43: "accept",
            44: "send",
            45: "recv",
            46: "send",
            47: "recv",
            61: "child",
        },
        **{
            202: "futex",
            230: "sleep",
            232: "poll",
            247: "child",
            270: "select",
            271: "poll",
            281: "poll",
        },
        **{
            288: "accept",
            299: "recv",
            441: "poll",
            449: "futex",
            34: "pause",
            130: "pause",
            128: "pause",
        },
    },
    "aarch64": {
        **{
            63: "read",
            64: "write",
            67: "pread",
            68: "pwrite",
            65: "readv",
            66: "writev",
            72: "select",
            73: "poll",
        },
        **{
            22: "poll",
            98: "futex",
            101: "sleep",
            115: "sleep",
            202: "accept",
            203: "connect",
            206: "send",
        },
        **{
            207: "recv",
            211: "send",
            212: "recv",
            242: "accept",
            243: "recv",
            260: "child",
            95: "child",
            133: "pause",
        },
        **{441: "poll", 449: "futex", 137: "pause"},
    },
}.get(platform.machine(), {})
NEVER_DISK = frozenset(("futex", "sleep", "poll", "select", "recv", "accept", "pause", "child"))


class DescriptorReader:
    """Reads a descriptor from its start without releasing the interpreter lock: every release costs
    up to a switch interval beside a thread that holds it, and the values would no longer be of one
    moment."""

    def __init__(self) -> None:
        self._pread = ctypes.PyDLL(None).pread
        self._pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
        self._pread.restype = ctypes.c_ssize_t
        self._buffer = ctypes.create_string_buffer(BUFFER_NBYTES)
        self._address = ctypes.addressof(self._buffer)

    def read(self, fd: int) -> bytes:
        """Return the first 4 KiB; b"" if there is nothing, or no more."""
        if fd < 0:
            return b""
        count = self._pread(fd, self._address, BUFFER_NBYTES, 0)
        return ctypes.string_at(self._address, count) if count > 0 else b""

    def queued_s(self, fd: int) -> float:
        """Return the seconds for which a thread was ready to run, and had no core, from its
        schedstat; 0 without one."""
        words = self.read(fd).split()
        return int(words[1]) / 1e9 if len(words) > 1 else 0.0


class Counters(NamedTuple):
    """Resources that one or several threads have used since their start: seconds, and counts."""

    cpu_s: float = 0.0
    queued_s: float = 0.0
    system_s: float = 0.0
    faults: int = 0
    read_nbytes: int = 0
    switches: int = 0
    yields: int = 0  # voluntary switches

    def plus(self, other: Counters) -> Counters:
        """Return the sum of both."""
        return Counters._make(a + b for a, b in zip(self, other, strict=True))

    def fields(self) -> dict[str, Any]:
        """Return the values under the names of a Task."""
        found = self._asdict()
        found.pop("yields")
        return found

    def since(self, before: Counters) -> Counters:
        """Return what was used since `before`."""
        return Counters._make(a - b for a, b in zip(self, before, strict=True))


class ThreadFiles:
    """The files of one thread, of this process or of another; what cannot be read reads as empty.

    They are opened for each reading until `keep`, which keeps them open as long as the script has
    enough descriptors.
    """

    def __init__(self, pid: int, tid: int) -> None:
        self.folder = f"/proc/{pid}/task/{tid}"
        self._open: dict[str, int] = {}

    def keep(self, names: Sequence[str] = KEPT_FILES) -> None:
        """Keep these files open: they are read often."""
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
    """Return True for each of (schedstat, syscall) of a thread that can be read; opening alone
    proves nothing."""
    return tuple(
        bool(text_of(f"/proc/{pid}/task/{tid}/{name}")) for name in ("schedstat", "syscall")
    )  # type: ignore[return-value]


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


def times(stat: bytes, schedstat: bytes) -> Counters:
    """Return CPU and queue time from schedstat in nanoseconds, else CPU from stat in ticks; system
    time and faults from stat."""
    fields = stat.rpartition(b")")[2].split()
    waits = schedstat.split()
    system_s = int(fields[12]) / TICKS_S if len(fields) > 12 else 0.0
    user_s = int(fields[11]) / TICKS_S if len(fields) > 12 else 0.0
    cpu_s, queued_s = (
        (int(waits[0]) / 1e9, int(waits[1]) / 1e9) if len(waits) > 1 else (user_s + system_s, 0.0)
    )
    return Counters(cpu_s, queued_s, system_s, int(fields[7]) if len(fields) > 12 else 0)


def state_char(stat: bytes) -> str:
    """Return R, S, D, Z...; "" if unknown."""
    return stat.rpartition(b")")[2][1:2].decode()


def seldom(folder: str) -> tuple[int, int, int]:
    """Return what changes little or costs more to read: bytes read from devices, involuntary
    switches, voluntary ones."""
    found = {"read_bytes": 0, "nonvoluntary_ctxt_switches": 0, "voluntary_ctxt_switches": 0}
    for line in (text_of(f"{folder}/io") + text_of(f"{folder}/status")).splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value)
    return (
        found["read_bytes"],
        found["nonvoluntary_ctxt_switches"],
        found["voluntary_ctxt_switches"],
    )


def call_of(syscall: bytes) -> tuple[str, int]:
    """Return what a thread waits in, and the first argument (often a descriptor): ("running", 0) on
    a core or about to be, ("", 0) if unknown."""
    words = syscall.split()
    if not words:
        return "", 0
    if words[0] == b"running":
        return RUNNING, 0
    number = int(words[0])
    first = int(words[1], 16) if len(words) > 3 else 0
    return CALLS_BY_MACHINE.get(number, f"call {number}"), first


def target_of(pid: int | str, fd: int) -> str:
    """Return the kind of a descriptor: "pipe", "socket", "file" or ""."""
    try:
        name = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
    kind = name.partition(":")[0]
    return kind if kind in ("pipe", "socket") else "file" if name.startswith("/") else ""
