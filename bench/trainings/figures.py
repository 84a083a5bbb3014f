"""The tables of the comparison, and the page of the docs, from its document."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from bench.comparison import FIGURES as RESULTS
from bench.comparison import (
    OVERLAP,
    Contest,
    of_other,
    of_training,
    rendered,
)
from bench.report import lined, number, wrapped
from bench.results import Row, ratio, read
from bench.rounds import ROOT
from bench.trainings.same_steps import seconds_of, usual_steps

PAGE = ROOT / "docs" / "trainings.md"
HEAD = (
    "",
    "s to the target",
    "s for {} steps",
    "steps",
    "steps/s",
    "waited",
    "CPU s",
    "memory, MB",
    "lines",
)
OURS = ("fixed", "auto")
SAME = "same_s"  # seconds for as many steps as the runs of a training need, in the median
FIGURES = ("seconds", SAME, "steps", "steps_per_s", "starvation", "cpu_s", "memory_mb")


def report(document: dict[str, Any]) -> str:
    """Return a table of each training as Markdown, with medians, spreads and the best form."""
    parts = []
    for name, about in document["trainings"].items():
        rows = _with_same_steps([row for row in document["rows"] if row["training"] == name])
        if any(row["runs"] for row in rows):
            parts.append(f"{heading(about, rows)}\n\n{table(rows)}\n\n{verdict(rows)}")
    return "\n\n".join(parts)


def page() -> str:
    """Return the page of the docs."""
    document = read(RESULTS / "trainings.json")
    about, versions = document["machine"], document["versions"]
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return rendered(
        "trainings/page.jinja",
        machine=f"{about['cores']} cores of {about['cpu']}, {about['at']}. {told}.",
        summary=summary(document),
        steps=steps_apart(document),
        report="\n".join(
            line if line.startswith("|") else wrapped(line) for line in report(document).split("\n")
        ),
    )


def _with_same_steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows whose runs have their time for the same number of steps."""
    steps = usual_steps(rows)

    def timed(run: dict[str, Any]) -> dict[str, Any]:
        known = run.get("reached") and run["steps_per_s"]
        return run if "failed" in run else {**run, SAME: seconds_of(run, steps) if known else None}

    return [{**row, "runs": [timed(run) for run in row["runs"]]} for row in rows]


def summary(document: dict[str, Any]) -> str:
    """Return a line for each training: its first form, the best other one, and fastfeed."""
    lines = []
    for name, about in document["trainings"].items():
        rows = [row for row in document["rows"] if row["training"] == name and good_runs(row)]
        if not rows:
            continue
        rates, mine = _rates(rows), {row["form"] for row in rows if row["ours"]}
        first, waits = rows[0]["form"], _median(rows[0], "starvation")
        best = max(rates.keys() - mine, key=lambda form: rates[form])
        own = max(mine, key=lambda form: rates[form])
        times, same = (of_training(about["title"], rows, same=one) for one in (False, True))
        lines.append(
            (
                *(about["title"], f"{first}: {number(rates[first])}", f"{waits:.0%}"),
                f"{own.removeprefix('fastfeed, ')}: {number(rates[own])}",
                f"{rates[own] / rates[first]:.2f} ({1 / (1 - waits):.2f})",
                f"{rates[own] / rates[best]:.2f} ({best})",
                *(_time(times.get(ours), same.get(ours)) for ours in OURS),
            )
        )
    head = ("training", "first form: steps/s", "waits", "fastfeed: steps/s")
    head += ("times the first form", "times the best other form")
    return lined((*head, *(f"times the s to the target, {ours}" for ours in OURS)), lines)


def _time(one: Contest | None, same: Contest | None) -> str:
    """Return the time of a form of fastfeed, as a multiple of that of the best other form, and the
    same for as many steps."""
    if one is None or same is None:
        return "target not reached"
    overlap = "" if one.apart else OVERLAP
    return f"{of_other(one)} ({one.other.name}{overlap}); {of_other(same)} for the same steps"


def steps_apart(document: dict[str, Any]) -> str:
    """Return the fewest and the most steps to the target among the forms of each training."""
    told = []
    for name, about in document["trainings"].items():
        rows = [row for row in document["rows"] if row["training"] == name and good_runs(row)]
        if rows:
            steps = sorted(_median(row, "steps") for row in rows)
            between = f"{steps[0]:,.0f} to {steps[-1]:,.0f}"
            more = 100 * (steps[-1] / steps[0] - 1)
            told.append(f"{about['title'].partition(',')[0]}: {between} ({more:.0f} %)")
    return "; ".join(told)


