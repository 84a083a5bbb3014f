"""A diagnosis as a trace for ui.perfetto.dev and chrome://tracing: the Trace Event Format of
Chrome, as JSON.

Times are microseconds since the first event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from math import isfinite
from typing import Any

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.json import plain
from fastfeed.steps.timeline import OBSERVING, UNOBSERVED, Mark, Step

Event = dict[str, Any]


def text_of(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield one event for each line: a file of a hundred thousand steps need not be in memory as a
    whole."""
    encode = json.JSONEncoder(allow_nan=False).encode
    about = {
        "script": diagnosis.script,
        "verdict": diagnosis.verdict,
        "headline": headline_of(diagnosis),
    }
    yield f'{{"displayTimeUnit": "ms", "otherData": {encode(plain(about))}, "traceEvents": [\n'
    for number, event in enumerate(_events(diagnosis)):
        yield (",\n" if number else "") + encode(event)
    yield "\n]}\n"


def _events(diagnosis: Diagnosis) -> Iterator[Event]:
    """Yield the names of the loop's process and thread, its steps with their waits, and the marks:
    what lies beside the steps, and batches by the producer that made them."""
    seen, trainer = diagnosis.evidence, diagnosis.evidence.trainer
    pid, tid = (trainer.pid, trainer.tid or trainer.pid) if trainer is not None else (1, 1)
    thread: Event = {"pid": pid, "tid": tid}
    steps = [step for step in (seen.loop.steps if seen.loop else ()) if all(map(isfinite, step))]
    marks = [
        mark
        for mark in seen.marks
        if mark.kind not in (OBSERVING, UNOBSERVED) and isfinite(mark.start_s + mark.end_s)
    ]
    origin_s = min(chain([seen.start_s], (s.begin_s for s in steps), (m.start_s for m in marks)))
    for kind, name in (("process", diagnosis.script or "training"), ("thread", "training loop")):
        args = {"name": plain(name)}
        yield {"ph": "M", "name": f"{kind}_name", **thread, "ts": 0, "args": args}
    yield from _slices(steps, thread, origin_s=origin_s)
    yield from map(plain, _marks(marks, thread, origin_s=origin_s))


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _slices(steps: Iterable[Step], thread: Event, *, origin_s: float) -> Iterator[Event]:
    """Yield steps, each with its wait at the beginning."""
    for number, step in enumerate(steps):
        ts, end = _us(step.begin_s - origin_s), _us(max(step.begin_s, step.end_s) - origin_s)
        name = "step, its input at hand" if step.free else "step"
        event = {"ph": "X", "name": name, **thread, "ts": ts, "dur": round(end - ts, 3)}
        yield {**event, "args": {"number": number, "wait_ms": round(step.wait_s * 1e3, 3)}}
        if step.wait_s > 0:
            wait = round(min(step.wait_s * 1e6, end - ts), 3)
            yield {**event, "name": "wait for input", "dur": wait}


def _marks(marks: Iterable[Mark], thread: Event, *, origin_s: float) -> Iterator[Event]:
    """Yield marks as asynchronous slices, which may overlap; as an instant if a mark takes no
    time."""
    for number, mark in enumerate(marks):
        ts, end = _us(mark.start_s - origin_s), _us(mark.end_s - origin_s)
        name = f"{mark.kind}: {mark.label}" if mark.label else mark.kind
        event = {"name": name, "cat": mark.kind, **thread, "ts": ts}
        if end <= ts:
            yield {**event, "ph": "i", "s": "p"}
        else:
            yield {**event, "ph": "b", "id": number}
            yield {**event, "ph": "e", "id": number, "ts": end}
