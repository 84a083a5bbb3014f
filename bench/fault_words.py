"""Words of what a training sees when a worker fails, by library."""

from __future__ import annotations

from typing import Any

from bench.report import lined

KINDS = {"raises": "a worker raises", "killed": "a worker is killed"}
OWN = "fastfeed"


def fault_table(document: dict[str, Any]) -> str:
    """What the loop sees of a worker that fails, and what a loop that is left leaves."""
    lines = []
    for tool, rows in _by_tool(document).items():
        cells = [
            _seen_of(rows[kind], document["limit_s"]) if kind in rows else "no worker process"
            for kind in KINDS
        ]
        lines.append((f"`{tool}`", *cells, _left_by(rows["left"], document["limit_s"])))
    return lined(("library", *KINDS.values(), "the loop is left"), lines)


def sooner(document: dict[str, Any]) -> str:
    """Which libraries tell the loop of a failure before fastfeed does."""
    found, told = _by_tool(document), []
    for kind, words in KINDS.items():
        own_s = found[OWN][kind]["value"]
        others = {
            tool: rows[kind]["value"]
            for tool, rows in found.items()
            if kind in rows and rows[kind]["error"] and rows[kind]["value"] < own_s
        }
        if others:
            listed = ", ".join(f"{tool} {s:.2f} s" for tool, s in sorted(others.items()))
            told.append(f"where {words}: {listed} (fastfeed: {own_s:.2f} s)")
    return "; ".join(told)


def _by_tool(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in document["rows"]:
        found.setdefault(row["tool"], {})[row["fault"]] = row
    return found


def _seen_of(row: dict[str, Any], limit_s: float) -> str:
    """The error that a loop gets, and when."""
    if row.get("hangs"):
        return f"nothing within {limit_s:.0f} s"
    if row.get("ended"):
        return f"the process ends: {row['error']}"
    if not row["error"]:
        return f"the loop goes on; {_remains(row)}"
    name = row["error"].partition(":")[0].rpartition(".")[2]
    line = " with the line" if row["shows_line"] else ""
    return f"`{name}`{line} after {row['value']:.2f} s; {_remains(row)}"


def _left_by(row: dict[str, Any], limit_s: float) -> str:
    """How long the end of a loop takes that `break` leaves, and what is left."""
    if row.get("hangs"):
        return f"it does not end within {limit_s:.0f} s"
    return f"{row['ends_s']:.2f} s; {_remains(row | {'ends_s': 0})}"


def _remains(row: dict[str, Any]) -> str:
    plural = "es" * (row["left"] > 1)
    takes = f"ends {row['ends_s']:.0f} s later, " * (row["ends_s"] >= 1)
    return takes + (f"{row['left']} process{plural} left" if row["left"] else "nothing left")
