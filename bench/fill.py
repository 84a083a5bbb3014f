"""Write the tables of measured JSON documents into bench/results/README.md, between its markers.

    python -m bench.fill build/transport/transport.json build/scaling/scaling.json ...

A marker is <!-- KIND: text --> ... <!-- end -->; the tables whose names begin with the text stand
there. KIND is that of the document; the text "machine" stands for a sentence about the machine and
the versions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.report import markdown, tables
from bench.results import read
from bench.rounds import ROOT

PAGE = ROOT / "bench" / "results" / "README.md"
MARKER = r"(<!-- {kind}: (.*?) -->\n).*?(<!-- end -->)"


def fill(text: str, document: dict[str, Any]) -> str:
    """Return `text` with the tables of this document; markers of other kinds stay as they are."""
    pattern = re.compile(MARKER.format(kind=re.escape(document["kind"])), re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{_content(found[2], document)}\n{found[3]}", text)


def _content(name: str, document: dict[str, Any]) -> str:
    if name == "machine":
        return machine(document)
    found = [
        markdown(title, rows) for title, rows in tables(document).items() if title.startswith(name)
    ]
    return "\n\n".join(found) or "Not measured yet."


def machine(document: dict[str, Any]) -> str:
    about, plan = document["machine"], document["plan"]
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(document["versions"].items())
    )
    missing = ", ".join(document["not_installed"]) or "none"
    quick = " **A quick run: these figures mean nothing.**" if plan["quick"] else ""
    return (
        f"{about['cores']} cores of {about['cpu']}, {about['memory_gib']} GiB, Linux "
        f"{about['kernel']}, {about['at']}; runs for each figure: {plan['repeats']}, "
        f"{plan['seconds']:g} s each. {versions}. Not installed: {missing}.{quick}"
    )


def kinds(text: str) -> list[str]:
    """The documents whose tables the page has."""
    return re.findall(r"<!-- (\w+): machine -->", text)


def fill_page(paths: Iterable[Path]) -> None:
    """Write the tables of these documents into the page."""
    text = PAGE.read_text()
    for path in paths:
        text = fill(text, read(path))
    PAGE.write_text(text)


def main() -> None:
    fill_page(map(Path, sys.argv[1:]))


if __name__ == "__main__":
    main()
