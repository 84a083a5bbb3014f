"""How long a run of a session waited inside its graph, from the times of its operations.

TensorFlow records them for a run that requests them in its options, which changes neither the graph
nor its results. Some runs do; what the others take longer than those computed was waiting, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

from fastfeed.diagnose.hooks.wait_estimate import WaitEstimator

SHORT_S = 0.008  # of shorter runs only one in ...
OF = 8  # ... this many is traced
SHARE = 0.01  # of the time, at most, for reading traces
LITTLE_S = 0.001  # a shorter wait is not checked for other operations meanwhile

Intervals = list[tuple[int, int]]


class GraphWaits:
    """The runs of one loop whose graph waits for input in the operations `names`."""

    def __init__(self, names: Collection[str]) -> None:
        self.excess = WaitEstimator()
        self._names = names
        self._runs = 0
        self._next_s = 0.0

    def due(self, now_s: float) -> bool:
        """Return True if the run that begins now is to be traced; not the first one, which prepares
        the graph."""
        self._runs += 1
        if self._runs == 1:
            return False
        if not self.excess.known:
            return True
        return now_s >= self._next_s and (self.excess.usual_s > SHORT_S or self._runs % OF == 0)

    def traced(self, metadata: Any, duration: float) -> float:
        """Return the seconds that a traced run waited."""
        start_s = time.perf_counter()
        wait_s = min(waited_s(metadata.step_stats, self._names), duration)
        self.excess.computed(duration - wait_s)
        end_s = time.perf_counter()
        self._next_s = end_s + (end_s - start_s) / SHARE
        return wait_s


def has_no_options(options: Mapping[str, Any]) -> bool:
    """Return True if a run has no options of its own: a monitored session gives empty ones to every
    run."""
    given = options.get("options")
    if given is None:
        return options.get("run_metadata") is None
    return hasattr(given, "ByteSize") and given.ByteSize() == 0


def tracing() -> dict[str, Any]:
    """Return the arguments of `Session.run` that request the times."""
    config = sys.modules["tensorflow.core.protobuf.config_pb2"]
    asked = config.RunOptions(trace_level=config.RunOptions.SOFTWARE_TRACE)
    return {"options": asked, "run_metadata": config.RunMetadata()}


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
            elif (
                " = " in node.timeline_label
            ):  # a transfer between devices has no type, and waits for its sender
                works.append((begin, end))
    total = _length(waits)
    if total < 1e9 * LITTLE_S:
        return total / 1e9
    return (_length(waits + works) - _length(works)) / 1e9


def _length(intervals: Intervals) -> int:
    """Return the length of all intervals together; overlaps count once."""
    total, until = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total
