"""Tables in the terminal, in Markdown and as pictures, all from the JSON document of a run."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OURS = ("fastfeed", "runner.", "loop, ", "session, ")
HEAD = ("", "workers", "median", "lowest to highest", "of fastfeed's", "also")
WIDTH = 120


def tables(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        found.setdefault(row["table"], []).append(row)
    return found


def cells_of(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as the texts under HEAD."""
    head = (row["peer"], str(row["workers"] or ""))
    if row["median"] is None:
        return (*head, "failed", (row["failed"] or ["not run"])[-1][:80], "", "")
    spread = f"{number(row['min'])} to {number(row['max'])}"
    median = number(row["median"]) + (
        f" (failed runs: {len(row['failed'])})" if row["failed"] else ""
    )
    return (*head, median, spread, _ratio(row), row["also"])


def _ratio(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return "1" if row["peer"] == "fastfeed" else ""
    if row["apart"] is None:
        return f"{row['ratio']:.2f} (one run)"
    return f"{row['ratio']:.2f}" if row["apart"] else "no difference seen"


def number(value: float) -> str:
    """Three digits, as they stand: 0.0123, 1.23, 12.3, 123, 12345."""
    return f"{value:.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def show(document: dict[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130)
    for name, rows in tables(document).items():
        table = Table(*HEAD, title=f"{name} [{rows[0]['unit']}]", title_justify="left")
        for row in rows:
            table.add_row(*cells_of(row))
        console.print(table)
    if document["not_installed"]:
        console.print("not installed:", ", ".join(document["not_installed"]))


def markdown(name: str, rows: list[dict[str, Any]]) -> str:
    lines = [(rows[0]["unit"], *HEAD[1:]), ("---",) * len(HEAD), *map(cells_of, rows)]
    return f"**{name}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot(document: dict[str, Any], folder: Path) -> Path:
    """Draw one panel per table: bars are medians, their lines span lowest to highest run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = {
        name: [r for r in rows if r["median"] is not None]
        for name, rows in tables(document).items()
    }
    found = {name: rows for name, rows in found.items() if rows}
    heights = [1 + 0.28 * len(rows) for rows in found.values()]
    figure, panels = pyplot.subplots(
        len(found),
        figsize=(9, sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axes, (name, rows) in zip(panels[:, 0], found.items(), strict=True):
        _bars(axes, name, rows)
    path = folder / f"{document['kind']}.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _bars(axes: Any, name: str, rows: list[dict[str, Any]]) -> None:
    medians = [r["median"] for r in rows]
    errors = [[m - r["min"] for m, r in zip(medians, rows, strict=True)]]
    errors.append([r["max"] - m for m, r in zip(medians, rows, strict=True)])
    colors = ["tab:blue" if r["peer"].startswith(OURS) else "tab:gray" for r in rows]
    labels = [f"{r['peer']}, {r['workers']}" if r["workers"] else r["peer"] for r in rows]
    axes.barh(range(len(rows)), medians, xerr=errors, color=colors, ecolor="black", capsize=2)
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_title(name, fontsize=10, loc="left")
    axes.set_xlabel(rows[0]["unit"], fontsize=8)


def lined(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    names = list(header)
    lines = [names, ["---"] * len(names), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def wrapped(text: str) -> str:
    """A paragraph, or an item of a list, in lines of 120 characters."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
