"""A diagnosis as one self-contained HTML page: no network, and JavaScript only to zoom."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from fastfeed import __version__
from fastfeed.diagnose.diagnosis import CODES, DIAGNOSIS_SCHEMA, Diagnosis
from fastfeed.diagnose.report import charts, words
from fastfeed.diagnose.report.files import write_whole
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.json import stages
from fastfeed.diagnose.report.process_activity import activity, training_children
from fastfeed.errors import clean, clean_lines

MAX_TASK_ROWS = 60  # rows of a table; the JSON file has more
FLAMES = 8


def write(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Write the diagnosis as one HTML file, completely or not at all. Raise OSError if it cannot be
    written."""
    write_whole(path, [page(diagnosis)])


def page(diagnosis: Diagnosis) -> str:
    """Return the text of the page. Anything that a script puts into a name is text in it: escaped,
    and no script of its own would run, because the page allows only the one with the given hash."""
    script = _file("page.js")
    seen = diagnosis.evidence
    told = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )
    told.filters |= {
        form.__name__: _unbroken(form) for form in (words.percent, words.duration, words.size)
    }
    told.filters |= {
        form.__name__: form for form in (words.percents, words.factor, words.factors, words.rate)
    }
    told.filters |= {"known": words.known, "roughness": words.roughness}
    told.filters |= {"doubtful": words.doubtful, "unseen": words.unseen}
    told.filters |= {"lines": _lines, "coded": _coded}
    figures = words.told_figures(diagnosis)
    return told.get_template("page.html.jinja").render(
        d=diagnosis,
        headline=headline_of(diagnosis),
        seen=seen,
        figures=figures,
        machine=seen.machine,
        codes=CODES,
        schema=DIAGNOSIS_SCHEMA,
        version=__version__,
        tone=words.tone(diagnosis),
        activity=activity(diagnosis),
        children=training_children(seen),
        parts=words.split(figures) if figures else [],
        timeline=charts.timeline(seen),
        stages=[stage | {"busy": charts.busy(stage["busy"])} for stage in stages(seen)],
        tasks=[_task(task) for task in seen.tasks[:MAX_TASK_ROWS]],
        tasks_left_out=max(0, len(seen.tasks) - MAX_TASK_ROWS),
        flames=charts.flames(seen.tasks, limit=FLAMES),
        style=Markup(_file("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _unbroken(form: Callable[[float | None], str]) -> Callable[[float | None], str]:
    """Keep a number on the line of its unit."""
    return lambda number: form(number).replace(" ", "\u00a0")


def _task(task: Any) -> dict[str, Any]:
    return {
        "name": task.name,
        "pid": task.pid,
        "role": task.role,
        "cores": task.cpu_s / task.wall_s if task.wall_s > 0 else None,
        "busy": charts.busy(task.busy),
        "top": task.top(),
        "exit": task.exit,
        "sampled": task.sampled,
    }


def _shown(value: Any) -> Any:
    """Return what a template writes: control characters of names are spelled out."""
    return value if isinstance(value, Markup) else clean(str(value))


def _lines(text: str) -> Markup:
    return Markup(escape(clean_lines(text)))


def _coded(text: Any) -> Markup:
    """Return text between backticks as code; as str, because a Markup would escape what is put into
    it."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(clean(str(text))))))


def _file(name: str) -> str:
    return resources.files("fastfeed.diagnose.report").joinpath(name).read_text(encoding="utf-8")
