"""The time of a training for the same number of steps as others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any


def usual_steps(rows: Iterable[dict[str, Any]]) -> float:
    """Return the median number of steps to the target over all runs of a training; 0 for none."""
    every = (run for row in rows for run in row["runs"] if "failed" not in run)
    return statistics.median([run["steps"] for run in every if run["reached"]] or [0.0])


def seconds_of(run: dict[str, Any], steps: float) -> float:
    """Return the time of a run for a number of steps, with those that differ from its own
    at its steps/s."""
    rate = run["steps_per_s"] or math.inf  # of a run of few steps, nothing is known
    return float(run["seconds"] + (steps - run["steps"]) / rate)
