"""Comparisons of trainings of data_parallel.py: ranks, large minibatches, and a slow rank.

Each prints a table, and with `--plot` saves a picture, and its figures as JSON beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_parallel_plots
import numpy as np
from fault_injection import SLOW_RANK

Run = Callable[[argparse.Namespace], list[tuple[int, list[float], np.ndarray]]]
Figures = dict[str, Any]


def changed(args: argparse.Namespace, **values: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), **values})


def histories(args: argparse.Namespace, run: Run, cases: dict[str, dict[str, Any]]) -> Figures:
    """Return the test accuracy of each epoch of each case, for three seeds each."""
    found: Figures = {name: [] for name in cases}
    for seed in (1,) if args.quick else (1, 2, 3):
        for name, values in cases.items():
            print(f"seed {seed}, {name}", flush=True)
            (_, history, _), *_ = run(changed(args, seed=seed, **values))
            found[name].append(history)
    return {"study": args.study, "accuracies": found}


def compare(args: argparse.Namespace, run: Run) -> None:
    """Compare one rank and several."""
    worlds = dict.fromkeys((1, args.workers))
    cases = {f"{world} rank{'s' * (world > 1)}": {"workers": world} for world in worlds}
    report(histories(args, run, cases), args)


def large_batch(args: argparse.Namespace, run: Run) -> None:
    """Compare a minibatch and a larger one, with and without the linear rule and its warm-up, all
    on one rank, which computes what several ranks would."""
    times, small = args.large_batch, args.batch_size
    large, start = {"batch_size": times * small}, args.warmup or 1.0
    cases = {
        f"minibatch {small}": {"rate_scale": 1, "warmup": 0},
        f"{times * small}, the same rate": {**large, "rate_scale": 1, "warmup": 0},
        f"{times * small}, {times} times the rate": {**large, "rate_scale": times, "warmup": 0},
        f"{times * small}, {times} times the rate, warm-up": {
            **large,
            "rate_scale": times,
            "warmup": start,
        },
    }
    alone = changed(args, workers=1)
    report(histories(alone, run, cases), args)


def slow(args: argparse.Namespace, run: Run) -> None:
    """Compare ranks of equal speed with the same ranks, one of which is slow."""
    runs = []
    for times in (1.0, args.slow):
        print(f"rank 1 takes {times:g} times the work of the others", flush=True)
        sent = run(changed(args, slow=times))
        seconds = np.stack([own[1:] for _, _, own in sent])  # without the step that traces
        # all leave the exchange together, and who comes last has not waited in it
        waits = (seconds - seconds.min(axis=0)).round(6).tolist()
        work = [args.work_ms * (times if number == SLOW_RANK else 1) for number, *_ in sent]
        runs.append({"work_ms": work, "waits": waits})
    report({"study": "slow", "runs": runs}, args)


def table(figures: Figures) -> str:
    """Return the table of a study in Markdown."""
    if figures["study"] == "slow":
        lines = ["| rank | work in a step, ms | waits for the others, ms | 95 % |"]
        lines.append("|--:|--:|--:|--:|")
        for found in figures["runs"]:
            for number, (work, waits) in enumerate(zip(*found.values(), strict=True)):
                middle, high = (1e3 * np.percentile(waits, part) for part in (50, 95))
                lines.append(f"| {number} | {work:.0f} | {middle:.0f} | {high:.0f} |")
        return "\n".join(lines)
    lines = ["| | test accuracy after the first epoch | after the last |", "|---|--:|--:|"]
    for name, seeds in figures["accuracies"].items():
        lines.append(f"| {name} | {spread(seeds, 0)} | {spread(seeds, -1)} |")
    return "\n".join(lines)


def spread(seeds: list[list[float]], epoch: int) -> str:
    """Return the median of the seeds, with the lowest and the highest."""
    values = [history[epoch] for history in seeds]
    return f"{statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def report(figures: Figures, args: argparse.Namespace) -> None:
    print(table(figures))
    if args.plot:
        Path(args.plot).with_suffix(".json").write_text(json.dumps(figures) + "\n")
        data_parallel_plots.plot(figures, args.plot)


STUDIES = {"compare": compare, "large_batch": large_batch, "slow": slow}
