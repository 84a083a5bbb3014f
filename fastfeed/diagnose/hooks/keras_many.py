"""Keras with steps_per_execution > 1: a call of the train function takes that many batches, and its
waits cannot be observed.

A few calls get all their batches beforehand, in their order: they show what a call computes. The
additional time of the others was waiting.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from fastfeed.diagnose.hooks.copies import nbytes_of_spec
from fastfeed.diagnose.hooks.keras_steps import RECENT, Steps, end_of_data, gpu_behind, settle
from fastfeed.diagnose.hooks.patches import keep
from fastfeed.diagnose.hooks.tf_relay import BatchRelay
from fastfeed.diagnose.hooks.wait_estimate import WaitEstimator
from fastfeed.steps.timeline import Mark, Step

if TYPE_CHECKING:
    from fastfeed.diagnose.hooks.hook_log import HookLog

FIRST = 2  # calls that are left alone: they trace and warm up
CALLS = 5  # of the first burst
LATER = 3  # of the others
LONG_S = 2.0  # a burst whose filling takes longer ends with its present call
MOST_NBYTES = 1 << 28


class MultiStepRecorder(Steps):
    """The train function of the TensorFlow backend if a call makes several steps."""

    def __init__(self, model: Any, log: HookLog) -> None:
        super().__init__(model, log)
        self.excess = WaitEstimator()
        self._relay: BatchRelay | None = None
        self._calls = 0
        self._free = 0  # next calls whose batches are taken beforehand
        self._spent_s = 0.0
        self._alone = log.experiments is None  # no batch is taken ahead
        self._behind = gpu_behind()

    def call(self, plain: Any, iterator: Any) -> Any:
        """Call the train function."""
        if not self.log.active:
            return plain(iterator)
        self._calls += 1
        self._alone = self._alone or type(iterator).__name__ != "OwnedIterator"
        relay = self._ready(iterator) if self._is_free() else None
        return (
            self._whole(plain, iterator)
            if relay is None
            else self._filled(plain, relay, iterator=iterator)
        )

    def _is_free(self) -> bool:
        """Return True if this call belongs to a burst; it may begin one."""
        if self._alone or self._calls <= FIRST:
            return False
        experiments = self.log.experiments
        if self._free == 0 and not self.excess.known:
            self._free = CALLS
        elif (
            self._free == 0
            and experiments is not None
            and self.loop is not None
            and len(self.loop.steps) >= RECENT
        ):
            self._free = LATER if experiments.is_due(self.loop) else 0
        return self._free > 0

    def _ready(self, iterator: Any) -> BatchRelay | None:
        if self._relay is not None and self._relay.fits(iterator):
            return self._relay
        start_s = time.perf_counter()
        try:
            if self._executes * nbytes_of_spec(iterator.element_spec) > MOST_NBYTES:
                self._alone, self._free = True, 0
                return None
            self._relay = BatchRelay(iterator)
        except Exception as error:
            self._alone, self._free = True, 0
            self.log.failed("the waiting of Keras's steps", error)
            return None
        self.log.timeline.marks.append(
            Mark("experiment", start_s, time.perf_counter(), "prepares to measure")
        )
        return self._relay

    def _filled(self, plain: Any, relay: BatchRelay, *, iterator: Any) -> Any:
        """Make a call whose batches are all taken beforehand; fewer if the data end, or fail."""
        ended = self._fill(relay, iterator)
        if not relay.held:
            if ended is None or isinstance(ended, end_of_data()):
                return plain(iterator)  # raises the end again
            raise ended
        if ended is not None:
            self._relay = None
            relay.close()  # a request for one more meets the end of the data
        relay.held, relay.source = 0, None
        begin_s = time.perf_counter()
        result = plain(relay.iterator)
        settle(result, behind=self._behind)
        if ended is None:
            self.excess.computed(time.perf_counter() - begin_s)
            self._note(begin_s, 0.0, free=True)
        elif not isinstance(ended, end_of_data()):
            raise ended
        return result

    def _fill(self, relay: BatchRelay, iterator: Any) -> Exception | None:
        """Take the batches of a call; return how the data ended, if they did."""
        start_s, ended = time.perf_counter(), None
        thread = threading.get_ident()
        self.log.waiting[thread] = start_s
        try:
            while relay.held < self._executes:
                relay.take(iterator, copies=True)
        except Exception as error:
            ended = error
        finally:
            self.log.waiting.pop(thread, None)
        end_s = time.perf_counter()
        self.log.timeline.marks.append(
            Mark("experiment", start_s, end_s, "takes batches beforehand")
        )
        self._spent_s += end_s - start_s
        self._free -= 1
        if self._spent_s > LONG_S and self._calls > FIRST + LATER:
            self._free = 0
        if self._free == 0:
            if self.excess.known and self.log.experiments is not None:
                self.log.experiments.end_burst(self._spent_s)
            self._spent_s = 0.0
        return ended

    def _whole(self, plain: Any, iterator: Any) -> Any:
        """Make a call that is not observed inside."""
        result, begin_s, duration = self.timed(plain, iterator, behind=self._behind)
        if self._calls == 1:
            self.compiled(begin_s, duration)
        self._note(begin_s, self.excess.wait_s(duration))
        return result

    def _note(self, begin_s: float, wait_s: float, *, free: bool = False) -> None:
        """Record the steps of a call that has ended, each with its part of the time and the
        wait."""
        loop, many = self.found(), self._executes
        loop.waits = "modelled" if self.excess.known else "hidden"
        each_s = (time.perf_counter() - begin_s) / many
        for i in range(many):
            at_s = begin_s + i * each_s
            keep(
                loop,
                Step(at_s, at_s + each_s, min(each_s, wait_s / many), free),
                most=self.log.max_steps,
            )
