"""The HTML page as a browser shows it: on a desk and on a phone, in light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastfeed.diagnose.diagnosis import CODES, Diagnosis
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.writers import write_reports
from fastfeed.errors import clean
from tests.diagnose.browser import WANTED, Browser, browser, programs
from tests.diagnose.diagnoses import EXAMPLES

DESK, PHONE = 1280, 390
RISKY = "Risky: these may make the loop slower"
SEEN = """
const box = (one) => one.getBoundingClientRect();
const every = (query) => [...document.querySelectorAll(query)];
const drawn = (query) => every(query).filter((one) => box(one).width > 0 && box(one).height > 0);
const text = (query) => every(query).map((one) => one.textContent.trim().replace(/\\s+/g, " "));
const out = every("main *")
  .filter((one) => box(one).right > innerWidth + 1 && !one.closest("svg, pre, .scroll"));
return {
  headline: document.querySelector("h1").textContent, title: document.title,
  sections: text("h2"),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  outside: out.map((one) => one.outerHTML.slice(0, 80)),
  bar: drawn(".bar span").length,
  barWidth: drawn(".bar span").reduce((sum, one) => sum + box(one).width, 0),
  steps: drawn("svg .p-step, svg .p-free").length,
  waits: drawn("svg .p-wait").length,
  tables: every("h2").map((one) =>
    [one.textContent, one.parentElement.querySelectorAll("td").length]),
  items: every("h2").map((one) => [one.textContent,
    [...one.parentElement.querySelectorAll(".line")].map((line) => line.textContent.trim())]),
  gains: text(".gain"),
  bars: document.querySelectorAll(".scale").length,
  captions: drawn("table").every((one) => one.caption && one.caption.textContent.trim()),
  levels: every("h1, h2, h3").map((one) => Number(one.tagName[1])),
  twice: every("[id]").map((one) => one.id).filter((id, i, all) => all.indexOf(id) !== i),
  unnamed: every("[role=img], [role=group]")
    .filter((one) => !one.getAttribute("aria-label") && !one.textContent.trim()).length,
  labels: every("[aria-labelledby]")
    .every((one) => document.getElementById(one.getAttribute("aria-labelledby"))),
  loaded: performance.getEntriesByType("resource").map((one) => one.name),
  nodes: document.querySelectorAll("*").length,
  scripts: document.scripts.length, images: document.images.length,
};
"""
# The least contrast of any text with what is behind it, by the formula of WCAG 2.
CONTRAST = """
const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const rgba = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let least = [99, ""];
while (walker.nextNode()) {
  const one = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !one.checkVisibility()
      || one.closest("svg, script")) continue;
  const [a, b] = [light(rgba(getComputedStyle(one).color)), light(behind(one))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < least[0]) least = [ratio, one.outerHTML.slice(0, 100)];
}
return least;
"""


def look(page: Browser, path: Path, *, width: int) -> dict[str, Any]:
    page.width(width)
    page.open(path)
    seen: dict[str, Any] = page.script(SEEN)
    return seen | {"console": page.console()}


def check(seen: dict[str, Any], told: Diagnosis) -> None:
    """Properties of the page of every diagnosis at every width."""
    assert seen["headline"] == clean(headline_of(told))
    assert seen["console"] == []
    assert seen["loaded"] == []
    assert seen["overflow"] == 0
    assert seen["outside"] == []
    assert seen["levels"][0] == 1
    assert all(
        after - before <= 1
        for before, after in zip(seen["levels"], seen["levels"][1:], strict=False)
    )
    assert seen["captions"]
    assert seen["labels"]
    assert (seen["twice"], seen["unnamed"], seen["images"]) == ([], 0, 0)
    items = dict(seen["items"])
    causes = items.get("Causes, by their share of the time", [])
    assert len(causes) == len(told.causes)
    assert all(cause.code in one for one, cause in zip(causes, told.causes, strict=True))
    measured = [one for one in told.proof.tried if one.speedup is not None] if told.proof else []
    tried = {one.knob for one in measured}
    left = [one for one in told.recommendations if one.knob not in tried]
    assert len(seen["gains"]) == len(measured) + len(left) + len(told.may_cost)
    assert seen["bars"] == len(measured)
    assert len(items.get(RISKY, [])) == len(told.may_cost)
    steps = told.evidence.loop.steps if told.evidence.loop else []
    assert (seen["steps"] > 0) == bool(steps)
    assert seen["nodes"] < 9000
    assert ("What was not measured" in seen["sections"]) == bool(told.evidence.missing)
    assert ("What died or is blocked" in seen["sections"]) == bool(told.died)


@pytest.mark.slow
def test_every_diagnosis_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        for name, make in EXAMPLES.items():
            told, path = make(), tmp_path / f"{name}.html"
            write_reports(told, {"html": path})
            for width in (DESK, PHONE) if name not in CODES or name == "input.serial" else (PHONE,):
                seen = look(page, path, width=width)
                check(seen, told)
                if told.figures and told.figures.steps:
                    assert seen["bar"] == len(told.figures.shares), name
                    assert seen["barWidth"] > 0.7 * min(width, 1000)
                    assert seen["waits"] > 0
                    assert dict(seen["tables"])["Hottest lines"] > 2


def test_the_checks_see_what_is_wrong(tmp_path: Path) -> None:
    """The console and the width are really looked at."""
    path = tmp_path / "wrong.html"
    write_reports(EXAMPLES["input.serial"](), {"html": path})
    bad = '<p style="width:3000px">wide</p><img src="https://example.invalid/x.png">'
    bad += "<script>alert(1)</script></main>"
    path.write_text(path.read_text().replace("</main>", bad))
    with browser(tmp_path) as page:
        seen = look(page, path, width=PHONE)
    assert seen["overflow"] > 0
    assert seen["outside"]
    refused = " ".join(seen["console"])
    assert "example.invalid" in refused, "the page's policy lets nothing in"
    assert "script-src" in refused, "and runs no script but its own"


def test_text_is_readable_in_light_and_dark(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with browser(tmp_path) as page:
        for name in ("input.serial", "step.bound", "pause.periodic", "feed.dead", "abstained"):
            write_reports(EXAMPLES[name](), {"html": path})
            look(page, path, width=DESK)
            for dark in (False, True):
                page.dark(dark)
                ratio, where = page.script(CONTRAST)
                assert ratio >= 4.5, (name, dark, where)


def test_who_has_no_browser_must_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(WANTED, raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"apt-get install .* chromium chromium-driver"):
        programs()
    monkeypatch.setenv(WANTED, "required")
    with pytest.raises(pytest.fail.Exception, match=r"apt-get install .* chromium chromium-driver"):
        programs()
