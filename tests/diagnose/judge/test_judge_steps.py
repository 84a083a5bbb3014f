"""Steps that compute next to nothing, are computed elsewhere, or sleep beside their call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence import (
    EMPTY,
    FRAMEWORK,
    LOCK,
    LOCK_PYTHON,
    NATIVE,
    PYTHON,
    SLEEP,
    LoopPart,
)
from fastfeed.diagnose.judge.entries import ledger_of
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.judge.knobs import LOADER_HANDOVER_S
from fastfeed.probes.gpu import GpuUsage
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import ARRAYS_NOTE, DeviceGap, Leaf, Mark, Step
from tests.diagnose.evidences import (
    CALL,
    LINE,
    MACHINE,
    ONLY_STEP,
    change,
    evidence,
    fed_by,
    judged,
    loop_of,
    many_calls,
    producers,
    task,
    trainer,
)


def test_the_threads_of_a_session_that_is_fed_by_hand_make_no_input() -> None:
    """Its thread waits for a core now and then, which is no loss to producers: there are none."""
    loop = loop_of([0.0] * 400, 5.0, kind="session", waits="none", buffer=0)
    tasks = (
        trainer({NATIVE: 0.7, SLEEP: 0.3}, queued_s=2.0),
        task(FRAMEWORK, {NATIVE: 0.5}, cpu_s=8.0),
    )
    found = judged(loop, *tasks)
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
    best, *_ = judged(loop, trainer(), *producers(1, {SLEEP: 1.0})).recommendations
    assert best.knob == knob


@pytest.mark.parametrize(("buffer", "knob"), [(3, "num_threads"), (None, "num_parallel_calls")])
def test_a_queue_of_the_graph_has_threads_of_its_own(buffer: int | None, knob: str) -> None:
    """It is a queue that has a buffer; an iterator of a session has none."""
    loop = loop_of([20.0] * 200, 5.0, kind="session", waits="modelled", buffer=buffer)
    made = task(FRAMEWORK, {NATIVE: 0.9, EMPTY: 0.1}, cpu_s=4.5)
    best, *_ = judged(loop, trainer({LOCK: 1.0}), made).recommendations
    assert best.knob == knob


def test_nobody_has_to_make_what_keras_slices_from_arrays() -> None:
    loop = loop_of([1.0] * 400, 4.0, kind="keras", buffer=None, note=ARRAYS_NOTE)
    tasks = (trainer({PYTHON: 0.3, NATIVE: 0.7}), task(FRAMEWORK, {NATIVE: 0.5}, cpu_s=6.0))
    found = judged(loop, *tasks)
    assert found.verdict == "step.bound"
    assert not found.recommendations and not found.may_cost and found.no_change


@pytest.mark.parametrize(("kind", "knob"), [("torch", "num_workers"), ("watch", "threads")])
def test_a_data_loader_without_workers_is_told_how_many(kind: str, knob: str) -> None:
    loop = loop_of([40.0] * 200, kind=kind, buffer=0)
    parts = fed_by(0.8, {SLEEP: 1.0})
    best, *_ = judged(loop, trainer(), parts=parts).recommendations
    assert best.knob == knob
    assert ("num_workers" in best.change) == (kind == "torch")
    handed_ms = 1e3 * LOADER_HANDOVER_S if kind == "torch" else 0.0
    most = 1 - (10 + handed_ms) / 50  # what is handed over costs the step
    assert 0.9 * most <= 1 - 1 / best.predicted_speedup + 0.005 <= most + 0.01


@pytest.mark.parametrize(("batches", "helps"), [(1, False), (100, True)])
def test_workers_make_no_batch_of_the_next_epoch(batches: int, helps: bool) -> None:
    """A script may make a DataLoader for each step: nothing is made ahead then."""
    loop = loop_of([10.0] * 200, kind="torch", buffer=0)
    marks = [Mark("epoch", step.begin_s, step.begin_s) for step in loop.steps[::batches]]
    parts = fed_by(0.5, {SLEEP: 1.0})
    found = judged(loop, trainer(), parts=parts, marks=marks)
    assert found.verdict == "input.serial"
    assert [one.knob for one in found.recommendations] == (["num_workers"] if helps else [])


@pytest.mark.parametrize("ended", [True, False])
def test_the_end_of_workers_is_input_and_no_pause(ended: bool) -> None:
    """Workers of a DataLoader start and end in each epoch: 0.4 s and 0.6 s."""
    steps, marks, now = list[Step](), list[Mark](), 0.0
    for number in range(200):
        wait = 0.0005 if number % 40 else 0.4
        steps.append(Step(now, now + wait + 0.01, wait))
        now = steps[-1].end_s
        if number % 40 == 39:
            marks += [Mark("end", now, now + 0.6)] * ended
            now += 0.6
            marks.append(Mark("epoch", now, now))
    loop = replace(loop_of([1.0] * 3, kind="torch", buffer=4), steps=steps)
    ledger = ledger_of(evidence(loop, (trainer(),), marks=marks))
    started, paused = float(ledger.start.sum()), float(ledger.pause.sum())
    assert (started, paused) == pytest.approx((4.0, 0.0) if ended else (1.6, 2.4), abs=0.05)


def test_steps_between_loaders_of_one_batch_are_no_overhead() -> None:
    """Each step makes its own loader, so that it lies between two steps of loaders."""
    loop = loop_of([10.0] * 200, 0.1, gap_ms=90.0, kind="torch", buffer=0)
    parts = fed_by(0.1, {NATIVE: 1.0})
    found = judged(loop, trainer({NATIVE: 1.0}), parts=parts)
    assert found.verdict == "input.serial"
    assert "step.host" not in [cause.code for cause in found.causes]


PARTS = fed_by(0.4, {PYTHON: 1.0}, inner=LINE)


@pytest.mark.parametrize("own", [True, False, None])
def test_a_busy_gpu_makes_no_measured_wait_a_step(own: bool | None) -> None:
    """Kernels of NCCL that wait for another rank count as busy, and so do those of another job."""
    loop = loop_of([4.0] * 200, 6.0, kind="torch", buffer=0)
    machine = replace(MACHINE, gpus=(GpuUsage("H100", 0.97, 0.5, own=own),))
    seen = evidence(loop, (trainer({PYTHON: 0.4, SLEEP: 0.6}),), parts=PARTS, machine=machine)
    assert ledger_of(seen).starvation == pytest.approx(0.4)
    assert judge(seen).verdict == "input.serial"


def test_waits_in_which_the_accelerator_computes_delay_nothing() -> None:
    loop = loop_of([4.0] * 200, 6.0, kind="torch", buffer=0)
    rows = ledger_of(evidence(loop, (trainer({PYTHON: 1.0}),), parts=PARTS))
    assert rows.starvation == pytest.approx(0.4)
    loop.device_gaps = [DeviceGap(step.begin_s, 0.001) for step in loop.steps]
    rows = ledger_of(evidence(loop, (trainer({PYTHON: 1.0}),), parts=PARTS))
    assert rows.starvation == pytest.approx(0.1, abs=0.01)
    assert rows.share(rows.inside) == pytest.approx(0.9, abs=0.01), "nothing of the time is lost"


SLEEPS = Place("<module>", "train.py", 12, users=True)
PYTHONS = {PYTHON: 0.95, LOCK_PYTHON: 0.05}


def beside(function: str, *, made: float = 0.0) -> tuple[LoopPart, ...]:
    """The loop's lines: what makes its input, the call of the step, and a sleep in a function of
    that name."""
    inner = Place(function, "train.py", 3, users=True)
    asleep = LoopPart("host", SLEEPS, 0.8 - made, {SLEEP: 0.75, LOCK_PYTHON: 0.25}, inner=inner)
    input_ = (LoopPart("input", CALL, made, {NATIVE: 1.0}),) if made else ()
    return (*input_, LoopPart("step", CALL, 0.2), asleep)


def fought_for(function: str) -> Diagnosis:
    """A call of 5 ms, and 20 ms asleep, after which the producers have the lock; 15 ms where they
    are at rest."""
    loop = loop_of([0.0] * 200, 5.0, gap_ms=20.0, waits="modelled", kind="session")
    begin_s = loop.steps[-1].end_s + 0.020
    loop.steps += [
        Step(begin_s + n * 0.020, begin_s + n * 0.020 + 0.005, 0.0, free=True) for n in range(12)
    ]
    tasks = (trainer({SLEEP: 0.6, LOCK_PYTHON: 0.3, NATIVE: 0.1}), *producers(2, PYTHONS))
    return judged(loop, *tasks, parts=beside(function), gil_late_s=5e-3)


def test_what_sleeps_between_the_calls_is_no_step_but_may_lose_time_to_producers() -> None:
    found = fought_for("<module>")
    assert found.verdict == "input.gil"
    assert found.figures is not None
    assert found.figures.step_s == pytest.approx(0.005, rel=0.02)
    assert found.speedup_if_input_free == pytest.approx(25 / 20, rel=0.05)


def test_a_sleep_beside_a_call_of_keras_is_neither_step_nor_overhead() -> None:
    loop = loop_of([0.0] * 200, 10.0, gap_ms=40.0, waits="none", buffer=0, kind="call")
    found = judged(loop, trainer({NATIVE: 0.5, SLEEP: 0.5}), parts=beside("device", made=0.4))
    assert [cause.code for cause in found.causes] == ["input.serial", "input.cpu"]
    assert found.figures is not None
    assert found.figures.step_s == pytest.approx(0.010, rel=0.02)
    assert found.figures.starvation == pytest.approx(0.4, abs=0.01)
    (best,) = [one for one in found.recommendations if one.knob == "threads"]
    assert best.predicted_speedup == pytest.approx(50 / 30, rel=0.05)


def test_callbacks_of_keras_that_sleep_and_that_compute() -> None:
    """A callback sleeps 5 of 20 ms as a simulated accelerator, another computes for 12 ms."""
    loop = loop_of([0.0] * 200, 3.0, gap_ms=17.0, kind="keras", buffer=None)
    marks = [Mark("callback", step.end_s, step.end_s + 0.012, "Monitor") for step in loop.steps]
    marks += [
        Mark("callback", step.end_s + 0.012, step.end_s + 0.017, "Chip") for step in loop.steps
    ]
    parts = (LoopPart("host", CALL, 0.6, PYTHONS), LoopPart("host", SLEEPS, 0.25, {SLEEP: 1.0}))
    found = judged(
        loop, trainer({PYTHON: 0.6, SLEEP: 0.25, NATIVE: 0.15}), parts=parts, marks=marks
    )
    assert found.verdict == "step.host"
    assert found.causes[0].share == pytest.approx(0.6, abs=0.02)
    said = "; ".join(found.causes[0].evidence)
    assert str(CALL) in said and str(SLEEPS) not in said
    assert found.figures is not None
    assert found.figures.step_s == pytest.approx(0.003, rel=0.05)
    (best,) = found.recommendations
    assert best.predicted_speedup == pytest.approx(20 / 8, rel=0.05) and str(CALL) in best.change


def test_a_small_conversion_is_not_all_that_threads_take_from_a_serial_loop() -> None:
    """A session that converts its feed, and whose feed is made on its thread before."""
    loop = loop_of([0.0] * 200, 20.0, gap_ms=30.0, waits="none", buffer=0, kind="session")
    loop.steps[:] = [step._replace(converted_s=0.004) for step in loop.steps]
    parts = fed_by(0.6, {NATIVE: 1.0})
    found = judged(loop, trainer({NATIVE: 0.7, SLEEP: 0.3}), parts=parts)
    shares = {cause.code: cause.share for cause in found.causes}
    assert shares["input.copy"] == pytest.approx(0.08, abs=0.01)
    best = change(found, "threads")
    assert best.predicted_speedup > 1.8


def test_what_makes_the_batch_is_no_conversion_of_the_feed() -> None:
    """Lists become an array on the loop's thread, before a session that is given the array and a
    short list."""
    loop = loop_of([0.0] * 200, 7.0, gap_ms=18.0, waits="none", buffer=0, kind="session")
    loop.leaves = (
        Leaf("feed['x:0']", "float64", (96, 4000), "numpy.ndarray"),
        Leaf("feed['y:0']", "float64", (96, 1), "list"),
    )
    parts = (
        LoopPart("input", CALL, 0.7, {PYTHON: 1.0}, copying=1.0),
        LoopPart("step", SLEEPS, 0.3, {LOCK: 0.8, PYTHON: 0.2}),
    )
    found = judged(loop, trainer({PYTHON: 0.76, LOCK: 0.24}, copying=0.7), parts=parts)
    assert found.figures is not None
    assert found.figures.starvation == pytest.approx(18 / 25, abs=0.02)
    assert found.speedup_if_input_free == pytest.approx(25 / 7, rel=0.05)


def test_a_few_wide_numbers_are_not_what_a_session_converts() -> None:
    loop = loop_of([0.0] * 200, 20.0, waits="none", buffer=0, kind="session")
    loop.leaves = (
        Leaf("feed['x:0']", "float32", (96, 4000), "numpy.ndarray"),
        Leaf("feed['y:0']", "float64", (96, 1), "numpy.ndarray"),
    )
    assert judged(loop, trainer({NATIVE: 0.9, LOCK: 0.1})).verdict == "step.bound"


@pytest.mark.parametrize(
    ("asleep", "verdict"),
    [(0.4, "step.host"), (0.7, "step.bound")],
    ids=["mostly calls", "mostly the accelerator"],
)
def test_a_step_of_many_calls_and_one_that_sleeps(asleep: float, verdict: str) -> None:
    """An eager step with an accelerator in it that is only simulated: what the calls take is its
    overhead."""
    stacks = many_calls(round(100 * (1 - asleep))) | {(CALL, SLEEPS): round(2000 * asleep)}
    busy = {SLEEP: asleep, PYTHON: 0.6 * (1 - asleep), NATIVE: 0.4 * (1 - asleep)}
    found = judged(loop_of([0.02] * 100, 60.0), trainer(busy, stacks=stacks), parts=ONLY_STEP)
    assert found.verdict == verdict
    assert found.causes[-1].code == "step.host" and found.causes[-1].share == pytest.approx(
        1 - asleep, abs=0.02
    )


@pytest.mark.parametrize(("share", "verdict"), [(0.6, "step.host"), (0.15, "step.bound")])
def test_work_beside_the_step_that_takes_a_good_part_of_the_time(
    share: float, verdict: str
) -> None:
    """The step beside it takes most of the time and needs no change."""
    notes = Place("<module>", "train.py", 14, users=True)
    parts = (
        LoopPart("step", CALL, 1 - share),
        LoopPart("host", notes, share, {PYTHON: 0.9, NATIVE: 0.1}),
    )
    found = judged(
        loop_of([0.02] * 200, 17.0), trainer({SLEEP: 1 - share, PYTHON: share}), parts=parts
    )
    assert found.verdict == verdict
    (change,) = found.recommendations
    assert change.knob == "every" and change.predicted_speedup == pytest.approx(
        1 / (1 - 0.9 * share), rel=0.05
    )


def test_what_makes_the_input_on_the_loops_thread_is_no_overhead_of_the_step() -> None:
    """Pictures are drawn by native code, in many places; the step waits for an accelerator."""
    stacks = {(CALL, Place("draw", "cv2.py", number, users=False)): 10 for number in range(20)}
    task = trainer({NATIVE: 0.44, PYTHON: 0.16, LOCK: 0.4}, stacks=stacks)
    parts = (
        LoopPart("input", CALL, 0.6, {NATIVE: 0.73, PYTHON: 0.2, LOCK: 0.07}),
        LoopPart("step", SLEEPS, 0.4),
    )
    found = judged(
        loop_of([0.0] * 150, 34.0, gap_ms=51.0, waits="none", kind="session"), task, parts=parts
    )
    codes = [cause.code for cause in found.causes]
    assert codes == ["input.serial", "input.cpu", "input.gil"]
    assert {change.knob for change in found.recommendations} == {"threads"}
