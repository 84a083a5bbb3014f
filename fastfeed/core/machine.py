"""Limits of the machine and of control groups, and kills for lack of memory."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import psutil

from fastfeed.core.unix import resource, usable_cores

ROOT = Path("/sys/fs/cgroup")
KERNEL_SETTINGS = Path("/proc/sys")
MIN_FREE_NBYTES = 2**20
WORKER_NBYTES, WORKER_FILES = 30_000_000, 5  # of a worker process, without the user's modules
TRAINER_FILES = 64  # of the trainer, beside its workers
# Of a producer thread: touched stack and Python's own state, and parts of the map of the process.
PRODUCER_THREAD_NBYTES, PRODUCER_THREAD_MAPS = 40_000, 3
# Ranks of one machine, as told by torchrun, Open MPI, Intel MPI, MPICH, MVAPICH, Horovod and Slurm.
LOCAL_RANKS = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PMI_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "HOROVOD_LOCAL_SIZE",
    "SLURM_NTASKS_PER_NODE",
)
UNLIMITED = 2**60  # control groups of version 1 write a huge number if there is no limit


def free_memory_nbytes(root: Path = ROOT, own: str | None = None) -> int:
    """Return the bytes that this process may still allocate.

    This is the free memory of the machine, or of the tightest control group if that is less.
    """
    free = int(psutil.virtual_memory().available)
    for folder in memory_groups(root, own):
        bound, used = _most_memory(folder), used_memory_nbytes(folder)
        if bound < UNLIMITED and used is not None:
            free = min(free, bound - used)
    return max(free, MIN_FREE_NBYTES)


def used_memory_nbytes(folder: Path, *, kinds: Sequence[str] = ("inactive",)) -> int | None:
    """Return the bytes that a control group uses, without the pages of files of some kinds, by
    default those that the kernel drops first; None if unknown."""
    used = _number(folder, "memory.current", "memory.usage_in_bytes")
    text, dropped = _text(f"{folder}/memory.stat"), 0
    for kind in kinds:
        names = f"total_{kind}_file", f"{kind}_file"  # version 1 has both: the first is for all
        found = [re.search(rf"^{name} (\d+)$", text, re.MULTILINE) for name in names]
        dropped += next((int(one[1]) for one in found if one), 0)
    return None if used is None else max(0, used - dropped)


def nearly_full(share: float, root: Path = ROOT, *, own: str | None = None) -> bool:
    """Return True if less than a `share` of what a control group may use is left, beside the pages
    of files."""
    for folder in memory_groups(root, own):
        most, used = _most_memory(folder), used_memory_nbytes(folder, kinds=("inactive", "active"))
        if most < UNLIMITED and used is not None and used > most * (1 - share):
            return True
    return False


def _most_memory(folder: Path) -> int:
    """Return the bytes above which a control group is held up, or killed."""
    limits = [
        _number(folder, "memory.max", "memory.limit_in_bytes"),
        _number(folder, "memory.high"),
    ]
    return min((limit for limit in limits if limit is not None), default=UNLIMITED)


def memory_stalls_s(root: Path = ROOT, own: str | None = None) -> float | None:
    """Return the seconds so far in which some task of this control group waited for memory, or of
    the machine where the group does not say; None if neither does."""
    files = [f"{folder}/memory.pressure" for folder in memory_groups(root, own)]
    for file in (*files, "/proc/pressure/memory"):
        found = re.search(r"^some .*total=(\d+)", _text(file), re.MULTILINE)
        if found:
            return int(found[1]) / 1e6
    return None


def cores() -> int:
    """Return the cores that this process may use, by its affinity and its control groups."""
    count, allowed = usable_cores(), quota()
    return count if allowed is None else max(1, min(count, math.ceil(allowed)))


def cores_of_rank() -> int:
    """Return the cores that this process may use beside the other ranks of its job on this machine,
    which share them unless each is bound to its own."""
    bound = usable_cores() < (os.cpu_count() or 1)
    return cores() if bound else max(1, cores() // local_ranks())


def quota(root: Path = ROOT, own: str | None = None) -> float | None:
    """Return the cores that the tightest control group allows; None without a limit."""
    found = []
    for folder in control_groups("cpu", root, own=own):
        names = "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"
        words = [word for name in names for word in _text(f"{folder}/{name}").split()]
        if len(words) == 2 and all(word.isdigit() for word in words):  # not "max" or "-1"
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def local_ranks() -> int:
    """Return the number of ranks of a job on this machine, 1 if no launcher tells it."""
    told = (os.environ.get(name, "") for name in LOCAL_RANKS)
    return next((int(text) for text in told if text.isdigit() and int(text) > 0), 1)


def private_nbytes(pid: int) -> int:
    """Return the bytes of a process that are neither shared memory nor pages of files; 0 if it is
    gone."""
    try:
        found = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(found.rss - getattr(found, "shared", 0))  # only Linux tells the latter


def workers_that_fit(running: int = 0, *, nbytes: int = WORKER_NBYTES) -> tuple[int, str]:
    """Return how many worker processes of `nbytes` this machine can hold, those that are `running`
    included, and what limits them."""
    free = free_memory_nbytes() // nbytes
    limits = [(running + free, f"the free memory, at {nbytes / 1e6:.0f} MB each")]
    if resource is not None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            limits.append(
                ((files - TRAINER_FILES) // WORKER_FILES, f"`ulimit -n`, which is {files}")
            )
    return min((max(1, count), why) for count, why in limits + _task_limits(running))


def threads_that_fit(processes: int, running: int = 0) -> tuple[int, str]:
    """Return how many threads each of so many processes can hold, those that are `running` in all
    included, and what limits them."""
    free = free_memory_nbytes() // PRODUCER_THREAD_NBYTES
    limits = [(running + free, "the free memory, at 40 KB each"), *_task_limits(running)]
    limits = [(count // processes, why) for count, why in limits]
    maps = _number(KERNEL_SETTINGS, "vm/max_map_count")
    if maps is not None:
        limits.append((maps // PRODUCER_THREAD_MAPS, f"vm.max_map_count, which is {maps}"))
    return min((max(1, count), why) for count, why in limits)


def _task_limits(running: int) -> list[tuple[int, str]]:
    """Return the limits on threads and processes together, of which so many are `running`, and
    their names."""
    limits = []
    if resource is not None:
        tasks, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        if tasks != resource.RLIM_INFINITY:
            limits.append((tasks, f"`ulimit -u`, which is {tasks}"))
    for folder in control_groups("pids"):
        tasks = _number(folder, "pids.max")
        if tasks is not None:
            left = tasks - (_number(folder, "pids.current") or 0)
            limits.append((running + left, f"pids.max of the control group, which is {tasks}"))
    for name in ("pid_max", "threads-max"):
        tasks = _number(KERNEL_SETTINGS, f"kernel/{name}")
        if tasks is not None:
            limits.append((tasks, f"kernel.{name}, which is {tasks}"))
    return limits


def oom_kills(root: Path = ROOT, own: str | None = None) -> int | None:
    """Return the number of processes killed for memory in this control group, None if unknown."""
    for folder in memory_groups(root, own):
        for name in ("memory.events", "memory.oom_control"):
            found = re.search(r"^oom_kill (\d+)$", _text(f"{folder}/{name}"), re.MULTILINE)
            if found:
                return int(found[1])
    return None


def memory_groups(root: Path = ROOT, own: str | None = None) -> list[Path]:
    """Return the control group folders that bound this process's memory, innermost first."""
    return control_groups("memory", root, own=own)


