"""The calls of Keras's train function as steps, and how long each waited for its batch."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from fastfeed.diagnose.hooks.keras_loader import facts
from fastfeed.diagnose.hooks.patches import frames, keep
from fastfeed.diagnose.hooks.tf_relay import BatchRelay
from fastfeed.diagnose.hooks.wait_estimate import WaitEstimator
from fastfeed.steps.recorder import site_of
from fastfeed.steps.timeline import Loop, Mark, Step

if TYPE_CHECKING:
    from fastfeed.diagnose.hooks.hook_log import HookLog

BURST = 8  # steps of an experiment
RECENT = 20
FILL_S = 1.0  # after so long no more batches are taken for an experiment
SHORT_S = 0.008  # of shorter steps only some are observed ...
WATCHED, OF = 8, 32  # ... this many, one after another, of this many


class Steps:
    """The steps of one train function."""

    kind = "keras"

    def __init__(self, model: Any, log: HookLog) -> None:
        self.log = log
        self._name = f"{getattr(model, 'name', type(model).__name__)}.fit"
        self._executes = int(getattr(model, "steps_per_execution", 1) or 1)
        self.loop: Loop | None = None

    def found(self) -> Loop:
        """Return the loop, which the first step creates."""
        if self.loop is None:
            loop = self.log.timeline.loop(
                (self.kind, id(self)), name=self._name, kind=self.kind, thread=threading.get_ident()
            )
            loop.where = site_of(sys._getframe(1))
            self.describe(loop)
            self.loop = loop
        return self.loop

    def describe(self, loop: Loop) -> None:
        """Describe the source of the loop."""
        fits = (
            frame.f_locals.get("epoch_iterator")
            for frame in frames()
            if frame.f_code.co_name == "fit"
        )
        adapter = getattr(
            next((one for one in fits if one is not None), None), "data_adapter", None
        )
        loop.leaves, loop.buffer, loop.note = facts(adapter)
        if self._executes > 1:
            many = f"steps_per_execution={self._executes}: a call makes so many, each given an equal part of its time"
            loop.note = f"{loop.note}; {many}".strip("; ")

    def timed(self, plain: Any, iterator: Any, *, behind: bool) -> tuple[Any, float, float]:
        """Make a call that is not observed inside; return its result, when it began, and its
        seconds."""
        thread = threading.get_ident()
        begin_s = self.log.waiting[thread] = time.perf_counter()
        try:
            result = plain(iterator)
            settle(result, behind=behind)
        finally:
            self.log.waiting.pop(thread, None)
        return result, begin_s, time.perf_counter() - begin_s

    def compiled(self, begin_s: float, duration: float) -> None:
        """Note that a call was the first, which traces."""
        self.log.timeline.marks.append(Mark("compile", begin_s, begin_s + duration, self._name))

    def add(self, begin_s: float, wait_s: float, *, free: bool = False) -> None:
        """Record a step that began then and has just ended."""
        end_s = time.perf_counter()
        step = Step(begin_s, end_s, min(max(wait_s, 0.0), end_s - begin_s), free)
        keep(self.found(), step, most=self.log.max_steps)


class TensorFlowRecorder(Steps):
    """The train function of the TensorFlow backend, which gets an iterator."""

    def __init__(self, model: Any, log: HookLog) -> None:
        super().__init__(model, log)
        self._relay: BatchRelay | None = None
        self._base_s = 0.0
        self._free = 0  # next steps, whose batches are in the relay
        self._calls = 0
        self._computing: list[float] = []
        self._excess = WaitEstimator()
        self._broken = False
        self._behind = gpu_behind()

    def call(self, plain: Any, iterator: Any) -> Any:
        """Call the train function."""
        relay = self._relay
        if (
            relay is not None
            and relay.source is iterator
            and (relay.held or relay.ended is not None)
        ):
            return self._from_relay(plain, relay, begin_s=time.perf_counter(), wait_s=0.0)
        if not self.log.active or not type(iterator).__name__.endswith("Iterator"):
            return plain(iterator)
        # one of tf.distribute
        self._broken = self._broken or type(iterator).__name__ != "OwnedIterator"
        self._calls += 1
        if self._calls == 1:  # it traces
            result = self._plain(plain, iterator, compiles=True)
            self._broken = self._broken or not self.takes_one()
            self.found().waits = "hidden" if self._broken else "exact"
            return result
        if self._broken or not self._watches():
            return self._plain(plain, iterator)
        return self._watched(plain, iterator)

    def takes_one(self) -> bool:
        """Return True if a call takes exactly one batch; called once it has been traced."""
        return True

    def _watches(self) -> bool:
        if len(self._computing) < RECENT:
            return True
        usual = statistics.median(self._computing[-RECENT:])
        return usual > SHORT_S or self._calls % OF < WATCHED

    def _watched(self, plain: Any, iterator: Any) -> Any:
        begin_s = time.perf_counter()
        try:
            relay = self._ready(iterator)
            if relay is None:
                return self._plain(plain, iterator)
            if self._begins_burst():
                self._fill(relay, iterator)
                return self._from_relay(plain, relay, begin_s=time.perf_counter(), wait_s=0.0)
            begin_s = time.perf_counter()
            if not relay.held:
                self._take(relay, iterator)
        except end_of_data():
            # raises the end again, with everything else that the function does
            return plain(iterator)
        return self._from_relay(
            plain, relay, begin_s=begin_s, wait_s=time.perf_counter() - begin_s - self._base_s
        )

    def _take(self, relay: BatchRelay, iterator: Any) -> None:
        thread = threading.get_ident()
        self.log.waiting[thread] = time.perf_counter()
        try:
            relay.take(iterator)
        finally:
            self.log.waiting.pop(thread, None)

    def _ready(self, iterator: Any) -> BatchRelay | None:
        """Return the relay; the time of a new one is the diagnosis's."""
        if self._relay is not None and self._relay.fits(iterator):
            return self._relay
        start_s = time.perf_counter()
        try:
            self._relay = relay = BatchRelay(iterator)
        except Exception as error:
            self._broken = True
            self.log.failed("the waiting of Keras's steps", error)
            return None
        made_s = time.perf_counter()
        self.log.timeline.marks.append(Mark("experiment", start_s, made_s, "prepares to measure"))
        self._base_s = self._base_s or relay.base_s(iterator)
        return relay

    def _begins_burst(self) -> bool:
        experiments = self.log.experiments
        if experiments is None or self.loop is None or len(self.loop.steps) < RECENT:
            return False
        return experiments.is_due(self.loop)

    def _fill(self, relay: BatchRelay, iterator: Any) -> None:
        start_s = time.perf_counter()
        while relay.held < BURST and time.perf_counter() - start_s < FILL_S:
            try:
                relay.take(iterator, copies=True)
            except (
                Exception
            ) as error:  # the end of the data, or its failure: it is raised in its turn
                relay.ended, relay.source = error, iterator
                break
        self._free = relay.held
        end_s = time.perf_counter()
        self.log.timeline.marks.append(
            Mark("experiment", start_s, end_s, "takes batches beforehand")
        )
        if self.log.experiments is not None:
            self.log.experiments.end_burst(end_s - start_s)

    def _from_relay(self, plain: Any, relay: BatchRelay, *, begin_s: float, wait_s: float) -> Any:
        if not relay.held and relay.ended is not None:
            ended, iterator = relay.ended, relay.source
            relay.ended, relay.source = None, None
            if isinstance(ended, end_of_data()):
                return plain(iterator)
            raise ended
        free = self._free > 0
        self._free -= free
        relay.handed_out()
        result = plain(relay.iterator)
        if self.log.active:
            settle(result, behind=self._behind)
            self.add(begin_s, wait_s, free=free)
            step = self.found().steps[-1]
            self._computing.append(step.end_s - step.begin_s - step.wait_s)
            self._excess.computed(self._computing[-1])
        return result

    def _plain(self, plain: Any, iterator: Any, *, compiles: bool = False) -> Any:
        """Make a step that is not observed inside: time beyond the usual was waiting."""
        result, begin_s, duration = self.timed(plain, iterator, behind=self._behind)
        if compiles:
            self.compiled(begin_s, duration)
        elif not self._broken:
            self.found().waits = "modelled"
        self.add(begin_s, 0.0 if self._broken else self._excess.wait_s(duration))
        return result


