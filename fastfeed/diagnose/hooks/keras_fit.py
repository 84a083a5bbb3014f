"""Hook of Keras on each of its backends: the steps of `fit`, calls for single batches, epochs,
evaluations and callbacks.

The batches of PyTorch and JAX come from an iterator in Python, which is watched like any other.
Those of TensorFlow are taken in its graph: see keras_steps.py.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_loader import loader_facts
from fastfeed.diagnose.hooks.keras_steps import TensorFlowRecorder, TrainFunction, fit_name
from fastfeed.diagnose.hooks.patches import (
    CallTimer,
    Undo,
    call_before,
    patch,
    recorder_of,
    undo_all,
)
from fastfeed.steps.recorder import BatchSource, StepRecorder, leaves, site_of
from fastfeed.steps.timeline import Loop, Mark, Step
from fastfeed.steps.watch import WatchedIterator

MODULES = ("keras",)
TRAINERS = {"tensorflow": "TensorFlowTrainer", "torch": "TorchTrainer", "jax": "JAXTrainer"}
EPOCH_CALLBACKS = ("on_epoch_begin", "on_epoch_end", "on_train_begin")
# asynchronous work of other backends than TensorFlow may end in them
BATCH_CALLBACKS = ("on_train_batch_begin", "on_train_batch_end")
WRAPPED = "_fastfeed_wrapped"  # attribute of a wrapped train function: the log of its steps


def install(module: Any, log: HookLog) -> Undo:
    """Observe every model of the process."""
    hooks = _KerasHooks(log)
    timer = CallTimer(log)
    undos: list[Undo] = []
    backend = module.backend.backend()
    trainer = getattr(
        sys.modules.get(f"keras.src.backend.{backend}.trainer"), TRAINERS.get(backend, ""), None
    )
    if trainer is not None:
        undos += [
            patch(trainer, "train_on_batch", wrap=hooks.wrap_train_on_batch),
            timer.method(trainer, "evaluate", kind="evaluation"),
            timer.method(trainer, "predict", kind="evaluation", label="predict"),
        ]
    callbacks = sys.modules["keras.src.callbacks.callback_list"].CallbackList
    if backend == "tensorflow" and trainer is not None:
        wrap = hooks.wrap_make_train_function
        undos += [
            patch(trainer, "make_train_function", wrap=wrap),
            call_before(callbacks, "on_epoch_begin", action=hooks.begin_epoch),
        ]
    else:
        epochs = sys.modules["keras.src.trainers.epoch_iterator"].EpochIterator
        undos.append(patch(epochs, "_enumerate_iterator", wrap=hooks.wrap_enumerate_iterator))
    model = sys.modules["keras.src.models.model"].Model
    for name in ("save", "save_weights"):
        undos.append(timer.method(model, name, kind="checkpoint", label=name))
    timed = EPOCH_CALLBACKS + BATCH_CALLBACKS if backend == "tensorflow" else EPOCH_CALLBACKS
    undos += [timer.method(callbacks, name, kind="callback", label=name) for name in timed]
    return undo_all(undos)


class _KerasHooks:
    """The wrappers of Keras's methods, and their state."""

    def __init__(self, log: HookLog) -> None:
        self._log = log

    def begin_epoch(self, callbacks: Any, epoch: Any, *args: Any, **kwargs: Any) -> None:
        """Mark the begin of an epoch."""
        if self._log.active:
            now_s = time.perf_counter()
            self._log.add_mark(Mark("epoch", now_s, now_s, str(epoch)))

    def wrap_enumerate_iterator(self, original: Any) -> Any:
        """Wrap the iterator of `fit`, which yields the iterator of its batches for every step."""

        @functools.wraps(original)
        def _enumerate_iterator(epochs: Any) -> Any:
            found, caller = original(epochs), sys._getframe(2)
            if caller.f_code.co_name != "fit":
                return found
            steps = recorder_of(
                epochs, self._log, create=functools.partial(_recorder, caller=caller)
            )
            return found if steps is None else _watched(found, steps)

        return _enumerate_iterator

    def wrap_make_train_function(self, original: Any) -> Any:
        """Wrap every train function that a model makes."""

        @functools.wraps(original)
        def make_train_function(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            try:
                known = model.train_function
                if self._log.active and getattr(known, WRAPPED, None) is not self._log:
                    # an earlier diagnosis has wrapped the function of a model that trains again
                    plain = known.args[0] if hasattr(known, WRAPPED) else known
                    recorder = TensorFlowRecorder(TrainFunction(model), self._log)
                    model.train_function = functools.partial(recorder.call, plain)
                    setattr(model.train_function, WRAPPED, self._log)
            except Exception as error:
                self._log.failed("Keras's steps", error)
            return result

        return make_train_function

    def wrap_train_on_batch(self, original: Any) -> Any:
        """Wrap a call for a single batch, which its caller has made beforehand."""

        @functools.wraps(original)
        def train_on_batch(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._log.active:
                return original(model, *args, **kwargs)
            begin_s = time.perf_counter()
            result = original(model, *args, **kwargs)
            step, thread = Step(begin_s, time.perf_counter(), 0.0), threading.get_ident()
            key, caller = ("keras call", id(model), thread), sys._getframe(1)
            try:
                loop = self._log.find_loop(
                    key, lambda: _call_loop(model, args, kwargs=kwargs, caller=caller)
                )
                if loop is not None:
                    self._log.add_step(loop, step)
            except Exception as error:
                self._log.failed("train_on_batch", error)
            return result

        return train_on_batch


def _call_loop(model: Any, args: Any, *, kwargs: Any, caller: Any) -> Loop:
    """Return the loop of the calls for single batches of a model."""
    return Loop(
        f"{getattr(model, 'name', type(model).__name__)}.train_on_batch",
        "call",
        threading.get_ident(),
        waits="none",
        where=site_of(caller),
        buffer=0,
        leaves=leaves((*args[:2], *(kwargs[name] for name in ("x", "y") if name in kwargs))),
    )


def _recorder(epochs: Any, log: HookLog, *, caller: Any) -> StepRecorder:
    """Return the recorder of a `fit`, which `caller` is the frame of."""
    facts = loader_facts(epochs.data_adapter)
    source = BatchSource(id(epochs), note=facts.note)
    name = fit_name(caller.f_locals.get("self"))
    return StepRecorder(log, "keras", name=name, buffer=facts.buffer, ahead=False, source=source)


def _watched(found: Any, steps: StepRecorder) -> Iterator[tuple[Any, Any, Any]]:
    """Yield what an iterator over the steps of an epoch yields, with watched batches.

    The iteration ends with it: the iterator of the batches may serve the next epoch, too.
    """
    source = watched = None
    for begin, end, iterator in found:
        if iterator is not source:
            source, watched = iterator, WatchedIterator(iterator, steps)
        yield begin, end, watched
    steps.end(time.perf_counter())
