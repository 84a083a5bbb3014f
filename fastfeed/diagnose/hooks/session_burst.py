"""Bursts of a loop that reads a queue of TensorFlow 1: some consecutive steps whose elements are
all in the queue already.

The training thread is held before a step until the queue is full, or has enough for the burst. The
producers are then held after their puts until those steps are over. Neither the order nor the
number of elements changes. Every hold is limited.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from typing import Any

from fastfeed.diagnose.hooks.experiments import MAX_BATCHES
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Loop

MIN_BURST_STEPS = 3  # fewer steps prove nothing
# a put that takes so much longer, and so many times as long as usual, waits for room
FULL_S, FULL_FACTOR = 0.05, 2.0
RECENT_STEPS = 20  # latest steps, which give the usual time of a step
HOLD_FACTOR = 2.0  # longest hold of the producers, as a multiple of the usual time of the steps


class QueuePuts:
    """The puts into one queue: those that have ended, and those under way by their thread."""

    def __init__(self) -> None:
        self.ended = 0
        self._begun_s: dict[int, float] = {}
        self._lasted_s: deque[float] = deque(maxlen=RECENT_STEPS)

    def begin(self, now_s: float) -> None:
        """Begin a put of this thread, or begin it again, later."""
        self._begun_s[threading.get_ident()] = now_s

    def end(self, end_s: float, *, done: bool) -> None:
        """End the put of this thread."""
        begun_s = self._begun_s.pop(threading.get_ident(), end_s)
        if done:
            self.ended += 1
            self._lasted_s.append(end_s - begun_s)

    def wait_for_room(self) -> bool:
        """Return True if a put takes so much longer than the others that the queue must be full."""
        begun_s = min(list(self._begun_s.values()), default=None)
        if begun_s is None:
            return False
        usual_s = statistics.median(self._lasted_s) if self._lasted_s else 0.0
        return time.perf_counter() - begun_s > FULL_S + FULL_FACTOR * usual_s


class QueueBurst:
    """The bursts of one loop that reads a queue."""

    def __init__(self, log: HookLog, loop: Loop, *, puts: QueuePuts) -> None:
        self._log = log
        self._loop = loop
        self._puts = puts
        self._open = threading.Event()
        self._open.set()
        self._until_s = 0.0
        self._left = 0  # steps of the burst

    def before_step(self) -> bool:
        """Return True if the step that is about to begin belongs to a burst.

        A burst may begin here; then the step is held until the queue has filled.
        """
        before, steps = self._puts.ended, self._loop.steps
        if self._left == 0 and before and steps and self._log.burst_is_due(self._loop):
            self._log.burst(self)
            ready = (self._puts.ended - before) * len(steps) // before
            if self.is_full() and self._loop.buffer:
                ready = self._loop.buffer
            left = min(MAX_BATCHES, ready)
            if left >= MIN_BURST_STEPS:
                usual_s = statistics.median(s.end_s - s.begin_s for s in steps[-RECENT_STEPS:])
                self._until_s = time.perf_counter() + HOLD_FACTOR * left * usual_s + FULL_S
                self._left = left
                self._open.clear()
        if self._left == 0:
            return False
        self._left -= 1
        return True

    def after_step(self, *, done: bool) -> None:
        """End the burst after its last step, or after a step that failed (not `done`)."""
        if self._left == 0 or not done:
            self.release()

    def after_put(self) -> None:
        """Hold a producer during a burst."""
        if not self._open.is_set():
            self._open.wait(max(0.0, self._until_s - time.perf_counter()))

    def release(self, *args: Any) -> None:
        """End the burst, if there is one."""
        self._left = 0
        self._open.set()

    def take(self) -> bool:
        """Return False: the elements stay in the queue."""
        return False

    def is_full(self) -> bool:
        """Return True if a producer waits for room in the queue."""
        return self._puts.wait_for_room()