def _rates(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {row["form"]: _median(row, "steps_per_s") for row in rows}


def _median(row: dict[str, Any], figure: str) -> float:
    return statistics.median(run[figure] for run in good_runs(row))


def heading(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return what all rows of a training have in common."""
    told = [f"Target: a mean loss of {about['target']:g}, in {about['cap']:,} steps at most."]
    notes = ("origin", "note")
    for key in notes:
        found = {run.get(key) for row in rows for run in row["runs"]} - {None, ""}
        told += [f"{text[0].upper()}{text[1:]}." for text in sorted(found)]
    loads = [run["load"] for row in rows for run in row["runs"] if "load" in run]
    if loads:
        told.append(f"Load average before the runs: {min(loads):.1f} to {max(loads):.1f}.")
    if about["quick"]:
        told.append("Three steps of each: the figures mean nothing.")
    for form, names in about["not_installed"].items():
        told.append(f"{form}: not run, because {', '.join(names)} is not installed.")
    return f"**{about['title']}**\n\n{' '.join(told)}"


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return the figures of the forms of a training."""
    rows = list(rows)
    head = " | ".join(HEAD).format(number(usual_steps(rows)))
    lines = [f"| {head} |", "|---" + "|--:" * (len(HEAD) - 1) + "|"]
    for row in rows:
        runs = good_runs(row)
        cells = [_cell(runs, figure) for figure in FIGURES]
        if not runs:
            failed = [run["failed"] for run in row["runs"]] or ["not run"]
            cells[0] = f"failed: {failed[-1][:80]}"
        elif not all(run["reached"] for run in runs):
            reached = sum(run["reached"] for run in runs)
            losses = spread([run["loss"] for run in runs])
            cells[0] = f"reached in {reached} of {len(runs)} runs, mean loss {losses}"
        if runs and len(runs) < len(row["runs"]):
            cells[0] += f"; {len(row['runs']) - len(runs)} failed"
        lines.append(f"| {' | '.join((row['form'], *cells, str(row['lines'])))} |")
    return "\n".join(lines)


def verdict(rows: list[dict[str, Any]]) -> str:
    """Return which form was the best, by time and by rate, and how far fastfeed is from it."""
    texts = []
    for figure, best_of, unit in (
        (SAME, min, f"s for {number(usual_steps(rows))} steps"),
        ("steps_per_s", max, "steps/s"),
    ):
        found = {row["form"]: _row(row, figure) for row in rows if _counts(row, figure)}
        if not found:
            texts.append(f"- {unit}: no form can be compared.")
            continue
        best = best_of(found.values(), key=lambda one: one.median)
        text = f"- {unit}: the best is {best.peer} ({spread(best.values)})"
        for row in rows:
            if row["ours"] and row["form"] != best.peer:
                text += f"; {row['form']}: {_distance(found.get(row['form']), best)}"
        texts.append(f"{text}.")
    return "\n".join(texts)


def _distance(row: Row | None, best: Row) -> str:
    """Return a row as a multiple of the best one."""
    if row is None:
        return "no figure"
    compared = ratio(row, best)
    doubt = "" if compared["apart"] else " (one run)"
    if compared["apart"] is False:
        doubt = " (no difference seen)"
    return f"{compared['ratio']:.2f} of it{doubt}"


def _counts(row: dict[str, Any], figure: str) -> bool:
    """Return True if a row can be compared by a figure; by time, all of its runs must have reached
    the target."""
    runs = good_runs(row)
    known = bool(runs) and all(run[figure] is not None for run in runs)
    return known and (figure != SAME or all(run["reached"] for run in runs))


def _row(row: dict[str, Any], figure: str) -> Row:
    values = [run[figure] for run in good_runs(row)]
    return Row(row["training"], row["form"], 0, figure, values=values)


def good_runs(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs that gave figures."""
    return [run for run in row["runs"] if "failed" not in run]


def _cell(runs: list[dict[str, Any]], figure: str) -> str:
    values = [run[figure] for run in runs if run[figure] is not None]
    if figure == "starvation" and values:
        return f"{spread([100 * value for value in values])} %"
    return spread(values) if values else ""


def spread(values: list[float]) -> str:
    """Return "median (lowest to highest)"; a single value alone."""
    median, low, high = map(number, (statistics.median(values), min(values), max(values)))
    return median if low == high else f"{median} ({low} to {high})"
