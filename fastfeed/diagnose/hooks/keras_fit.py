"""Keras on each of its backends: `fit` step by step, calls for single batches, epochs, evaluations,
callbacks."""

from __future__ import annotations

import functools
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from fastfeed.diagnose.hooks.keras_many import MultiStepRecorder
from fastfeed.diagnose.hooks.keras_steps import PythonRecorder, TensorFlowRecorder
from fastfeed.diagnose.hooks.patches import CallTimer, Undo, keep, patch, undo_all
from fastfeed.steps.recorder import leaves, site_of
from fastfeed.steps.timeline import Mark, Step

if TYPE_CHECKING:
    from fastfeed.diagnose.hooks.hook_log import HookLog

MODULES = ("keras",)
TRAINERS = {"tensorflow": "TensorFlowTrainer", "torch": "TorchTrainer", "jax": "JAXTrainer"}
CALLBACKS = ("on_epoch_begin", "on_epoch_end", "on_train_begin")
# asynchronous work of other backends may end in them
BATCHES = ("on_train_batch_begin", "on_train_batch_end")
SEEN = "_fastfeed_seen"  # attribute that marks a patched train function


class BatchRequest(threading.local):
    """The last request of a thread to Keras's iterator: when, how long it took, if it is in a call
    for one batch, and the steps of which function it makes."""

    begin_s: float = 0.0
    wait_s: float = 0.0
    single: bool = False
    steps: PythonRecorder | None = None


def install(module: Any, log: HookLog) -> Undo:
    """Observe every model of the process."""
    asked = BatchRequest()
    undos: list[Undo] = []
    for backend, name in TRAINERS.items():
        trainer = getattr(sys.modules.get(f"keras.src.backend.{backend}.trainer"), name, None)
        if trainer is not None:
            making = functools.partial(_make_train_function, backend=backend, asked=asked, log=log)
            undos.append(patch(trainer, "make_train_function", wrap=making))
            single = functools.partial(_train_on_batch, asked=asked, log=log)
            undos.append(patch(trainer, "train_on_batch", wrap=single))
            undos.append(
                CallTimer(log).method(trainer, "predict", kind="evaluation", label="predict")
            )
    iterator = sys.modules["keras.src.trainers.epoch_iterator"].EpochIterator
    if "__next__" in vars(iterator):
        undos.append(patch(iterator, "__next__", wrap=lambda plain: _next(plain, asked, log=log)))
    else:  # Keras before 3.7
        undos.append(
            patch(iterator, "enumerate_epoch", wrap=lambda plain: _each(plain, asked, log=log))
        )
    undos += _marks(asked, log)
    return undo_all(undos)


def _marks(asked: BatchRequest, log: HookLog) -> list[Undo]:
    callbacks = sys.modules["keras.src.callbacks.callback_list"].CallbackList
    model = sys.modules["keras.src.models.model"].Model
    timed = CallTimer(log)
    undos = [
        timed.method(model, name, kind="checkpoint", label=name)
        for name in ("save", "save_weights")
    ]
    names = (
        CALLBACKS + BATCHES if sys.modules["keras"].backend.backend() == "tensorflow" else CALLBACKS
    )
    undos += [timed.method(callbacks, name, kind="callback", label=name) for name in names]
    undos += [
        patch(callbacks, name, wrap=lambda plain: _closes(plain, asked))
        for name in ("on_test_begin", "on_epoch_end")
    ]
    undos.append(patch(callbacks, "on_epoch_begin", wrap=lambda plain: _epoch(plain, log)))
    started: dict[int, float] = {}
    undos.append(
        patch(callbacks, "on_test_begin", wrap=lambda plain: _test(plain, started, log=log))
    )
    undos.append(
        patch(callbacks, "on_test_end", wrap=lambda plain: _tested(plain, started, log=log))
    )
    return undos


def _closes(plain: Any, asked: BatchRequest) -> Any:
    """Wrap the end of an epoch, which ends its last step."""

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if asked.steps is not None:
            asked.steps.close(time.perf_counter())
            asked.steps = None
        return plain(self, *args, **kwargs)

    return call


def _epoch(plain: Any, log: HookLog) -> Any:
    @functools.wraps(plain)
    def on_epoch_begin(self: Any, epoch: Any, *args: Any, **kwargs: Any) -> Any:
        if log.active:
            now_s = time.perf_counter()
            log.timeline.marks.append(Mark("epoch", now_s, now_s, str(epoch)))
        return plain(self, epoch, *args, **kwargs)

    return on_epoch_begin


def _test(plain: Any, started: dict[int, float], *, log: HookLog) -> Any:
    @functools.wraps(plain)
    def on_test_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        if log.active:
            started[id(self)] = time.perf_counter()
        return plain(self, *args, **kwargs)

    return on_test_begin


