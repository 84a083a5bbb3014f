"""A plan as tables for the terminal and as versioned JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from fastfeed.benchmark.report import STYLE, plain
from fastfeed.plan import units
from fastfeed.plan.plan_figures import KNOWN, Figure
from fastfeed.plan.planner import Plan
from fastfeed.plan.speed import PlannedSetting
from fastfeed.plan.units import said

PLAN_SCHEMA = 1
UNITS: dict[object, str] = {
    units.nbytes: "B",
    units.rate: "B/s",
    units.share: "%",
    units.seconds: "s",
    units.money: "$",
}


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
