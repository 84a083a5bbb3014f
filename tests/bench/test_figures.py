"""The figures of README.md."""

from __future__ import annotations

from bench.figures import MARKED, README, figures, with_figures


def test_the_figures_follow_from_the_results() -> None:
    text = README.read_text()
    assert with_figures(text) == text and MARKED.search(text)
    assert len(figures()) == 3
    assert (
        with_figures("<!-- figures -->\nold\n<!-- end -->") != "<!-- figures -->\nold\n<!-- end -->"
    )
