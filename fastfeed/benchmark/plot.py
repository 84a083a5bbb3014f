"""The picture: steps/s and starvation against threads, measured and predicted, with the ceiling drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastfeed.benchmark.advice import advise
from fastfeed.benchmark.sweep import Setting, Sweep
from fastfeed.errors import MissingExtra
from fastfeed.model import INPUT_BOUND, predict

MEASURED, PREDICTED, CEILING, IDIOM = "#1b6ca8", "#e08e0b", "#444444", "#a23b3b"


def write_plots(sweep: Sweep, folder: Path) -> list[Path]:
    """`folder`/bench.png and bench.svg; MissingExtra without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    rates, starved = figure.subplots(1, 2)
    _draw_rates(rates, sweep)
    _draw_starvation(starved, sweep)
    for axes in (rates, starved):
        _threads_axis(axes, sweep)
    figure.suptitle(f"{sweep.workload} into {sweep.consumer}", fontweight="bold")
    figure.supxlabel(advise(sweep), fontsize="small", wrap=True)
    paths = [folder / "bench.png", folder / "bench.svg"]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def _draw_rates(axes: Any, sweep: Sweep) -> None:
    axes.set_title("steps per second")
    if sweep.step.step_s:
        label = f"ceiling: cached batches, {sweep.ceiling:.0f}/s"
        axes.axhline(sweep.ceiling, color=CEILING, linestyle=":", label=label)
    ours = sweep.ours()
    threads = _every_count(sweep)
    predicted = [predict(sweep.profile, n) for n in threads]
    axes.fill_between(threads, [p.low for p in predicted], [p.high for p in predicted], color=PREDICTED, alpha=0.2)
    axes.plot(threads, [p.rate for p in predicted], "--", color=PREDICTED, label="predicted from a short profile")
    _draw_measured(axes, ours, color=MEASURED, label="fastfeed, measured")
    idiom = [s for s in sweep.settings if s.kind != "fastfeed"]
    if idiom:
        _draw_measured(axes, idiom, color=IDIOM, label="hand-written runner, measured")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small", loc="lower right")


def _draw_measured(axes: Any, settings: list[Setting], *, color: str, label: str) -> None:
    rates = [s.rate for s in settings]
    errors = [
        [rate - s.spread[0] for rate, s in zip(rates, settings, strict=True)],
        [s.spread[1] - rate for rate, s in zip(rates, settings, strict=True)],
    ]
    axes.errorbar([s.threads for s in settings], rates, yerr=errors, fmt="o-", color=color, capsize=3, label=label)


def _draw_starvation(axes: Any, sweep: Sweep) -> None:
    axes.set_title("starvation: share of time spent waiting for input")
    every = _every_count(sweep)
    predicted = [100 * predict(sweep.profile, n).starvation for n in every]
    axes.plot(every, predicted, "--", color=PREDICTED, label="predicted")
    ours = sweep.ours()
    threads = [s.threads for s in ours]
    measured = [100 * s.middle("starvation") for s in ours]
    axes.plot(threads, measured, "o-", color=MEASURED, label="measured")
    for x, y in zip(threads, measured, strict=True):
        axes.annotate(f"{y:.0f} %", (x, y), textcoords="offset points", xytext=(0, 8), ha="center", fontsize="small")
    axes.axhspan(0, 100 * INPUT_BOUND, color="#3a9d5d", alpha=0.15, label="not input-bound")
    axes.set_ylim(0, 112)
    axes.set_ylabel("%")
    axes.legend(fontsize="small", loc="upper right")


def _every_count(sweep: Sweep) -> list[int]:
    return list(range(min(sweep.plan.threads), max(sweep.plan.threads) + 1))


def _threads_axis(axes: Any, sweep: Sweep) -> None:
    counts = sorted(sweep.plan.threads)
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.set_xlabel("producer threads")
    axes.margins(x=0.1)
    axes.grid(alpha=0.3)
