"""Calls of a train function as steps, and how long each waited for its batches."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Protocol

from fastfeed.diagnose.hooks.copies import nbytes_of_spec
from fastfeed.diagnose.hooks.experiments import MAX_NBYTES
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_loader import LoaderFacts, loader_facts
from fastfeed.diagnose.hooks.patches import calling_frames
from fastfeed.diagnose.hooks.tf_relay import BatchRelay
from fastfeed.diagnose.hooks.wait_estimate import ALWAYS_OBSERVED_S, WaitEstimator
from fastfeed.steps.recorder import site_of
from fastfeed.steps.timeline import Loop, Mark, Step

# of short steps only so many, one after another, in every period of so many calls are observed
# after the first one
OBSERVED_CALLS, OBSERVATION_PERIOD = 8, 32


class ObservedFunction(Protocol):
    """A function whose calls are steps."""

    kind: str
    name: str
    steps: int  # in each call

    def facts(self) -> LoaderFacts:
        """Return the facts about its input; called in the first call."""

    def takes_one(self) -> bool:
        """Return True if a step takes exactly one batch; called once it has been traced."""


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
        if self.steps == 1:
            return facts
        steps = (
            f"steps_per_execution={self.steps}: a call makes so many steps, each shown with an "
            "equal part of its time"
        )
        return facts._replace(note=f"{facts.note}; {steps}".strip("; "))

    def takes_one(self) -> bool:
        """Return True: a step takes one batch."""
        return True


class TensorFlowRecorder:
    """Records a function of TensorFlow that takes its batches from an iterator.

    If it takes one, the batch is taken before the call and relayed, so that its wait can be
    measured. If it takes several, it computes while the next ones are made. So only the calls of
    bursts find their batches in the relay: they show what a call computes, and the additional time
    of the others was waiting. The first burst comes as soon as the function is traced.
    """

    def __init__(self, function: ObservedFunction, log: HookLog) -> None:
        self.function = function
        self.log = log
        self.loop: Loop | None = None  # until the first step
        self._calls = 0
        self._estimator = WaitEstimator()
        self._relay: BatchRelay | None = None
        self._iterator: Any = None  # of a burst
        self._overhead_s: float | None = None  # of a relayed batch
        self._unobservable = False
        # True if a GPU may go on with a step after its call
        self._has_gpu = bool(sys.modules["tensorflow"].config.list_physical_devices("GPU"))

    def call(self, original: Any, iterator: Any) -> Any:
        """Call the function."""
        relay = self._relay
        if relay is not None and relay.has_input_of(iterator):
            return self._relayed(original, relay)
        kind = type(iterator).__name__
        if not self.log.active or not kind.endswith("Iterator"):
            return original(iterator)
        # the batches of an iterator of tf.distribute cannot be relayed
        self._unobservable = self._unobservable or kind != "OwnedIterator"
        self._calls += 1
        if self._calls > 1 and not self._unobservable:
            burst = self._burst_is_due()
            ready = self._ready_relay(iterator) if burst or self._is_observed() else None
            if ready is not None:
                return self._measured(original, ready, iterator=iterator, burst=burst)
        return self._timed(original, iterator)

    def take(self) -> bool:
        """Take the batches of the next call ahead."""
        relay = self._relay
        if relay is None:
            return False
        try:
            for _ in range(self.function.steps):
                relay.take(self._iterator, copies=True)
        except Exception as error:  # also the end of the data: it is raised in its turn
            relay.fail(self._iterator, error)
            return False
        return relay.held * nbytes_of_spec(relay.spec) < MAX_NBYTES

    def is_full(self) -> bool | None:
        """Return True if the data have ended: otherwise tf.data does not tell."""
        return True if self._relay is None or self._relay.error is not None else None

    def _burst_is_due(self) -> bool:
        if self.function.steps > 1 and not self._estimator.known:
            return self.log.experiments is not None
        return self.log.burst_is_due(self.loop)

    def _is_observed(self) -> bool:
        often = self._calls < OBSERVATION_PERIOD or self._estimator.usual_s > ALWAYS_OBSERVED_S
        turn = often or self._calls % OBSERVATION_PERIOD < OBSERVED_CALLS
        return turn and self.function.steps == 1

    def _ready_relay(self, iterator: Any) -> BatchRelay | None:
        """Return a relay for an iterator, or None if there cannot be one."""
        if self._relay is not None and self._relay.can_replace(iterator):
            return self._relay
        start_s, steps = time.perf_counter(), self.function.steps
        try:
            if steps > 1 and steps * nbytes_of_spec(iterator.element_spec) > MAX_NBYTES:
                self._unobservable = True
                return None
            self._relay = BatchRelay(iterator)
        except Exception as error:
            self._unobservable = True
            self.log.failed("the waiting of Keras's steps", error)
            return None
        self.log.add_mark(Mark("experiment", start_s, time.perf_counter(), "prepares to measure"))
        return self._relay

    def _measured(self, original: Any, relay: BatchRelay, *, iterator: Any, burst: bool) -> Any:
        """Make a call whose batches are relayed."""
        many = self.function.steps > 1
        try:
            if self._overhead_s is None and not many:
                self._overhead_s = relay.overhead_s(iterator)
            if burst:
                self._iterator = iterator
                self.log.burst(self, planned=self._estimator.known or not many)
                self._iterator = None
                if relay.has_input_of(iterator):
                    return self._relayed(original, relay)
            if many:
                return self._timed(original, iterator)
            begin_s = time.perf_counter()
            if not relay.has_input_of(iterator):
                with self.log.wait(begin_s):
                    relay.take(iterator)
        except end_of_data():
            # raises the end again, with everything else that the function does
            return original(iterator)
        wait_s = time.perf_counter() - begin_s - (self._overhead_s or 0.0)
        return self._relayed(original, relay, begun=(begin_s, max(wait_s, 0.0)))

    def _relayed(
        self, original: Any, relay: BatchRelay, *, begun: tuple[float, float] | None = None
    ) -> Any:
        """Make a call with the next batches of the relay, or raise the error in their place.

        If the data end within the call, or fail, it gets the batches before that. `begun`: begin
        and wait of a step that is not of a burst.
        """
        begin_s, wait_s = begun or (time.perf_counter(), 0.0)
        steps, iterator, error = self.function.steps, relay.source, None
        if relay.held < steps:
            error = relay.take_error()
            if not relay.held:
                if error is None or isinstance(error, end_of_data()):
                    return original(iterator)
                raise error
            self._relay = None
            relay.close()  # a request for one more meets the end of the data
        relay.hand_out(min(steps, relay.held))
        result = original(relay.iterator)
        if error is not None and not isinstance(error, end_of_data()):
            raise error
        if self.log.active and error is None:
            self._await_gpu(result)
            end_s = time.perf_counter()
            call = Step(begin_s, end_s, min(wait_s, end_s - begin_s), begun is None)
            self._estimator.add(end_s - begin_s - call.wait_s)
            self._add_call(call, waits="modelled" if steps > 1 else None)
        return result

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
        if self._unobservable or (self.function.steps > 1 and not self._estimator.known):
            waits = "hidden"
        else:
            waits = "modelled" if self._estimator.known else "exact"
        wait_s = 0.0 if self._unobservable else self._estimator.wait_s(end_s - begin_s)
        self._add_call(Step(begin_s, end_s, wait_s), waits=waits)
        return result

    def _get_loop(self) -> Loop:
        """Return the loop, which the first step creates."""
        if self.loop is None:
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
            self.loop = self.log.add_loop((kind, id(self)), loop)
        return self.loop

    def _add_call(self, call: Step, *, waits: str | None = None) -> None:
        """Record the steps of a call, each with an equal part of its time and its wait.

        `waits` says how the wait was found, if that may have changed.
        """
        loop, steps = self._get_loop(), self.function.steps
        each_s, wait_s = (call.end_s - call.begin_s) / steps, call.wait_s / steps
        for i in range(steps):
            at_s = call.begin_s + i * each_s
            end_s = call.end_s if i == steps - 1 else at_s + each_s
            step = Step(at_s, end_s, min(wait_s, end_s - at_s), call.free)
            self.log.add_step(loop, step, waits=waits)

    def _await_gpu(self, result: Any) -> None:
        """Wait for a GPU that works asynchronously: the rest of its work is no wait for input."""
        for tensor in sys.modules["tensorflow"].nest.flatten(result) if self._has_gpu else ():
            if "GPU" in getattr(tensor, "device", "") and tensor.shape.num_elements() == 1:
                tensor.numpy()
                return


def end_of_data() -> type[Exception]:
    """Return the error that ends an iterator of tf.data."""
    error: type[Exception] = sys.modules["tensorflow"].errors.OutOfRangeError
    return error
