"""From evidence to a verdict: the first cause, modelled gains, and no verdict without a signal."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from fastfeed.diagnose.diagnosis import CODES, Diagnosis
from fastfeed.diagnose.evidence import (
    FULL,
    NATIVE,
    PYTHON,
    SLEEP,
    DeadProducer,
    LoopPart,
)
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.steps.timeline import Mark, Step
from tests.diagnose.evidences import (
    CALL,
    any_evidence,
    cases,
    fed_by,
    judged,
    judged_case,
    loop_of,
    producers,
    trainer,
)

CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_each_code(name: str) -> None:
    found = judged_case(name)
    assert found.verdict == name.split("/")[0], [(c.code, round(c.share, 3)) for c in found.causes]
    assert found.abstained is None
    assert found.causes[0].code == found.verdict
    assert all(cause.evidence for cause in found.causes)


def test_every_code_has_a_case() -> None:
    assert {name.split("/")[0] for name in CASES} | {"feed.dead"} == set(CODES)


def test_what_lies_under_a_serial_input_comes_second() -> None:
    for busy, code in (({SLEEP: 1.0}, "latency"), ({PYTHON: 1.0}, "gil"), ({NATIVE: 1.0}, "cpu")):
        parts = fed_by(0.8, busy)
        found = judged(loop_of([40.0] * 100, buffer=0), trainer(), parts=parts)
        assert [cause.code for cause in found.causes[:2]] == ["input.serial", f"input.{code}"]


def test_a_sleeping_producer_is_predicted_to_gain_what_threads_give() -> None:
    """50 ms of sleep a batch beside a step of 10 ms."""
    parts = (LoopPart("input", CALL, 5 / 6, {SLEEP: 1.0}), LoopPart("step", CALL, 1 / 6))
    found = judged(loop_of([50.0] * 100, buffer=0), trainer(), parts=parts)
    best = found.recommendations[0]
    assert (best.knob, best.value) == ("threads", "6"), "four gain three quarters of it"
    assert best.predicted_speedup == pytest.approx(6.0, rel=0.02)
    assert best.interval[0] < best.predicted_speedup < best.interval[1]
    assert found.speedup_if_input_free == pytest.approx(6.0, rel=0.01)


def test_threads_are_not_recommended_where_the_lock_is_held() -> None:
    found = judged_case("input.gil")
    assert {one.knob for one in found.recommendations} == {"processes"}
    assert "threads cannot help" in found.recommendations[0].why


def test_the_ceiling_is_that_of_the_experiment_where_there_was_one() -> None:
    loop = loop_of([40.0] * 100, 15.0, free=12, free_ms=10.0)
    found = judged(loop, trainer(), *producers(1, {SLEEP: 1.0}))
    assert found.ceiling is not None
    assert found.ceiling.experiment
    assert found.ceiling.step_s == pytest.approx(0.010)
    assert found.speedup_if_input_free == pytest.approx(5.5, rel=0.01)
    assert found.figures is not None
    assert found.figures.starvation == pytest.approx(40 / 55, abs=0.01), (
        "steps of the experiment do not count"
    )


@pytest.mark.parametrize("steps", [0, 1, 2, 19])
def test_too_few_steps(steps: int) -> None:
    found = judged(loop_of([40.0] * steps), trainer())
    assert found.verdict is None
    assert "too few steps" in str(found.abstained)
    assert not found.recommendations


def test_no_loop() -> None:
    found = judged(None)
    assert found.verdict is None
    assert "fastfeed.watch" in str(found.abstained)


def test_nobody_was_seen_who_makes_the_batches() -> None:
    found = judged(
        loop_of([40.0] * 100), trainer(), missing=("stacks of child processes: no py-spy",)
    )
    assert found.verdict is None
    assert "no py-spy" in str(found.abstained)
    assert found.figures is not None, "what is known is told"


def test_gaps_that_nobody_saw_are_no_step_bound() -> None:
    loop = loop_of([0.0] * 100, gap_ms=40.0, waits="none", buffer=None)
    assert judged(loop, trainer()).verdict is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "Traceback (most recent call last):\n  ...\nOSError: the disk is gone",
            "the disk is gone",
        ),
        (
            "process 7 is at\n    produce (train.py:4)\n    wait (synchronize.py:268)",
            "dead: process 7 is blocked",
        ),
        ("process 7 has ended, without an error", "process 7 has ended"),
    ],
)
def test_dead_producers(text: str, says: str) -> None:
    name, _, how = text.partition(" is at\n")
    dead = DeadProducer(name, text, blocked=bool(how))
    found = judged(loop_of([1.0] * 5), trainer(), died=(dead,))
    assert found.verdict == "feed.dead"
    assert says in headline_of(found)
    assert found.died == (text,)


def test_time_of_ours_is_nobodys_loss() -> None:
    """An experiment pulls for a second between two steps."""
    loop = loop_of([0.1] * 50)
    later = [Step(s.begin_s + 1.0, s.end_s + 1.0, s.wait_s) for s in loop.steps[25:]]
    start = loop.steps[25].begin_s
    loop.steps[25:] = later
    found = judged(loop, trainer(), marks=[Mark("experiment", start, start + 1.0)])
    assert found.verdict == "step.bound"
    assert found.figures is not None
    assert found.figures.seconds == pytest.approx(49 * 0.0101)


def test_named_pauses_are_told() -> None:
    loop = loop_of([0.1] * 100, ([10.0] * 24 + [500.0]) * 4)
    marks = [
        Mark("checkpoint", s.begin_s + 0.01, s.end_s, "ModelCheckpoint") for s in loop.steps[24::25]
    ]
    found = judged(loop, trainer(), marks=marks)
    assert found.verdict == "pause.periodic"
    assert "ModelCheckpoint" in found.causes[0].evidence[0]


def test_a_cpu_step_waits_for_no_lock() -> None:
    """Late probes alone are no evidence if no thread holds the lock for long."""
    found = judge(replace(CASES["step.bound"], gil_late_s=4e-3))
    assert found.verdict == "step.bound"


def _finite(found: Diagnosis) -> bool:
    numbers = [found.speedup_if_input_free, *found.speedup_range]
    numbers += [n for one in found.recommendations for n in (one.predicted_speedup, *one.interval)]
    return all(map(math.isfinite, numbers))


def test_workers_of_every_epoch_are_those_that_are_there_at_a_time() -> None:
    """Ten processes in turn, two beside each other, are two."""
    busy = {PYTHON: 0.9, FULL: 0.1}
    made = [one for turn in range(5) for one in producers(2, busy, pid=200 + turn, wall_s=2.0)]
    made = [replace(one, exit="gone") for one in made[:8]] + made[8:]
    found = judged(loop_of([40.0] * 200), trainer(), *made)
    assert found.causes[0].evidence[0].startswith("2 worker processes")


@settings(max_examples=20)
@given(any_evidence())
def test_any_evidence_is_judged(seen: Any) -> None:
    found = judge(seen)
    assert (found.verdict is None) == (found.abstained is not None)
    assert found.verdict is None or found.verdict in CODES
    assert _finite(found)
    assert found.speedup_if_input_free >= 1
    assert found.speedup_range[0] <= found.speedup_if_input_free <= found.speedup_range[1]
    assert all(0 <= cause.share <= 1 for cause in found.causes), found.causes
    assert all(one.predicted_speedup >= 1 for one in found.recommendations)
    assert not [one for one in found.recommendations if re.search(r"(\d+) -> \1$", one.change)], (
        "that is no change"
    )
    if found.figures is not None:
        assert sum(found.figures.shares.values()) <= 1.001
        low, high = found.figures.starvation_range
        assert 0 <= low <= found.figures.starvation <= high <= 1
        low, high = found.figures.steps_per_second_range
        assert 0 < low <= found.figures.steps_per_second <= high
    if found.verdict == "step.bound" and found.figures is not None:
        assert found.figures.starvation < 0.15, "no confident word where input is waited for"


def test_processes_that_stand_before_a_full_pipe_are_held_up_by_the_training_thread() -> None:
    """The training thread reads and unpickles the batches; the producers would suffice."""
    parts = fed_by(0.8, {PYTHON: 0.6, NATIVE: 0.4})
    made = producers(2, {FULL: 0.95, NATIVE: 0.05}, pid=200)
    found = judged(loop_of([40.0] * 100), trainer(), *made, parts=parts)
    assert found.verdict == "input.ipc"
    first = found.recommendations[0]
    assert (first.knob, first.value) == ("transport", "shared memory"), (
        "there are as many processes as are needed"
    )
    assert first.predicted_speedup == pytest.approx(5.0, rel=0.05)
