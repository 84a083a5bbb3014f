"""The figures of README.md."""

from __future__ import annotations

import json
import re

from bench.comparison import FIGURES
from bench.figures import MARKED, README, figures, tutorial, with_figures
from bench.pictures import DOCS, PICTURES


def test_the_figures_follow_from_the_results() -> None:
    text = README.read_text()
    assert with_figures(text) == text and MARKED.search(text)
    assert len(figures()) == 3
    assert all(re.search(r"[\d.]+ \([\d.]+ to [\d.]+\)", figure) for figure in figures())
    assert (
        with_figures("<!-- figures -->\nold\n<!-- end -->") != "<!-- figures -->\nold\n<!-- end -->"
    )


def test_a_page_shows_the_proof_of_the_tutorial() -> None:
    diff = "--- a/train.py\n+++ b/train.py\n@@ -1 +1,2 @@\n+import b\n+\n-a()\n+b()\n"
    found = {"sentence": "2.0x", "diff": diff, "tried": [["c()", None], ["b()", 2.0], ["d()", 1.5]]}
    found |= {"seconds": 150.0, "machine": {"cores": 2, "cpu": "EPYC"}}
    page = "<!-- proof: tried -->\nold\n<!-- end -->\n<!-- proof -->\n<!-- end -->\n"
    long, short = tutorial.with_proof(page, found).split("<!-- end -->\n")[:2]
    took = "This took 2.5 minutes on 2 cores of EPYC."
    changed = ["+import b", "-a()", "+b()", "", tutorial.APPLY, "```", "", took, "", ""]
    assert short.split("\n") == ["<!-- proof -->", "", "```", "2.0x", "", *changed]
    assert [line.split() for line in long.split("\n")[5:7]] == [["d()", "1.5x"], ["b()", "2.0x"]]
    assert tutorial.TRAINING.search(tutorial.PAGE.read_text())


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
