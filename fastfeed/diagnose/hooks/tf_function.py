"""Calls of a tf.function of the script that gets an iterator and takes its batch from it, as
steps."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.keras_loader import LoaderFacts, dataset_facts

GET_NEXT_OP = "IteratorGetNext"  # the beginning of names
INPUT_OPS = (GET_NEXT_OP, "MultiDeviceIteratorGetNext", "ReduceDataset", "DatasetToSingleElement")


class ScriptFunction:
    """A tf.function of the script."""

    kind = "tf.data"
    steps = 1

    def __init__(self, function: Any, iterator: Any, *, log: HookLog) -> None:
        self.name = f"{getattr(function, '_name', '')}(iterator)"
        self._function = weakref.ref(function)
        self._iterator = weakref.ref(iterator)
        self._log = log

    def facts(self) -> LoaderFacts:
        """Return the facts about the dataset of the iterator."""
        return dataset_facts(getattr(self._iterator(), "_dataset", None))

    def takes_one(self) -> bool:
        """Return True if the function takes exactly one batch in every trace.

        Otherwise its batches cannot be relayed.
        """
        try:
            function: Any = self._function()
            traces = function._list_all_concrete_functions()
            return all(_takes_one(trace.graph) for trace in traces)
        except Exception as error:
            self._log.failed("what a function takes from its iterator", error)
            return False


def _takes_one(graph: Any) -> bool:
    functions = graph.as_graph_def().library.function
    nested = any(node.op.startswith(GET_NEXT_OP) for one in functions for node in one.node_def)
    ops = [op.type for op in graph.get_operations() if op.type.startswith(GET_NEXT_OP)]
    return not nested and ops == [GET_NEXT_OP]


def takes_input(function: Any, log: HookLog) -> bool:
    """Return True if a traced function takes input from a dataset by itself."""
    try:
        graphs = [trace.graph.as_graph_def() for trace in function._list_all_concrete_functions()]
    except Exception as error:
        log.failed("what a function takes its input from", error)
        return False
    functions = (one.node_def for graph in graphs for one in graph.library.function)
    nodes = itertools.chain(*(graph.node for graph in graphs), *functions)
    return any(node.op.startswith(INPUT_OPS) for node in nodes)
