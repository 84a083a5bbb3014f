"""Calls of a train function as steps, and how long each waited for its batch."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import deque
from typing import Any, Protocol

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_loader import LoaderFacts, loader_facts
from fastfeed.diagnose.hooks.patches import calling_frames
from fastfeed.diagnose.hooks.tf_relay import BatchRelay
from fastfeed.diagnose.hooks.wait_estimate import RECENT_STEPS, SHORT_STEP_S, WaitEstimator
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

    def timed_call(
        self, original: Any, iterator: Any, *, has_gpu: bool
    ) -> tuple[Any, float, float]:
        """Make a call that is not observed inside; return its result, its begin and its end."""
        begin_s = time.perf_counter()
        self.log.begin_wait(begin_s)
        try:
            result = original(iterator)
            await_gpu(result, has_gpu=has_gpu)
        finally:
            self.log.end_wait()
        return result, begin_s, time.perf_counter()

    def mark_tracing(self, begin_s: float, duration_s: float) -> None:
        """Record the first call, which traces the function."""
        self.log.add_mark(Mark("compile", begin_s, begin_s + duration_s, self.function.name))


class TensorFlowRecorder(CallRecorder):
    """Records a function that gets an iterator and takes one batch from it.

    The batch is taken before the call and relayed, so that its wait can be measured.
    """

    def __init__(self, function: ObservedFunction, log: HookLog) -> None:
        super().__init__(function, log)
        self._relay: BatchRelay | None = None
        self._overhead_s = 0.0
        self._free = 0  # next steps, whose batches are in the relay
        self._calls = 0
        self._computing: deque[float] = deque(maxlen=RECENT_STEPS)
        self._estimator = WaitEstimator()
        self._unobservable = False
        self._has_gpu = has_gpu()

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
        if self._calls == 1:
            return self._traced(original, iterator)
        if self._unobservable or not self._is_observed():
            return self._estimated(original, iterator)
        return self._measured(original, iterator)

    def _is_observed(self) -> bool:
        if len(self._computing) < RECENT_STEPS:
            return True
        usual_s = statistics.median(self._computing)
        return usual_s > SHORT_STEP_S or self._calls % OBSERVATION_PERIOD < OBSERVED_CALLS

    def _traced(self, original: Any, iterator: Any) -> Any:
        """Make the first step, in which the function is traced."""
        result, begin_s, end_s = self.timed_call(original, iterator, has_gpu=self._has_gpu)
        self.mark_tracing(begin_s, end_s - begin_s)
        self._unobservable = self._unobservable or not self.function.takes_one()
        waits = "hidden" if self._unobservable else "exact"
        self.add_step(Step(begin_s, end_s, 0.0), waits=waits)
        return result

    def _estimated(self, original: Any, iterator: Any) -> Any:
        """Make a step that is not observed inside: time beyond the usual was waiting."""
        result, begin_s, end_s = self.timed_call(original, iterator, has_gpu=self._has_gpu)
        if self._unobservable:
            self.add_step(Step(begin_s, end_s, 0.0))
        else:
            wait_s = self._estimator.wait_s(end_s - begin_s)
            self.add_step(Step(begin_s, end_s, wait_s), waits="modelled")
        return result

    def _measured(self, original: Any, iterator: Any) -> Any:
        """Make a step whose batch is relayed."""
        try:
            relay = self._ready_relay(iterator)
            if relay is None:
                return self._estimated(original, iterator)
            begin_s = time.perf_counter()
            wait_s = 0.0
            if self.log.burst_is_due(self.loop, min_steps=RECENT_STEPS):
                self._fill(relay, iterator)
                begin_s = time.perf_counter()
            else:
                if not relay.held:
                    self._take(relay, iterator)
                wait_s = time.perf_counter() - begin_s - self._overhead_s
        except end_of_data():
            # raises the end again, with everything else that the function does
            return original(iterator)
        return self._relayed(original, relay, begin_s=begin_s, wait_s=wait_s)

    def _take(self, relay: BatchRelay, iterator: Any) -> None:
        self.log.begin_wait(time.perf_counter())
        try:
            relay.take(iterator)
        finally:
            self.log.end_wait()

    def _ready_relay(self, iterator: Any) -> BatchRelay | None:
        """Return a relay for an iterator, or None if there cannot be one."""
        if self._relay is not None and self._relay.can_replace(iterator):
            return self._relay
        relay = new_relay(iterator, self.log)
        if relay is None:
            self._unobservable = True
        else:
            self._relay = relay
            self._overhead_s = self._overhead_s or relay.overhead_s(iterator)
        return relay

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
            relay.clear_error()
            if isinstance(error, end_of_data()):
                return original(iterator)
            raise error
        free = self._free > 0
        self._free -= free
        relay.hand_out()
        result = original(relay.iterator)
        if self.log.active:
            await_gpu(result, has_gpu=self._has_gpu)
            end_s = time.perf_counter()
            wait_s = min(max(wait_s, 0.0), end_s - begin_s)
            self.add_step(Step(begin_s, end_s, wait_s, free))
            self._computing.append(end_s - begin_s - wait_s)
            self._estimator.add(end_s - begin_s - wait_s)
        return result


def new_relay(iterator: Any, log: HookLog) -> BatchRelay | None:
    """Return a relay for an iterator, or None if there cannot be one."""
    start_s = time.perf_counter()
    try:
        relay = BatchRelay(iterator)
    except Exception as error:
        log.failed("the waiting of Keras's steps", error)
        return None
    log.add_mark(Mark("experiment", start_s, time.perf_counter(), "prepares to measure"))
    return relay


def has_gpu() -> bool:
    """Return True if a GPU may go on with a step after its call."""
    return bool(sys.modules["tensorflow"].config.list_physical_devices("GPU"))


def await_gpu(result: Any, *, has_gpu: bool) -> None:
    """Wait for a GPU that works asynchronously: the rest of its work is no wait for input."""
    for tensor in sys.modules["tensorflow"].nest.flatten(result) if has_gpu else ():
        if "GPU" in getattr(tensor, "device", "") and tensor.shape.num_elements() == 1:
            tensor.numpy()
            return


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
        self.close(begin_s)
        self.get_loop()
        result = original(state, timed)
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
        self._log.begin_wait(start_s)
        try:
            return next(self._iterator)
        finally:
            self._log.end_wait()
            self.wait_s += time.perf_counter() - start_s
