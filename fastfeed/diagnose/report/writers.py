"""Files of a diagnosis, by the kind of the report: completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.report import html, json, trace

TEXTS = {"json": json.text_of, "html": html.text_of, "trace": trace.text_of}


def write_reports(diagnosis: Diagnosis, files: Mapping[str, Path | None]) -> list[Path]:
    """Write the reports whose path is given, and return the paths. Raise OSError if one fails."""
    paths = {kind: path for kind, path in files.items() if path is not None}
    for kind, path in paths.items():
        write_whole(path, TEXTS[kind](diagnosis))
    return list(paths.values())


def write_whole(path: Path, pieces: Iterable[str]) -> None:
    """Write the text to `path`, in UTF-8: readers see the old file or the new one, never a part of
    it.

    Something that is no ordinary file (/dev/stdout, a pipe) is written directly. Raise OSError if
    it cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
        return
    target = path.resolve()  # a link stays a link
    new = target.with_name(f".{target.name[:100]}.{os.getpid()}")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
        os.replace(new, target)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
