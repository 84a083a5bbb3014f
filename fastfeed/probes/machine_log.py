"""Use of the machine's cores, disks, network and memory over a time, and the pools of threads of
native libraries."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import psutil

from fastfeed.core.machine import cores, free_memory_nbytes, quota
from fastfeed.core.unix import PAGE_NBYTES
from fastfeed.errors import clean
from fastfeed.probes import procfs
from fastfeed.probes.gpu import GpuUsage

MIN_OTHER_CORES = 0.05  # of a core
SATURATED = 0.8  # share of the cores from which no core counts as free
MAX_LISTED = 5
MAX_COMMAND = 80  # characters of a command line
PARTITIONS = ("loop", "ram", "dm-", "md", "zram")


@dataclass(frozen=True)
class Machine:
    """The machine over the time of observation; CPU in cores."""

    cores: int
    own_cpu: float = 0.0  # by the script's processes
    other_cpu: float = 0.0  # by all others
    steal: float = 0.0  # that the hypervisor kept
    runnable: float = 0.0  # threads of the script that ran or would have run, on average
    disk_read_nbytes_s: float = 0.0
    disk_write_nbytes_s: float = 0.0
    net_nbytes_s: float = 0.0
    memory_nbytes: int = 0
    memory_free_nbytes: int = 0
    swap_nbytes_s: float = 0.0
    gpus: tuple[GpuUsage, ...] = ()
    # other processes, each with its pid and its command line, and the cores that they use
    noisy: tuple[tuple[str, float], ...] = ()


class Totals(NamedTuple):
    """Counters of the whole machine at one moment: seconds on cores, bytes."""

    now_s: float
    cpu_s: float
    steal_s: float
    read: int
    write: int
    net: int
    swapped: int


def totals() -> Totals:
    """Return the present counters."""
    cpu = psutil.cpu_times()
    busy_s = (
        cpu.user + cpu.system + cpu.nice + getattr(cpu, "irq", 0.0) + getattr(cpu, "softirq", 0.0)
    )
    read = write = 0
    for name, disk in (psutil.disk_io_counters(perdisk=True) or {}).items():
        if not name.startswith(PARTITIONS) and os.path.exists(f"/sys/block/{name}"):
            read, write = read + disk.read_bytes, write + disk.write_bytes
    net = psutil.net_io_counters(pernic=True) or {}
    moved = sum(nic.bytes_recv + nic.bytes_sent for name, nic in net.items() if name != "lo")
    pages = dict(
        line.split()
        for line in procfs.text_of("/proc/vmstat").splitlines()
        if line.startswith("pswp")
    )
    swapped = sum(map(int, pages.values())) * PAGE_NBYTES
    return Totals(
        time.perf_counter(), busy_s, getattr(cpu, "steal", 0.0), read, write, moved, swapped
    )


def processes() -> dict[int, tuple[str, float]]:
    """Return the name and the CPU seconds of every visible process."""
    stats = {int(name): procfs.stat_of(name) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: (stat.name, stat.cpu_s) for pid, stat in stats.items() if stat.state}


def noisy(
    before: dict[int, tuple[str, float]],
    after: dict[int, tuple[str, float]],
    *,
    own: Collection[int],
    wall_s: float,
) -> tuple[tuple[str, float], ...]:
    """Return the other processes that used most, with the cores that they used.

    Each is named with its pid and the begin of its command line.
    """
    used = {
        pid: cpu_s - before.get(pid, ("", 0.0))[1]
        for pid, (_, cpu_s) in after.items()
        if pid not in own
    }
    worst = sorted(used, key=lambda pid: used[pid], reverse=True)[:MAX_LISTED]
    return tuple(
        (_named(pid, after[pid][0]), used[pid] / wall_s)
        for pid in worst
        if used[pid] > MIN_OTHER_CORES * wall_s
    )


def _named(pid: int, name: str) -> str:
    words = procfs.text_of(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    command = f": {words[:MAX_COMMAND]}" if words else ""  # a thread of the kernel has none
    return clean(f"{name} (pid {pid}{command})")


def one_core() -> float:
    """Return the cores that one thread can have: less than 1 if the quota is."""
    return min(1.0, quota() or 1.0)


def pools_of(modules: Mapping[str, ModuleType | Any]) -> dict[str, int]:
    """Return the number of threads by library, as those of `modules` report it."""
    found: dict[str, int] = {}
    for name, module, function in (
        ("OpenCV", "cv2", "getNumThreads"),
        ("torch", "torch", "get_num_threads"),
    ):
        count = int(_call(modules.get(module), function, default=0))
        if count:
            found[name] = count
    for pool in _call(modules.get("threadpoolctl"), "threadpool_info", default=()):
        name = str(pool.get("internal_api", "native"))
        found[name] = max(found.get(name, 0), int(pool.get("num_threads", 0)))
    return found


def _call(module: Any, function: str, *, default: Any) -> Any:
    """Return the result of a function of a module, or the default if it cannot be called."""
    try:
        return getattr(module, function)()
    except Exception:  # the script's own library, of any version, may raise anything
        return default


class MachineLog:
    """Records the use of the machine between two moments."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin to count."""
        self._first = totals()
        self._processes = processes()

    def machine(
        self,
        used: Iterable[tuple[float, float]],
        *,
        own: Collection[int],
        gpus: tuple[GpuUsage, ...],
        names: Mapping[int, str],
    ) -> Machine:
        """Return the use since the beginning.

        `used`: CPU and queue seconds of each of the script's threads. `own`: processes of the
        script and the diagnosis. `names`: names that the script gives to other processes.
        """
        last = totals()
        wall_s = max(last.now_s - self._first.now_s, 1e-9)
        per_s = [(b - a) / wall_s for a, b in zip(self._first, last, strict=True)]
        spent = list(used)
        own_cpu = sum(cpu_s for cpu_s, _ in spent) / wall_s
        memory = psutil.virtual_memory()
        found = {pid: (names.get(pid, name), cpu_s) for pid, (name, cpu_s) in processes().items()}
        return Machine(
            *(cores(), own_cpu, max(per_s[1] - own_cpu, 0.0), per_s[2]),
            runnable=own_cpu + sum(queued_s for _, queued_s in spent) / wall_s,
            disk_read_nbytes_s=per_s[3],
            disk_write_nbytes_s=per_s[4],
            net_nbytes_s=per_s[5],
            memory_nbytes=int(memory.total),
            memory_free_nbytes=free_memory_nbytes(),
            swap_nbytes_s=per_s[6],
            gpus=gpus,
            noisy=noisy(self._processes, found, own=own, wall_s=wall_s),
        )
