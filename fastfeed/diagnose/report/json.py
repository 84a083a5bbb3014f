"""A diagnosis as JSON, of a versioned schema: docs/diagnosis-schema.md describes every key."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastfeed import __version__
from fastfeed.diagnose.diagnosis import DIAGNOSIS_SCHEMA, Diagnosis, Figures, Reproduction
from fastfeed.diagnose.evidence import PRODUCER, TASK_STATES, Evidence, MarkHint, Task
from fastfeed.diagnose.report.bins import binned
from fastfeed.diagnose.report.files import write_whole
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.process_activity import activity
from fastfeed.errors import OptionError
from fastfeed.probes.machine_log import Machine
from fastfeed.steps.timeline import NOT_LOOP_EVENTS, Mark

# Limits that keep the file under 2 MB, for any duration and number of threads.
MAX_TIMELINE_ROWS = 1000  # of the timeline
MAX_MARKS = 500
MAX_TASKS = 200
STACKS = 400  # of all tasks together
MAX_STACK_PLACES = 50  # places of a stack, the innermost
MAX_TEXT = 20_000  # characters
Json = dict[str, Any]


def write(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Write the diagnosis as a JSON file, completely or not at all. Raise OSError if it cannot be
    written."""
    write_whole(
        path, [json.dumps(json_of(diagnosis), indent=2, ensure_ascii=False, allow_nan=False), "\n"]
    )


