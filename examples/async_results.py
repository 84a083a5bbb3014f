"""Speed and staleness of the trainings of async_parallel.py: figures, table and picture."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np


def summary(found: dict[str, Any], workers: int) -> dict[str, Any]:
    """Return the figures of a run. Its speed is that of all workers together, from their common
    start to the end of the last one."""
    sent = found["sent"]
    steps = sum((steps for *_, steps in sent), Counter())
    return {
        "workers": workers,
        "steps_per_s": steps.total() / max(seconds for _, seconds, _ in sent),
        "staleness": sorted(steps.elements()),
        "rates": {index: steps.total() / seconds for index, seconds, steps in sent},
        "accuracy": found["accuracy"],
        "applied": dict(found["applied"]),
        "given_again": found["given_again"],
    }


def show(found: dict[str, Any], args: argparse.Namespace) -> None:
    """Print what happened in a run."""
    middle, high, most = np.percentile(found["staleness"], (50, 95, 100))
    print(
        f"{found['workers']} workers: {found['steps_per_s']:.0f} steps/s, "
        f"{found['steps_per_s'] * args.batch_size:.0f} records/s, staleness {middle:.0f} (median), "
        f"{high:.0f} (95 %), {most:.0f} (most), test accuracy {found['accuracy']:.4f}"
    )
    rates = ", ".join(f"worker {i} {rate:.1f}" for i, rate in found["rates"].items())
    print(f"   steps/s: {rates}; batches given to a second worker: {found['given_again']}")
    times = ", ".join(f"{n} records {k} times" for k, n in sorted(found["applied"].items()))
    print(f"   applied in {args.epochs} epochs: {times}", flush=True)


def report(sweep: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the table of several runs; with `--plot` save their picture and figures."""
    if len(sweep) > 1:
        print(table(sweep))
    if args.plot:
        plot(sweep, args.plot)
        Path(args.plot).with_suffix(".json").write_text(json.dumps(sweep) + "\n")


def table(sweep: list[dict[str, Any]]) -> str:
    """Return the table of a sweep in Markdown."""
    lines = ["| workers | steps/s | of linear | staleness: median | 95 % | most | test accuracy |"]
    lines.append("|--:|--:|--:|--:|--:|--:|--:|")
    for found, linear in zip(sweep, linear_rates(sweep), strict=True):
        middle, high, most = np.percentile(found["staleness"], (50, 95, 100))
        share = f"{found['steps_per_s'] / linear:.0%}".replace("%", " %")
        lines.append(
            f"| {found['workers']} | {found['steps_per_s']:.0f} | {share} | {middle:.0f} | "
            f"{high:.0f} | {most:.0f} | {found['accuracy']:.3f} |"
        )
    return "\n".join(lines)


def linear_rates(sweep: list[dict[str, Any]]) -> list[float]:
    """Return the steps/s at which each worker would be as fast as those of the first run."""
    each = sweep[0]["steps_per_s"] / sweep[0]["workers"]
    return [each * found["workers"] for found in sweep]


def plot(sweep: list[dict[str, Any]], path: str) -> None:
    """Draw the speed, and the distribution of the staleness, against the number of workers."""
    from matplotlib.figure import Figure

    figure = Figure((9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    counts = [found["workers"] for found in sweep]
    left.plot(counts, [found["steps_per_s"] for found in sweep], "o-", label="measured")
    left.plot(counts, linear_rates(sweep), "--", color="gray", label="linear")
    left.set(xlabel="workers", ylabel="steps/s", title="What is gained", ylim=0, xticks=counts)
    left.legend()
    steps = [found["staleness"] for found in sweep]
    right.boxplot(steps, tick_labels=counts, whis=(5, 95), showfliers=False)
    right.set(
        xlabel="workers",
        ylabel="updates between reading and applying",
        title="What it costs: staleness (5, 25, 50, 75, 95 %)",
    )
    figure.savefig(path, dpi=120)
