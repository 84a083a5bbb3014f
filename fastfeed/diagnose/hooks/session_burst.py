"""Experiments on a loop that reads a queue: some consecutive steps whose elements are all in the
queue already.

The training thread is held before a step until the queue has enough. Then producers are held before
their next put until those steps are over. Neither the order nor the number of elements changes.
Every hold is limited.
"""

from __future__ import annotations

import statistics
import threading
import time

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.queue_model import QueueModel
from fastfeed.diagnose.hooks.wait_estimate import RECENT_STEPS
from fastfeed.steps.timeline import Loop, Mark

MIN_BURST_STEPS, MAX_BURST_STEPS = 3, 12  # fewer steps prove nothing
MAX_HOLD_S = 1.0  # longest hold of the training thread
HOLD_FACTOR = 2.0  # longest hold of the producers, as a multiple of the usual time of the steps


class QueueBursts:
    """The bursts of one session."""

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._open = threading.Event()
        self._open.set()
        self._until_s = 0.0
        self._loop: Loop | None = None
        self._left = 0

    def before_step(self, loop: Loop, model: QueueModel, *, count: int) -> bool:
        """Return True if the step that is about to take `count` elements belongs to a burst.

        A burst may begin here; then the step is held until the queue has filled.
        """
        if self._loop is None and self._log.burst_is_due(loop, min_steps=RECENT_STEPS):
            self._begin(loop, model, count=count)
        if self._loop is not loop or self._left == 0 or model.level < count + model.minimum:
            self.release()
            return False
        self._left -= 1
        return True

    def after_step(self, *, done: bool) -> None:
        """End the burst after its last step, or after a step that failed (not `done`)."""
        if self._loop is not None and (self._left == 0 or not done):
            self.release()

    def before_put(self) -> None:
        """Hold a producer during a burst."""
        if not self._open.is_set():
            self._open.wait(max(0.0, self._until_s - time.perf_counter()))

    def release(self) -> None:
        """End the burst, if there is one."""
        self._left, self._loop = 0, None
        self._open.set()

    def _begin(self, loop: Loop, model: QueueModel, *, count: int) -> None:
        start_s = time.perf_counter()
        model.wait_for(model.minimum + MAX_BURST_STEPS * count, MAX_HOLD_S)
        end_s = time.perf_counter()
        self._log.add_mark(Mark("experiment", start_s, end_s, "the queue fills"))
        self._log.end_burst(end_s - start_s)
        steps = min(MAX_BURST_STEPS, (model.level - model.minimum) // count)
        if steps >= MIN_BURST_STEPS:
            latest = loop.steps[-RECENT_STEPS:]
            usual_s = statistics.median(step.end_s - step.begin_s for step in latest)
            self._until_s = end_s + HOLD_FACTOR * steps * usual_s + MAX_HOLD_S / 10
            self._loop, self._left = loop, steps
            self._open.clear()
