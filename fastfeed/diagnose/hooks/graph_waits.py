"""Waits of a session's run inside its graph, found from the times of its operations.

TensorFlow records these times for a run that requests them in its options, which changes neither
the graph nor its results. Only some runs do. The time of the others beyond the computing time of
those was waiting, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

from fastfeed.diagnose.hooks.wait_estimate import WaitEstimator

# A traced run computes for up to 1.4 times as long, and is read afterwards. So only a few are
# traced: the second, the fourth, ... up to this one, and then one in so many.
TRACE_PERIOD = 256
MAX_READING_SHARE = 0.002  # of the time, for reading traces
MIN_WAIT_S = 0.001  # a shorter wait is not compared with the other operations

Intervals = list[tuple[int, int]]


class GraphWaits:
    """Waits of the runs of one loop, whose graph waits for input in the operations `names`."""

    def __init__(self, names: Collection[str]) -> None:
        self.estimator = WaitEstimator()
        self._names = names
        self._runs = 0
        self._next_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Return True if the run that begins now is to be traced.

        The first one is not, because it prepares the graph. As many as an estimate needs are, one
        after another.
        """
        self._runs += 1
        if self._runs == 1 or not self.estimator.known:
            return self._runs > 1
        often = self._runs <= TRACE_PERIOD
        turn = self._runs & (self._runs - 1) if often else self._runs % TRACE_PERIOD
        return not turn and now_s >= self._next_s

    def wait_s(self, metadata: Any, duration_s: float) -> float:
        """Return the seconds that a run waited; `metadata` is None if it was not traced."""
        if metadata is None:
            return self.estimator.wait_s(duration_s)
        start_s = time.perf_counter()
        wait_s = min(waited_s(metadata.step_stats, self._names), duration_s)
        self.estimator.add(duration_s - wait_s)
        end_s = time.perf_counter()
        self._next_s = end_s + (end_s - start_s) / MAX_READING_SHARE
        return wait_s


def has_no_options(arguments: Mapping[str, Any]) -> bool:
    """Return True if a run has no options of its own.

    A monitored session gives empty options to every run.
    """
    options = arguments.get("options")
    if options is None:
        return arguments.get("run_metadata") is None
    return hasattr(options, "ByteSize") and options.ByteSize() == 0


def trace_arguments() -> dict[str, Any]:
    """Return the arguments of `Session.run` that request the times of the operations."""
    config = sys.modules["tensorflow.core.protobuf.config_pb2"]
    options = config.RunOptions(trace_level=config.RunOptions.SOFTWARE_TRACE)
    return {"options": options, "run_metadata": config.RunMetadata()}


def waited_s(stats: Any, names: Collection[str]) -> float:
    """Return the seconds in which operations called `names` ran and no other one did."""
    waits: Intervals = []
    works: Intervals = []
    for device in stats.dev_stats:
        for node in device.node_stats:
            begin = node.all_start_nanos or 1000 * node.all_start_micros
            end = begin + (node.all_end_rel_nanos or 1000 * node.all_end_rel_micros)
            if node.node_name in names:
                waits.append((begin, end))
            # a transfer between devices has no type, and waits for its sender
            elif " = " in node.timeline_label:
                works.append((begin, end))
    total = _length(waits)
    if total < 1e9 * MIN_WAIT_S:
        return total / 1e9
    return (_length(waits + works) - _length(works)) / 1e9


def _length(intervals: Intervals) -> int:
    """Return the length of all intervals together; overlaps count once."""
    total, until = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total
