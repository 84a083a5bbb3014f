"""A comparison of executors as a table, as versioned JSON and as a picture with one curve for
each."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.table import Table

from fastfeed.benchmark.augments import Cell, ExecutorComparison
from fastfeed.benchmark.plot import MEASURED
from fastfeed.benchmark.report import STYLE, machine, plain, versions
from fastfeed.errors import MissingExtra
from fastfeed.model.workload import INPUT_BOUND

AUGMENT_SCHEMA, AUGMENT_KIND = 1, "augment"


def table_of(found: ExecutorComparison) -> Table:
    """Return one row for each executor and number of producers."""
    names = ", ".join(type(op).__name__ for op in found.spec.operations)
    bound = f"the step alone {1 / found.step.step_s:.1f}/s" if found.step.step_s else "no step"
    table = Table(
        title=f"{found.workload} into {found.consumer}",
        caption=f"{names}\n{bound}",
        caption_justify="left",
        **STYLE,
    )
    with_gpu = any(w.gpu_utilisation is not None for cell in found.cells for w in cell.windows)
    table.add_column("augment_on")
    headers = ("processes x\nthreads", "images/s", "min-max", "starved", "CPU\ncores", "memory\nMB")
    for header in (*headers, *["GPU\nuse / MB"] * with_gpu):
        table.add_column(header, justify="right")
    for cell in found.cells:
        table.add_row(cell.executor, *_row(found, cell), *([_gpu(cell)] if with_gpu else []))
    return table


def advise(found: ExecutorComparison) -> str:
    """Return the best executor and number of producers, as a sentence."""
    best = max(found.cells, key=lambda cell: cell.middle("rate"))
    others = [
        max(found.of(name), key=lambda c: c.middle("rate"))
        for name in _names(found)
        if name != best.executor
    ]
    rivals = [f"{cell.executor} {_images(found, cell):.0f}" for cell in others]
    beside = f" ({', '.join(rivals)})" if rivals else ""
    told = f"augment_on={best.executor!r} with {best.producers} is the quickest: "
    told += f"{_images(found, best):.0f} images/s{beside}"
    close = [c for c in others if max(c.rates) >= min(best.rates)]
    if close:
        told += f"; no difference seen to {', '.join(c.executor for c in close)}"
    starved = best.middle("starvation")
    if found.step.step_s:
        told += f"; starvation {starved:.0%}" + (
            ", the step is the limit" if starved < INPUT_BOUND else ""
        )
    return told + "."


def write_json(found: ExecutorComparison, folder: Path) -> Path:
    """Write `folder`/augment.json; return its path."""
    cells = [
        {
            "augment_on": cell.executor,
            **asdict(cell.producers),
            "images_per_second": [rate * found.batch_size for rate in cell.rates],
            "windows": [asdict(w) for w in cell.windows],
        }
        for cell in found.cells
    ]
    document = {
        "schema": AUGMENT_SCHEMA,
        "kind": AUGMENT_KIND,
        "workload": found.workload,
        "consumer": found.consumer,
        "operations": [repr(op) for op in found.spec.operations],
        "plan": asdict(found.plan),
        "step": asdict(found.step),
        "cells": cells,
        "advice": advise(found),
        "machine": machine(),
        "versions": versions(),
    }
    path = folder / "augment.json"
    path.write_text(json.dumps(plain(document), indent=2, allow_nan=False) + "\n")
    return path


def write_plots(found: ExecutorComparison, folder: Path) -> list[Path]:
    """Write `folder`/augment.png and augment.svg; return their paths. Raise MissingExtra without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    rates, starved = figure.subplots(1, 2)
    for name, colour in zip(_names(found), cycle(MEASURED), strict=False):
        _draw((rates, starved), found.of(name), found=found, colour=colour)
    rates.set_title("images per second")
    starved.set_title("starvation: share of time spent waiting for input")
    starved.axhspan(0, 100 * INPUT_BOUND, color="#3a9d5d", alpha=0.15, label="not input-bound")
    starved.set_ylim(0, 105)
    starved.set_ylabel("%")
    rates.set_ylim(bottom=0)
    for axes in (rates, starved):
        axes.set_xlabel("producers")
        axes.set_xticks(sorted({cell.producers.count for cell in found.cells}))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(f"{found.workload} into {found.consumer}", fontweight="bold")
    figure.supxlabel(advise(found), fontsize="small", wrap=True)
    paths = [folder / "augment.png", folder / "augment.svg"]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def _draw(
    axes: tuple[Any, Any], cells: list[Cell], *, found: ExecutorComparison, colour: str
) -> None:
    rates, starved = axes
    cells = sorted(cells, key=lambda cell: cell.producers.count)
    counts = [cell.producers.count for cell in cells]
    middles = [_images(found, cell) for cell in cells]
    spread = [
        [abs(f(c.rates) * found.batch_size - m) for c, m in zip(cells, middles, strict=True)]
        for f in (min, max)
    ]
    rates.errorbar(
        counts, middles, yerr=spread, fmt="o-", capsize=3, color=colour, label=cells[0].executor
    )
    shares = [100 * cell.middle("starvation") for cell in cells]
    starved.plot(counts, shares, "o-", color=colour, label=cells[0].executor)


def _names(found: ExecutorComparison) -> list[str]:
    return list(dict.fromkeys(cell.executor for cell in found.cells))


def _images(found: ExecutorComparison, cell: Cell) -> float:
    return cell.middle("rate") * found.batch_size


def _row(found: ExecutorComparison, cell: Cell) -> list[str]:
    low, high = (f(cell.rates) * found.batch_size for f in (min, max))
    starved = cell.middle("starvation")
    return [
        f"{cell.producers.processes} x {cell.producers.threads}",
        f"{_images(found, cell):.0f}",
        f"{low:.0f}-{high:.0f}",
        "-" if math.isnan(starved) else f"{starved:.1%}",
        f"{cell.middle('cpu_cores'):.2f}",
        f"{cell.middle('memory_nbytes') / 1e6:.0f}",
    ]


def _gpu(cell: Cell) -> str:
    window = cell.windows[-1]
    if window.gpu_utilisation is None or window.gpu_nbytes is None:
        return "-"
    return f"{window.gpu_utilisation:.0%} / {window.gpu_nbytes / 1e6:.0f}"
