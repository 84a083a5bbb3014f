"""The command `fastfeed plan`: its figures, its profile, and what it prints and writes: tables for
the terminal, and versioned JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from fastfeed.benchmark.bench_command import progress_bar, show
from fastfeed.benchmark.report import STYLE, plain
from fastfeed.errors import OptionError
from fastfeed.jobs.drawing import Terminal
from fastfeed.plan.needs import Plan, make_plan
from fastfeed.plan.plan_figures import KNOWN, accelerators, figures_from, said
from fastfeed.plan.planned_feed import PlannedSetting, SourceProfile, profile_source

PROFILE_OPTIONS = ("train", "batch_size", "data")
PLAN_SCHEMA = 2
EXPLANATION = """\
fastfeed plan says what a training needs before it runs. Give figures, a short profile, or both:

  fastfeed plan samples=1.28M sample=150KB batch=64 source=5ms step=300ms
  fastfeed plan --workload mymodule:batches --train sim:20ms

What you leave out is derived, assumed with its source, or named at the end. The figures:
"""


def plan(words: Sequence[str], options: dict[str, Any], *, given: Collection[str]) -> None:
    """Print the plan for figures such as "samples=1.28M" and for the profile of --workload; without
    both, print what there is to give.

    `given`: the names of the options that the user wrote. Raise OptionError for figures that cannot
    be, or that contradict each other.
    """
    figures = figures_from(words)  # reports mistakes before anything is measured
    ignored = [f"--{name.replace('_', '-')}" for name in PROFILE_OPTIONS if name in given]
    if ignored and options["workload"] is None:
        raise OptionError(f"{', '.join(ignored)} alone would be ignored: give --workload, too")
    console = Terminal()
    if not words and options["workload"] is None:
        console.print(_explanation(), soft_wrap=True, highlight=False)
        return
    output = options["output"]
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    found = make_plan(figures, None if options["workload"] is None else _profile(options))
    show(console, plan_tables(found))
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, highlight=False)
    for hint in found.missing:
        console.print(f"give {hint}", style="dim", soft_wrap=True, highlight=False)
    if output is not None:
        console.print(f"written: {plan_json(found, output)}", soft_wrap=True)


def _explanation() -> str:
    figures = "\n".join(f"  {name:<18} {meaning}" for name, (_, meaning) in KNOWN.items())
    return f"{EXPLANATION}{figures}\n\nKinds of accelerator: {', '.join(accelerators())}"


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
    settings = [(_setting_row(one), one is plan.chosen) for one in plan.settings]
    topics = [need.topic for need in plan.needs]
    needs = [
        ((n.topic * (n.topic != before), n.name, said(n.value, n.unit), n.why), bool(n.warning))
        for n, before in zip(plan.needs, ["", *topics], strict=False)
    ]
    figures = [
        ((name, said(figure.value, KNOWN[name][0]), figure.source), False)
        for name, figure in sorted(plan.figures.known.items())
    ]
    headers = ("producers", ">steps/s", ">range", ">starved", ">memory", "limit")
    tables = [
        _table("Producers of one accelerator, predicted", headers, rows=settings, style="bold"),
        _table("What the training needs", ("", "", ">value", "how"), rows=needs, style="yellow"),
        _table("Figures and assumptions", ("figure", ">value", "source"), rows=figures, style=""),
    ]
    return tables[not settings :]


def _table(
    title: str,
    headers: Iterable[str],
    *,
    rows: Iterable[tuple[Sequence[str], bool]],
    style: str,
) -> Table:
    """Return a table; columns with ">" are aligned right, and rows with True have the style."""
    table = Table(title=title, **STYLE)
    for header in headers:
        justify: Any = "right" if header.startswith(">") else "left"
        table.add_column(header.removeprefix(">"), justify=justify, overflow="fold")
    for cells, marked in rows:
        table.add_row(*cells, style=style if marked else "")
    return table


def _setting_row(one: PlannedSetting) -> tuple[str, ...]:
    found = one.prediction
    reached = f"{found.rate:.3g}", f"{found.low:.3g}-{found.high:.3g}", f"{found.starvation:.0%}"
    return (str(one.producers), *reached, said(one.nbytes, "B"), found.limit)


def plan_json(plan: Plan, folder: Path) -> Path:
    """Write `folder`/plan.json and return its path."""
    found = {"schema": PLAN_SCHEMA, **asdict(plan), "warnings": plan.warnings}
    found["figures"] = found["figures"]["known"]
    path = folder / "plan.json"
    path.write_text(json.dumps(plain(found), indent=1) + "\n", encoding="utf-8")
    return path