def _tested(plain: Any, started: dict[int, float], *, log: HookLog) -> Any:
    @functools.wraps(plain)
    def on_test_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return plain(self, *args, **kwargs)
        finally:
            start_s = started.pop(id(self), None)
            if start_s is not None:
                log.timeline.marks.append(Mark("evaluation", start_s, time.perf_counter()))

    return on_test_end


def _next(plain: Any, asked: BatchRequest, *, log: HookLog) -> Any:
    """Wrap the iterator of a backend that gets its batches from Python."""

    @functools.wraps(plain)
    def __next__(self: Any) -> Any:
        if not log.active:
            return plain(self)
        thread = threading.get_ident()
        asked.begin_s = log.waiting[thread] = time.perf_counter()
        try:
            return plain(self)
        finally:
            log.waiting.pop(thread, None)
            asked.wait_s = time.perf_counter() - asked.begin_s

    return __next__


def _each(plain: Any, asked: BatchRequest, *, log: HookLog) -> Any:
    """Wrap the generator that older Keras has instead."""
    ask = _next(next, asked, log=log)

    @functools.wraps(plain)
    def enumerate_epoch(self: Any) -> Any:
        yield from iter(functools.partial(ask, plain(self)), None)

    return enumerate_epoch


def _make_train_function(plain: Any, *, backend: str, asked: BatchRequest, log: HookLog) -> Any:
    made = {"tensorflow": _of_tensorflow, "jax": _of_jax, "torch": _of_torch}[backend]

    @functools.wraps(plain)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        try:
            function = self.train_function
            if log.active and not hasattr(function, SEEN):
                function = made(function, self, asked=asked, log=log)
                setattr(function, SEEN, True)
                self.train_function = function
        except Exception as error:
            log.failed("Keras's steps", error)
        return result

    return make_train_function


def _of_tensorflow(plain: Any, model: Any, *, asked: BatchRequest, log: HookLog) -> Any:
    many = int(getattr(model, "steps_per_execution", 1) or 1) > 1
    steps = MultiStepRecorder(model, log) if many else TensorFlowRecorder(model, log)

    def function(iterator: Any) -> Any:
        return plain(iterator) if asked.single else steps.call(plain, iterator)

    return function


def _of_torch(plain: Any, model: Any, *, asked: BatchRequest, log: HookLog) -> Any:
    steps = PythonRecorder(model, log)

    def function(data: Any) -> Any:
        return _of_batch(plain, data, asked=asked, steps=steps)

    return function


def _of_batch(plain: Any, data: Any, *, asked: BatchRequest, steps: PythonRecorder) -> Any:
    """Call a train function with the batch that was just requested."""
    if asked.single or not steps.log.active or not asked.begin_s:
        return plain(data)
    begin_s, asked.begin_s, asked.steps = asked.begin_s, 0.0, steps
    return steps.call(plain, data, begin_s=begin_s, wait_s=asked.wait_s)


def _of_jax(plain: Any, model: Any, *, asked: BatchRequest, log: HookLog) -> Any:
    steps = PythonRecorder(model, log)

    def function(state: Any, iterator: Any) -> Any:
        if isinstance(iterator, list):  # Keras before 3.7 has taken the batches itself
            return _of_batch(functools.partial(plain, state), iterator, asked=asked, steps=steps)
        if asked.single or not log.active:
            return plain(state, iterator)
        asked.steps = steps
        return steps.pulled(plain, state, iterator=iterator)

    return function


def _train_on_batch(plain: Any, *, asked: BatchRequest, log: HookLog) -> Any:
    """Wrap a call for one batch, which its caller made beforehand."""

    @functools.wraps(plain)
    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not log.active or asked.single:
            return plain(self, *args, **kwargs)
        asked.single = True
        begin_s = time.perf_counter()
        try:
            result = plain(self, *args, **kwargs)
        finally:
            asked.single = False
        end_s = time.perf_counter()
        try:
            _single_step(self, (args, kwargs), step=Step(begin_s, end_s, 0.0), log=log)
        except Exception as error:
            log.failed("train_on_batch", error)
        return result

    return train_on_batch


def _single_step(model: Any, given: tuple[Any, Any], *, step: Step, log: HookLog) -> None:
    thread = threading.get_ident()
    key = ("keras call", id(model), thread)
    name = f"{getattr(model, 'name', type(model).__name__)}.train_on_batch"
    loop = log.timeline.loop(key, name=name, kind="call", thread=thread)
    if not loop.steps:
        loop.waits, loop.buffer, loop.where = "none", 0, site_of(sys._getframe(1))
        args, kwargs = given
        loop.leaves = leaves((*args[:2], *(kwargs[one] for one in ("x", "y") if one in kwargs)))
    keep(loop, step, most=log.max_steps)
