"""The command `fastfeed plan`: its figures, its profile, and what it prints and writes: tables for
the terminal, and versioned JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from fastfeed.benchmark.bench_command import progress_bar, show, write_results
from fastfeed.benchmark.report import STYLE, plain
from fastfeed.errors import OptionError
from fastfeed.jobs.drawing import Terminal
from fastfeed.plan import units
from fastfeed.plan.plan_figures import KNOWN, Figure, figures_from
from fastfeed.plan.planner import Plan, make_plan
from fastfeed.plan.profiled import SourceProfile, profile_source
from fastfeed.plan.speed import PlannedSetting
from fastfeed.plan.units import said

PROFILE_OPTIONS = ("train", "batch_size", "data")
PLAN_SCHEMA = 1
UNITS: dict[object, str] = {
    units.nbytes: "B",
    units.rate: "B/s",
    units.share: "%",
    units.seconds: "s",
    units.money: "$",
}


def plan(words: Sequence[str], options: dict[str, Any], *, given: Collection[str]) -> None:
    """Print the plan for figures such as "samples=1.28M" and for the profile of --workload.

    `given`: the names of the options that the user wrote. Raise OptionError for figures that cannot
    be, or that contradict each other.
    """
    from fastfeed.plan.plan_plot import plan_plots

    figures = figures_from(words)  # reports mistakes before anything is measured
    ignored = [f"--{name.replace('_', '-')}" for name in PROFILE_OPTIONS if name in given]
    if ignored and options["workload"] is None:
        raise OptionError(f"{', '.join(ignored)} alone would be ignored: give --workload, too")
    output = options["output"]
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    profile = None if options["workload"] is None else _profile(options)
    found = make_plan(figures, profile)
    console = Terminal()
    show(console, plan_tables(found))
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, highlight=False)
    for hint in found.missing:
        console.print(f"give {hint}", style="dim", soft_wrap=True, highlight=False)
    write_results(console, found, output=output, writers=(plan_json, plan_plots))


def _profile(options: dict[str, Any]) -> SourceProfile:
    from fastfeed.benchmark.consumers import consumer_from, takes_any_batch
    from fastfeed.benchmark.workloads import workload_from

    source = workload_from(
        options["workload"],
        batch_size=options["batch_size"],
        data=options["data"],
        real=not takes_any_batch(options["train"]),
    )
    consumer = consumer_from(options["train"])
    with progress_bar() as report:
        return profile_source(source, consumer, progress=report)


def plan_tables(plan: Plan) -> list[Table]:
    """Return the settings, the needs and the figures, within 100 columns."""
    settings = [_settings(plan)] if plan.settings else []
    return [*settings, _needs(plan), _figures(plan)]


def plan_json(plan: Plan, folder: Path) -> Path:
    """Write `folder`/plan.json and return its path."""
    found = {
        "schema": PLAN_SCHEMA,
        "figures": {name: asdict(figure) for name, figure in plan.figures.known.items()},
        "ceiling_steps_per_second": plan.ceiling,
        "settings": [_setting(one) for one in plan.settings],
        "chosen": _setting(plan.chosen) if plan.chosen else None,
        "needs": [asdict(need) for need in plan.needs],
        "warnings": plan.warnings,
        "missing": plan.missing,
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(plain(found), indent=1) + "\n", encoding="utf-8")
    return path


def _setting(setting: PlannedSetting) -> dict[str, object]:
    found = setting.prediction
    return {
        "processes": setting.producers.processes,
        "threads": setting.producers.threads,
        "steps_per_second": {"predicted": found.rate, "low": found.low, "high": found.high},
        "starvation": found.starvation,
        "limit": found.limit,
        "memory_nbytes": {**asdict(setting.memory), "total": setting.memory.total},
    }


def _settings(plan: Plan) -> Table:
    table = Table(title="Producers of one accelerator, predicted", **STYLE)
    for header in ("producers", "steps/s", "range", "starved", "memory", "limit"):
        table.add_column(header, justify="left" if header in ("producers", "limit") else "right")
    for one in plan.settings:
        found = one.prediction
        row = (
            str(one.producers),
            f"{found.rate:.3g}",
            f"{found.low:.3g}-{found.high:.3g}",
            f"{found.starvation:.0%}",
            said(one.memory.total, "B"),
            found.limit,
        )
        enough = plan.chosen is not None and one.producers == plan.chosen.producers
        table.add_row(*row, style="bold" if enough else "")
    return table


def _needs(plan: Plan) -> Table:
    table = Table(title="What the training needs", **STYLE)
    for header in ("", "", "value", "how"):
        table.add_column(header, justify="right" if header == "value" else "left", overflow="fold")
    topic = ""
    for need in plan.needs:
        name = need.topic if need.topic != topic else ""
        topic = need.topic
        style = "yellow" if need.warning else ""
        table.add_row(name, need.name, said(need.value, need.unit), need.why, style=style)
    return table


def _figures(plan: Plan) -> Table:
    table = Table(title="Figures and assumptions", **STYLE)
    for header in ("figure", "value", "source"):
        table.add_column(header, justify="right" if header == "value" else "left", overflow="fold")
    for name, figure in sorted(plan.figures.known.items()):
        table.add_row(name, _value(name, figure), figure.source)
    return table


def _value(name: str, figure: Figure) -> str:
    value = figure.value
    if name == "step":
        return ", ".join(f"{size:g}: {said(s, 's')}" if size else said(s, "s") for size, s in value)
    if isinstance(value, (int, float)):
        return said(float(value), UNITS.get(KNOWN[name][0], ""))
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
