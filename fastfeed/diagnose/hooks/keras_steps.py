"""Calls of a function of TensorFlow that takes its batch from an iterator, as steps."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Protocol

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_loader import LoaderFacts, loader_facts
from fastfeed.diagnose.hooks.patches import calling_frames
from fastfeed.diagnose.hooks.tf_relay import BatchRelay
from fastfeed.diagnose.hooks.wait_estimate import WaitEstimator
from fastfeed.steps.recorder import site_of
from fastfeed.steps.timeline import Loop, Mark, Step

# A relayed batch takes about 0.2 ms more. Of steps shorter than ALWAYS_OBSERVED_S only so many, one
# after another, in every period of so many calls are observed after the first one.
ALWAYS_OBSERVED_S = 0.025
OBSERVED_CALLS, OBSERVATION_PERIOD = 8, 64


class ObservedFunction(Protocol):
    """A function whose calls are steps."""

    kind: str
    name: str
    steps: int  # in each call

    def facts(self) -> LoaderFacts:
        """Return the facts about its input; called in the first call."""

    def takes_one(self) -> bool:
        """Return True if a call takes exactly one batch; called once it has been traced."""


def fit_name(model: Any) -> str:
    """Return the name of the loop that trains a model."""
    return f"{getattr(model, 'name', type(model).__name__)}.fit"


class TrainFunction:
    """The train function of a Keras model."""

    kind = "keras"

    def __init__(self, model: Any) -> None:
        self.name = fit_name(model)
        self.steps = int(getattr(model, "steps_per_execution", 1) or 1)

    def facts(self) -> LoaderFacts:
        """Return the facts about the data adapter of the `fit` that calls."""
        iterators = (
            frame.f_locals.get("epoch_iterator")
            for frame in calling_frames()
            if frame.f_code.co_name == "fit"
        )
        iterator = next((found for found in iterators if found is not None), None)
        facts = loader_facts(getattr(iterator, "data_adapter", None))
        if self.takes_one():
            return facts
        steps = (
            f"steps_per_execution={self.steps}: a call makes so many steps, each shown with an "
            "equal part of its time; with 1, its waits for input are measured"
        )
        return facts._replace(note=f"{facts.note}; {steps}".strip("; "))

    def takes_one(self) -> bool:
        """Return True if a call is one step, which takes one batch."""
        return self.steps == 1


class TensorFlowRecorder:
    """Records a function of TensorFlow that takes its batches from an iterator.

    If it takes one, the batch is taken before the call and relayed, so that its wait can be
    measured. Waits for several are hidden in the call.
    """

    def __init__(self, function: ObservedFunction, log: HookLog) -> None:
        self.function = function
        self.log = log
        self._loop: Loop | None = None  # until the first step
        self._calls = 0
        self._estimator = WaitEstimator()
        self._relay: BatchRelay | None = None
        self._unobservable = False
        # True if a GPU may go on with a step after its call
        self._has_gpu = bool(sys.modules["tensorflow"].config.list_physical_devices("GPU"))

    def call(self, original: Any, iterator: Any) -> Any:
        """Call the function."""
        relay = self._relay
        if relay is None or not relay.holds(iterator):
            kind = type(iterator).__name__
            if not self.log.active or not kind.endswith("Iterator"):
                return original(iterator)
            # the batches of an iterator of tf.distribute cannot be relayed
            self._unobservable = self._unobservable or kind != "OwnedIterator"
            self._calls += 1
            relay = self._relay_for(iterator)
        if relay is None:
            return self._timed(original, iterator)
        begin_s, free = time.perf_counter(), relay.holds(iterator)
        if not free:
            with self.log.wait(begin_s):
                relay.take(copies=False)
        wait_s = 0.0 if free else time.perf_counter() - begin_s
        error = relay.hand_out()
        if isinstance(error, sys.modules["tensorflow"].errors.OutOfRangeError):
            return original(iterator)  # raises it again, with everything else that it does
        if error is not None:
            raise error
        result = original(relay.iterator)
        if self.log.active:
            self._await_gpu(result)
            end_s = time.perf_counter()
            self._estimator.add(end_s - begin_s - wait_s)
            self._add_call(Step(begin_s, end_s, wait_s, free))
        return result

    def _relay_for(self, iterator: Any) -> BatchRelay | None:
        """Return the relay of a call that is observed, after the burst that is due."""
        if self._calls == 1 or self._unobservable:
            return None
        seldom = self._calls >= OBSERVATION_PERIOD and self._estimator.usual_s <= ALWAYS_OBSERVED_S
        burst = self.log.burst_is_due(self._loop)
        if seldom and not burst and self._calls % OBSERVATION_PERIOD >= OBSERVED_CALLS:
            return None
        if self._relay is None or not self._relay.relays(iterator):
            start_s = time.perf_counter()
            try:
                self._relay = BatchRelay(iterator)
                self._relay.relays(iterator)
            except Exception as error:
                self._unobservable = True
                self.log.failed("the waiting of Keras's steps", error)
                return None
            end_s = time.perf_counter()
            self.log.add_mark(Mark("experiment", start_s, end_s, "prepares to measure"))
        if burst:
            self.log.burst(self._relay)
        return self._relay

    def _timed(self, original: Any, iterator: Any) -> Any:
        """Make a call that is not observed inside: time beyond the usual was waiting."""
        begin_s = time.perf_counter()
        with self.log.wait(begin_s):
            result = original(iterator)
            self._await_gpu(result)
        end_s = time.perf_counter()
        if self._calls == 1:  # it has traced the function
            self.log.add_mark(Mark("compile", begin_s, end_s, self.function.name))
            self._unobservable = self._unobservable or not self.function.takes_one()
        if self._unobservable:
            self._add_call(Step(begin_s, end_s, 0.0), waits="hidden")
        else:
            wait_s = self._estimator.wait_s(end_s - begin_s)
            waits = "modelled" if self._estimator.known else "exact"
            self._add_call(Step(begin_s, end_s, wait_s), waits=waits)
        return result

    def _add_call(self, call: Step, *, waits: str | None = None) -> None:
        """Record the steps of a call, each with an equal part of its time.

        `waits` says how the wait was found, if that may have changed.
        """
        if self._loop is None:
            kind, facts = self.function.kind, self.function.facts()
            loop = Loop(
                self.function.name,
                kind,
                threading.get_ident(),
                where=site_of(sys._getframe(1)),
                buffer=facts.buffer,
                leaves=facts.leaves,
                note=facts.note,
            )
            self._loop = self.log.add_loop((kind, id(self)), loop)
        each_s = (call.end_s - call.begin_s) / self.function.steps
        for i in range(self.function.steps):
            at_s = call.begin_s + i * each_s
            step = call._replace(begin_s=at_s, end_s=at_s + each_s)
            self.log.add_step(self._loop, step, waits=waits)

    def _await_gpu(self, result: Any) -> None:
        """Wait for a GPU that works asynchronously: the rest of its work is no wait for input."""
        for tensor in sys.modules["tensorflow"].nest.flatten(result) if self._has_gpu else ():
            if "GPU" in getattr(tensor, "device", "") and tensor.shape.num_elements() == 1:
                tensor.numpy()
                return
