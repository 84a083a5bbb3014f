"""The picture of a plan: steps/s and memory against producers, and the speed-up of accelerators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fastfeed.benchmark.report import CEILING, MEASURED
from fastfeed.errors import MissingExtra
from fastfeed.plan.needs import exchange_seconds
from fastfeed.plan.plan_figures import Figure
from fastfeed.plan.planner import Plan
from fastfeed.plan.speed import PlannedSetting, seconds_of_step

STACK = ("trainer", "captured", "pool", "ring", "workers")
STACK_COLOURS = ("#b8c4ce", "#7a6a20", "#8a4fa3", "#1b6ca8", "#c2571a")
LINE_STYLES = ("o-", "s--")  # one line may lie on the other


def plan_plots(plan: Plan, folder: Path) -> list[Path]:
    """Write `folder`/plan.png and return its path; nothing if there is nothing to draw.

    Raise MissingExtra without matplotlib.
    """
    try:
        from matplotlib.figure import Figure as Picture
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    panels: list[Callable[[Any, Plan], None]] = [_rates, _memory] if plan.settings else []
    if exchange_seconds(plan.figures) and seconds_of_step(plan.figures):
        panels.append(_speed_up)
    if not panels:
        return []
    picture = Picture(figsize=(4.8 * len(panels), 4.2), layout="constrained")
    for axes, draw in zip(picture.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(axes, plan)
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=0)
    path = folder / "plan.png"
    picture.savefig(path, dpi=120)
    return [path]


def _kinds(plan: Plan) -> list[tuple[str, list[PlannedSetting]]]:
    threads = [one for one in plan.settings if not one.producers.processes]
    return [("threads", threads), ("processes", [s for s in plan.settings if s not in threads])]


def _rates(axes: Any, plan: Plan) -> None:
    axes.set_title("steps/s, predicted")
    for (name, settings), colour, line in zip(_kinds(plan), MEASURED, LINE_STYLES, strict=False):
        counts = [one.producers.count for one in settings]
        found = [one.prediction for one in settings]
        axes.fill_between(
            counts, [p.low for p in found], [p.high for p in found], color=colour, alpha=0.15
        )
        axes.plot(counts, [p.rate for p in found], line, color=colour, label=name)
    if plan.ceiling is not None and np.isfinite(plan.ceiling):
        axes.axhline(plan.ceiling, color=CEILING, linestyle=":", label="without waiting for input")
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.set_xlabel("producers")
    axes.legend(fontsize="small", loc="lower right")


def _memory(axes: Any, plan: Plan) -> None:
    axes.set_title("memory of trainer and feed, MB")
    labels = [f"{s.producers.count}" for s in plan.settings]
    bottom = np.zeros(len(labels))
    for part, colour in zip(STACK, STACK_COLOURS, strict=True):
        heights = np.array([getattr(one.memory, part) / 1e6 for one in plan.settings])
        if heights.any():
            axes.bar(range(len(labels)), heights, bottom=bottom, color=colour, label=part)
        bottom += heights
    axes.set_xticks(range(len(labels)), labels)
    half = len(labels) // 2
    axes.axvline(half - 0.5, color=CEILING, linewidth=0.8)
    axes.set_xlabel("threads (left), processes (right)")
    axes.margins(y=0.25)
    axes.legend(fontsize="small", loc="upper left", ncols=2)


def _speed_up(axes: Any, plan: Plan) -> None:
    axes.set_title("speed-up of accelerators")
    step_s, most = seconds_of_step(plan.figures) or 0.0, int(plan.figures["accelerators"])
    counts = np.unique(np.geomspace(1, most, 24).round())
    lost_s = [
        exchange_seconds(
            replace(plan.figures, known={**plan.figures.known, "accelerators": Figure(n, "")})
        )
        for n in counts
    ]
    gains = [n * step_s / (step_s + s) for n, s in zip(counts, lost_s, strict=True)]
    axes.plot(counts, counts, ":", color=CEILING, label="linear")
    axes.plot(counts, gains, "o-", color=MEASURED[0], label="with the exchange")
    axes.set_xlabel("accelerators")
    axes.legend(fontsize="small")
