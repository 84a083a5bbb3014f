"""Delay with which a thread gets the interpreter lock in a process that trains."""

from __future__ import annotations

import statistics
import threading
import time

from fastfeed.probes import procfs

NAP_S = 0.005
NAPS = 100


class LockProbe:
    """A thread that measures its delay in getting the interpreter lock back after a sleep.

    A training step has the same delay.
    """

    def __init__(self) -> None:
        self.late_s: float | None = None  # the median delay, at the end
        self._over = False
        self.thread = threading.Thread(target=self._run, name="fastfeed-lock-probe", daemon=True)

    def stop(self) -> None:
        """End the thread within NAP_S."""
        self._over = True

    def _run(self) -> None:
        late = []
        for _ in range(NAPS):
            queued, start = run_delay_s(), time.perf_counter()
            time.sleep(NAP_S)
            if self._over:
                return
            late.append(time.perf_counter() - start - NAP_S - (run_delay_s() - queued))
        self.late_s = statistics.median(late)


def run_delay_s() -> float:
    """Return the seconds for which this thread waited for a core, or 0 if unknown."""
    words = procfs.text_of("/proc/thread-self/schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0
