"""How long a run of a session waited inside its graph, from the times of its operations.

TensorFlow notes them for a run that asks for them in its options, which changes neither the graph
nor what it computes. Some runs ask; what the others take longer than those computed was waiting,
too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

from fastfeed.diagnose.hooks.wait_estimate import WaitEstimator

SHORT_S = 0.008  # of runs shorter than this only one in ...
OF = 8  # ... so many is traced
SHARE = 0.01  # of the time, at most, goes into reading traces
LITTLE_S = 0.001  # a wait not worth looking at what else ran meanwhile

Intervals = list[tuple[int, int]]


class Inside:
    """The runs of one loop whose graph waits for input in `names`, which are operations."""

    def __init__(self, names: Collection[str]) -> None:
        self.excess = WaitEstimator()
        self._names = names
        self._runs = 0
        self._next_s = 0.0

    def due(self, now_s: float) -> bool:
        """Whether the run that begins now is to be traced; not the first one, which prepares the
        graph."""
        self._runs += 1
        if self._runs == 1:
            return False
        if not self.excess.known:
            return True
        return now_s >= self._next_s and (self.excess.usual_s > SHORT_S or self._runs % OF == 0)

    def traced(self, metadata: Any, duration: float) -> float:
        """Seconds of a traced run that it waited."""
        start_s = time.perf_counter()
        wait_s = min(waited_s(metadata.step_stats, self._names), duration)
        self.excess.computed(duration - wait_s)
        end_s = time.perf_counter()
        self._next_s = end_s + (end_s - start_s) / SHARE
        return wait_s


def asks_nothing(options: Mapping[str, Any]) -> bool:
    """Whether a run was given no options of its own: empty ones are what a monitored session gives
    to every run."""
    given = options.get("options")
    if given is None:
        return options.get("run_metadata") is None
    return hasattr(given, "ByteSize") and given.ByteSize() == 0


def tracing() -> dict[str, Any]:
    """The arguments of `Session.run` that ask for the times."""
    config = sys.modules["tensorflow.core.protobuf.config_pb2"]
    asked = config.RunOptions(trace_level=config.RunOptions.SOFTWARE_TRACE)
    return {"options": asked, "run_metadata": config.RunMetadata()}


def waited_s(stats: Any, names: Collection[str]) -> float:
    """Seconds in which the operations called `names` ran and no other one did."""
    waits: Intervals = []
    works: Intervals = []
    for device in stats.dev_stats:
        for node in device.node_stats:
            begin = node.all_start_nanos or 1000 * node.all_start_micros
            end = begin + (node.all_end_rel_nanos or 1000 * node.all_end_rel_micros)
            if node.node_name in names:
                waits.append((begin, end))
            elif (
                " = " in node.timeline_label
            ):  # a transfer between devices has no type, and waits for its sender
                works.append((begin, end))
    total = _length(waits)
    if total < 1e9 * LITTLE_S:
        return total / 1e9
    return (_length(waits + works) - _length(works)) / 1e9


def _length(intervals: Intervals) -> int:
    """Of all intervals together, those that overlap counted once."""
    total, until = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total
