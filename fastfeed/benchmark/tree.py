"""Cores and memory that this process and all its descendants use together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psutil


def cpu_s() -> float:
    """Return CPU seconds until now, also those of descendants that have ended.

    A process that awaits an ended child inherits its seconds, so between two calls the sum loses
    nothing and counts nothing twice, although processes start and end.
    """
    # user and system, its own and of its ended children
    return sum(_over(lambda p: float(sum(p.cpu_times()[:4]))))


def memory_nbytes() -> int:
    """Return bytes of memory in use; a shared page counts once (the sum of the proportional set
    sizes)."""
    return int(sum(_over(lambda p: float(p.memory_full_info().pss))))


def _over(figure: Callable[[psutil.Process], float]) -> Iterator[float]:
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            yield figure(process)
        except psutil.Error:  # it has ended since it was listed
            continue