def gpu_behind() -> bool:
    """Return True if a GPU may go on with a step after its call."""
    return bool(sys.modules["tensorflow"].config.list_physical_devices("GPU"))


def settle(result: Any, *, behind: bool) -> None:
    """Wait for a GPU that works asynchronously: the rest of its work is no wait for input."""
    for one in sys.modules["tensorflow"].nest.flatten(result) if behind else ():
        if "GPU" in getattr(one, "device", "") and one.shape.num_elements() == 1:
            one.numpy()
            return


def end_of_data() -> type[Exception]:
    found: type[Exception] = sys.modules["tensorflow"].errors.OutOfRangeError
    return found


class PythonRecorder(Steps):
    """The train function of a backend whose batches come from a Python iterator, and whose work may
    go on asynchronously: a step lasts until the next request."""

    def __init__(self, model: Any, log: HookLog) -> None:
        super().__init__(model, log)
        self._open: tuple[float, float] | None = None  # begin and wait of the step under way

    def call(self, plain: Any, data: Any, *, begin_s: float, wait_s: float) -> Any:
        """Call the train function, whose batch was requested at `begin_s` and took `wait_s`."""
        self.close(begin_s)
        self.found()
        result = plain(data)
        self._open = (begin_s, wait_s)
        return result

    def pulled(self, plain: Any, state: Any, *, iterator: Any) -> Any:
        """Call the train function of JAX, which takes its batches from the iterator itself."""
        timed = TimedIterator(iterator, self.log)
        begin_s = time.perf_counter()
        self.close(begin_s)
        self.found()
        result = plain(state, timed)
        self._open = (begin_s, timed.wait_s)
        return result

    def close(self, end_s: float) -> None:
        """End the step under way, if there is one."""
        if self._open is not None:
            begin_s, wait_s = self._open
            self._open = None
            keep(self.found(), Step(begin_s, end_s, wait_s), most=self.log.max_steps)


class TimedIterator:
    """An iterator that measures the waits for it."""

    def __init__(self, iterator: Any, log: HookLog) -> None:
        self._iterator = iterator
        self._log = log
        self.wait_s = 0.0

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        thread = threading.get_ident()
        start_s = self._log.waiting[thread] = time.perf_counter()
        try:
            return next(self._iterator)
        finally:
            self._log.waiting.pop(thread, None)
            self.wait_s += time.perf_counter() - start_s
