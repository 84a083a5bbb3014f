"""A diagnosis as JSON, of a versioned schema: docs/diagnosis-schema.md describes every key.

The report on a terminal and the page are made of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from fastfeed import __version__
from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.diagnose.diagnosis import DIAGNOSIS_SCHEMA, Cause, Diagnosis, Figures
from fastfeed.diagnose.evidence import EMPTY, FULL, PRODUCER, TASK_STATES, Evidence, MarkHint, Task
from fastfeed.diagnose.proof import Proof
from fastfeed.diagnose.report.formats import duration, percent
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.hottest_lines import hottest_lines
from fastfeed.diagnose.report.next_steps import next_step
from fastfeed.diagnose.report.step_columns import columns_of, shown_steps
from fastfeed.probes.machine_log import Machine
from fastfeed.steps.timeline import NOT_LOOP_EVENTS, OBSERVING, Mark

# Limits that keep the file under 2 MB, for any duration and number of threads.
MAX_TIMELINE_ROWS = 1000  # of the timeline
MAX_MARKS = 500
MAX_TASKS = 200
STACKS = 400  # of all tasks together
MAX_STACK_PLACES = 50  # places of a stack, the innermost
MAX_TEXT = 20_000  # characters
DOCS = "docs/reference/verdicts.md#"  # where each code has a heading
Json = dict[str, Any]


def text_of(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the diagnosis as the text of a JSON file."""
    yield json.dumps(json_of(diagnosis), indent=2, ensure_ascii=False, allow_nan=False)
    yield "\n"


