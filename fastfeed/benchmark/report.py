"""A sweep as tables for the terminal, as versioned JSON, and as a picture."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.table import Table

from fastfeed.benchmark.measure import ProducerCost, StepCost
from fastfeed.benchmark.summary import advise
from fastfeed.benchmark.sweep import Setting, Sweep
from fastfeed.benchmark.workloads import BY_PRODUCERS
from fastfeed.core.machine import cores
from fastfeed.errors import MissingExtra
from fastfeed.model.workload import INPUT_BOUND
from fastfeed.probes.gpu import GpuMeter

BENCH_SCHEMA = 4
STYLE: Any = {
    "box": box.SIMPLE_HEAD,
    "header_style": "bold",
    "show_edge": False,
    "pad_edge": False,
    "padding": (0, 1, 0, 0),
}
REPORTED_PACKAGES = (
    *("fastfeed", "numpy", "tensorflow", "tensorflow-cpu", "keras", "opencv-python-headless"),
    *("torch", "jax", "nvidia-dali-cuda120", "nvidia-dali-cuda130"),
)
MEASURED = ("#1b6ca8", "#2a8c4a", "#8a4fa3", "#c2571a", "#12908e", "#7a6a20")
CEILING = "#444444"
Columns = dict[str, Callable[[Setting], str]]


def tables_of(sweep: Sweep) -> list[Table]:
    """Return what was reached beside what was predicted, and its cost: one row for each setting,
    within 80 columns."""
    has_step = bool(sweep.step.step_s)
    results: Columns = {
        "steps/s": lambda s: f"{s.rate:.1f}",
        "min-max": lambda s: f"{min(s.rates):.0f}-{max(s.rates):.0f}",
        "speed-\nup": lambda s: f"{s.rate / sweep.settings[0].rate:.2f}x",
        "starved": lambda s: f"{s.middle('starvation'):.1%}",
        "predicted\nsteps/s": lambda s: (
            f"{s.predicted.low:.0f}-{s.predicted.high:.0f}" if s.predicted else "-"
        ),
        "predicted\nstarved": lambda s: (
            f"{s.predicted.starvation:.1%}" if s.predicted and has_step else "-"
        ),
    }
    costs: Columns = {
        "AU": lambda s: f"{sweep.au(s):.1%}" if has_step else "-",
        "wait ms\np50": lambda s: f"{s.middle('wait_p50_s') * 1e3:.1f}",
        "wait ms\np99": lambda s: f"{s.middle('wait_p99_s') * 1e3:.1f}",
        "step\nslow-\ndown": lambda s: f"{sweep.slow_down(s):.2f}x" if has_step else "-",
        "CPU\ncores": lambda s: f"{s.middle('cpu_cores'):.2f}",
        "memory\nMB": lambda s: f"{s.middle('memory_nbytes') / 1e6:.0f}",
        "first\nbatch s": lambda s: f"{s.middle('first_batch_s'):.2f}",
    }
    if any(w.gpu_utilisation is not None for s in sweep.settings for w in s.windows):
        costs["GPU\nuse / MB"] = _gpu
    title = f"{sweep.workload} into {sweep.consumer}: steps/s and starvation"
    return [
        _table(sweep, results, title=title),
        _table(sweep, costs, caption="\n".join(_legend(sweep)), caption_justify="left"),
    ]


def _table(sweep: Sweep, columns: Columns, **style: Any) -> Table:
    """Return a row for each setting, beginning with what tells the settings apart."""
    if any(sweep.plan.processes):
        columns = (
            {"processes": lambda s: str(s.producers.processes)}
            | {"threads": lambda s: str(s.producers.threads)}
            | columns
        )
    else:
        columns = {"threads": lambda s: str(s.producers.threads)} | columns
    if set(sweep.kinds) != {BY_PRODUCERS}:
        columns = {"on": lambda s: s.kind} | columns
    table = Table(**STYLE, **style)
    for header in columns:
        table.add_column(header, justify="right")
    for setting in sweep.settings:
        table.add_row(*(text(setting) for text in columns.values()))
    return table


def _legend(sweep: Sweep) -> list[str]:
    """Return what the columns mean that their headers do not explain, and the bounds."""
    bare = f"one bare producer loop makes {1 / sweep.producer.batch_s:.1f}/s"
    if not sweep.step.step_s:
        return [bare, sweep.data]
    return [
        "AU: accelerator utilisation, the share of the time in which the step is busy",
        "step slow-down: time of a step beside the producers / alone (the ceiling)",
        f"{bare}, the step alone {sweep.ceiling:.1f}/s (the ceiling)",
        sweep.data,
    ]


def _gpu(setting: Setting) -> str:
    window = setting.windows[-1]
    if window.gpu_utilisation is None or window.gpu_nbytes is None:
        return "-"
    return f"{window.gpu_utilisation:.0%} / {window.gpu_nbytes / 1e6:.0f}"


def write_json(sweep: Sweep, folder: Path) -> Path:
    """Write `folder`/bench.json; return its path."""
    path = folder / "bench.json"
    path.write_text(json.dumps(json_of(sweep), indent=2, allow_nan=False) + "\n")
    return path


def json_of(sweep: Sweep) -> dict[str, Any]:
    """Return all measurements, with the machine and the versions; the schema is in
    docs/bench.md."""
    found: dict[str, Any] = plain(
        {
            "schema": BENCH_SCHEMA,
            "workload": sweep.workload,
            "data": sweep.data,
            "consumer": sweep.consumer,
            "plan": asdict(sweep.plan),
            "ceiling_steps_per_second": sweep.ceiling,
            "step": _without_times(sweep.step),
            "producer": _without_times(sweep.producer),
            "settings": [_setting(sweep, s) for s in sweep.settings],
            "auto": _auto(sweep),
            "advice": advise(sweep),
            "machine": machine(),
            "versions": versions(),
        }
    )
    return found


def _without_times(cost: StepCost | ProducerCost) -> dict[str, Any]:
    found = asdict(cost)
    del found["times"]
    return found


def _auto(sweep: Sweep) -> dict[str, Any] | None:
    auto = sweep.auto
    if auto is None:
        return None
    windows = zip(auto.producers, auto.windows, strict=True)
    return {
        "steps_per_second": auto.rate,
        "of_best": auto.rate / max(s.rate for s in sweep.settings),
        "runs": [{"threads": p.threads, "processes": p.processes} | asdict(w) for p, w in windows],
    }


def _setting(sweep: Sweep, setting: Setting) -> dict[str, Any]:
    rates = {"median": setting.rate, "min": min(setting.rates), "max": max(setting.rates)}
    return {
        "kind": setting.kind,
        "processes": setting.producers.processes,
        "threads": setting.producers.threads,
        "steps_per_second": rates,
        "starvation": setting.middle("starvation"),
        "accelerator_utilisation": sweep.au(setting),
        "step_slow_down": sweep.slow_down(setting),
        "predicted": asdict(setting.predicted) if setting.predicted else None,
        "windows": [asdict(w) for w in setting.windows],
    }


def machine() -> dict[str, Any]:
    """Return the machine of the measurements."""
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": cores(),
        "memory_nbytes": psutil.virtual_memory().total,
        "gpu": GpuMeter().name,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter."""
    found = {"python": sys.version.split()[0]}
    for name in REPORTED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def plain(value: Any) -> Any:
    """Return the value for JSON, which has neither nan nor infinity: null."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_plots(sweep: Sweep, folder: Path) -> list[Path]:
    """Write `folder`/bench.png and bench.svg; return their paths. Raise MissingExtra without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    rates, starved = figure.subplots(1, 2)
    rates.set_title("steps per second")
    starved.set_title("starvation: share of time spent waiting for input")
    for (label, settings), colour in zip(_curves(sweep).items(), cycle(MEASURED), strict=False):
        _draw((rates, starved), settings, label=label, colour=colour)
    for axes in (rates, starved):
        axes.plot([], [], "--", color=CEILING, label="predicted from a short profile")
        axes.set_xlabel("producers: threads, or processes x threads")
        axes.set_xticks(sorted({s.producers.count for s in sweep.settings}))
        axes.margins(x=0.1)
        axes.grid(alpha=0.3)
    if sweep.step.step_s:
        label = f"ceiling: cached batches, {sweep.ceiling:.0f}/s"
        rates.axhline(sweep.ceiling, color=CEILING, linestyle=":", label=label)
    starved.axhspan(0, 100 * INPUT_BOUND, color="#3a9d5d", alpha=0.15, label="not input-bound")
    rates.set_ylim(bottom=0)
    starved.set_ylim(0, 112)
    starved.set_ylabel("%")
    for axes in (rates, starved):
        axes.legend(fontsize="small")
    figure.suptitle(f"{sweep.workload} into {sweep.consumer}", fontweight="bold")
    figure.supxlabel(advise(sweep), fontsize="small", wrap=True)
    paths = [folder / "bench.png", folder / "bench.svg"]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def _curves(sweep: Sweep) -> dict[str, list[Setting]]:
    """Return the settings of each line, by the number of producers: one line for threads in the
    trainer, and one for each number of processes, or for all of them if threads do not vary."""
    found: dict[str, list[Setting]] = {}
    for setting in sorted(sweep.settings, key=lambda s: (s.producers.processes, s.producers.count)):
        processes = setting.producers.processes
        if not processes:
            place = "threads in the trainer"
        elif len(sweep.plan.threads) == 1:
            place = "processes"
        else:
            place = f"{processes} process{'es' if processes > 1 else ''}"
        kind = "" if setting.kind == BY_PRODUCERS else f"{setting.kind}, "
        found.setdefault(f"{kind}{place}", []).append(setting)
    return found


def _draw(axes: tuple[Any, Any], settings: list[Setting], *, label: str, colour: str) -> None:
    rates, starved = axes
    counts, middles = [s.producers.count for s in settings], [s.rate for s in settings]
    spread = [[abs(end(s.rates) - s.rate) for s in settings] for end in (min, max)]
    shares = [100 * s.middle("starvation") for s in settings]
    rates.errorbar(counts, middles, yerr=spread, fmt="o-", color=colour, capsize=3, label=label)
    starved.plot(counts, shares, "o-", color=colour, label=label)
    for count, share in zip(counts, shares, strict=True):
        near = {"textcoords": "offset points", "ha": "center", "fontsize": "small"}
        starved.annotate(f"{share:.0f} %", (count, share), xytext=(0, 8), **near)
    predicted = [s.predicted for s in settings if s.predicted]
    if predicted:
        rates.plot(counts, [p.rate for p in predicted], "--", color=colour)
        rates.fill_between(
            counts, [p.low for p in predicted], [p.high for p in predicted], color=colour, alpha=0.1
        )
        starved.plot(counts, [100 * p.starvation for p in predicted], "--", color=colour)
