"""The steps of a loop as columns over time, combined if there are too many to show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastfeed.diagnose.evidence import Evidence
from fastfeed.diagnose.judge.entries import ledger_of
from fastfeed.steps.timeline import Step

STEP_COLUMNS = (
    *("start_s", "end_s", "steps", "mean_s", "longest_s", "wait_s", "longest_wait_s", "free"),
)


def shown_steps(seen: Evidence) -> list[Step]:
    """Return the steps of the loop, each with its wait.

    A wait that is not measured in the step itself, as the time between the runs of a session in
    which their input is made, is that of the ledger, and prolongs the step.
    """
    loop = seen.loop
    if loop is None or loop.waits == "exact":
        return list(loop.steps) if loop is not None else []
    ledger = ledger_of(seen)
    columns = (ledger.begin, ledger.starved, ledger.starved + ledger.inside)
    parts = {begin: (wait, length) for begin, wait, length in np.array(columns).T.tolist()}
    found = []
    for step in loop.steps:
        wait_s, length_s = parts.get(step.begin_s, (step.wait_s, 0.0))
        end_s = max(step.end_s, step.begin_s + length_s)
        found.append(step._replace(wait_s=wait_s, end_s=end_s))
    return found


def columns_of(
    steps: Sequence[Step], *, origin_s: float, limit: int
) -> dict[str, list[float] | list[int]]:
    """Return at most `limit` rows, of one step each if that is enough, else of equal time.

    A row reaches from the begin of its first step to the end of its last one, so that a pause stays
    a gap. Times are seconds since the origin.
    """
    table = np.array(steps, dtype=np.float64).reshape(-1, len(Step._fields))
    table = table[np.isfinite(table).all(axis=1)]
    table = table[np.argsort(table[:, 1], kind="stable")]
    if not len(table):
        return {name: [] for name in STEP_COLUMNS}
    begin, end, free = table[:, 0] - origin_s, table[:, 1] - origin_s, table[:, 3]
    length = np.maximum(end - begin, 0.0)
    wait = np.clip(table[:, 2], 0.0, length)
    first = _firsts(end, limit)
    count = np.diff(np.append(first, len(end)))
    columns = (
        *(np.minimum.reduceat(begin, first), np.maximum.reduceat(end, first), count),
        *(np.add.reduceat(length, first) / count, np.maximum.reduceat(length, first)),
        *(np.add.reduceat(wait, first) / count, np.maximum.reduceat(wait, first)),
        np.add.reduceat(free, first).astype(np.int64),
    )
    return {
        name: column.round(6).tolist() for name, column in zip(STEP_COLUMNS, columns, strict=True)
    }


def _firsts(end: np.ndarray, limit: int) -> np.ndarray:
    """Return which step is the first of each row."""
    if len(end) <= limit:
        return np.arange(len(end))
    span = max(float(end[-1] - end[0]), 1e-9)
    place = np.minimum((end - end[0]) / span * limit, limit - 1).astype(np.int64)
    return np.flatnonzero(np.diff(place, prepend=-1))
