"""The batch size at which the input and the step take the same time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fastfeed.errors import OptionError

OVERHEAD = 0.05  # share of a step's fixed part at which larger batches gain little


@dataclass(frozen=True)
class CostLine:
    """A cost with a fixed part, and a part for each of several equal things."""

    fixed: float
    each: float

    def at(self, count: float) -> float:
        """Return the cost of so many."""
        return self.fixed + self.each * count


@dataclass(frozen=True)
class BatchBalance:
    """The smallest batch that reaches `samples_per_second`, the most that input and step allow, and
    which of them is the limit: "input" or "step"."""

    batch: int
    samples_per_second: float
    limit: str


def cost_line(points: Iterable[tuple[float, float]]) -> CostLine:
    """Return the line through points (count > 0, cost > 0), by least squares; a single point is
    proportional to its count. Neither part is negative."""
    counts, costs = (np.array(column, float) for column in zip(*points, strict=True))
    proportional = CostLine(0.0, float((counts @ costs) / (counts @ counts)))
    if len(set(counts)) == 1:
        return proportional
    slope, fixed = np.polyfit(counts, costs, 1)
    if slope <= 0:
        return CostLine(float(costs.mean()), 0.0)
    return CostLine(float(fixed), float(slope)) if fixed > 0 else proportional


def balanced_batch(
    source_seconds_per_sample: float,
    steps: Iterable[tuple[float, float]],
    *,
    producers: float = 1,
    most: int | None = None,
) -> BatchBalance:
    """Return the batch size that balances the input and the step.

    Below it the fixed part of the step is the limit, above it the input is: fixed + a * batch =
    source * batch / producers. If the step takes longer than the input for any batch, return the
    batch whose fixed part is 5 % of the step. `source_seconds_per_sample`: of one producer;
    `producers`: as many work at once; `steps`: (batch, seconds) for at least two batches; `most`:
    the largest batch that fits into memory. Raise OptionError for figures that cannot be.
    """
    known = list(steps)
    possible = all(count > 0 and cost > 0 for count, cost in known)
    if len({batch for batch, _ in known}) < 2 or not possible:
        raise OptionError(
            f"balanced_batch needs the seconds of a step at two batch sizes or more, got {known}: "
            "the part of a step that does not depend on the batch follows from the difference"
        )
    if not 0 < source_seconds_per_sample < math.inf or not producers > 0:
        raise OptionError(
            "balanced_batch needs source seconds and producers > 0, got "
            f"{source_seconds_per_sample} and {producers}"
        )
    line, input_s = cost_line(known), source_seconds_per_sample / producers
    if input_s > line.each:
        batch = line.fixed / (input_s - line.each)
    else:
        batch = line.fixed * (1 / OVERHEAD - 1) / line.each
    chosen = max(1, min(math.ceil(batch - 1e-9), most or math.ceil(batch)))
    step_s, feed_s = line.at(chosen), input_s * chosen
    limit = "input" if feed_s >= step_s * (1 - 1e-9) else "step"
    return BatchBalance(chosen, chosen / max(step_s, feed_s), limit)