def json_of(diagnosis: Diagnosis) -> Json:
    """Return plain values by key, in the order of the schema; None for what is unknown."""
    figures, seen = diagnosis.figures, diagnosis.evidence
    found: Json = plain(
        {
            "schema": DIAGNOSIS_SCHEMA,
            "fastfeed": __version__,
            "script": diagnosis.script,
            "verdict": diagnosis.verdict,
            "headline": headline_of(diagnosis),
            "causes": [_cause(one) for one in diagnosis.causes],
            "starvation": figures and figures.starvation,
            "lost_to_input": diagnosis.lost_to_input,
            "steps_per_second": figures and figures.steps_per_second,
            "step_seconds": figures and figures.step_s,
            "speedup_if_input_free": diagnosis.speedup_if_input_free,
            "speedup_range": diagnosis.speedup_range,
            "recommendations": [next_step(r, diagnosis) for r in diagnosis.recommendations],
            "may_cost": [next_step(r, diagnosis) for r in diagnosis.may_cost],
            "no_change": diagnosis.no_change,
            "proof": diagnosis.proof and _proof(diagnosis.proof),
            "doubt": diagnosis.doubt and vars(diagnosis.doubt),
            "accounts": [vars(account) for account in diagnosis.accounts],
            "abstained": diagnosis.abstained,
            "died": diagnosis.died,
            "not_measured": seen.missing,
            "overhead": _overhead(seen),
            "activity": list(_activity(seen)) if diagnosis.verdict is None else [],
            "mark": seen.hint and _hint(seen.hint),
            "children": [vars(one) for one in seen.children],
            "figures": figures and _figures(figures),
            "ceiling": diagnosis.ceiling and vars(diagnosis.ceiling),
            "interventions": [vars(one) for one in seen.interventions],
            "watched": _watched(seen),
            "loop": _loop(seen),
            "device_gap": seen.device_gap and vars(seen.device_gap),
            "parts": [
                {"kind": p.kind, "place": str(p.place), "share": p.share} for p in seen.parts
            ],
            "hottest": hottest_lines(seen),
            "stages": _stages(seen),
            "feed": seen.feed and _feed(seen.feed, figures.starvation if figures else 0.0),
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


def _cause(cause: Cause) -> Json:
    return vars(cause) | {"docs": DOCS + cause.code.replace(".", "")}


def _proof(proof: Proof) -> Json:
    return vars(proof) | {"sentence": proof.sentence, "tried": [vars(t) for t in proof.tried]}


def _hint(hint: MarkHint) -> Json:
    return {"place": str(hint.place), "share": hint.share, "loop": hint.loops}


def _activity(seen: Evidence) -> Iterator[str]:
    """Yield what the loop repeats, and which line to mark: for a report without a verdict."""
    loop, hint = seen.loop, seen.hint
    if loop is not None and loop.steps:
        steps = [step for step in loop.steps if step.begin_s >= seen.start_s] or loop.steps
        lengths = sorted(step.end_s - step.begin_s for step in steps)
        span = f" ({duration(lengths[0])} to {duration(lengths[-1])})" if len(lengths) > 1 else ""
        each = duration(median(lengths))
        yield f"Calls or iterations of {loop.name}: {len(lengths)}, {each} each{span}."
    if hint is None:
        return
    fewer = "do fewer steps a call, in a loop, with `with watch.step():` around the call."
    line, share = f"{hint.place.file}:{hint.place.line}", percent(hint.share)
    if not hint.loops:
        yield (
            f"No loop of the script's own was running: {hint.place} took {share} of the time. Let "
            f"it {fewer}"
        )
    elif loop is not None and loop.waits == "hidden":
        yield f"The loop at {line} has a call that takes its batches itself. Let it {fewer}"
    else:
        yield (
            f"Mark its steps: the loop at {line} was running for {share} of the time. Write `for "
            "batch in watch(...)` there, or `with watch.step():` around what it repeats."
        )


def _figures(figures: Figures) -> Json:
    """Return the figures without those at the top level."""
    told = ("starvation", "steps_per_second", "step_s")
    return {key: value for key, value in vars(figures).items() if key not in told}


def _overhead(seen: Evidence) -> float:
    """Return the share of a step that watching costs, without the experiments.

    It is the time that observing took from the loop's thread, and what its CPU seconds on all cores
    displace: the fuller the cores are, the more.
    """
    machine = seen.machine
    full = min((machine.own_cpu + machine.other_cpu + machine.steal) / machine.cores, 1.0)
    displaced_s = full * seen.overhead_s / machine.cores
    return (_marked_s(seen, OBSERVING) + displaced_s) / max(1e-9, seen.seconds)


def _marked_s(seen: Evidence, kind: str) -> float:
    """Return the seconds of marks since the end of the warm-up."""
    marks = [mark for mark in seen.marks if mark.kind == kind and mark.start_s >= seen.start_s]
    return sum(mark.end_s - mark.start_s for mark in marks)


def _watched(seen: Evidence) -> Json:
    return {
        "seconds": seen.seconds,
        "warmup_s": seen.warmup_s,
        "first_batch_s": seen.first_batch_s,
        "waiting_now_s": seen.waiting_now_s,
        "overhead_cpu_s": seen.overhead_s,
        "experiments_s": _marked_s(seen, "experiment"),
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


def _stages(seen: Evidence) -> list[Json]:
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


def _feed(feed: Snapshot, starvation: float) -> Json:
    """Return the stages that cause the waits, and what each producer does."""
    blocked = feed.blocked_s
    waited_s = sum(blocked.values())
    return {
        "waits": {stage: starvation * one / waited_s for stage, one in blocked.items()},
        "producers": [
            {"batches": row.batches, "busy": _times(row)} for row in feed.producers[:MAX_TASKS]
        ],
        "tuning": [one._asdict() | {"text": str(one)} for one in feed.tuning],
    }


def _times(row: StageRow) -> dict[str, float]:
    """Return what a producer does, as shares of its time."""
    seconds = row.stages | {EMPTY: row.wait_in_s, FULL: row.wait_out_s}
    whole_s = sum(seconds.values()) or 1.0
    return {name: one / whole_s for name, one in seconds.items() if one}


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
    shown = [mark for mark in seen.marks if mark.kind not in NOT_LOOP_EVENTS]
    longest = sorted(shown, key=lambda mark: mark.start_s - mark.end_s)[:MAX_MARKS]
    longest.sort(key=lambda mark: mark.start_s)
    return {
        "steps": columns_of(shown_steps(seen), origin_s=seen.start_s, limit=MAX_TIMELINE_ROWS),
        "marks": [_mark(mark, seen.start_s) for mark in longest],
        "marks_left_out": max(0, len(shown) - MAX_MARKS),
    }


def _mark(mark: Mark, origin_s: float) -> Json:
    start_s, end_s = round(mark.start_s - origin_s, 6), round(mark.end_s - origin_s, 6)
    return {"kind": mark.kind, "start_s": start_s, "end_s": end_s, "label": mark.label[:200]}
