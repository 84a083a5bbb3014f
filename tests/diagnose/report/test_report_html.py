"""The text of the page: everything of a script is escaped, nothing is loaded, the drawings have the
right sizes."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fastfeed.diagnose.report import charts, flames, html
from fastfeed.diagnose.report.bins import binned
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import Step
from tests.diagnose.diagnoses import (
    CALL,
    DECODE,
    EXAMPLES,
    RUN,
    START_S,
    THREAD,
    diagnosis,
    long,
    odd,
)

VOID = {"meta", "rect", "br", "hr", "link", "img", "input"}


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
def test_every_page_is_whole_and_leads_nowhere(name: str, tmp_path: Path) -> None:
    html.write(EXAMPLES[name](), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert page.wrong == []
    assert page.open == []
    assert page.tags.count("script") == 1
    assert not {"link", "img", "iframe", "object", "base"} & set(page.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r">\s*(nan|inf|None)\b", text)
    assert len(text) < 1e6


def test_only_the_pages_own_script_may_run() -> None:
    text = html.page(diagnosis("input.gil"))
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[0]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in text
    assert "default-src 'none'" in text


def test_names_are_text() -> None:
    text = html.page(odd())
    assert "alert(" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "{{ 7 * 7 }}" in text, "no template"
    assert "\x1b" not in text


def test_what_stands_between_backticks_is_code() -> None:
    assert "<li><code>decode</code> at data.py:41: 78 % of producer time" in html.page(
        diagnosis("input.serial")
    )


def test_the_timeline_of_many_steps_is_put_together() -> None:
    chart = charts.timeline(long().evidence)
    assert chart is not None
    assert len(chart.bars) <= charts.BARS
    assert chart.steps == 100_000
    assert chart.put_together == pytest.approx(100, abs=2)
    assert len(chart.bands) < 1000
    assert max(bar.x + bar.width for bar in chart.bars) <= chart.span * 1.002


def test_the_heights_are_the_steps() -> None:
    steps = [Step(START_S + i, START_S + i + 0.5, 0.2) for i in range(50)]
    loop = diagnosis("input.cpu").evidence.loop
    assert loop is not None
    loop.steps[:] = [*steps, Step(START_S + 50, START_S + 60, 0.0)]
    seen = diagnosis("input.cpu").evidence
    seen = type(seen)(loop, (), (), seen.machine, START_S, START_S + 60)
    chart = charts.timeline(seen)
    assert chart is not None
    assert chart.top_s == pytest.approx(0.5 * 1.5 * 1.05)
    ordinary, long_one = chart.bars[0], chart.bars[-1]
    assert (ordinary.wait + ordinary.step) / 100 == pytest.approx(0.5 / chart.top_s, abs=1e-3)
    assert ordinary.wait / (ordinary.wait + ordinary.step) == pytest.approx(0.4, abs=1e-3)
    assert (ordinary.over, long_one.over) == (False, True)
    assert long_one.wait + long_one.step == 100, "cut at the top"
    assert "10.0 s" in long_one.title


def test_warm_up_is_shown_as_such() -> None:
    chart = charts.timeline(diagnosis("input.serial").evidence)
    assert chart is not None
    assert chart.start_s == pytest.approx(-0.52)
    assert chart.bands[0] == charts.Band(0.0, 520.0, "warm", "warm-up")


def test_bins_are_of_equal_time_and_keep_every_step() -> None:
    steps = [Step(i * 0.01, i * 0.01 + 0.01, 0.004, free=i == 3) for i in range(100)]
    steps += [Step(3.0, 3.01, float("nan")), Step(3.0 + 0.01, 3.02, 5.0)]
    found = binned(steps, origin_s=0.0, limit=10)
    assert sum(one.steps for one in found) == 101, "what is no number is left out"
    assert sum(one.free for one in found) == 1
    assert found[-1].steps == 1, "a pause stays a gap"
    assert found[-1].wait_s == pytest.approx(0.01), "no step waits for longer than it takes"
    assert binned([], origin_s=0.0, limit=10) == []


def test_the_flame_view() -> None:
    other = Place("other", "data.py", 90, True)
    stacks = {(THREAD, RUN, DECODE, CALL): 30, (THREAD, RUN, DECODE): 50, (THREAD, RUN, other): 20}
    found = flames.frames(stacks)
    assert [(f.place.function, f.depth, f.left, f.width) for f in found] == [
        ("decode", 0, 0.0, 0.8),
        ("other", 0, 0.8, 0.2),
        ("call", 1, 0.0, 0.3),
    ], "without what all stacks begin with"
    assert flames.hottest(stacks) == [(DECODE, 0.8), (other, 0.2)]
    assert flames.frames({}) == flames.frames({(): 3}) == flames.frames({(DECODE,): 0}) == []
    assert [f.place for f in flames.frames({(THREAD,): 1})] == [THREAD]
    deep = {tuple(Place(f"f{i}", "a.py", i, True) for i in range(5000)): 1}
    assert len(flames.frames(deep)) == flames.MAX_FLAME_LEVELS
