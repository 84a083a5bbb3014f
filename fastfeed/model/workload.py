"""What a batch and a step cost, and who makes the batches: the input of the simulation.

Costs are empirical distributions, one row for each observed batch or step, so that parts of one
batch that are long together stay together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastfeed.core.worker import batches_ahead
from fastfeed.errors import OptionError

Floats = np.ndarray[Any, np.dtype[np.float64]]
# Columns of the costs, in seconds.
BATCH_PARTS = ("wait", "disk", "lock", "native")
STEP_PARTS = ("accelerator", "native", "lock")
SWITCH_S = 0.005  # sys.getswitchinterval(): a thread keeps the interpreter lock for that long
# Native code on all cores takes that much longer than on one, because they share caches and memory.
# Measured with cv2.resize and convolutions on 2 cores.
CONTENTION = 0.15
REFILL = 0.5  # share of a FeedRunner's buffer; see producers/reorder.py
LIMIT_STEP, LIMIT_CORES, LIMIT_LOCK, LIMIT_DISK, LIMIT_PRODUCERS = (
    "the step",
    "the cores",
    "the interpreter lock",
    "the disk",
    "the producers",
)
INPUT_BOUND = 0.05  # starvation from which a feed counts as input-bound


@dataclass(frozen=True)
class Producers:
    """The producers of a feed: `threads` in each of `processes` worker processes.

    With 0 processes the threads run in the trainer. With 0 threads the training thread makes its
    batches itself. With `remote`, the processes are actors of that cluster of Ray.
    """

    threads: int
    processes: int = 0
    remote: str | None = None

    @property
    def count(self) -> int:
        """The total number of producers."""
        return self.threads * max(1, self.processes)

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads != 1 else ''}"
        if not self.processes:
            return threads
        if self.remote is not None:
            return f"{self.processes} remote producer{'s' if self.processes > 1 else ''}"
        return f"{self.processes} process{'es' if self.processes > 1 else ''} x {threads}"


@dataclass(frozen=True)
class Workload:
    """The costs of a feed and its training, in seconds and counts.

    `batches` has a row for each batch: time off the cores, reading from a disk, with the
    interpreter lock, and on a core without it. `steps` has a row for each step: on an accelerator,
    in native code on the cores, and with the lock. Native seconds are core seconds.

    `depth` batches are made ahead; producers that found no room go on when the share `refill` of
    them is left. If `ordered`, batches leave in the order of their items, and behind a slow one
    `early` more are made. Native code of a step runs in `step_threads`. A step asks `turns` times
    for the interpreter lock, which takes up to `turn_s` for each thread of the process that wants
    it, too. `disks` reads run at once. `contention`: see CONTENTION.

    Raise OptionError for parts that cannot be, with their name.
    """

    batches: Floats
    steps: Floats
    cores: int = 1
    depth: int = 8
    refill: float = 1.0
    ordered: bool = False
    early: int = 0
    step_threads: float = 1.0
    turns: float = 1.0
    turn_s: float = SWITCH_S
    disks: float = float("inf")
    contention: float = CONTENTION

    def __post_init__(self) -> None:
        for name, parts in (("batches", BATCH_PARTS), ("steps", STEP_PARTS)):
            rows = getattr(self, name)
            if rows.ndim != 2 or rows.shape[1] != len(parts) or not len(rows):
                raise OptionError(
                    f"{name} of a workload must be rows of {', '.join(parts)}, got an array of "
                    f"shape {rows.shape}"
                )
            wrong = [part for part, column in zip(parts, rows.T, strict=True) if _wrong(column)]
            if wrong:
                raise OptionError(f"{name}: {', '.join(wrong)} must be finite seconds >= 0")
        for name in ("cores", "step_threads", "disks"):
            if not getattr(self, name) >= 1:
                raise OptionError(f"{name} of a workload must be >= 1, got {getattr(self, name)}")
        for name in ("depth", "turns", "turn_s", "contention"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name} of a workload must be >= 0, got {getattr(self, name)}")

    def batch(self, part: str) -> Floats:
        """Return the column of a part of the batches."""
        found: Floats = self.batches[:, BATCH_PARTS.index(part)]
        return found

    def step(self, part: str) -> Floats:
        """Return the column of a part of the steps."""
        found: Floats = self.steps[:, STEP_PARTS.index(part)]
        return found

    def scaled(
        self, *, batch: Mapping[str, float] = {}, step: Mapping[str, float] = {}
    ) -> Workload:
        """Return the workload with these parts times these factors."""
        batches, steps = (
            rows * [factors.get(part, 1.0) for part in parts]
            for rows, parts, factors in (
                (self.batches, BATCH_PARTS, batch),
                (self.steps, STEP_PARTS, step),
            )
        )
        return replace(self, batches=batches, steps=steps)


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation.

    Steps/s, starvation (0 to 1), percentiles (50 and 99) of a step's wait in seconds, the share of
    time for which each resource was busy, and the limit in words.
    """

    rate: float
    starvation: float
    wait_p50_s: float
    wait_p99_s: float
    limit: str
    busy: Mapping[str, float] = field(default_factory=dict)


