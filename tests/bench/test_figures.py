"""The figures of README.md."""

from __future__ import annotations

import json
import re

from bench.comparison import FIGURES
from bench.figures import MARKED, README, figures, with_figures
from bench.pictures import DOCS, PICTURES


def test_the_figures_follow_from_the_results() -> None:
    text = README.read_text()
    assert with_figures(text) == text and MARKED.search(text)
    assert len(figures()) == 3
    assert all(re.search(r"[\d.]+ \([\d.]+ to [\d.]+\)", figure) for figure in figures())
    assert (
        with_figures("<!-- figures -->\nold\n<!-- end -->") != "<!-- figures -->\nold\n<!-- end -->"
    )


def test_each_picture_of_figures_in_the_docs_has_its_document() -> None:
    shown = {
        name
        for page in DOCS.glob("*.md")
        for name in re.findall(r"!\[[^]]*\]\(([\w-]+)\.png\)", page.read_text())
    }
    examples = {"metric-learning", "metric-missed"}  # pictures of the data themselves
    assert shown - examples == set(PICTURES)
    for document, _ in PICTURES.values():
        assert json.loads((FIGURES / f"{document}.json").read_text())
