"""What this process and all its descendants use together: cores and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psutil


def cpu_s() -> float:
    """Seconds on a core until now, also those of descendants that have ended.

    Who waits for an ended child inherits its seconds, so between two calls the sum loses nothing
    and counts nothing twice, whoever starts or ends meanwhile.
    """
    # user and system, its own and of its ended children
    return sum(_over(lambda p: float(sum(p.cpu_times()[:4]))))


def memory_nbytes() -> int:
    """Bytes of memory in use; a page that several share counts once (the sum of the proportional
    set sizes)."""
    return int(sum(_over(lambda p: float(p.memory_full_info().pss))))


def _over(figure: Callable[[psutil.Process], float]) -> Iterator[float]:
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            yield figure(process)
        except psutil.Error:  # it has ended since it was listed
            continue