def fed_by(workload: Workload, producers: Producers) -> Workload:
    """Return the workload with the buffer that a FeedRunner has for these producers."""
    return replace(workload, depth=batches_ahead(producers.count), refill=REFILL)


def rows_of(parts: tuple[str, ...], **columns: Any) -> Floats:
    """Return rows with these columns, numbers or arrays, and zeros in the others."""
    wide = np.broadcast_arrays(*(columns.get(part, 0.0) for part in parts))
    return np.stack([np.atleast_1d(column).astype(np.float64) for column in wide], axis=1)


def _wrong(column: Floats) -> bool:
    return not bool(np.all(np.isfinite(column) & (column >= 0)))


def utilisation(steps: int, step_s: float, *, wall_s: float) -> float:
    """Return AU as MLPerf Storage defines it: compute time / total time."""
    return min(1.0, steps * step_s / wall_s) if wall_s > 0 else float("nan")


def demands(workload: Workload, producers: Producers) -> dict[str, float]:
    """Return the seconds of each resource that one batch and one step need, by its capacity.

    No resource serves more than its time allows, and N producers make at most N batches in the time
    of one (the operational laws of Denning and Buzen, 1978): 1 / demand bounds the steps/s.
    """
    batch = {part: float(workload.batch(part).mean()) for part in BATCH_PARTS}
    made_s, step_s = sum(batch.values()), step_seconds(workload)
    python_s = float(workload.step("lock").mean())
    cpu_s = float(workload.step("native").mean()) / slowness(workload, workload.step_threads)
    found = {
        LIMIT_PRODUCERS: made_s / producers.count if producers.count else 0.0,
        LIMIT_STEP: step_s if producers.count else step_s + made_s,
        LIMIT_CORES: (batch["lock"] + batch["native"] + cpu_s + python_s) / workload.cores,
        LIMIT_DISK: batch["disk"] / workload.disks,
    }
    if producers.processes:
        found[LIMIT_LOCK] = batch["lock"] / producers.processes
    else:
        found[LIMIT_LOCK] = batch["lock"] + python_s
    return found


def step_seconds(workload: Workload) -> float:
    """Return the mean seconds of a step alone."""
    native = float(workload.step("native").mean()) / width(workload, workload.step_threads)
    return native + sum(float(workload.step(part).mean()) for part in ("accelerator", "lock"))


def width(workload: Workload, threads: float) -> float:
    """Return how many cores that many threads of one pool use."""
    return max(1.0, min(threads, workload.cores))


def slowness(workload: Workload, runnable: float) -> float:
    """Return how many times longer work takes on a core while so many threads want cores."""
    others = min(runnable, workload.cores) - 1
    if workload.cores <= 1 or others <= 0:
        return 1.0
    return 1 + workload.contention * others / (workload.cores - 1)
