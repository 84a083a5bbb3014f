"""Files of a diagnosis, by the kind of the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.report import html, json, trace

WRITERS = {"json": json.write, "html": html.write, "trace": trace.write}


def write_reports(diagnosis: Diagnosis, files: Mapping[str, Path | None]) -> list[Path]:
    """Write the reports whose path is given, and return the paths. Raise OSError if one fails."""
    paths = {kind: path for kind, path in files.items() if path is not None}
    for kind, path in paths.items():
        WRITERS[kind](diagnosis, path)
    return list(paths.values())
