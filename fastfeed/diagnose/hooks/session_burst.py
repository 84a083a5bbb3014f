"""The experiment on a loop that reads a queue: some steps back to back whose elements are all in
the queue already.

The training thread is held before a step until the queue has enough; then producers are held before
their next put, until those steps are over. Neither the order nor the number of elements changes.
Every hold is limited.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

from fastfeed.diagnose.hooks.queue_model import QueueModel
from fastfeed.steps.timeline import Loop, Mark

if TYPE_CHECKING:
    from fastfeed.diagnose.hooks.hook_log import HookLog

STEPS = 12  # of a burst, at most
LEAST = 3  # at least: fewer prove nothing
FILL_S = 1.0  # the training is held at most
SLACK = 2.0  # times the expected duration of the steps: the longest hold of producers
RECENT = 20  # steps that give the expected duration


class QueueBurst:
    """The bursts of one session."""

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._open = threading.Event()
        self._open.set()
        self._until_s = 0.0
        self._loop: Loop | None = None
        self._left = 0

    def before_step(self, loop: Loop, model: QueueModel, *, count: int) -> bool:
        """Return True if the step that is about to take `count` elements belongs to a burst; it may
        begin one, and hold for it."""
        if self._loop is None:
            self._begin(loop, model, count=count)
        if self._loop is not loop or self._left == 0 or model.level < count + model.minimum:
            self.release()
            return False
        self._left -= 1
        return True

    def after_step(self, *, done: bool) -> None:
        """Note the end of a step; one that failed ends the burst, too."""
        if self._loop is not None and (self._left == 0 or not done):
            self.release()

    def before_put(self) -> None:
        """Hold a producer during a burst."""
        if not self._open.is_set():
            self._open.wait(max(0.0, self._until_s - time.perf_counter()))

    def release(self) -> None:
        """End a burst, if there is one."""
        self._left, self._loop = 0, None
        self._open.set()

    def _begin(self, loop: Loop, model: QueueModel, *, count: int) -> None:
        experiments = self._log.experiments
        if experiments is None or len(loop.steps) < RECENT or not experiments.is_due(loop):
            return
        start_s = time.perf_counter()
        model.wait_for(model.minimum + STEPS * count, FILL_S)
        end_s = time.perf_counter()
        self._log.timeline.marks.append(Mark("experiment", start_s, end_s, "the queue fills"))
        experiments.end_burst(end_s - start_s)
        steps = min(STEPS, (model.level - model.minimum) // count)
        if steps >= LEAST:
            usual = statistics.median(step.end_s - step.begin_s for step in loop.steps[-RECENT:])
            self._until_s = end_s + SLACK * steps * usual + FILL_S / 10
            self._loop, self._left = loop, steps
            self._open.clear()
