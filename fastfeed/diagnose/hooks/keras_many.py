"""Calls of Keras's train function with steps_per_execution > 1, whose waits cannot be observed.

A few calls get all their batches beforehand, in their order: they show what a call computes. The
additional time of the others was waiting.
"""

from __future__ import annotations

import time
from typing import Any

from fastfeed.diagnose.hooks.experiments import MAX_NBYTES
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_steps import ObservedFunction, RelayRecorder, end_of_data
from fastfeed.diagnose.hooks.tf_relay import BatchRelay
from fastfeed.diagnose.hooks.wait_estimate import RECENT_STEPS
from fastfeed.steps.timeline import Mark, Step

WARMUP_CALLS = 2  # first calls, which trace and warm up
FIRST_BURST_CALLS = 5
LATER_BURST_CALLS = 3
MAX_BURST_FILL_S = 2.0  # a burst that spends more time on filling ends with its present call


class MultiStepRecorder(RelayRecorder):
    """Records the train function of the TensorFlow backend if a call makes several steps."""

    def __init__(self, function: ObservedFunction, log: HookLog) -> None:
        super().__init__(function, log)
        self._free_calls = 0  # next calls whose batches are taken beforehand
        self._fill_s = 0.0  # in this burst
        self._no_bursts = log.experiments is None

    def call(self, original: Any, iterator: Any) -> Any:
        """Call the function."""
        if not self.log.active:
            return original(iterator)
        self._calls += 1
        self._no_bursts = self._no_bursts or type(iterator).__name__ != "OwnedIterator"
        if self._is_free():
            max_nbytes = MAX_NBYTES // self.function.steps
            relay = self._ready_relay(iterator, max_nbytes=max_nbytes)
            if relay is not None:
                return self._free(original, relay, iterator=iterator)
            self._no_bursts, self._free_calls = True, 0
        return self._estimated(original, iterator)

    def _is_free(self) -> bool:
        """Return True if this call belongs to a burst, which may begin here."""
        if self._no_bursts or self._calls <= WARMUP_CALLS:
            return False
        if self._free_calls == 0 and not self._estimator.known:
            self._free_calls = FIRST_BURST_CALLS
        elif self._free_calls == 0 and self.log.burst_is_due(self.loop, min_steps=RECENT_STEPS):
            self._free_calls = LATER_BURST_CALLS
        return self._free_calls > 0

    def _free(self, original: Any, relay: BatchRelay, *, iterator: Any) -> Any:
        """Make a call whose batches are all taken beforehand; fewer if the data end, or fail."""
        error = self._fill(relay, iterator)
        if not relay.held:
            if error is None or isinstance(error, end_of_data()):
                return original(iterator)  # raises the end again
            raise error
        if error is not None:
            self._relay = None
            relay.close()  # a request for one more meets the end of the data
        relay.hand_out(relay.held)
        begin_s = time.perf_counter()
        result = original(relay.iterator)
        self._await_gpu(result)
        if error is None:
            end_s = time.perf_counter()
            self._estimator.add(end_s - begin_s)
            self._add_steps(Step(begin_s, end_s, 0.0, free=True))
        elif not isinstance(error, end_of_data()):
            raise error
        return result

    def _fill(self, relay: BatchRelay, iterator: Any) -> Exception | None:
        """Take the batches of a call; return how the data ended, if they did."""
        start_s, ended = time.perf_counter(), None
        try:
            with self.log.wait(start_s):
                while relay.held < self.function.steps:
                    relay.take(iterator, copies=True)
        except Exception as error:
            ended = error
        end_s = time.perf_counter()
        self.log.add_mark(Mark("experiment", start_s, end_s, "takes batches beforehand"))
        self._fill_s += end_s - start_s
        self._free_calls -= 1
        if self._fill_s > MAX_BURST_FILL_S and self._calls > WARMUP_CALLS + LATER_BURST_CALLS:
            self._free_calls = 0
        if self._free_calls == 0:
            if self._estimator.known:
                self.log.end_burst(self._fill_s)
            self._fill_s = 0.0
        return ended

    def _estimated(self, original: Any, iterator: Any) -> Any:
        """Make a call that is not observed inside: time beyond the usual was waiting."""
        result, step = self._timed_call(original, iterator)
        wait_s = self._estimator.wait_s(step.end_s - step.begin_s)
        self._add_steps(step._replace(wait_s=wait_s))
        return result

    def _add_steps(self, call: Step) -> None:
        """Record the steps of a call, each with an equal part of its time and its wait."""
        steps = self.function.steps
        waits = "modelled" if self._estimator.known else "hidden"
        each_s = (call.end_s - call.begin_s) / steps
        for i in range(steps):
            at_s = call.begin_s + i * each_s
            step = Step(at_s, at_s + each_s, min(each_s, call.wait_s / steps), call.free)
            self.add_step(step, waits=waits)
