"""Hook of TensorFlow 2: loops over a dataset, and repeated calls of a tf.function."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_loader import pipeline
from fastfeed.diagnose.hooks.keras_steps import TensorFlowRecorder
from fastfeed.diagnose.hooks.patches import Undo, calling_frames, patch, undo_all
from fastfeed.diagnose.hooks.tf_function import ScriptFunction, takes_input
from fastfeed.diagnose.hooks.tf_relay import copied_tensor
from fastfeed.steps.recorder import StepRecorder, is_users, site_of
from fastfeed.steps.timeline import Loop, Step

MODULES = ("tensorflow",)


def install(module: Any, log: HookLog) -> Undo:
    """Observe eager iterators, those of tf.distribute too, and calls of functions."""
    iterator = sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator
    dataset = sys.modules["tensorflow.python.data.ops.dataset_ops"].DatasetV2
    functions = sys.modules["tensorflow.python.eager.polymorphic_function.polymorphic_function"]
    distribute = sys.modules.get("tensorflow.python.distribute.input_lib")
    eagerly = sys.modules["tensorflow.python.eager.context"].executing_eagerly
    recorders: weakref.WeakKeyDictionary[Any, StepRecorder | None] = weakref.WeakKeyDictionary()
    wrap = functools.partial(_wrap_next, recorders=recorders, eagerly=eagerly, log=log)
    iterators = [iterator, getattr(distribute, "DistributedIteratorBase", None)]
    undos = [
        patch(owner, name, wrap=wrap)
        for owner in iterators
        if owner is not None
        for name in ("__next__", "get_next")
    ]
    undos += [
        patch(functions.Function, "__call__", wrap=lambda one: _wrap_call(one, eagerly, log=log)),
        patch(dataset, "from_generator", wrap=lambda one: _wrap_from_generator(one, log)),
    ]
    return undo_all(undos)


def _wrap_from_generator(original: Any, log: HookLog) -> Any:
    """Wrap `Dataset.from_generator`, which Keras calls, too."""
    create = original.__func__

    @functools.wraps(create)
    def from_generator(*args: Any, **kwargs: Any) -> Any:
        log.set_trims()
        return create(*args, **kwargs)

    return staticmethod(from_generator)


def _wrap_next(original: Any, *, recorders: Any, eagerly: Callable[[], bool], log: HookLog) -> Any:
    new = object()

    @functools.wraps(original)
    def take(self: Any) -> Any:
        steps = recorders.get(self, new)
        if steps is new:
            if not log.active or not eagerly():
                return original(self)
            steps = recorders[self] = _recorder(self, log)
        if steps is None:
            return original(self)
        return steps.take(functools.partial(_element, original, self, steps=steps))

    return take


def _element(original: Any, iterator: Any, *, steps: StepRecorder) -> Any:
    """Return a batch; one that is taken ahead is copied, because its producer may reuse the
    memory."""
    batch = original(iterator)
    if steps.prefetching:
        nest = sys.modules["tensorflow"].nest
        batch = nest.map_structure(copied_tensor, batch, expand_composites=True)
    return batch


def _recorder(iterator: Any, log: HookLog) -> StepRecorder | None:
    """Return a recorder for an iterator; None for one of Keras, which has a hook of its own."""
    try:
        names = (frame.f_globals.get("__name__", "") for frame in calling_frames())
        if any(name.startswith("keras.") for name in names):
            return None
        dataset = getattr(iterator, "_dataset", None)
        buffer, note = (None, "") if dataset is None else pipeline(dataset)
        return StepRecorder(log, "tf.data", name=note or "an iterator of tf.data", buffer=buffer)
    except Exception as error:
        log.failed("an iterator of tf.data", error)
        return None


def _wrap_call(original: Any, eagerly: Callable[[], bool], *, log: HookLog) -> Any:
    """Wrap `Function.__call__`: a call from a line of the script is a step of the loop around
    it."""
    recorders: weakref.WeakKeyDictionary[Any, TensorFlowRecorder] = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not log.active:
            return original(self, *args, **kwargs)
        caller = sys._getframe(1)
        if not is_users(caller.f_code.co_filename) or not eagerly():
            return original(self, *args, **kwargs)
        if args and type(args[0]).__name__ == "OwnedIterator":
            steps = recorders.get(self)
            if steps is None:
                function = ScriptFunction(self, args[0], log=log)
                steps = recorders[self] = TensorFlowRecorder(function, log)
            return steps.call(lambda one: original(self, one, *args[1:], **kwargs), args[0])
        begin_s = time.perf_counter()
        result = original(self, *args, **kwargs)
        step = Step(begin_s, time.perf_counter(), 0.0)
        key = ("call", caller.f_code, caller.f_lineno, threading.get_ident())
        loop = log.find_loop(key, lambda: _new_loop(self, caller, log=log))
        if loop is not None:
            log.add_step(loop, step)
        return result

    return call


def _new_loop(function: Any, caller: FrameType, *, log: HookLog) -> Loop:
    """Return the loop of a function whose input is made between its calls, or taken by itself."""
    hidden = False
    try:
        hidden = takes_input(function)
    except Exception as error:
        log.failed("what a function takes its input from", error)
    note = "a function that takes its batches itself: their waits lie inside its steps"
    return Loop(
        f"{getattr(function, '_name', '')}()",
        "call",
        threading.get_ident(),
        waits="hidden" if hidden else "none",
        where=site_of(caller),
        buffer=None if hidden else 0,
        note=note if hidden else "",
    )
