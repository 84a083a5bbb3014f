"""A diagnosis as a trace for ui.perfetto.dev and chrome://tracing: the Trace Event Format of
Chrome, as JSON.

Times are microseconds since the first event.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence import TRAINER, Evidence, Task
from fastfeed.diagnose.report.bins import binned
from fastfeed.diagnose.report.files import write_whole
from fastfeed.diagnose.report.flames import frames
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.json import plain
from fastfeed.steps.timeline import NOT_LOOP_EVENTS, Mark, Step

Event = dict[str, Any]
MADE_UP = 10_000_000  # ids of tracks that are no threads: beyond those of Linux
MAX_COUNTER_POINTS = 500  # points of a counter
IN_ORDER = "samples, the most first (not in the order of time)"


class Track(NamedTuple):
    """The track of slices: a thread, or something shown as one."""

    pid: int
    tid: int


def write(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Write the trace as a JSON file, completely or not at all. Raise OSError if it cannot be
    written."""
    write_whole(path, _text(diagnosis))


def _text(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield one event for each line: a file of a hundred thousand steps need not be in memory as a
    whole."""
    encode = json.JSONEncoder(allow_nan=False).encode
    about = {
        "script": diagnosis.script,
        "verdict": diagnosis.verdict,
        "headline": headline_of(diagnosis),
    }
    yield f'{{"displayTimeUnit": "ms", "otherData": {encode(plain(about))}, "traceEvents": [\n'
    for number, event in enumerate(events(diagnosis)):
        yield (",\n" if number else "") + encode(event)
    yield "\n]}\n"


def events(diagnosis: Diagnosis) -> Iterator[Event]:
    """Yield the names of the tracks; steps with their waits; marks; batches; what each task did;
    counters."""
    seen = diagnosis.evidence
    steps = [step for step in (seen.loop.steps if seen.loop else ()) if all(map(isfinite, step))]
    marks = [mark for mark in seen.marks if isfinite(mark.start_s) and isfinite(mark.end_s)]
    batches = [mark for mark in marks if mark.kind == "batch"]
    others = [mark for mark in marks if mark.kind not in NOT_LOOP_EVENTS]
    origin_s = min(chain([seen.start_s], (s.begin_s for s in steps), (m.start_s for m in marks)))
    trainer = _trainer(seen)
    producers = {task.name: _track(task) for task in seen.tasks}
    named = chain(
        _names(seen, trainer=trainer, script=diagnosis.script),
        _marks(others, trainer=trainer, origin_s=origin_s),
        _batches(batches, producers=producers, trainer=trainer, origin_s=origin_s),
        *(_samples(task, track, seen=seen, origin_s=origin_s) for track, task in _sampled(seen)),
        _counters(steps, pid=trainer.pid, origin_s=origin_s),
    )
    # most events are steps, which hold only known numbers
    return chain(map(plain, named), _steps(steps, trainer=trainer, origin_s=origin_s))


def _track(task: Task) -> Track:
    """Return the track of a task. Id 0 would be the idle thread of the machine."""
    return Track(task.pid, task.tid or task.pid)


def _trainer(seen: Evidence) -> Track:
    """Return the thread of the loop; an invented one if it is unknown."""
    found = [_track(task) for task in seen.tasks if task.role == TRAINER]
    return found[0] if found else Track(1, 1)


def _sampled(seen: Evidence) -> list[tuple[Track, Task]]:
    """Return the tasks whose stacks were sampled, each with its track."""
    tasks = [task for task in seen.tasks if task.stacks]
    return [(Track(task.pid, MADE_UP + number), task) for number, task in enumerate(tasks)]


def _names(seen: Evidence, *, trainer: Track, script: str) -> Iterator[Event]:
    named = {trainer: "training loop"} | {_track(task): task.name for task in seen.tasks}
    named |= {track: f"{task.name}: {IN_ORDER}" for track, task in _sampled(seen)}
    for pid in dict.fromkeys(track.pid for track in named):
        children = [task.name for task in seen.tasks if task.pid == pid]
        yield _meta(
            "process_name",
            Track(pid, pid),
            name=script or "training" if pid == trainer.pid else children[0],
        )
        yield _meta(
            "process_sort_index", Track(pid, pid), sort_index=0 if pid == trainer.pid else 1
        )
    for number, (track, name) in enumerate(named.items()):
        yield _meta("thread_name", track, name=name)
        yield _meta("thread_sort_index", track, sort_index=-1 if track == trainer else number)


def _meta(kind: str, track: Track, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": track.pid, "tid": track.tid, "ts": 0, "args": args}


def _slice(name: str, track: Track, *, begin_s: float, end_s: float, args: Event) -> Event:
    begin, end = _us(begin_s), _us(max(begin_s, end_s))
    length = round(end - begin, 3)
    return {
        "ph": "X",
        "name": name,
        "pid": track.pid,
        "tid": track.tid,
        "ts": begin,
        "dur": length,
        "args": args,
    }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _steps(steps: Iterable[Step], *, trainer: Track, origin_s: float) -> Iterator[Event]:
    """Yield steps, each with its wait at the beginning."""
    for number, step in enumerate(steps):
        begin_s, end_s = step.begin_s - origin_s, step.end_s - origin_s
        name = "step, its input at hand" if step.free else "step"
        args = {"number": number, "wait_ms": round(step.wait_s * 1e3, 3)}
        yield _slice(name, trainer, begin_s=begin_s, end_s=end_s, args=args)
        if step.wait_s > 0:
            until_s = min(begin_s + step.wait_s, end_s)
            yield _slice("wait for input", trainer, begin_s=begin_s, end_s=until_s, args={})


def _marks(marks: Iterable[Mark], *, trainer: Track, origin_s: float) -> Iterator[Event]:
    """Yield marks as asynchronous slices, which may overlap; as an instant if a mark takes no
    time."""
    for number, mark in enumerate(marks):
        name = f"{mark.kind}: {mark.label}" if mark.label else mark.kind
        begin, end = _us(mark.start_s - origin_s), _us(mark.end_s - origin_s)
        event = {
            "name": name,
            "cat": mark.kind,
            "pid": trainer.pid,
            "tid": trainer.tid,
            "ts": begin,
        }
        if end <= begin:
            yield {**event, "ph": "i", "s": "p"}
        else:
            yield {**event, "ph": "b", "id": number}
            yield {**event, "ph": "e", "id": number, "ts": end}


def _batches(
    batches: Iterable[Mark], *, producers: dict[str, Track], trainer: Track, origin_s: float
) -> Iterator[Event]:
    """Yield batches on the track of their producer; overlapping ones (several threads of one name)
    get further tracks."""
    free_s: dict[Track, float] = {}  # until when a track is in use
    lanes: dict[str, list[Track]] = {}
    made_up = 2 * MADE_UP
    for mark in sorted(batches, key=lambda mark: mark.start_s):
        mine = lanes.setdefault(
            mark.label, [producers[mark.label]] if mark.label in producers else []
        )
        track = next((one for one in mine if free_s.get(one, mark.start_s) <= mark.start_s), None)
        if track is None or track == trainer:  # the trainer's track has the steps
            track = Track(trainer.pid, made_up := made_up + 1)
            mine[:] = [one for one in mine if one != trainer] + [track]
            yield _meta("thread_name", track, name=f"{mark.label or 'producer'}: batches")
        free_s[track] = mark.end_s
        yield _slice(
            "batch", track, begin_s=mark.start_s - origin_s, end_s=mark.end_s - origin_s, args={}
        )


def _samples(task: Task, track: Track, *, seen: Evidence, origin_s: float) -> Iterator[Event]:
    """Yield the flame view of a task, as wide as the observed time."""
    start_s, span_s = seen.start_s - origin_s, max(0.0, seen.end_s - seen.start_s)
    for frame in frames(task.stacks):
        place = frame.place
        args = {
            "place": f"{place.file}:{place.line}",
            "samples": frame.samples,
            "share": round(frame.width, 4),
        }
        if frame.depth == 0:
            args |= {f"state: {state}": round(share, 4) for state, share in task.busy.items()}
        begin_s, end_s = start_s + frame.left * span_s, start_s + frame.right * span_s
        yield _slice(place.function, track, begin_s=begin_s, end_s=end_s, args=args)


def _counters(steps: list[Step], *, pid: int, origin_s: float) -> Iterator[Event]:
    """Yield steps per second, and the share of their time that the steps waited."""
    for one in binned(steps, origin_s=origin_s, limit=MAX_COUNTER_POINTS):
        span_s, ts = max(one.end_s - one.start_s, 1e-9), _us(one.start_s)
        event = {"ph": "C", "pid": pid, "ts": ts}
        yield {**event, "name": "steps/s", "args": {"steps/s": round(one.steps / span_s, 3)}}
        waits = 100 * one.wait_s / one.mean_s if one.mean_s > 0 else 0.0
        yield {**event, "name": "waiting, %", "args": {"%": round(waits, 2)}}
