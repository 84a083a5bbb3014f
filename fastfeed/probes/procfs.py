"""Threads as the kernel shows them: files of /proc that are opened once and read often."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastfeed.core.unix import TICKS_S, resource

BUFFER_NBYTES = 4096
RUNNING = "running"
COUNTER_FILES = ("stat", "schedstat")
KEPT_FILES = (*COUNTER_FILES, "syscall")
# System calls in which a thread waits, by number.
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


def stat_fields(pid: int) -> list[str]:
    """Return the fields of a process's stat from its state on; none if the process is gone."""
    return fields_of(text_of(f"/proc/{pid}/stat"))


def fields_of(stat: str) -> list[str]:
    """Return the fields of a stat behind the name, which may hold spaces and brackets."""
    return stat.rpartition(")")[2].split()


def cpu_s(fields: Sequence[str]) -> float:
    """Return the CPU seconds in the fields of a stat."""
    return sum(map(int, fields[11:13])) / TICKS_S


def start_ticks(pid: int) -> int:
    """Return the start of a process in clock ticks since boot, or 0 if unknown."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def times(stat: bytes, schedstat: bytes) -> Counters:
    """Return the CPU, queue and system time of a thread, and its page faults.

    CPU and queue time are from schedstat, in nanoseconds; without it, CPU time is from stat, in
    ticks.
    """
    fields = fields_of(stat.decode(errors="replace"))
    faults = user = system = 0
    if len(fields) > 12:
        faults, user, system = int(fields[7]), int(fields[11]), int(fields[12])
    waits = schedstat.split()
    cpu_s, queued_s = (user + system) / TICKS_S, 0.0
    if len(waits) > 1:
        cpu_s, queued_s = int(waits[0]) / 1e9, int(waits[1]) / 1e9
    return Counters(cpu_s, queued_s, system / TICKS_S, faults)


def state_char(stat: bytes) -> str:
    """Return the letter of a thread's state (R, S, D, Z...), or "" if unknown."""
    return stat.rpartition(b")")[2][1:2].decode()


def slow_counters(folder: str) -> tuple[int, int, int]:
    """Return bytes read from devices, involuntary switches, and voluntary ones.

    They change little, or cost more to read than the other counters.
    """
    lines = (text_of(f"{folder}/io") + text_of(f"{folder}/status")).splitlines()
    values = {name: value for name, _, value in (line.partition(":") for line in lines)}
    read_nbytes = int(values.get("read_bytes", 0))
    switches = int(values.get("nonvoluntary_ctxt_switches", 0))
    return read_nbytes, switches, int(values.get("voluntary_ctxt_switches", 0))


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
    return CALLS_BY_MACHINE.get(number, f"call {number}"), first


def target_of(pid: int | str, fd: int) -> str:
    """Return the kind of a descriptor: "pipe", "socket", "file" or ""."""
    try:
        name = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
    kind = name.partition(":")[0]
    return kind if kind in ("pipe", "socket") else "file" if name.startswith("/") else ""
