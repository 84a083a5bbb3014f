"""Hook of loops of TensorFlow 2: `for batch in dataset`, and a tf.function that the script calls
repeatedly."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from collections.abc import Iterable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_loader import LoaderFacts, dataset_facts
from fastfeed.diagnose.hooks.keras_steps import TensorFlowRecorder
from fastfeed.diagnose.hooks.patches import Undo, calling_frames, patch, undo_all
from fastfeed.diagnose.hooks.tf_relay import copied_tensor
from fastfeed.steps.recorder import StepRecorder, site_of
from fastfeed.steps.timeline import Loop, Step

MODULES = ("tensorflow",)
GET_NEXT_OP = "IteratorGetNext"
# beginnings of names: operations that take from a dataset
INPUT_OPS = (GET_NEXT_OP, "MultiDeviceIteratorGetNext", "ReduceDataset", "DatasetToSingleElement")
HIDDEN_NOTE = (
    "a function that takes its batches itself: its waits for them are in the time of its steps"
)


class ScriptFunction:
    """A tf.function of the script, called with an iterator."""

    kind = "tf.data"
    steps = 1

    def __init__(self, function: Any, iterator: Any, *, log: HookLog) -> None:
        self.name = f"{getattr(function, '_name', '')}(iterator)"
        self._function, self._iterator = ref(function), ref(iterator)
        self._log = log

    def facts(self) -> LoaderFacts:
        """Return the facts about the dataset of the iterator."""
        return dataset_facts(getattr(self._iterator(), "_dataset", None))

    def takes_one(self) -> bool:
        """Return True if every trace takes exactly one batch; others cannot be relayed."""
        traces = _input_ops(self._function(), self._log)
        return bool(traces) and all(ops == ([GET_NEXT_OP], []) for ops in traces)


def _input_ops(function: Any, log: HookLog) -> list[tuple[list[str], list[str]]]:
    """Return the operations that take from a dataset in each trace of a function: in its own graph,
    and in the functions that this calls."""
    try:
        graphs = [trace.graph.as_graph_def() for trace in function._list_all_concrete_functions()]
    except Exception as error:
        log.failed("what a function takes from a dataset", error)
        return []
    found = []
    for graph in graphs:
        called = itertools.chain(*(one.node_def for one in graph.library.function))
        found.append((_taking(graph.node), _taking(called)))
    return found


def _taking(nodes: Iterable[Any]) -> list[str]:
    return [node.op for node in nodes if node.op.startswith(INPUT_OPS)]


def install(module: Any, log: HookLog) -> Undo:
    """Observe eager iterators, those of tf.distribute too, and calls of functions."""
    iterator = sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator
    distributed = getattr(
        sys.modules.get("tensorflow.python.distribute.input_lib"), "DistributedIteratorBase", None
    )
    function = sys.modules[
        "tensorflow.python.eager.polymorphic_function.polymorphic_function"
    ].Function
    hooks = _TensorFlowHooks(log)
    undos = [
        patch(function, "__call__", wrap=hooks.wrap_call),
    ]
    for kind in (iterator, distributed) if distributed is not None else (iterator,):
        undos += [patch(kind, name, wrap=hooks.wrap_next) for name in ("__next__", "get_next")]
    return undo_all(undos)


class _TensorFlowHooks:
    """The wrappers of TensorFlow's methods, and the recorders of iterators and functions."""

    def __init__(self, log: HookLog) -> None:
        self._log = log
        # None for an iterator that is observed by other hooks
        self._iterators: WeakKeyDictionary[Any, StepRecorder | None] = WeakKeyDictionary()
        self._functions: WeakKeyDictionary[Any, TensorFlowRecorder] = WeakKeyDictionary()
        self._is_eager = sys.modules["tensorflow.python.eager.context"].executing_eagerly

    def wrap_next(self, original: Any) -> Any:
        """Wrap a request to an iterator."""

        @functools.wraps(original)
        def take(iterator: Any) -> Any:
            if iterator not in self._iterators:
                if not self._log.active or not self._is_eager():
                    return original(iterator)
                self._iterators[iterator] = self._recorder(iterator)
            steps = self._iterators[iterator]
            if steps is None:
                return original(iterator)
            return steps.take(functools.partial(_next_batch, original, iterator, steps=steps))

        return take

    def _recorder(self, iterator: Any) -> StepRecorder | None:
        """Return the recorder of an iterator, or None if Keras's hooks observe it."""
        try:
            names = (frame.f_globals.get("__name__", "") for frame in calling_frames())
            if any(name.startswith("keras.") for name in names):
                return None
            facts = dataset_facts(getattr(iterator, "_dataset", None))
            name = facts.note or "an iterator of tf.data"
            return StepRecorder(self._log, "tf.data", name=name, buffer=facts.buffer)
        except Exception as error:
            self._log.failed("an iterator of tf.data", error)
            return None

    def wrap_call(self, original: Any) -> Any:
        """Wrap the call of a function; a call from a line of the script is a step of its loop."""

        @functools.wraps(original)
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            if not (self._log.active and is_users_code(caller.f_code) and self._is_eager()):
                return original(function, *args, **kwargs)
            if args and type(args[0]).__name__ == "OwnedIterator":
                return self._function(function, args[0]).call(
                    lambda iterator: original(function, iterator, *args[1:], **kwargs), args[0]
                )
            begin_s = time.perf_counter()
            result = original(function, *args, **kwargs)
            step = Step(begin_s, time.perf_counter(), 0.0)
            key = ("call", caller.f_code, caller.f_lineno, threading.get_ident())
            loop = self._log.find_loop(key, lambda: self._call_loop(function, caller))
            if loop is not None:
                self._log.add_step(loop, step)
            return result

        return call

    def _function(self, function: Any, iterator: Any) -> TensorFlowRecorder:
        """Return the recorder of a function that gets an iterator."""
        if function not in self._functions:
            observed = ScriptFunction(function, iterator, log=self._log)
            self._functions[function] = TensorFlowRecorder(observed, self._log)
        return self._functions[function]

    def _call_loop(self, function: Any, caller: FrameType) -> Loop:
        """Return the loop of the calls of a function that gets no iterator.

        Its input is made between its calls, unless it takes it from a dataset by itself.
        """
        hidden = any(own or called for own, called in _input_ops(function, self._log))
        return Loop(
            f"{getattr(function, '_name', '')}()",
            "call",
            threading.get_ident(),
            waits="hidden" if hidden else "none",
            where=site_of(caller),
            buffer=None if hidden else 0,
            note=HIDDEN_NOTE if hidden else "",
        )


def _next_batch(original: Any, iterator: Any, *, steps: StepRecorder) -> Any:
    """Return a batch; copy one that is taken ahead, because its producer may reuse the memory."""
    batch = original(iterator)
    if steps.prefetching:
        nest = sys.modules["tensorflow"].nest
        batch = nest.map_structure(copied_tensor, batch, expand_composites=True)
    return batch
