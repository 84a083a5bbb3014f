"""Figures: medians with their spread, ratios to fastfeed, the JSON and what stands in it about the
machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import libraries  # noqa: F401  # registers the libraries
from bench.peers import PEERS

SCHEMA = 1
OURS = "fastfeed"
RESULT_MARK = "RESULT "  # before the JSON on the last line of a measurement


@dataclass
class Row:
    """A peer in a table.

    `values` has one figure in `unit` for each run. `failed` is the reason if there are none. `also`
    is a text that follows the median.
    """

    table: str
    peer: str
    workers: int
    unit: str
    also: str = ""
    values: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    more: list[dict[str, Any]] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None


def ratio(row: Row, base: Row | None) -> dict[str, Any]:
    """The row's median over the base's. `apart` is false where the spreads overlap, None where one
    run has none."""
    if base is None or row is base or not row.values or not base.values or not base.median:
        return {"ratio": None, "apart": None}
    if min(len(row.values), len(base.values)) < 2:
        return {"ratio": row.median / base.median, "apart": None}
    apart = min(row.values) > max(base.values) or max(row.values) < min(base.values)
    return {"ratio": row.median / base.median, "apart": apart}


def base_of(row: Row, rows: list[Row]) -> Row | None:
    """fastfeed's row of the same table and number of workers."""
    return next(
        (r for r in rows if (r.table, r.workers, r.peer) == (row.table, row.workers, OURS)), None
    )


def to_json(kind: str, rows: list[Row], plan: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": kind,
        "plan": plan,
        "machine": machine(),
        "versions": {"python": platform.python_version(), "numpy": metadata.version("numpy")}
        | dict(p.version for p in PEERS.values() if p.version),
        "settings": {p.name: p.settings for p in PEERS.values()},
        "not_installed": sorted(p.name for p in PEERS.values() if not p.installed),
        "rows": [_row(row, rows) for row in rows],
    }


def _row(row: Row, rows: list[Row]) -> dict[str, Any]:
    spread = (
        {"min": min(row.values), "max": max(row.values)}
        if row.values
        else {"min": None, "max": None}
    )
    return asdict(row) | {"median": row.median} | spread | ratio(row, base_of(row, rows))


def machine() -> dict[str, Any]:
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line),
        "unknown",
    )
    memory = next(
        (int(line.split()[1]) for line in _lines("/proc/meminfo") if "MemTotal" in line), 0
    )
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**20, 1),
        "kernel": platform.release(),
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "load": os.getloadavg()[0],
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def write(document: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document['kind']}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def read(path: Path) -> dict[str, Any]:
    """A document written by `write`; ValueError for another schema."""
    document = json.loads(path.read_text())
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema {document.get('schema')}, this program reads {SCHEMA}")
    return document