def load(path: str | os.PathLike[str]) -> Json:
    """Return what `write` wrote. Raise OptionError for another file or another schema, OSError as
    open does."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is no JSON file: {error}") from error
    if not isinstance(found, dict) or "schema" not in found or "verdict" not in found:
        raise OptionError(f"{path} is no diagnosis, which is what fastfeed diagnose --json writes")
    if found["schema"] != DIAGNOSIS_SCHEMA:
        raise OptionError(
            f"{path} is a diagnosis of schema {found['schema']!r}, and this fastfeed reads schema "
            f"{DIAGNOSIS_SCHEMA}: read it with the fastfeed that wrote it, or diagnose again"
        )
    return found


def json_of(diagnosis: Diagnosis) -> Json:
    """Return a dictionary of plain values: keys in the order of the schema, None for unknown
    values."""
    figures, seen = diagnosis.figures, diagnosis.evidence
    found: Json = plain(
        {
            "schema": DIAGNOSIS_SCHEMA,
            "fastfeed": __version__,
            "script": diagnosis.script,
            "verdict": diagnosis.verdict,
            "headline": headline_of(diagnosis),
            "causes": [
                {"code": c.code, "share": c.share, "evidence": c.evidence} for c in diagnosis.causes
            ],
            "starvation": figures and figures.starvation,
            "lost_to_input": diagnosis.lost_to_input,
            "steps_per_second": figures and figures.steps_per_second,
            "step_seconds": figures and figures.step_s,
            "speedup_if_input_free": diagnosis.speedup_if_input_free,
            "speedup_range": diagnosis.speedup_range,
            "reproduction": _reproduction(diagnosis.reproduction),
            "recommendations": [vars(r) for r in diagnosis.recommendations],
            "may_cost": [vars(r) for r in diagnosis.may_cost],
            "no_change": diagnosis.no_change,
            "doubt": diagnosis.doubt and vars(diagnosis.doubt),
            "accounts": [vars(account) for account in diagnosis.accounts],
            "abstained": diagnosis.abstained,
            "died": diagnosis.died,
            "not_measured": seen.missing,
            "overhead": diagnosis.overhead,
            "activity": activity(diagnosis),
            "mark": seen.hint and _hint(seen.hint),
            "children": [vars(one) for one in seen.children],
            "figures": figures and _figures(figures),
            "ceiling": diagnosis.ceiling and vars(diagnosis.ceiling),
            "watched": _watched(seen),
            "loop": _loop(seen),
            "parts": [
                {"kind": p.kind, "place": str(p.place), "share": p.share} for p in seen.parts
            ],
            "stages": stages(seen),
            "tasks": _tasks(seen.tasks),
            "tasks_left_out": max(0, len(seen.tasks) - MAX_TASKS),
            "machine": _machine(seen.machine),
            "timeline": _timeline(seen),
        }
    )
    return found


def plain(value: Any) -> Any:
    """Return what JSON can hold: None for nan and infinity, no broken Unicode, no endless text."""
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, str):
        return value[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, (bool, int)):
        return value
    return float(value) if math.isfinite(value) else None


def _reproduction(found: Reproduction | None) -> Json | None:
    return None if found is None else {**vars(found), "rough": found.rough}


def _hint(hint: MarkHint) -> Json:
    return {"place": str(hint.place), "share": hint.share, "loop": hint.loops}


def _figures(figures: Figures) -> Json:
    """Return the figures without those at the top level."""
    told = ("starvation", "steps_per_second", "step_s")
    return {key: value for key, value in vars(figures).items() if key not in told}


def _watched(seen: Evidence) -> Json:
    return {
        "seconds": seen.end_s - seen.start_s,
        "warmup_s": seen.warmup_s,
        "first_batch_s": seen.first_batch_s,
        "waiting_now_s": seen.waiting_now_s,
        "overhead_cpu_s": seen.overhead_s,
        "producers": seen.threads,
        "gil_late_s": seen.gil_late_s,
        "gil_late_p90_s": seen.gil_late_p90_s,
        "pools": seen.pools,
    }


def _loop(seen: Evidence) -> Json | None:
    loop = seen.loop
    if loop is None:
        return None
    keys = ("name", "kind", "where", "waits", "buffer", "note")
    leaves = [
        {"path": f.path, "dtype": f.dtype, "shape": f.shape, "kind": f.kind}
        for f in loop.leaves[:100]
    ]
    return {key: getattr(loop, key) for key in keys} | {"batch": leaves}


def stages(seen: Evidence) -> list[Json]:
    """Return the tasks of each role as one: how many, the cores that they used, and the means of
    what they did."""
    found = []
    for role in dict.fromkeys((PRODUCER, "feeder", "trainer", *(task.role for task in seen.tasks))):
        tasks = [task for task in seen.tasks if task.role == role]
        if tasks:
            cores = sum(task.cpu_s / task.wall_s for task in tasks if task.wall_s > 0)
            busy = {s: sum(t.busy.get(s, 0.0) for t in tasks) / len(tasks) for s in TASK_STATES}
            found.append(
                {"role": role, "tasks": len(tasks), "cores": cores, "busy": _positive(busy)}
            )
    return found


def _tasks(tasks: tuple[Task, ...]) -> list[Json]:
    shown = tasks[:MAX_TASKS]
    each = max(2, STACKS // max(1, len(shown)))
    return [_task(task, each) for task in shown]


def _task(task: Task, stacks: int) -> Json:
    best = sorted(task.stacks.items(), key=lambda item: -item[1])[:stacks]
    top = task.top()
    return vars(task) | {
        "busy": _positive(task.busy),
        "top": top and {"place": str(top[0]), "share": top[1]},
        "samples": sum(task.stacks.values()),
        "stacks": [
            {"samples": count, "places": [str(p) for p in stack[-MAX_STACK_PLACES:]]}
            for stack, count in best
        ],
    }


def _positive(busy: Mapping[str, float]) -> dict[str, float]:
    return {state: busy[state] for state in TASK_STATES if busy.get(state, 0.0) > 0}


def _machine(machine: Machine) -> Json:
    gpus = [vars(gpu) for gpu in machine.gpus]
    noisy = [{"process": name, "cores": cores} for name, cores in machine.noisy[:20]]
    return vars(machine) | {"gpus": gpus, "noisy": noisy}


def _timeline(seen: Evidence) -> Json:
    """Return the timeline in columns, seconds from the start of the observed time; warm-up lies
    before zero."""
    bins = binned(
        seen.loop.steps if seen.loop else (), origin_s=seen.start_s, limit=MAX_TIMELINE_ROWS
    )
    columns = (
        "start_s",
        "end_s",
        "steps",
        "mean_s",
        "longest_s",
        "wait_s",
        "longest_wait_s",
        "free",
    )
    shown = [mark for mark in seen.marks if mark.kind not in NOT_LOOP_EVENTS]
    return {
        "steps": {name: [_micro(getattr(one, name)) for one in bins] for name in columns},
        "marks": [_mark(mark, seen.start_s) for mark in longest_marks(shown, MAX_MARKS)],
        "marks_left_out": max(0, len(shown) - MAX_MARKS),
    }


def longest_marks(marks: list[Mark], limit: int) -> list[Mark]:
    """Return at most `limit` marks, the longest, in the order of time."""
    best = sorted(marks, key=lambda mark: mark.start_s - mark.end_s)[:limit]
    return sorted(best, key=lambda mark: mark.start_s)


def _mark(mark: Mark, origin_s: float) -> Json:
    start_s, end_s = _micro(mark.start_s - origin_s), _micro(mark.end_s - origin_s)
    return {"kind": mark.kind, "start_s": start_s, "end_s": end_s, "label": mark.label[:200]}


def _micro(number: float) -> float:
    """Round to microseconds."""
    return number if isinstance(number, int) else round(number, 6)
