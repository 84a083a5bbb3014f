"""Steps that compute next to nothing, and whose native threads are whose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed.diagnose.evidence import FRAMEWORK, NATIVE, PYTHON, SLEEP, LoopPart
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.judge.knobs import LOADER_HANDOVER_S
from fastfeed.steps.timeline import ARRAYS_NOTE, Mark, Step
from tests.diagnose.evidences import CALL, evidence, loop_of, producers, task, trainer


@pytest.mark.parametrize(
    ("kind", "step_ms", "verdict", "knob"),
    [
        ("session", 0.4, "step.host", "batch_size"),
        ("session", 2.0, "step.bound", None),
        ("keras", 1.6, "step.host", "steps_per_execution"),
        ("keras", 5.0, "step.bound", None),
        ("watch", 0.4, "step.bound", None),
    ],
)
def test_calls_that_cost_more_than_what_they_compute(
    kind: str, step_ms: float, verdict: str, knob: str | None
) -> None:
    """Half of each is native code of the framework, in the thread and in its pools, for an unknown
    purpose."""
    loop = loop_of([0.0] * 400, step_ms, kind=kind, waits="none", buffer=None)
    tasks = (trainer({PYTHON: 0.4, NATIVE: 0.6}), task(FRAMEWORK, {NATIVE: 0.1}, cpu_s=4.0))
    found = judge(evidence(loop, tasks))
    assert found.verdict == verdict
    assert [one.knob for one in found.recommendations] == ([knob] if knob else [])


@pytest.mark.parametrize(("run_ms", "knobs"), [(0.2, ["fetches"]), (5.0, [])])
def test_a_step_of_many_runs_is_calls_unless_they_compute(run_ms: float, knobs: list[str]) -> None:
    """For the training, and for a loss, a metric and a summary that one run could fetch as well."""
    loop = loop_of([0.0] * 400, run_ms, gap_ms=3.1 * run_ms, kind="session", waits="none", buffer=0)
    run_s = run_ms / 1e3
    begins = [step.end_s + i * run_s for step in loop.steps for i in range(3)]
    tasks = (trainer({PYTHON: 0.4, NATIVE: 0.6}), task(FRAMEWORK, {NATIVE: 0.1}, cpu_s=4.0))
    runs = tuple(Step(begin_s, begin_s + run_s, 0.0) for begin_s in begins)
    found = judge(replace(evidence(loop, tasks), beside=runs))
    assert (found.verdict == "step.host") == bool(knobs)
    assert [one.knob for one in found.recommendations if one.knob == "fetches"] == knobs
    for best in found.recommendations[: len(knobs)]:
        assert best.predicted_speedup == pytest.approx((1 + 3.1) / (1 + 0.1), rel=0.05), (
            "each run costs what it takes"
        )


def test_the_threads_of_a_session_that_is_fed_by_hand_make_no_input() -> None:
    """Its thread waits for a core now and then, which is no loss to producers: there are none."""
    loop = loop_of([0.0] * 400, 5.0, kind="session", waits="none", buffer=0)
    tasks = (
        trainer({NATIVE: 0.7, SLEEP: 0.3}, queued_s=2.0),
        task(FRAMEWORK, {NATIVE: 0.5}, cpu_s=8.0),
    )
    found = judge(evidence(loop, tasks))
    assert found.verdict == "step.bound"
    assert not found.recommendations


@pytest.mark.parametrize(
    ("pipeline", "knob"),
    [
        ("tf.data: Batch < Map < Range", "num_parallel_calls"),
        ("tf.data: Prefetch < MapAndBatch < Range", "num_parallel_calls"),
        ("tf.data: Batch < FlatMap < Tensor", "threads"),
        ("tf.data: Batch < Map < FlatMap < Tensor", "threads"),
        ("a generator, run by the thread that trains", "threads"),
    ],
)
def test_one_function_that_tf_data_maps_can_run_several_times_at_once(
    pipeline: str, knob: str
) -> None:
    loop = loop_of([40.0] * 200, kind="keras", note=pipeline)
    best, *_ = judge(evidence(loop, (trainer(), *producers(1, {SLEEP: 1.0})))).recommendations
    assert best.knob == knob


def test_nobody_has_to_make_what_keras_slices_from_arrays() -> None:
    loop = loop_of([1.0] * 400, 4.0, kind="keras", buffer=None, note=ARRAYS_NOTE)
    tasks = (trainer({PYTHON: 0.3, NATIVE: 0.7}), task(FRAMEWORK, {NATIVE: 0.5}, cpu_s=6.0))
    found = judge(evidence(loop, tasks))
    assert found.verdict == "step.bound"
    assert not found.recommendations and not found.may_cost and found.no_change


@pytest.mark.parametrize(("kind", "knob"), [("torch", "num_workers"), ("watch", "threads")])
def test_a_data_loader_without_workers_is_told_how_many(kind: str, knob: str) -> None:
    loop = loop_of([40.0] * 200, kind=kind, buffer=0)
    parts = (LoopPart("input", CALL, 0.8, {SLEEP: 1.0}), LoopPart("step", CALL, 0.2))
    best, *_ = judge(evidence(loop, (trainer(),), parts=parts)).recommendations
    assert best.knob == knob
    assert ("num_workers" in best.change) == (kind == "torch")
    handed_ms = 1e3 * LOADER_HANDOVER_S if kind == "torch" else 0.0
    assert best.predicted_speedup == pytest.approx(50 / (10 + handed_ms), rel=0.02), (
        "what is handed over costs the step"
    )


@pytest.mark.parametrize(("batches", "helps"), [(1, False), (100, True)])
def test_workers_make_no_batch_of_the_next_epoch(batches: int, helps: bool) -> None:
    """A script may make a DataLoader for each step: nothing is made ahead then."""
    loop = loop_of([10.0] * 200, kind="torch", buffer=0)
    marks = [Mark("epoch", step.begin_s, step.begin_s) for step in loop.steps[::batches]]
    parts = (LoopPart("input", CALL, 0.5, {SLEEP: 1.0}), LoopPart("step", CALL, 0.5))
    found = judge(evidence(loop, (trainer(),), parts=parts, marks=marks))
    assert found.verdict == "input.serial"
    assert [one.knob for one in found.recommendations] == (["num_workers"] if helps else [])


def test_steps_between_loaders_of_one_batch_are_no_overhead() -> None:
    """Each step makes its own loader, so that it lies between two steps of loaders."""
    loop = loop_of([10.0] * 200, 0.1, gap_ms=90.0, kind="torch", buffer=0)
    parts = (LoopPart("input", CALL, 0.1, {NATIVE: 1.0}), LoopPart("step", CALL, 0.9))
    found = judge(evidence(loop, (trainer({NATIVE: 1.0}),), parts=parts))
    assert found.verdict == "input.serial"
    assert "step.host" not in [cause.code for cause in found.causes]
