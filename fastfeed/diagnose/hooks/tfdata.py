"""Loops of TensorFlow 2: `for batch in dataset`, and a tf.function that the script calls
repeatedly."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastfeed.diagnose.hooks.keras_loader import pipeline
from fastfeed.diagnose.hooks.patches import Undo, frames, keep, patch, undo_all
from fastfeed.diagnose.hooks.tf_function import FunctionRecorder, takes_input
from fastfeed.diagnose.hooks.tf_relay import fresh
from fastfeed.steps.recorder import StepRecorder, is_users, site_of
from fastfeed.steps.timeline import Loop, Step

if TYPE_CHECKING:
    from fastfeed.diagnose.hooks.hook_log import HookLog

MODULES = ("tensorflow",)
MOST_LOOPS = 256  # a script may make functions without end


def install(module: Any, log: HookLog) -> Undo:
    """Observe eager iterators, those of tf.distribute too, and calls of functions."""
    iterator = sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator
    dataset = sys.modules["tensorflow.python.data.ops.dataset_ops"].DatasetV2
    function = sys.modules[
        "tensorflow.python.eager.polymorphic_function.polymorphic_function"
    ].Function
    eagerly = sys.modules["tensorflow.python.eager.context"].executing_eagerly
    seen: weakref.WeakKeyDictionary[Any, StepRecorder | None] = weakref.WeakKeyDictionary()
    asked = functools.partial(_asked, seen=seen, eagerly=eagerly, log=log)
    undos: list[Undo] = [
        patch(iterator, "__next__", wrap=asked),
        patch(iterator, "get_next", wrap=asked),
        patch(function, "__call__", wrap=lambda plain: _called(plain, eagerly, log=log)),
    ]
    undos.append(patch(dataset, "from_generator", wrap=lambda plain: _generated(plain, log)))
    distributed = getattr(
        sys.modules.get("tensorflow.python.distribute.input_lib"), "DistributedIteratorBase", None
    )
    if distributed is not None:
        undos += [patch(distributed, name, wrap=asked) for name in ("__next__", "get_next")]
    return undo_all(undos)


def _generated(plain: Any, log: HookLog) -> Any:
    """Wrap `Dataset.from_generator`, which Keras calls, too."""
    make = plain.__func__

    @functools.wraps(make)
    def noted(*args: Any, **kwargs: Any) -> Any:
        log.timeline.trims = True
        return make(*args, **kwargs)

    return staticmethod(noted)


def _asked(plain: Any, *, seen: Any, eagerly: Callable[[], bool], log: HookLog) -> Any:
    unseen = object()

    @functools.wraps(plain)
    def take(self: Any) -> Any:
        steps = seen.get(self, unseen)
        if steps is unseen:
            if not log.active or not eagerly():
                return plain(self)
            steps = seen[self] = _pass(self, log)
        if steps is None:
            return plain(self)
        return steps.take(functools.partial(_element, plain, self, steps=steps))

    return take


def _element(plain: Any, iterator: Any, *, steps: StepRecorder) -> Any:
    """Return a batch; one that is taken ahead is copied, because its producer may reuse the
    memory."""
    batch = plain(iterator)
    if steps.prefetching:
        batch = sys.modules["tensorflow"].nest.map_structure(fresh, batch, expand_composites=True)
    return batch


def _pass(iterator: Any, log: HookLog) -> StepRecorder | None:
    """Return the recorder of an iterator; None if other hooks follow it: Keras's, or a function
    that is being traced."""
    try:
        if any(frame.f_globals.get("__name__", "").startswith("keras.") for frame in frames()):
            return None
        dataset = getattr(iterator, "_dataset", None)
        buffer, note = (None, "") if dataset is None else pipeline(dataset)
        return StepRecorder(log, "tf.data", name=note or "an iterator of tf.data", buffer=buffer)
    except Exception as error:
        log.failed("an iterator of tf.data", error)
        return None


def _called(plain: Any, eagerly: Callable[[], bool], *, log: HookLog) -> Any:
    """Wrap `Function.__call__`: a call from a line of the script is a step of the loop around
    it."""
    takers: weakref.WeakKeyDictionary[Any, FunctionRecorder] = weakref.WeakKeyDictionary()

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not log.active:
            return plain(self, *args, **kwargs)
        caller = sys._getframe(1)
        if not is_users(caller.f_code.co_filename) or not eagerly():
            return plain(self, *args, **kwargs)
        if args and type(args[0]).__name__ == "OwnedIterator":
            steps = takers.get(self)
            if steps is None:
                steps = takers[self] = FunctionRecorder(self, log, iterator=args[0])
            return steps.call(lambda iterator: plain(self, iterator, *args[1:], **kwargs), args[0])
        begin_s = time.perf_counter()
        result = plain(self, *args, **kwargs)
        end_s = time.perf_counter()
        thread = threading.get_ident()
        loops = log.timeline.loops
        key = ("call", caller.f_code, caller.f_lineno, thread)
        loop = loops.get(key)
        if loop is None and len(loops) < MOST_LOOPS:
            loop = log.timeline.loop(
                key, name=f"{getattr(self, '_name', '')}()", kind="call", thread=thread
            )
            loop.where = site_of(caller)
            _describe(loop, self, log=log)
        if loop is not None:
            keep(loop, Step(begin_s, end_s, 0.0), most=log.max_steps)
        return result

    return call


def _describe(loop: Loop, function: Any, *, log: HookLog) -> None:
    """Note if the input of a function is made between its calls, or taken by itself."""
    loop.waits, loop.buffer = "none", 0
    try:
        if takes_input(function):
            loop.waits, loop.buffer = "hidden", None
            loop.note = "a function that takes its batches itself: what it waits for them is in the time of its steps"
    except Exception as error:
        log.failed("what a function takes its input from", error)
