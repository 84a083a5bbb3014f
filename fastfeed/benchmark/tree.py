"""Cores and memory that this process and all its descendants use together."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import psutil

from fastfeed.core.unix import ON_LINUX, usable_cores

OWN_PAGES = re.compile(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", re.MULTILINE)  # proc(5), smaps


def cpu_s() -> float:
    """Return CPU seconds until now, also those of descendants that have ended.

    A process that awaits an ended child inherits its seconds, so between two calls the sum loses
    nothing and counts nothing twice, although processes start and end.
    """
    # user and system, its own and of its ended children
    return _sum(lambda process: sum(process.cpu_times()[:4]))


def others_cpu_s() -> float:
    """Return CPU seconds that other programs have taken until now, or the host of this machine; 0
    where this process has only some of its cores."""
    if usable_cores() != psutil.cpu_count():
        return 0.0
    times = psutil.cpu_times()
    idle = sum(getattr(times, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
    return float(sum(times)) - idle - cpu_s()


def own_nbytes() -> int:
    """Return bytes of anonymous and shared memory in use; a shared page counts once.

    The code of libraries is left out: the kernel shares it with programs outside of this tree, and
    their number would change the figure (0.35 GB of TensorFlow's). Elsewhere than on Linux it is
    the memory that the end of each process would free.
    """
    return int(_sum(_pages if ON_LINUX else lambda process: process.memory_full_info().uss))


def _pages(process: psutil.Process) -> float:
    try:
        found = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError as error:
        raise psutil.NoSuchProcess(process.pid) from error
    return 1024.0 * sum(map(int, OWN_PAGES.findall(found)))


def _sum(figure: Callable[[psutil.Process], float]) -> float:
    own, total = psutil.Process(), 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            total += figure(process)
        except psutil.Error:  # it has ended since it was listed
            continue
    return total
