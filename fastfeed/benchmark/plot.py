"""The picture: steps/s and starvation against producers, measured and predicted, with the
ceiling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from fastfeed.benchmark.summary import advise
from fastfeed.benchmark.sweep import BY_FASTFEED, Setting, Sweep
from fastfeed.errors import MissingExtra
from fastfeed.model.prediction import Prediction, predict
from fastfeed.model.workload import INPUT_BOUND, Producers, fed_by

MEASURED = ("#1b6ca8", "#2a8c4a", "#8a4fa3", "#c2571a", "#12908e", "#7a6a20")
CURVE_POINTS = 10  # predicted counts beside the measured ones
PREDICTED, CEILING, IDIOM = "#e08e0b", "#444444", "#a23b3b"


def write_plots(sweep: Sweep, folder: Path) -> list[Path]:
    """Write `folder`/bench.png and bench.svg; return their paths. Raise MissingExtra without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    rates, starved = figure.subplots(1, 2)
    _draw_rates(rates, sweep)
    _draw_starvation(starved, sweep)
    for axes in (rates, starved):
        _producers_axis(axes, sweep)
    figure.suptitle(f"{sweep.workload} into {sweep.consumer}", fontweight="bold")
    figure.supxlabel(advise(sweep), fontsize="small", wrap=True)
    paths = [folder / "bench.png", folder / "bench.svg"]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


@dataclass(frozen=True)
class _Curve:
    """Settings that differ only in the count `along` ("threads" or "processes"), in order, and
    their style."""

    label: str
    along: str
    settings: tuple[Setting, ...]
    colour: str
    predicted_colour: str

    @property
    def counts(self) -> list[int]:
        """The counts that were measured."""
        return [getattr(s.producers, self.along) for s in self.settings]

    def predicted(self, sweep: Sweep) -> tuple[list[int], list[Prediction]]:
        """Return every count from the first to the last, and its prediction."""
        counts = np.geomspace(max(1, self.counts[0]), self.counts[-1], CURVE_POINTS).round()
        every = sorted({*self.counts, *counts.astype(int).tolist()})
        one: Producers = self.settings[0].producers
        settings = [replace(one, **{self.along: n}) for n in every]
        return every, [predict(fed_by(sweep.profile, one), one) for one in settings]


def _along(sweep: Sweep) -> str:
    return "processes" if len(sweep.plan.threads) == 1 < len(sweep.plan.processes) else "threads"


def _curves(sweep: Sweep) -> list[_Curve]:
    """Return one curve for each process count, against threads; a single one if only one of the two
    counts varies."""
    along, counts = _along(sweep), sorted(sweep.plan.processes)
    ours = sorted(sweep.ours(), key=lambda s: (s.producers.processes, s.producers.threads))
    if along == "processes" or len(counts) == 1:
        return [_Curve("fastfeed", along, tuple(ours), MEASURED[0], PREDICTED)]
    return [
        _Curve(
            _place(n), along, tuple(s for s in ours if s.producers.processes == n), colour, colour
        )
        for n, colour in zip(counts, cycle(MEASURED), strict=False)
    ]


def _place(processes: int) -> str:
    return f"{processes} process{'es' if processes > 1 else ''}" if processes else "in the trainer"


def _draw_rates(axes: Any, sweep: Sweep) -> None:
    axes.set_title("steps per second")
    if sweep.step.step_s:
        label = f"ceiling: cached batches, {sweep.ceiling:.0f}/s"
        axes.axhline(sweep.ceiling, color=CEILING, linestyle=":", label=label)
    curves = _curves(sweep)
    _predicted_label(axes, curves, text="predicted from a short profile")
    for curve in curves:
        every, predicted = curve.predicted(sweep)
        low, high = [p.low for p in predicted], [p.high for p in predicted]
        axes.fill_between(every, low, high, color=curve.predicted_colour, alpha=0.2 / len(curves))
        axes.plot(every, [p.rate for p in predicted], "--", color=curve.predicted_colour)
        _draw_measured(axes, curve)
    idiom = tuple(s for s in sweep.settings if s.kind != BY_FASTFEED)
    if idiom:
        _draw_measured(axes, _Curve("hand-written runner", _along(sweep), idiom, IDIOM, IDIOM))
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small", loc="lower right")


def _draw_measured(axes: Any, curve: _Curve) -> None:
    rates = [s.rate for s in curve.settings]
    errors = [
        [rate - s.spread[0] for rate, s in zip(rates, curve.settings, strict=True)],
        [s.spread[1] - rate for rate, s in zip(rates, curve.settings, strict=True)],
    ]
    label = f"{curve.label}, measured"
    axes.errorbar(
        curve.counts, rates, yerr=errors, fmt="o-", color=curve.colour, capsize=3, label=label
    )


def _draw_starvation(axes: Any, sweep: Sweep) -> None:
    axes.set_title("starvation: share of time spent waiting for input")
    curves = _curves(sweep)
    _predicted_label(axes, curves, text="predicted")
    for curve in curves:
        every, predicted = curve.predicted(sweep)
        axes.plot(
            every, [100 * p.starvation for p in predicted], "--", color=curve.predicted_colour
        )
        measured = [100 * s.middle("starvation") for s in curve.settings]
        label = "measured" if len(curves) == 1 else f"{curve.label}, measured"
        axes.plot(curve.counts, measured, "o-", color=curve.colour, label=label)
        for x, y in zip(curve.counts, measured, strict=True) if len(curves) == 1 else ():
            near = {"textcoords": "offset points", "ha": "center", "fontsize": "small"}
            axes.annotate(f"{y:.0f} %", (x, y), xytext=(0, 8), **near)
    axes.axhspan(0, 100 * INPUT_BOUND, color="#3a9d5d", alpha=0.15, label="not input-bound")
    axes.set_ylim(0, 112)
    axes.set_ylabel("%")
    axes.legend(fontsize="small", loc="upper right")


def _predicted_label(axes: Any, curves: list[_Curve], *, text: str) -> None:
    """Label every dashed line with one word, in any colour."""
    colour = CEILING if len(curves) > 1 else curves[0].predicted_colour
    axes.plot([], [], "--", color=colour, label=text)


def _producers_axis(axes: Any, sweep: Sweep) -> None:
    along = _along(sweep)
    counts = sorted(getattr(sweep.plan, along))
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.set_xlabel(_axis_label(sweep, along))
    axes.margins(x=0.1)
    axes.grid(alpha=0.3)


def _axis_label(sweep: Sweep, along: str) -> str:
    plan = sweep.plan
    if along == "processes":
        in_trainer = "; 0: in the trainer" if 0 in plan.processes else ""
        return f"worker processes with {Producers(plan.threads[0])} each{in_trainer}"
    if not any(plan.processes):
        return "producer threads"
    return "producer threads in each process"
