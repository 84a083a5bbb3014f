"""A tf.function of the script that gets an iterator and takes its batch from it: each call is a
step."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from fastfeed.diagnose.hooks.keras_loader import leaves_of_spec, pipeline
from fastfeed.diagnose.hooks.keras_steps import TensorFlowRecorder
from fastfeed.steps.timeline import Loop

if TYPE_CHECKING:
    from fastfeed.diagnose.hooks.hook_log import HookLog

NEXT = "IteratorGetNext"
# and names that begin so
INPUTS = (NEXT, "MultiDeviceIteratorGetNext", "ReduceDataset", "DatasetToSingleElement")


class FunctionRecorder(TensorFlowRecorder):
    """The calls of one function."""

    kind = "tf.data"

    def __init__(self, function: Any, log: HookLog, *, iterator: Any) -> None:
        super().__init__(None, log)
        self._name = f"{getattr(function, '_name', '')}(iterator)"
        self._function = weakref.ref(function)
        self._iterator = weakref.ref(iterator)

    def describe(self, loop: Loop) -> None:
        iterator = self._iterator()
        dataset = getattr(iterator, "_dataset", None)
        if dataset is not None:
            loop.leaves = leaves_of_spec(dataset.element_spec)
            loop.buffer, loop.note = pipeline(dataset)

    def takes_one(self) -> bool:
        """Return True if it takes exactly one batch in every trace; otherwise its batches cannot be
        taken for it."""
        try:
            function: Any = self._function()
            traces = function._list_all_concrete_functions()
            return all(_takes_one(traced.graph) for traced in traces)
        except Exception as error:
            self.log.failed("what a function takes from its iterator", error)
            return False


def _takes_one(graph: Any) -> bool:
    definition = graph.as_graph_def()
    within = any(
        node.op.startswith(NEXT)
        for function in definition.library.function
        for node in function.node_def
    )
    return not within and [
        op.type for op in graph.get_operations() if op.type.startswith(NEXT)
    ] == [NEXT]


def takes_input(function: Any) -> bool:
    """Return True if a traced function takes input from a dataset by itself."""
    for traced in function._list_all_concrete_functions():
        graph = traced.graph.as_graph_def()
        nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
        if any(node.op.startswith(INPUTS) for node in nodes):
            return True
    return False
