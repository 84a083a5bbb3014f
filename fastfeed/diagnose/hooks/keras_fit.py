"""Hook of Keras on each of its backends: the steps of `fit`, calls for single batches, epochs,
evaluations and callbacks."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_many import MultiStepRecorder
from fastfeed.diagnose.hooks.keras_steps import (
    PythonRecorder,
    TensorFlowRecorder,
    TrainFunction,
)
from fastfeed.diagnose.hooks.patches import CallTimer, Undo, call_before, patch, undo_all
from fastfeed.steps.recorder import leaves, site_of
from fastfeed.steps.timeline import Loop, Mark, Step

MODULES = ("keras",)
TRAINERS = {"tensorflow": "TensorFlowTrainer", "torch": "TorchTrainer", "jax": "JAXTrainer"}
EPOCH_CALLBACKS = ("on_epoch_begin", "on_epoch_end", "on_train_begin")
# asynchronous work of other backends than TensorFlow may end in them
BATCH_CALLBACKS = ("on_train_batch_begin", "on_train_batch_end")
WRAPPED = "_fastfeed_wrapped"  # attribute that marks a wrapped train function


def install(module: Any, log: HookLog) -> Undo:
    """Observe every model of the process."""
    hooks = _KerasHooks(log)
    timer = CallTimer(log)
    undos: list[Undo] = []
    for backend, name in TRAINERS.items():
        trainer = getattr(sys.modules.get(f"keras.src.backend.{backend}.trainer"), name, None)
        if trainer is not None:
            wrap = functools.partial(hooks.wrap_make_train_function, backend=backend)
            undos += [
                patch(trainer, "make_train_function", wrap=wrap),
                patch(trainer, "train_on_batch", wrap=hooks.wrap_train_on_batch),
                timer.method(trainer, "predict", kind="evaluation", label="predict"),
            ]
    iterator = sys.modules["keras.src.trainers.epoch_iterator"].EpochIterator
    if "__next__" in vars(iterator):
        undos.append(patch(iterator, "__next__", wrap=hooks.wrap_next))
    else:  # Keras before 3.7
        undos.append(patch(iterator, "enumerate_epoch", wrap=hooks.wrap_enumerate_epoch))
    model = sys.modules["keras.src.models.model"].Model
    for name in ("save", "save_weights"):
        undos.append(timer.method(model, name, kind="checkpoint", label=name))
    callbacks = sys.modules["keras.src.callbacks.callback_list"].CallbackList
    synchronous = module.backend.backend() == "tensorflow"
    for name in EPOCH_CALLBACKS + BATCH_CALLBACKS if synchronous else EPOCH_CALLBACKS:
        undos.append(timer.method(callbacks, name, kind="callback", label=name))
    undos += [
        call_before(callbacks, "on_epoch_begin", action=hooks.begin_epoch),
        call_before(callbacks, "on_epoch_end", action=hooks.end_epoch),
        call_before(callbacks, "on_test_begin", action=hooks.begin_evaluation),
        patch(callbacks, "on_test_end", wrap=hooks.wrap_on_test_end),
    ]
    return undo_all(undos)


class _TrainingThread(threading.local):
    """State of a thread that trains: its last request for a batch, and the step under way."""

    single = False  # True in a call for a single batch
    _request: tuple[float, float] | None = None  # begin and wait; None once it has its step
    _recorder: PythonRecorder | None = None  # of the step under way

    @contextmanager
    def single_batch(self) -> Iterator[None]:
        """Record no steps of `fit` in a call for a single batch."""
        self.single = True
        try:
            yield
        finally:
            self.single = False

    def request(self, get: Callable[[], Any], log: HookLog) -> Any:
        """Return or raise what `get` does, which waits for a batch."""
        begin_s = time.perf_counter()
        try:
            with log.wait(begin_s):
                return get()
        finally:
            self._request = (begin_s, time.perf_counter() - begin_s)

    def call(self, recorder: PythonRecorder, original: Any, *, data: Any) -> Any:
        """Call a train function with the batch that was requested last."""
        if self.single or self._request is None or not recorder.log.active:
            return original(data)
        (begin_s, wait_s), self._request, self._recorder = self._request, None, recorder
        return recorder.call(original, data, begin_s=begin_s, wait_s=wait_s)

    def call_with_iterator(
        self, recorder: PythonRecorder, original: Any, *, state: Any, iterator: Any
    ) -> Any:
        """Call a train function that requests its batches itself."""
        if self.single or not recorder.log.active:
            return original(state, iterator)
        self._recorder = recorder
        return recorder.call_with_iterator(original, state, iterator=iterator)

    def close_step(self) -> None:
        """End the step under way, if there is one."""
        if self._recorder is not None:
            self._recorder.close(time.perf_counter())
            self._recorder = None


class _KerasHooks:
    """The wrappers of Keras's methods, and their state."""

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._thread = _TrainingThread()
        self._evaluations: dict[int, float] = {}  # by the id of a callback list: their begin

    def begin_epoch(self, callbacks: Any, epoch: Any, *args: Any, **kwargs: Any) -> None:
        """Mark the begin of an epoch."""
        if self._log.active:
            now_s = time.perf_counter()
            self._log.add_mark(Mark("epoch", now_s, now_s, str(epoch)))

    def end_epoch(self, *args: Any, **kwargs: Any) -> None:
        """End the last step of an epoch."""
        self._thread.close_step()

    def begin_evaluation(self, callbacks: Any, *args: Any, **kwargs: Any) -> None:
        """End the step before an evaluation, which begins."""
        self._thread.close_step()
        if self._log.active:
            self._evaluations[id(callbacks)] = time.perf_counter()

    def wrap_on_test_end(self, original: Any) -> Any:
        """Mark an evaluation, which ends with its callbacks."""

        @functools.wraps(original)
        def on_test_end(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(callbacks, *args, **kwargs)
            finally:
                start_s = self._evaluations.pop(id(callbacks), None)
                if start_s is not None:
                    self._log.add_mark(Mark("evaluation", start_s, time.perf_counter()))

        return on_test_end

    def wrap_next(self, original: Any) -> Any:
        """Wrap the iterator of a backend that gets its batches from Python."""

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            if not self._log.active:
                return original(iterator)
            return self._thread.request(functools.partial(original, iterator), self._log)

        return __next__

    def wrap_enumerate_epoch(self, original: Any) -> Any:
        """Wrap the generator that older versions of Keras have instead of `__next__`."""
        request = self.wrap_next(next)

        @functools.wraps(original)
        def enumerate_epoch(iterator: Any) -> Any:
            yield from iter(functools.partial(request, original(iterator)), None)

        return enumerate_epoch

    def wrap_make_train_function(self, original: Any, *, backend: str) -> Any:
        """Wrap every train function that a model makes."""
        wrap = {
            "tensorflow": self._wrap_tensorflow,
            "torch": self._wrap_torch,
            "jax": self._wrap_jax,
        }[backend]

        @functools.wraps(original)
        def make_train_function(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            try:
                if self._log.active and not hasattr(model.train_function, WRAPPED):
                    function = wrap(model.train_function, TrainFunction(model))
                    setattr(function, WRAPPED, True)
                    model.train_function = function
            except Exception as error:
                self._log.failed("Keras's steps", error)
            return result

        return make_train_function

    def _wrap_tensorflow(self, original: Any, function: TrainFunction) -> Any:
        kind = MultiStepRecorder if function.steps > 1 else TensorFlowRecorder
        recorder, thread = kind(function, self._log), self._thread
        return lambda iterator: (
            original(iterator) if thread.single else recorder.call(original, iterator)
        )

    def _wrap_torch(self, original: Any, function: TrainFunction) -> Any:
        recorder = PythonRecorder(function, self._log)
        return lambda data: self._thread.call(recorder, original, data=data)

    def _wrap_jax(self, original: Any, function: TrainFunction) -> Any:
        recorder, thread = PythonRecorder(function, self._log), self._thread

        def train_function(state: Any, iterator: Any) -> Any:
            if isinstance(iterator, list):  # Keras before 3.7 has requested the batches itself
                return thread.call(recorder, functools.partial(original, state), data=iterator)
            return thread.call_with_iterator(recorder, original, state=state, iterator=iterator)

        return train_function

    def wrap_train_on_batch(self, original: Any) -> Any:
        """Wrap a call for a single batch, which its caller has made beforehand."""

        @functools.wraps(original)
        def train_on_batch(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._log.active or self._thread.single:
                return original(model, *args, **kwargs)
            begin_s = time.perf_counter()
            with self._thread.single_batch():
                result = original(model, *args, **kwargs)
            step = Step(begin_s, time.perf_counter(), 0.0)
            try:
                self._log.add_step(self._single_loop(model, args, kwargs=kwargs), step)
            except Exception as error:
                self._log.failed("train_on_batch", error)
            return result

        return train_on_batch

    def _single_loop(self, model: Any, args: Any, *, kwargs: Any) -> Loop:
        """Return the loop of the calls for single batches of a model."""
        thread = threading.get_ident()
        key = ("keras call", id(model), thread)
        known = self._log.timeline.loops.get(key)
        if known is not None:
            return known
        loop = Loop(
            f"{getattr(model, 'name', type(model).__name__)}.train_on_batch",
            "call",
            thread,
            waits="none",
            where=site_of(sys._getframe(1)),
            buffer=0,
            leaves=leaves((*args[:2], *(kwargs[name] for name in ("x", "y") if name in kwargs))),
        )
        return self._log.add_loop(key, loop)
