"""Made-up evidence, one kind of slow training each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.diagnose.diagnosis import Diagnosis, Recommendation
from fastfeed.diagnose.evidence import (
    DISK,
    FULL,
    LOCK_PYTHON,
    NATIVE,
    OTHER,
    PRODUCER,
    PYTHON,
    RUNNABLE,
    SLEEP,
    TASK_STATES,
    TRAINER,
    DeadProducer,
    Evidence,
    LoopPart,
    Task,
)
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.probes.machine_log import Machine
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import (
    Leaf,
    Loop,
    Mark,
    Step,
)

PID = 100
LINE = Place("decode", "data.py", 41, users=True)
CALL = Place("<module>", "train.py", 9, users=True)
MACHINE = Machine(cores=2, own_cpu=0.5, runnable=0.6)
ONLY_STEP = (LoopPart("step", CALL, 1.0),)


def loop_of(
    waits_ms: Sequence[float],
    step_ms: float | Sequence[float] = 10.0,
    *,
    gap_ms: float = 0.0,
    free: int = 0,
    free_ms: float = 0.0,
    **facts: Any,
) -> Loop:
    """A loop of such steps, one behind the other, and `free` ones behind them that find their
    input."""
    steps_ms = [step_ms] * len(waits_ms) if isinstance(step_ms, int | float) else list(step_ms)
    steps, now = [], 0.0
    for wait, step in zip(waits_ms, steps_ms, strict=True):
        end = now + (wait + step) / 1e3
        steps.append(Step(now, end, wait / 1e3))
        now = end + gap_ms / 1e3
    for _ in range(free):
        steps.append(Step(now, now + (free_ms or steps_ms[0]) / 1e3, 0.0, free=True))
        now = steps[-1].end_s
    options = {"waits": "exact", "buffer": 8, **facts}
    return Loop("for batch in loader", options.pop("kind", "watch"), 1, steps=steps, **options)


def task(role: str, busy: dict[str, float], *, pid: int = PID, tid: int = 7, **facts: Any) -> Task:
    wall_s = facts.pop("wall_s", 10.0)
    cpu_s = facts.pop("cpu_s", wall_s * sum(busy.get(state, 0.0) for state in (PYTHON, NATIVE)))
    stacks = facts.pop("stacks", {(CALL, LINE): 10})
    return Task(f"{role} {tid}", pid, tid, role, wall_s, cpu_s, busy=busy, stacks=stacks, **facts)


def trainer(busy: dict[str, float] | None = None, **facts: Any) -> Task:
    return task(TRAINER, busy or {SLEEP: 1.0}, tid=PID, **facts)


def producers(count: int, busy: dict[str, float], **facts: Any) -> tuple[Task, ...]:
    return tuple(task(PRODUCER, busy, tid=PID + 1 + number, **facts) for number in range(count))


def evidence(loop: Loop | None, tasks: Sequence[Task] = (), **facts: Any) -> Evidence:
    end_s = loop.steps[-1].end_s if loop is not None and loop.steps else 10.0
    machine = facts.pop("machine", MACHINE)
    marks = tuple(facts.pop("marks", ()))
    return Evidence(loop, marks, tuple(tasks), machine, 0.0, end_s, **facts)


def judged(
    loop: Loop | None, *tasks: Task, died: Sequence[DeadProducer] = (), **facts: Any
) -> Diagnosis:
    """Judge evidence of such tasks and facts."""
    return judge(evidence(loop, tasks, **facts), died=tuple(died))


def change(found: Diagnosis, *knobs: str) -> Recommendation:
    """Return the first recommendation that turns one of these knobs."""
    return next(one for one in found.recommendations if one.knob in knobs)


def fed_by(
    share: float, busy: dict[str, float] | None = None, *, kind: str = "input", **facts: Any
) -> tuple[LoopPart, ...]:
    """Two lines of a loop: one with this share of its time, and its step."""
    return LoopPart(kind, CALL, share, busy or {}, **facts), LoopPart("step", CALL, 1 - share)


def many_calls(each: int = 5, *, count: int = 20) -> dict[tuple[Place, ...], int]:
    """Stacks of a step that is many small calls of a framework."""
    lines = [Place("call", "framework.py", number, users=False) for number in range(count)]
    return {(CALL, line): each for line in lines}


def _input(share: float, busy: dict[str, float], **facts: Any) -> tuple[LoopPart, ...]:
    step = LoopPart("step", Place("<module>", "train.py", 10, users=True), 1 - share)
    return LoopPart("input", CALL, share, busy, inner=LINE, **facts), step


def _epochs(loop: Loop, every: int) -> list[Mark]:
    steps = loop.steps[every::every]
    return [Mark("epoch", step.begin_s, step.begin_s) for step in steps]


ROWS = st.builds(
    StageRow,
    batches=st.integers(0, 10**9),
    **{name: st.floats(0, 1e6) for name in ("read_s", "collate_s", "wait_in_s", "wait_out_s")},
)
FEEDS = st.builds(
    Snapshot,
    st.floats(0, 1e6),
    ROWS,
    ROWS,
    st.integers(0, 99),
    st.integers(0, 10**9),
    st.lists(ROWS, max_size=3).map(tuple),
)


@cache
def judged_case(name: str) -> Diagnosis:
    """Judge one of `cases()`, once for all tests."""
    return judge(cases()[name])


@cache
def cases() -> dict[str, Evidence]:
    """Return a clear case of each code, and a few more with names ("step.bound/busy producers")."""
    asleep, python = {SLEEP: 1.0}, {PYTHON: 0.95, LOCK_PYTHON: 0.05}
    starved = [40.0] * 200
    fed = [0.02] * 300
    threads = {"tasks": (trainer(), *producers(2, asleep))}
    busy_machine = replace(
        MACHINE, other_cpu=1.4, own_cpu=0.6, runnable=2.0, noisy=(("burn", 1.4),)
    )
    crowd = replace(MACHINE, runnable=9.0, own_cpu=2.0)
    full = replace(MACHINE, runnable=4.0, own_cpu=2.0)
    wide = (Leaf("batch[0]", "float64", (32, 28, 28), "numpy.ndarray"),)
    native = {NATIVE: 0.5, RUNNABLE: 0.5}
    return {
        "step.bound": evidence(loop_of(fed), (trainer(), *producers(1, {FULL: 0.8, SLEEP: 0.2}))),
        "step.bound/busy producers": evidence(
            loop_of(fed), (trainer(), *producers(2, {NATIVE: 0.9, FULL: 0.1}))
        ),
        "step.host": evidence(
            loop_of(fed, 1.0, buffer=None),
            (trainer({PYTHON: 0.95, NATIVE: 0.05}),),
            parts=ONLY_STEP,
        ),
        "input.serial": evidence(
            loop_of(starved, buffer=0), (trainer(),), parts=_input(0.8, asleep)
        ),
        "input.latency": evidence(loop_of(starved, free=12), threads["tasks"]),
        "input.disk": evidence(
            loop_of(starved),
            (trainer(), *producers(2, {DISK: 0.7, NATIVE: 0.1, OTHER: 0.2})),
            machine=replace(MACHINE, disk_read_nbytes_s=9e7),
        ),
        "input.gil": evidence(
            loop_of(starved), (trainer(), *producers(1, python)), gil_late_s=5e-3
        ),
        "input.gil/the step waits for the lock": evidence(
            loop_of(fed, 25.0),
            (trainer({LOCK_PYTHON: 0.7, NATIVE: 0.3}), *producers(1, python)),
            gil_late_s=5e-3,
        ),
        "input.cpu": evidence(
            loop_of(starved), (trainer(), *producers(4, native, queued_s=5.0)), machine=full
        ),
        **_more_cases(starved, wide, crowd),
        "external.noise": evidence(
            loop_of(starved),
            (trainer(), *producers(2, {NATIVE: 0.3, RUNNABLE: 0.7}, queued_s=7.0)),
            machine=busy_machine,
        ),
    }


def _more_cases(
    starved: list[float], wide: tuple[Leaf, ...], crowd: Machine
) -> dict[str, Evidence]:
    native = {NATIVE: 0.5, RUNNABLE: 0.5}
    per_epoch = loop_of(([400.0] + [0.1] * 19) * 10, buffer=4)
    paused = loop_of([0.1] * 300, ([10.0] * 49 + [600.0]) * 6)
    tail = loop_of(([0.05] * 19 + [400.0]) * 20, buffer=4)
    return {
        "input.oversubscribed": evidence(
            loop_of(starved),
            (trainer(), *producers(8, native, queued_s=8.0)),
            machine=crowd,
            pools={"OpenCV": 2},
        ),
        "input.ipc": evidence(
            loop_of(starved),
            (trainer(), *producers(2, {FULL: 0.97, PYTHON: 0.03}, pid=200)),
            parts=fed_by(0.5, {PYTHON: 1.0}),
        ),
        "input.copy": evidence(
            loop_of(starved, leaves=wide),
            (trainer(), *producers(1, {PYTHON: 0.3, NATIVE: 0.7}, copying=0.8)),
        ),
        "input.straggler": evidence(tail, (trainer(), *producers(4, {FULL: 0.6, SLEEP: 0.4}))),
        "input.epoch_gap": evidence(
            per_epoch,
            (trainer(), *producers(2, {FULL: 0.7, SLEEP: 0.3})),
            marks=_epochs(per_epoch, 20),
        ),
        "pause.periodic": evidence(paused, (trainer(), *producers(1, {FULL: 0.9, SLEEP: 0.1}))),
    }


SHARES = st.dictionaries(st.sampled_from(TASK_STATES), st.floats(0.01, 1), min_size=1).map(
    lambda found: {state: share / sum(found.values()) for state, share in found.items()}
)


@st.composite
def any_evidence(draw: Any) -> Any:
    steps = draw(st.integers(0, 120))
    waits = draw(st.lists(st.floats(0, 500), min_size=steps, max_size=steps))
    body = draw(st.lists(st.floats(0.01, 500), min_size=steps, max_size=steps))
    facts = {
        "waits": draw(st.sampled_from(["exact", "modelled", "none"])),
        "buffer": draw(st.sampled_from([None, 0, 4])),
    }
    loop = loop_of(
        waits,
        body,
        gap_ms=draw(st.floats(0, 50)),
        free=draw(st.sampled_from([0, 12])) if steps else 0,
        **facts,
    )
    made = producers(draw(st.integers(0, 4)), draw(SHARES), queued_s=draw(st.floats(0, 10)))
    share = draw(st.floats(0, 1))
    parts = draw(st.sampled_from([(), fed_by(share, draw(SHARES))]))
    spans = st.tuples(
        st.sampled_from(["epoch", "evaluation", "experiment"]), st.floats(0, 20), st.floats(0, 2)
    )
    marks = [
        Mark(kind, start, start + length)
        for kind, start, length in draw(st.lists(spans, max_size=5))
    ]
    return evidence(
        loop,
        (trainer(draw(SHARES)), *made),
        parts=parts,
        marks=marks,
        gil_late_s=draw(st.floats(0, 0.1)),
        feed=draw(st.none() | FEEDS),
    )
