"""Synchronous training with remote producers, from 1 to 1,024 accelerators, by simulation.

    python -m bench.simulate [--output build/simulate]

Each accelerator has a trainer, its own producers and its own link. All trainers wait for the last
one at every step. Costs of a batch are assumptions that `bench.remote` measures; what
grows with the job (stragglers, lost nodes, shared storage) is drawn. One trainer is compared
with `fastfeed.model`, which is held against real runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastfeed.core.worker import batches_ahead
from fastfeed.model.simulate import simulate
from fastfeed.model.workload import BATCH_PARTS, STEP_PARTS, Producers, Workload, fed_by, rows_of

STEPS, WARMUP = 1000, 300
EARLY = 148  # at most so many batches are ready or early
ACCELERATORS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SEEDS, MIN_SEEDS = 64, 8  # for one accelerator, and for many: rare events need many batches
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Job:
    """Costs of one batch and of the whole job, in seconds and bytes.

    `relay_s`: the trainer's work to take a batch. A share `stragglers` of the batches takes
    `straggling` times as long. A producer's node is lost `losses` times an hour, and what it had
    comes `recovery_s` later. All producers together read `stored` bytes for a batch at `storage`
    bytes/s, and a trainer's link moves `link` bytes/s.
    """

    made_s: float = 0.08
    step_s: float = 0.02
    nbytes: float = 9.6e6
    relay_s: float = 0.004
    producers: int = 5  # for each trainer
    stragglers: float = 0.0
    straggling: float = 10.0
    losses: float = 0.0
    recovery_s: float = 3.0
    stored: float = 2e6
    storage: float = float("inf")
    link: float = 1.25e9


def steps_of(job: Job, accelerators: int, seed: int = 0) -> float:
    """Return steps/s of the whole job.

    Batch k of a trainer is made by the producer that is free first, while fewer batches are ready
    than may be. Those behind a straggler are not ready, so the others go on. A link moves one batch
    at a time.
    """
    rng = np.random.default_rng((seed, accelerators))
    depth = batches_ahead(job.producers)
    ready: Floats = np.zeros((STEPS, accelerators))  # when each batch was, in order
    # all producers share the storage: none is faster than its share
    share_s = job.stored * job.producers * accelerators / job.storage
    moved_s = max(job.nbytes / job.link, job.relay_s)
    free: Floats = np.zeros((accelerators, job.producers))
    trainers = np.arange(accelerators)
    taken: Floats = np.zeros(STEPS)
    arrived: Floats = np.zeros(accelerators)
    now = 0.0
    for k in range(STEPS):
        cost = np.full(accelerators, max(job.made_s, share_s))
        cost *= rng.gamma(16.0, 1 / 16.0, accelerators)  # a quarter more or less
        cost[rng.random(accelerators) < job.stragglers] *= job.straggling
        lost = rng.random(accelerators) < job.losses * job.made_s / 3600
        cost[lost] += job.recovery_s
        first = free.argmin(axis=1)
        begun = free[trainers, first]
        for _ in range(2):  # later, more are ready
            behind = max(0, k - EARLY)
            count = behind + (ready[behind:k] <= begun).sum(axis=0)
            room_s = np.where(count > depth, taken[np.maximum(0, count - depth - 1)], 0.0)
            begun = np.maximum(begun, room_s)
        free[trainers, first] = made = begun + cost
        arrived = np.maximum(arrived, made + moved_s)  # in order
        now = max(now + max(job.step_s, moved_s), float(arrived.max()))
        taken[k] = now
        ready[k] = arrived
    return (STEPS - WARMUP) / (taken[-1] - taken[WARMUP - 1])


def rates_of(job: Job, accelerators: int) -> list[float]:
    """Return steps/s of the whole job with each of several seeds."""
    seeds = range(max(MIN_SEEDS, SEEDS // accelerators))
    return [steps_of(job, accelerators, seed=n) for n in seeds]


def by_model(job: Job) -> float:
    """Return steps/s of one trainer, by the model of a feed."""
    rng = np.random.default_rng(0)
    made = job.made_s * rng.gamma(16.0, 1 / 16.0, 3000)
    made[rng.random(3000) < job.stragglers] *= job.straggling
    workload = Workload(
        rows_of(BATCH_PARTS, wait=made),
        rows_of(STEP_PARTS, accelerator=job.step_s),
        ordered=True,
        early=128,
    )
    kind = Producers(1, job.producers)
    return simulate(fed_by(workload, kind), kind, steps=3 * STEPS).rate


CASES = {
    "even batches": Job(),
    "1 % take 10 times as long, 5 producers": Job(stragglers=0.01),
    "1 % take 10 times as long, 10 producers": Job(stragglers=0.01, producers=10),
    "1 % take 40 times as long, 10 producers": Job(stragglers=0.01, straggling=40.0, producers=10),
    "each node is lost once a day": Job(losses=1 / 24),
    "storage of 20 GB/s for all": Job(storage=20e9),
    "link of 0.4 GB/s": Job(link=0.4e9),
}


def shares(name: str, rates: list[list[float]]) -> list[tuple[float, float, float]]:
    """Return mean, lowest and highest share, in percent, of the speed of the step alone."""
    scale = 100 * CASES[name].step_s
    return [(scale * statistics.mean(r), scale * min(r), scale * max(r)) for r in rates]


def growth(rates: list[float]) -> float:
    """Return the exponent with which the time of a step grows with the accelerators."""
    slope, _ = np.polyfit(np.log(ACCELERATORS), -np.log(rates), 1)
    return float(slope)


def draw(found: dict[str, list[list[float]]], place: Path) -> None:
    """Draw steps/s, as a share of the step alone, over the accelerators, with the spread of the
    seeds."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5.4))
    for name, rates in found.items():
        middle, low, high = zip(*shares(name, rates), strict=True)
        axes.fill_between(ACCELERATORS, low, high, alpha=0.15)
        axes.plot(ACCELERATORS, middle, marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ACCELERATORS, [str(n) for n in ACCELERATORS])
    axes.set_xlabel("accelerators, with their own producers")
    axes.set_ylabel("% of the speed of the step alone")
    axes.set_ylim(0, 105)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    figure.savefig(place, dpi=110)


def main() -> None:
    """Simulate every case, and write the figures and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/simulate"))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    found = {name: [rates_of(job, n) for n in ACCELERATORS] for name, job in CASES.items()}
    for name, rates in found.items():
        exponent = growth([statistics.harmonic_mean(r) for r in rates])
        print(f"{name}: % of the step alone, lowest to highest; its time grows as n^{exponent:.2f}")
        for count, (middle, low, high) in zip(ACCELERATORS, shares(name, rates), strict=True):
            print(f"  {count:5} {middle:4.0f} ({low:.0f} to {high:.0f})")
    pairs = {}
    for job in (Job(producers=n, stragglers=s) for s in (0.0, 0.01) for n in (1, 2, 4, 8)):
        here, there = statistics.mean(steps_of(job, 1, seed=n) for n in range(5)), by_model(job)
        name = f"{job.producers} producers, {job.stragglers:.0%} stragglers"
        pairs[name] = here, there
        print(f"one trainer, {name}: {here:.1f} steps/s, {there:.1f} by the model")
    text = {
        "accelerators": ACCELERATORS,
        "steps/s": found,
        "costs": {name: {k: str(v) for k, v in asdict(job).items()} for name, job in CASES.items()},
        "one trainer, here and by the model": pairs,
    }
    (given.output / "simulate.json").write_text(json.dumps(text, indent=1) + "\n")
    draw(found, given.output / "simulate.png")


if __name__ == "__main__":
    main()
