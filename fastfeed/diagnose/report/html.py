"""A diagnosis as one self-contained HTML page: no network, no script."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.report import sections
from fastfeed.diagnose.report.formats import duration, percent
from fastfeed.diagnose.report.json import json_of
from fastfeed.errors import clean, clean_lines

# Marks with a colour of their own.
COLOURED = ("epoch", "evaluation", "checkpoint", "callback", "experiment", "dead", "warm-up")
USUAL = 0.97  # share of the steps that are as long as most


def text_of(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the text of the page. Anything that a script puts into a name is text in it: escaped,
    and no script would run, because the page allows none."""
    told = json_of(diagnosis)
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else clean(str(value)),
    )
    environment.filters |= {"coded": _coded, "percent": percent, "lines": _lines}
    yield environment.get_template("page.html.jinja").render(
        d=told,
        tone=sections.tone_of(told),
        notes=sections.notes_of(told),
        sections=sections.sections_of(told),
        foot=sections.foot_of(told),
        drawing_of=drawing_of,
        style=Markup(_file("page.css")),
    )


def drawing_of(timeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeline as paths in an area of 1000 x 100: bars, as high as a step takes, and
    marks by their kind. `top`: the time at full height. Longer steps have a tip."""
    steps = timeline["steps"]
    start_s, end_s = steps["start_s"][0], max(steps["end_s"])
    wide = 1000 / max(end_s - start_s, 1e-6)
    means = sorted(steps["mean_s"])
    top_s = 1.05 * max(min(means[-1], 1.5 * means[int(USUAL * (len(means) - 1))]), 1e-6)
    paths: defaultdict[str, list[str]] = defaultdict(list)
    columns = (steps[name] for name in ("start_s", "end_s", "mean_s", "wait_s", "steps", "free"))
    for begin_s, until_s, mean_s, wait_s, count, free in zip(*columns, strict=True):
        at, width = (begin_s - start_s) * wide, max((until_s - begin_s) * wide, 0.3)
        high = 100 / max(top_s, mean_s)
        kind = "free" if free == count else "step"
        paths["wait"].append(_box(at, width, top=100 - wait_s * high, height=wait_s * high))
        rest = (mean_s - wait_s) * high
        paths[kind].append(_box(at, width, top=100 - mean_s * high, height=rest))
        if mean_s > top_s:
            paths["over"].append(_box(at, width, top=0, height=4))
    marks: defaultdict[str, list[str]] = defaultdict(list)
    counts = Counter(mark["kind"] for mark in timeline["marks"])
    spans = [(mark["kind"], mark["start_s"], mark["end_s"]) for mark in timeline["marks"]]
    for kind, begin_s, until_s in [("warm-up", start_s, 0.0)] * (start_s < 0) + spans:
        width = max((until_s - begin_s) * wide, 1.5)
        marks[kind].append(_box((begin_s - start_s) * wide, width, top=0, height=100))
    return {
        "marks": [
            (kind, kind if kind in COLOURED else "else", counts[kind], "".join(boxes))
            for kind, boxes in marks.items()
        ],
        "bars": {kind: "".join(boxes) for kind, boxes in paths.items()},
        "ends": [f"{start_s:.1f} s", f"{end_s:.1f} s"],
        "top": duration(top_s),
        "steps": sum(steps["steps"]),
    }


def _box(left: float, width: float, *, top: float, height: float) -> str:
    return f"M{left:.2f} {top:.2f}h{width:.2f}v{height:.2f}h-{width:.2f}z"


def _lines(text: str) -> Markup:
    return Markup(escape(clean_lines(text)))


def _coded(text: Any) -> Markup:
    """Return text between backticks as code; as str, because a Markup would escape what is put into
    it."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(clean(str(text))))))


def _file(name: str) -> str:
    return resources.files("fastfeed.diagnose.report").joinpath(name).read_text(encoding="utf-8")
