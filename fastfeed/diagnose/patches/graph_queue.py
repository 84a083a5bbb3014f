"""More threads of the queues that `tf.train.batch` and its kin make in a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fastfeed.diagnose.patches.names import path_of
from fastfeed.diagnose.patches.proposal import PatchCase, Proposal
from fastfeed.diagnose.patches.source_file import called

# Functions of tf.compat.v1.train, with the position of num_threads.
QUEUES = {"batch": 2, "maybe_batch": 3, "shuffle_batch": 4, "maybe_shuffle_batch": 5}
KNOB = "num_threads"


class QueueThreads:
    """More threads that fill a queue of the graph, each with examples of its own."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        advice, loop = case.advice(KNOB), case.diagnosis.evidence.loop
        if loop is None or loop.kind != "session":
            return
        calls = [
            (file, node)
            for file in case.files.values()
            for node in ast.walk(file.tree)
            if isinstance(node, ast.Call) and called(node) in QUEUES
            if f".{path_of(node.func)}".endswith(f".train.{called(node)}")
        ]
        for count in dict.fromkeys((case.count(advice), case.cores)):
            edits = [
                file.with_keyword(call, KNOB, value=str(count), position=QUEUES[called(call)])
                for file, call in calls
                if _threads_of(call) != count
            ]
            if edits:
                title = f"tf.train.{called(calls[0][1])}(..., {KNOB}={count})"
                told = advice if count == case.count(advice) else None
                yield Proposal(title, tuple(edits), told, makes=True, reorders=True)


def _threads_of(call: ast.Call) -> object:
    """Return the number of threads that a call gives, None if its text does not tell."""
    given = {one.arg: one.value for one in call.keywords}
    positional = dict(enumerate(call.args))
    value = given.get(KNOB, positional.get(QUEUES[called(call)], ast.Constant(1)))
    return value.value if isinstance(value, ast.Constant) else None
