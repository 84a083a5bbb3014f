"""The pictures of docs that are drawn from the JSON in bench/results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import simulate, tune
from bench.comparison import FIGURES
from bench.rounds import ROOT

EXAMPLES, DOCS = ROOT / "examples", ROOT / "docs"
BLUE = "#1b6ca8"


def draw_all() -> None:
    """Write each picture of PICTURES."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        for name, (document, draw) in PICTURES.items():
            draw(json.loads((FIGURES / f"{document}.json").read_text()), DOCS / f"{name}.png")
    finally:
        sys.path.remove(str(EXAMPLES))


def _bench(found: dict[str, Any], path: Path) -> None:
    """Draw steps/s and starvation against producer threads, from results of `fastfeed bench`."""
    from matplotlib.figure import Figure

    figure = Figure((9, 3.8), layout="constrained")
    rates, starved = figure.subplots(1, 2)
    settings = found["settings"]
    threads = [one["threads"] for one in settings]
    each = [one["steps_per_second"] for one in settings]
    middle = [one["median"] for one in each]
    below = [one["median"] - one["min"] for one in each]
    above = [one["max"] - one["median"] for one in each]
    rates.errorbar(threads, middle, yerr=(below, above), fmt="o-", capsize=4, color=BLUE)
    starved.plot(threads, [100 * one["starvation"] for one in settings], "o-", color=BLUE)
    most = found["ceiling_steps_per_second"]
    rates.axhline(most, color="gray", linestyle=":", label=f"cached batches, {most:.0f}/s")
    rates.set(title="steps per second", ylim=0)
    starved.set(title="starvation: % of the time spent waiting for input", ylim=(0, 100))
    for axes in (rates, starved):
        axes.set(xlabel="producer threads", xticks=threads)
        axes.grid(alpha=0.3)
    rates.legend(fontsize="small", loc="lower right")
    figure.suptitle(f"{found['workload']} into {found['consumer']}", fontweight="bold")
    figure.savefig(path, dpi=120)


def _ranks(found: dict[str, Any], path: Path) -> None:
    from data_parallel_plots import plot

    plot(found, str(path))


def _workers(found: list[dict[str, Any]], path: Path) -> None:
    from async_results import plot

    plot(found, str(path))


def _metric(found: dict[str, Any], path: Path) -> None:
    from metric_plots import draw_training

    draw_training(found["history"], path)


# by its name: the document that it is drawn from
PICTURES: dict[str, tuple[str, Callable[[Any, Path], None]]] = {
    "bench": ("bench", _bench),
    "auto": ("auto", tune.draw),
    "scale-out": ("scale_out", lambda found, path: simulate.draw(found["steps/s"], path)),
    "data-parallel": ("ranks", _ranks),
    "large-minibatch": ("large_minibatch", _ranks),
    "slow-rank": ("slow_rank", _ranks),
    "async-parallel": ("async_parallel", _workers),
    "metric-training": ("metric_training", _metric),
}
