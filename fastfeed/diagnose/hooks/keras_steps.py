"""Calls of a train function as steps, and how long each waited for its batch."""

from __future__ import annotations

import functools
import statistics
import sys
import threading
import time
from collections import deque
from typing import Any, Protocol

from fastfeed.diagnose.hooks.copies import nbytes_of_spec
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_loader import LoaderFacts, loader_facts
from fastfeed.diagnose.hooks.patches import calling_frames
from fastfeed.diagnose.hooks.tf_relay import BatchRelay
from fastfeed.diagnose.hooks.wait_estimate import ALWAYS_OBSERVED_S, RECENT_STEPS, WaitEstimator
from fastfeed.steps.recorder import site_of
from fastfeed.steps.timeline import Loop, Mark, Step

BURST_STEPS = 8  # steps of an experiment
MAX_RELAY_FILL_S = 1.0  # after so long no more batches are taken for an experiment
# of short steps only so many, one after another, in every period of so many calls are observed
OBSERVED_CALLS, OBSERVATION_PERIOD = 8, 32


class ObservedFunction(Protocol):
    """A function whose calls are steps."""

    kind: str
    name: str
    steps: int  # in each call

    def facts(self) -> LoaderFacts:
        """Return the facts about its input; called in the first call."""

    def takes_one(self) -> bool:
        """Return True if a call takes exactly one batch; called once it has been traced."""


class TrainFunction:
    """The train function of a Keras model."""

    kind = "keras"

    def __init__(self, model: Any) -> None:
        self.name = f"{getattr(model, 'name', type(model).__name__)}.fit"
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
        """Return True: a call that makes one step takes one batch."""
        return True


class CallRecorder:
    """Records the calls of one function as steps of a loop."""

    def __init__(self, function: ObservedFunction, log: HookLog) -> None:
        self.function = function
        self.log = log
        self.loop: Loop | None = None  # until the first step

    def get_loop(self) -> Loop:
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

    def add_step(self, step: Step, *, waits: str | None = None) -> None:
        """Record a step. `waits` says how its wait was found, if that may have changed."""
        self.log.add_step(self.get_loop(), step, waits=waits)


class RelayRecorder(CallRecorder):
    """Records a function of TensorFlow that gets an iterator, in whose place it may get a relay."""

    def __init__(self, function: ObservedFunction, log: HookLog) -> None:
        super().__init__(function, log)
        self._calls = 0
        self._estimator = WaitEstimator()
        self._relay: BatchRelay | None = None
        # True if a GPU may go on with a step after its call
        self._has_gpu = bool(sys.modules["tensorflow"].config.list_physical_devices("GPU"))

    def _ready_relay(self, iterator: Any, *, max_nbytes: int | None = None) -> BatchRelay | None:
        """Return a relay for an iterator, or None if there cannot be one.

        If `max_nbytes` is given, there is none for batches that have more bytes.
        """
        if self._relay is not None and self._relay.can_replace(iterator):
            return self._relay
        start_s = time.perf_counter()
        try:
            if max_nbytes is not None and nbytes_of_spec(iterator.element_spec) > max_nbytes:
                return None
            self._relay = BatchRelay(iterator)
        except Exception as error:
            self.log.failed("the waiting of Keras's steps", error)
            return None
        end_s = time.perf_counter()
        self.log.add_mark(Mark("experiment", start_s, end_s, "prepares to measure"))
        return self._relay

    def _timed_call(self, original: Any, iterator: Any) -> tuple[Any, Step]:
        """Make a call that is not observed inside; return its result, and a step without a wait."""
        begin_s = time.perf_counter()
        with self.log.wait(begin_s):
            result = original(iterator)
            self._await_gpu(result)
        step = Step(begin_s, time.perf_counter(), 0.0)
        if self._calls == 1:  # it has traced the function
            self.log.add_mark(Mark("compile", begin_s, step.end_s, self.function.name))
        return result, step

    def _await_gpu(self, result: Any) -> None:
        """Wait for a GPU that works asynchronously: the rest of its work is no wait for input."""
        for tensor in sys.modules["tensorflow"].nest.flatten(result) if self._has_gpu else ():
            if "GPU" in getattr(tensor, "device", "") and tensor.shape.num_elements() == 1:
                tensor.numpy()
                return


