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
        advice = case.advice(KNOB)
        if advice is None:
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
            ]
            if edits:
                title = f"tf.train.{called(calls[0][1])}(..., {KNOB}={count})"
                told = advice if count == case.count(advice) else None
                yield Proposal(title, tuple(edits), told, makes=True)
