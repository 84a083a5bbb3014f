"""A sweep as a table for the terminal and as versioned JSON."""

from __future__ import annotations

import json
import math
import platform
import sys
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.table import Table

from fastfeed.benchmark.measure import ProducerCost, StepCost
from fastfeed.benchmark.summary import advise, slow_down
from fastfeed.benchmark.sweep import BY_FASTFEED, Setting, Sweep
from fastfeed.core.unix import usable_cores
from fastfeed.model.workload import BATCH_PARTS, STEP_PARTS
from fastfeed.probes.gpu import GpuMeter

BENCH_SCHEMA = 3
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


def tables_of(sweep: Sweep) -> list[Table]:
    """Return what was reached beside what was predicted, and its cost: one row for each setting,
    within 80 columns."""
    return [_results(sweep), _costs(sweep)]


def _results(sweep: Sweep) -> Table:
    table = Table(title=f"{sweep.workload} into {sweep.consumer}: steps/s and starvation", **STYLE)
    headers = (
        "steps/s",
        "min-max",
        "speed-\nup",
        "starved",
        "predicted\nsteps/s",
        "predicted\nstarved",
    )
    for header in (*_who(sweep), *headers):
        table.add_column(header, justify="right")
    for setting in sweep.settings:
        low, high = setting.spread
        p = setting.predicted
        table.add_row(
            *_name(sweep, setting),
            f"{setting.rate:.1f}",
            f"{low:.0f}-{high:.0f}",
            f"{setting.rate / sweep.settings[0].rate:.2f}x",
            _percent(setting.middle("starvation")),
            f"{p.low:.0f}-{p.high:.0f}" if p else "-",
            _percent(p.starvation) if p and sweep.step.step_s else "-",
        )
    return table


def _costs(sweep: Sweep) -> Table:
    caption = "\n".join((*_legend(sweep), _ceiling(sweep), sweep.data))
    table = Table(caption=caption, caption_justify="left", **STYLE)
    headers = (
        "AU",
        "wait ms\np50",
        "wait ms\np99",
        "step\nslow-\ndown",
        "CPU\ncores",
        "memory\nMB",
        "first\nbatch s",
    )
    with_gpu = any(w.gpu_utilisation is not None for s in sweep.settings for w in s.windows)
    for header in (*_who(sweep), *headers, *["GPU\nuse / MB"] * with_gpu):
        table.add_column(header, justify="right")
    for setting in sweep.settings:
        table.add_row(
            *_name(sweep, setting),
            _percent(sweep.au(setting)) if sweep.step.step_s else "-",
            _number(setting.middle("wait_p50_s") * 1e3, "{:.1f}"),
            _number(setting.middle("wait_p99_s") * 1e3, "{:.1f}"),
            _number(slow_down(sweep, setting), "{:.2f}x"),
            f"{setting.middle('cpu_cores'):.2f}",
            f"{setting.middle('memory_nbytes') / 1e6:.0f}",
            f"{setting.middle('first_batch_s'):.2f}",
            *([_gpu(setting)] if with_gpu else []),
        )
    return table


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
            "profile": _profile(sweep),
            "settings": [_setting(sweep, s) for s in sweep.settings],
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


def _profile(sweep: Sweep) -> dict[str, Any]:
    """Return the input of the prediction, with the mean seconds of each part."""
    workload = sweep.profile
    scalars = {f.name: getattr(workload, f.name) for f in fields(workload)}
    for name, parts in (("batches", BATCH_PARTS), ("steps", STEP_PARTS)):
        means = scalars[name].mean(axis=0).tolist()
        scalars[name] = dict(zip(parts, means, strict=True), count=len(getattr(workload, name)))
    live = [
        {**asdict(p.producers), "steps_per_second": p.rate, "starvation": p.starvation}
        for p in sweep.live
    ]
    return {**scalars, "live": live}


def write_json(sweep: Sweep, folder: Path) -> Path:
    """Write `folder`/bench.json; return its path."""
    path = folder / "bench.json"
    path.write_text(json.dumps(json_of(sweep), indent=2, allow_nan=False) + "\n")
    return path


def _setting(sweep: Sweep, setting: Setting) -> dict[str, Any]:
    low, high = setting.spread
    return {
        "kind": setting.kind,
        "processes": setting.producers.processes,
        "threads": setting.producers.threads,
        "steps_per_second": {"median": setting.rate, "min": low, "max": high},
        "starvation": setting.middle("starvation"),
        "accelerator_utilisation": sweep.au(setting),
        "step_slow_down": slow_down(sweep, setting),
        "share_of_possible": setting.rate / sweep.possible(setting.producers),
        "predicted": asdict(setting.predicted) if setting.predicted else None,
        "windows": [asdict(w) for w in setting.windows],
    }


def machine() -> dict[str, Any]:
    """Return the machine of the measurements."""
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": usable_cores(),
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


def _legend(sweep: Sweep) -> list[str]:
    """Return what the columns mean that their headers do not explain."""
    if not sweep.step.step_s:
        return []
    return [
        "AU: accelerator utilisation, the share of the time in which the step is busy",
        "step slow-down: time of a step beside the producers / alone (the ceiling)",
    ]


def _ceiling(sweep: Sweep) -> str:
    bare = f"one bare producer loop makes {1 / sweep.producer.batch_s:.1f}/s"
    if not sweep.step.step_s:
        return bare
    return f"{bare}, the step alone {sweep.ceiling:.1f}/s (the ceiling)"


def _gpu(setting: Setting) -> str:
    window = setting.windows[-1]
    if window.gpu_utilisation is None or window.gpu_nbytes is None:
        return "-"
    return f"{window.gpu_utilisation:.0%} / {window.gpu_nbytes / 1e6:.0f}"


def _who(sweep: Sweep) -> list[str]:
    """Return the headers of the columns that identify settings."""
    return ["processes", "threads"] if any(sweep.plan.processes) else ["threads"]


def _name(sweep: Sweep, setting: Setting) -> list[str]:
    threads = str(setting.producers.threads) + ("" if setting.kind == BY_FASTFEED else " by hand")
    return [str(setting.producers.processes), threads] if any(sweep.plan.processes) else [threads]


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def plain(value: Any) -> Any:
    """Return the value for JSON, which has neither nan nor infinity: null."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
