"""Several calls make one step: those of a GAN, a run that fetches and one that trains. Epochs that
end in a gap."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fastfeed.diagnose.evidence import NATIVE, PYTHON, LoopPart
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.judge.entries import BETWEEN_EPOCHS, ledger_of
from fastfeed.diagnose.run.collector import EvidenceCollector, loops_beside, steps_beside
from fastfeed.diagnose.run.lifecycle import Lifecycle, WatchPlan
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import Loop, Mark, Step, Timeline
from tests.diagnose.evidences import CALL, evidence, judged, loop_of, trainer

STEPS = 200


def timeline(*, wait_ms: float = 0.0) -> tuple[Timeline, Loop]:
    """Steps of 10 ms, each followed by a call of 30 ms, `wait_ms` of which it waits."""
    loop = loop_of([0.0] * STEPS, gap_ms=30.0, kind="session", waits="none", buffer=0)
    other = Loop(
        "Session.run(generator)", "session", loop.thread, waits="modelled" if wait_ms else "none"
    )
    other.steps = [Step(step.end_s, step.end_s + 0.03, wait_ms / 1e3) for step in loop.steps]
    elsewhere = Loop("Session.run(enqueue)", "session", loop.thread + 1, steps=list(other.steps))
    over = Loop("for batch in dataset", "tf.data", loop.thread, steps=list(other.steps))
    seen = Timeline()
    seen.loops.update(enumerate((loop, other, elsewhere, over)))
    return seen, loop


def beside_of(loop: Loop | None, seen: Timeline, *, start_s: float = 0.0) -> tuple[Step, ...]:
    calls, evaluations = loops_beside(loop, seen)
    assert not evaluations
    return steps_beside(calls, start_s=start_s)


def life_of(loop: Loop, seen: Timeline) -> Lifecycle:
    life = Lifecycle(WatchPlan(), HookLog(seen), begin_s=0.0, thread=loop.thread)
    life.loop = loop
    return life


def test_what_is_called_beside_a_step_is_a_part_of_it() -> None:
    seen, loop = timeline()
    busy = trainer({NATIVE: 0.95, PYTHON: 0.05})
    found = judged(loop, busy, beside=beside_of(loop, seen))
    assert found.figures is not None
    assert (found.verdict, found.figures.starvation) == ("step.bound", 0.0)
    assert found.figures.step_s == pytest.approx(0.04)


def test_what_such_a_call_waits_is_waiting() -> None:
    seen, loop = timeline(wait_ms=25.0)
    rows = ledger_of(evidence(loop, beside=beside_of(loop, seen)))
    assert rows.starvation == pytest.approx(25 / 40, abs=1e-6)
    assert rows.share(rows.inside) == pytest.approx(15 / 40, abs=1e-6)


def test_only_calls_of_the_same_thread_and_time_count() -> None:
    seen, loop = timeline()
    assert len(beside_of(loop, seen, start_s=loop.steps[STEPS // 2].end_s)) == STEPS // 2
    assert beside_of(seen.loops[3], seen) == ()
    assert beside_of(None, seen) == ()


def test_a_run_that_updates_nothing_is_an_evaluation_in_every_turn() -> None:
    seen, loop = timeline()
    seen.loops[1].trains = False
    assert loops_beside(loop, seen) == ([], [seen.loops[1]])
    marks = [
        Mark("evaluation", s.begin_s, s.end_s, seen.loops[1].name) for s in seen.loops[1].steps
    ]
    found = judged(loop, trainer({NATIVE: 0.95, PYTHON: 0.05}), marks=marks)
    assert found.verdict == "pause.periodic"
    assert found.causes[0].share == pytest.approx(0.75, abs=0.01)
    best = found.recommendations[0]
    assert best.predicted_speedup == pytest.approx(40 / (10 + 3), rel=0.05)
    assert "in the run of the step" in best.change
    assert "Session.run(generator)" in best.change


def test_a_run_on_a_line_of_the_input_is_part_of_the_step() -> None:
    """The action of an agent, without which its environment makes no data."""
    seen, loop = timeline()
    seen.loops[1].trains, seen.loops[1].where = False, "agent.py:52"
    inner = Place("choose_action", "rl/agent.py", 52, True)
    part = LoopPart("input", Place("main", "train.py", 9, True), 0.5, inner=inner)
    assert loops_beside(loop, seen, parts=[part]) == ([seen.loops[1]], [])


@pytest.mark.parametrize("in_gap", [0.0, 0.5, 1.0])
def test_an_epoch_ends_with_the_gap_after_it(in_gap: float) -> None:
    """The mark may lie anywhere in the gap."""
    steps, marks, now = [], [], 0.0
    for epoch in range(6):
        marks.append(Mark("epoch", now - (1 - in_gap) * 0.5, now, str(epoch)))
        for _ in range(50):
            steps.append(Step(now, now + 0.01, 0.0))
            now = steps[-1].end_s
        now += 0.5
    rows = ledger_of(evidence(Loop("fit", "keras", 1, steps=steps, buffer=8), marks=marks))
    assert rows.pause.sum() == pytest.approx(5 * 0.5, abs=1e-6), "no batch is requested in it"
    assert {name for _, _, name in rows.pauses} == {BETWEEN_EPOCHS}
    assert rows.starved.sum() == 0.0


def test_a_loop_is_not_beside_itself_in_what_is_judged() -> None:
    timeline_, loop = timeline()
    found = EvidenceCollector().evidence(life_of(loop, timeline_))
    assert found.beside == beside_of(loop, timeline_)
    assert len(found.beside) == STEPS


@pytest.mark.parametrize(
    ("kind", "inside_ms", "parts", "takes"),
    [
        ("queue", 0.001, [], True),
        ("queue", 0.001, [LoopPart("step", CALL, 0.001)], False),  # a training that starves
        ("queue", 1.0, [], False),
        ("torch", 0.001, [], False),
    ],
)
def test_a_loop_around_a_queue_without_work_trains_nothing(
    kind: str, inside_ms: float, parts: list[LoopPart], takes: bool
) -> None:
    collector = EvidenceCollector()
    collector._sampler = SimpleNamespace(parts=lambda where: tuple(parts))
    loop = loop_of([10.0] * STEPS, inside_ms, kind=kind)
    assert collector.only_takes(loop) == takes


def test_a_model_that_acts_for_the_input_does_not_evaluate() -> None:
    """`policy.eval()` in the function that makes a step of the environment, and in another one."""
    timeline_, loop = timeline()
    for function in ("act", "validate"):
        timeline_.marks.append(Mark("evaluation", 1.0, 2.0, f"evaluation in `{function}`"))
    inner = Place("act", "agent.py", 52, True)
    parts = (LoopPart("input", Place("main", "train.py", 9, True), 0.5, inner=inner),)
    collector = EvidenceCollector()
    collector._sampler.parts = lambda *args, **options: parts
    marks = collector.evidence(life_of(loop, timeline_)).marks
    assert [one.label for one in marks] == ["evaluation in `validate`"]