def control_groups(kind: str, root: Path = ROOT, *, own: str | None = None) -> list[Path]:
    """Return the control group folders that bound what this process uses of a kind, innermost
    first.

    The format is described in cgroups(7).
    """
    known = _text("/proc/self/cgroup") if own is None else own
    return list(_groups_of(known, kind, root=root))


@lru_cache(maxsize=32)  # a group is there as long as this process is in it
def _groups_of(own: str, kind: str, *, root: Path) -> tuple[Path, ...]:
    folders: list[Path] = []
    for line in own.splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and kind not in kinds.split(","):
            continue
        for base in (root / kind,) if kinds else (root, root / "unified"):
            # Inside a container, the path is the host's and only the root is visible.
            steps = Path(path.lstrip("/"))
            folders += [base / part for part in (steps, *steps.parents)]
    return tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())


def _text(file: str) -> str:
    """Return what a file of the kernel's holds, "" if there is none. A running feed reads many of
    them, for which pathlib takes three times as long."""
    try:
        with open(file, "rb", buffering=0) as opened:
            return opened.read().decode()
    except OSError:
        return ""


def _number(folder: Path, *names: str) -> int | None:
    texts = [_text(f"{folder}/{name}").strip() for name in names]
    return next((int(text) for text in texts if text.isdigit()), None)