class TensorFlowRecorder(RelayRecorder):
    """Records a function that takes one batch from its iterator.

    The batch is taken before the call and relayed, so that its wait can be measured.
    """

    def __init__(self, function: ObservedFunction, log: HookLog) -> None:
        super().__init__(function, log)
        self._overhead_s = 0.0
        self._free = 0  # next steps, whose batches are in the relay
        self._computing: deque[float] = deque(maxlen=RECENT_STEPS)
        self._unobservable = False

    def call(self, original: Any, iterator: Any) -> Any:
        """Call the function."""
        relay = self._relay
        if relay is not None and relay.has_input_of(iterator):
            return self._relayed(original, relay, begin_s=time.perf_counter(), wait_s=0.0)
        kind = type(iterator).__name__
        if not self.log.active or not kind.endswith("Iterator"):
            return original(iterator)
        # the batches of an iterator of tf.distribute cannot be relayed
        self._unobservable = self._unobservable or kind != "OwnedIterator"
        self._calls += 1
        if self._calls == 1 or self._unobservable or not self._is_observed():
            return self._estimated(original, iterator)
        return self._measured(original, iterator)

    def _is_observed(self) -> bool:
        if len(self._computing) < RECENT_STEPS:
            return True
        usual_s = statistics.median(self._computing)
        return usual_s > ALWAYS_OBSERVED_S or self._calls % OBSERVATION_PERIOD < OBSERVED_CALLS

    def _estimated(self, original: Any, iterator: Any) -> Any:
        """Make a step that is not observed inside: time beyond the usual was waiting."""
        result, step = self._timed_call(original, iterator)
        waits = None
        if self._calls == 1:
            self._unobservable = self._unobservable or not self.function.takes_one()
            waits = "hidden" if self._unobservable else "exact"
        elif not self._unobservable:
            step = step._replace(wait_s=self._estimator.wait_s(step.end_s - step.begin_s))
            waits = "modelled"
        self.add_step(step, waits=waits)
        return result

    def _measured(self, original: Any, iterator: Any) -> Any:
        """Make a step whose batch is relayed."""
        previous = self._relay
        relay = self._ready_relay(iterator)
        if relay is None:
            self._unobservable = True
            return self._estimated(original, iterator)
        try:
            if relay is not previous:
                self._overhead_s = self._overhead_s or relay.overhead_s(iterator)
            if self.log.burst_is_due(self.loop, min_steps=RECENT_STEPS):
                self._fill(relay, iterator)
            begin_s = time.perf_counter()
            if not relay.has_input_of(iterator):
                with self.log.wait(begin_s):
                    relay.take(iterator)
        except end_of_data():
            # raises the end again, with everything else that the function does
            return original(iterator)
        wait_s = time.perf_counter() - begin_s - self._overhead_s
        return self._relayed(original, relay, begin_s=begin_s, wait_s=wait_s)

    def _fill(self, relay: BatchRelay, iterator: Any) -> None:
        start_s = time.perf_counter()
        while relay.held < BURST_STEPS and time.perf_counter() - start_s < MAX_RELAY_FILL_S:
            try:
                relay.take(iterator, copies=True)
            except Exception as error:  # also the end of the data: it is raised in its turn
                relay.fail(iterator, error)
                break
        self._free = relay.held
        end_s = time.perf_counter()
        self.log.add_mark(Mark("experiment", start_s, end_s, "takes batches beforehand"))
        self.log.end_burst(end_s - start_s)

    def _relayed(self, original: Any, relay: BatchRelay, *, begin_s: float, wait_s: float) -> Any:
        """Make a step with the next batch of the relay, or the error in its place."""
        if not relay.held and relay.error is not None:
            error, iterator = relay.error, relay.source
            relay.forget_error()
            if isinstance(error, end_of_data()):
                return original(iterator)
            raise error
        free = self._free > 0
        self._free -= free
        relay.hand_out()
        result = original(relay.iterator)
        if self.log.active:
            self._await_gpu(result)
            end_s = time.perf_counter()
            wait_s = min(max(wait_s, 0.0), end_s - begin_s)
            self.add_step(Step(begin_s, end_s, wait_s, free))
            self._computing.append(end_s - begin_s - wait_s)
            self._estimator.add(end_s - begin_s - wait_s)
        return result


def end_of_data() -> type[Exception]:
    """Return the error that ends an iterator of tf.data."""
    error: type[Exception] = sys.modules["tensorflow"].errors.OutOfRangeError
    return error


class PythonRecorder(CallRecorder):
    """Records the train function of a backend whose batches come from a Python iterator.

    Its work may go on asynchronously, so a step lasts until the next request for a batch.
    """

    def __init__(self, function: ObservedFunction, log: HookLog) -> None:
        super().__init__(function, log)
        self._open: tuple[float, float] | None = None  # begin and wait of the step under way

    def call(self, original: Any, data: Any, *, begin_s: float, wait_s: float) -> Any:
        """Call the function with a batch that was requested at `begin_s` and took `wait_s`."""
        self.close(begin_s)
        self.get_loop()
        result = original(data)
        self._open = (begin_s, wait_s)
        return result

    def call_with_iterator(self, original: Any, state: Any, *, iterator: Any) -> Any:
        """Call the train function of JAX, which takes its batches from the iterator itself."""
        timed = TimedIterator(iterator, self.log)
        begin_s = time.perf_counter()
        call = functools.partial(original, state)
        result = self.call(call, timed, begin_s=begin_s, wait_s=0.0)
        self._open = (begin_s, timed.wait_s)
        return result

    def close(self, end_s: float) -> None:
        """End the step under way, if there is one."""
        if self._open is not None:
            begin_s, wait_s = self._open
            self._open = None
            self.add_step(Step(begin_s, end_s, wait_s))


class TimedIterator:
    """An iterator that measures the waits for it."""

    def __init__(self, iterator: Any, log: HookLog) -> None:
        self._iterator = iterator
        self._log = log
        self.wait_s = 0.0

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        start_s = time.perf_counter()
        try:
            with self._log.wait(start_s):
                return next(self._iterator)
        finally:
            self.wait_s += time.perf_counter() - start_s
