"""The text of the page: everything of a script is escaped, nothing is loaded, no script runs, the
drawing has the right sizes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.report import html
from fastfeed.diagnose.report.json import MAX_TIMELINE_ROWS, json_of
from fastfeed.diagnose.report.step_columns import STEP_COLUMNS, columns_of
from fastfeed.steps.timeline import Mark, Step
from tests.diagnose.diagnoses import EXAMPLES, diagnosis, doubtful, long, odd

VOID = {"meta", "br", "hr", "link", "img", "input"}
BOX = re.compile(r"M([\d.-]+) ([\d.-]+)h([\d.]+)v([\d.]+)h-[\d.]+z")


def page(told: Diagnosis) -> str:
    return "".join(html.text_of(told))


class Page(HTMLParser):
    """The tags of a page, which must close in order, and all that could lead out of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.wrong += [
            f"{tag} {name}" for name, _ in attrs if name in ("src", "href") or name.startswith("on")
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_page_is_whole_and_leads_nowhere(name: str) -> None:
    text = page(EXAMPLES[name]())
    found = Page(text)
    assert found.wrong == []
    assert found.open == []
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(found.tags)
    assert "default-src 'none'" in text and "script-src" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r">\s*(nan|inf|None)\b", text)
    assert len(text) < 1e6


def test_names_are_text() -> None:
    text = page(odd())
    assert "alert(" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "{{ 7 * 7 }}" in text, "no template"
    assert "\x1b" not in text


def test_what_stands_between_backticks_is_code() -> None:
    assert "<li><code>decode</code> at data.py:41: 78 % of producer time" in page(
        diagnosis("input.serial")
    )


def test_changes_that_may_cost_stand_apart() -> None:
    text = page(doubtful())
    risky = text[text.index('<section class="risky"') :]
    assert "Risky: these may make the loop slower" in risky
    assert "num_workers=1" in risky and "between 0.92x and 1.10x" in risky
    assert 'class="risky"' not in page(diagnosis("input.gil"))


def drawn(told: Diagnosis) -> dict[str, Any]:
    return html.drawing_of(json_of(told)["timeline"])


def boxes(path: str) -> list[tuple[float, ...]]:
    """Return left, top, width and height of each."""
    return [tuple(map(float, found)) for found in BOX.findall(path)]


def test_the_timeline_of_many_steps_is_put_together() -> None:
    drawing = drawn(long())
    waits = boxes(drawing["bars"]["wait"])
    assert len(waits) <= MAX_TIMELINE_ROWS
    assert drawing["steps"] == 100_000
    assert max(left + width for left, _, width, _ in waits) <= 1000.5


def test_the_heights_are_the_steps() -> None:
    steps = [Step(i, i + 0.5, 0.2, free=i == 7) for i in range(50)] + [Step(50, 60, 0.0)]
    columns = columns_of(steps, origin_s=0.0, limit=1000)
    mark = {"kind": "evaluation", "start_s": 30.0, "end_s": 36.0}
    drawing = html.drawing_of({"steps": columns, "marks": [mark]})
    assert drawing["top"] == "788 ms"
    wait, rest = boxes(drawing["bars"]["wait"])[0], boxes(drawing["bars"]["step"])[0]
    assert wait[3] + rest[3] == pytest.approx(100 * 0.5 / 0.7875, abs=0.02)
    assert wait[3] / (wait[3] + rest[3]) == pytest.approx(0.4, abs=1e-3)
    assert wait[1] + wait[3] == pytest.approx(100, abs=0.02), "it stands on the ground"
    assert rest[1] + rest[3] == pytest.approx(wait[1], abs=0.02)
    assert len(boxes(drawing["bars"]["free"])) == 1
    assert boxes(drawing["bars"]["over"]) == [(833.33, 0.0, 166.67, 4.0)], "cut at the top"
    ((kind, style, count, path),) = drawing["marks"]
    assert (kind, style, count) == ("evaluation", "evaluation", 1)
    assert boxes(path) == [(500.0, 0.0, 100.0, 100.0)]


def test_warm_up_is_shown_as_such() -> None:
    drawing = drawn(diagnosis("input.serial"))
    kind, _, count, path = drawing["marks"][0]
    assert (kind, count) == ("warm-up", 0)
    assert boxes(path)[0][0] == 0
    assert drawing["ends"][0] == "-0.5 s"


def test_rows_are_of_equal_time_and_keep_every_step() -> None:
    steps = [Step(i * 0.01, i * 0.01 + 0.01, 0.004, free=i == 3) for i in range(100)]
    steps += [Step(3.0, 3.01, float("nan")), Step(3.0 + 0.01, 3.02, 5.0)]
    found = columns_of(steps, origin_s=0.0, limit=10)
    assert sum(found["steps"]) == 101, "what is no number is left out"
    assert sum(found["free"]) == 1
    assert found["steps"][-1] == 1, "a pause stays a gap"
    assert found["wait_s"][-1] == pytest.approx(0.01), "no step waits for longer than it takes"
    assert columns_of([], origin_s=0.0, limit=10) == {name: [] for name in STEP_COLUMNS}


def test_an_unknown_mark_has_a_colour() -> None:
    marks = [Mark("strange", 0.0, 1.0)._asdict()]
    steps = columns_of([Step(0.0, 2.0, 0.5)], origin_s=0.0, limit=10)
    assert html.drawing_of({"steps": steps, "marks": marks})["marks"][0][:2] == ("strange", "else")
