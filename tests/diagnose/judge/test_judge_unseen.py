"""Loops whose iterations are seen only by tracing, which costs time, or only some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastfeed.diagnose.evidence import FRAMEWORK, LOCK, NATIVE, PYTHON, Evidence
from fastfeed.diagnose.judge.causes import ranked
from fastfeed.diagnose.judge.entries import ledger_of
from fastfeed.diagnose.judge.feed_costs import FeedCosts
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import (
    OBSERVING,
    UNOBSERVED,
    Mark,
    Step,
)
from tests.diagnose.evidences import LINE, evidence, fed_by, judged, loop_of, task, trainer

PYTHONS = (trainer({PYTHON: 0.5, NATIVE: 0.5}),)
READS = Place("<module>", "train.py", 12, users=True)


def watched(marks: list[Mark], made: float = 0.5) -> Evidence:
    """100 steps of 10 ms that wait for 15 more, of which samples say that they are that share of
    the time."""
    parts = fed_by(made, {PYTHON: 1.0}, inner=LINE)
    return evidence(
        loop_of([15.0] * 100, kind="sampled", buffer=0), PYTHONS, parts=parts, marks=marks
    )


def test_what_looking_takes_is_no_part_of_the_steps() -> None:
    looking = [Mark(OBSERVING, step.end_s - 0.005, step.end_s) for step in watched([]).loop.steps]  # type: ignore[union-attr]
    found = judge(watched(looking))
    assert found.figures is not None
    assert found.figures.steps_per_second == pytest.approx(50.0)
    assert found.figures.starvation == pytest.approx(0.75)


def test_turns_that_nobody_saw_are_no_pause() -> None:
    loop = loop_of([0.02] * 200, kind="sampled")
    later = [
        Step(s.begin_s + 5.0 * (i >= 100), s.end_s + 5.0 * (i >= 100), s.wait_s)
        for i, s in enumerate(loop.steps)
    ]
    unseen = Mark(UNOBSERVED, later[99].end_s, later[100].begin_s)
    found = judged(replace(loop, steps=later), trainer(), marks=[unseen])
    assert found.verdict == "step.bound"
    assert found.figures is not None and found.figures.steps_per_second == pytest.approx(
        100.0, rel=0.01
    )
    assert judged(replace(loop, steps=later), trainer()).verdict == "pause.periodic"


@pytest.mark.parametrize(
    ("long", "verdict"),
    [(lambda i: i % 8 == 7, "pause.periodic"), (lambda i: i * i % 11 in (1, 4), "step.bound")],
    ids=["every eighth", "now and then"],
)
def test_a_pause_that_is_not_rare_comes_every_so_many_steps(
    long: Callable[[int], bool], verdict: str
) -> None:
    """Else steps are of two kinds."""
    loop = loop_of([0.02] * 240, [230.0 if long(i) else 28.0 for i in range(240)])
    found = judged(loop, trainer())
    assert found.verdict == verdict


def test_a_loop_that_only_takes_results_trains_nothing() -> None:
    """Its children train: `while (result := results.get()) is not None: all.append(result)`."""
    loop = loop_of([24.9] * 300, 0.03, kind="queue", buffer=None)
    found = judged(loop, trainer())
    assert found.verdict is None
    assert found.abstained is not None and "was not observed" in found.abstained


def test_steps_that_only_enqueue_their_work_are_not_what_it_costs() -> None:
    """JAX returns before it has computed: most steps of an experiment are over at once."""
    loop = loop_of(
        [2.0] * 300, [0.1, 0.1, 0.1, 40.0] * 75, free=20, free_ms=0.1, kind="tf.data", buffer=None
    )
    pools = task(FRAMEWORK, {NATIVE: 0.9}, tid=9, cpu_s=8.0)
    found = judged(loop, trainer({LOCK: 1.0}), pools)
    assert 1.0 < found.speedup_if_input_free < 1.5


@pytest.mark.parametrize(("every", "verdict"), [(10, "pause.periodic"), (1, "step.bound")])
def test_runs_beside_a_step_are_pauses_if_they_are_rare(every: int, verdict: str) -> None:
    """`if i % 10 == 0: sess.run([loss, accuracy])`; a GAN has two runs in every step."""
    loop, later_s = loop_of([0.0] * 200, 20.0, kind="session", waits="none", buffer=None), 0.0
    steps, beside = [], []
    for i, step in enumerate(loop.steps):
        steps.append(Step(step.begin_s + later_s, step.end_s + later_s, 0.0))
        if i % every == every - 1:
            beside.append(Step(steps[-1].end_s, steps[-1].end_s + 0.05, 0.0))
            later_s += 0.05
    found = judged(replace(loop, steps=steps), trainer(), beside=beside)
    assert found.verdict == verdict
    if verdict != "step.bound":
        assert "other runs of the session" in " ".join(found.causes[0].evidence)


def test_a_small_wait_of_an_unknown_cause_hides_no_great_pause() -> None:
    """The step waits for a tenth of the time for what nobody saw, and stands still for a half."""
    steps = [1.0 if i % 20 else 61.0 for i in range(400)]
    seen = evidence(loop_of([0.15] * 200, [1.0] * 200), (trainer(),), missing=("no stacks",))
    assert "no stacks" in str(judge(seen).abstained)
    paused = evidence(loop_of([0.4] * 400, steps), (trainer(),), missing=("no stacks",))
    assert judge(paused).verdict == "pause.periodic"


@pytest.mark.parametrize(("lost", "first"), [(0.11, "input.ipc"), (0.04, "step.bound")])
def test_small_causes_that_make_one_loss_have_a_name(lost: float, first: str) -> None:
    """None of them takes 5 %, and the input does."""
    seen = evidence(loop_of([1.0] * 100), (trainer(),))
    feed = FeedCosts(1 - lost, converted=lost)
    case = SimpleNamespace(feed=feed, ledger=ledger_of(seen), evidence=seen)
    shares = ranked({"input.cpu": 0.04, "input.ipc": 0.048}, cast(Any, case))
    assert shares[0][0] == first


def test_input_that_others_slow_as_a_whole_is_no_cause() -> None:
    seen = evidence(loop_of([1.0] * 100), (trainer(),))
    case = SimpleNamespace(feed=FeedCosts(0.8, converted=0.2), ledger=ledger_of(seen))
    losses = {"input.cpu": 1e-10, "external.noise": 0.3}
    assert [code for code, _ in ranked(losses, cast(Any, case))] == ["external.noise"]


def test_input_of_many_small_causes_is_more_than_what_others_take() -> None:
    """Without one of them another one limits as much, so that none has a share."""
    seen = evidence(loop_of([1.0] * 100), (trainer(),))
    case = SimpleNamespace(feed=FeedCosts(0.2, converted=0.8), ledger=ledger_of(seen))
    for share in (0.02, 1e-10):  # others may slow all that one of them takes
        losses = {"input.ipc": share / 2, "input.cpu": share, "external.noise": 0.3}
        assert ranked(losses, cast(Any, case))[0][0] == "input.cpu"


@pytest.mark.parametrize(
    ("lost", "other", "share", "first"),
    [
        (0.8, "external.noise", 0.3, "input.cpu"),
        (0.8, "external.noise", 0.6, "external.noise"),
        (0.5, "pause.periodic", 0.3, "input.cpu"),
        (0.3, "pause.periodic", 0.4, "pause.periodic"),
    ],
)
def test_causes_of_the_input_stand_for_all_of_it_together(
    lost: float, other: str, share: float, first: str
) -> None:
    """None of them takes as much as something else does; what others take is no loss to it."""
    seen = evidence(loop_of([1.0] * 100), (trainer(),))
    feed = FeedCosts(1 - lost, converted=lost)
    case = SimpleNamespace(feed=feed, ledger=ledger_of(seen), evidence=seen)
    shares = ranked({"input.ipc": 0.1, "input.cpu": 0.2, other: share}, cast(Any, case))
    assert shares[0][0] == first
