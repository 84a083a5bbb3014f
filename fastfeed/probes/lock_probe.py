"""Delay with which a thread gets the interpreter lock in a process that trains."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time

NAP_S = 0.005
NAPS = 100


class LockProbe:
    """A thread that sleeps and measures how late it gets the interpreter lock back, as a training
    step would."""

    def __init__(self) -> None:
        self.late_s: float | None = None  # the median, once it is known
        self._over = False
        self.thread = threading.Thread(target=self._run, name="fastfeed-lock-probe", daemon=True)

    def stop(self) -> None:
        """End the thread within a nap."""
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
    """Return seconds for which this thread was ready and had no core; 0 if the system does not
    tell."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open("/proc/thread-self/schedstat") as file,
    ):
        return int(file.read().split()[1]) / 1e9
    return 0.0
