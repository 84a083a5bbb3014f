"""Verdicts and gains where several things slow a training, or the step suffers from its input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed.diagnose.evidence import (
    DISK,
    EMPTY,
    FRAMEWORK,
    FULL,
    LOCK,
    NATIVE,
    OTHER,
    PIPE,
    PRODUCER,
    PYTHON,
    RUNNABLE,
    SLEEP,
    SOCKET,
    LoopPart,
)
from fastfeed.diagnose.judge.changes import COUNT_KNOBS
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import Leaf
from tests.diagnose.evidences import (
    CALL,
    LINE,
    MACHINE,
    ONLY_STEP,
    PID,
    fed_by,
    judged,
    loop_of,
    many_calls,
    producers,
    task,
    trainer,
)


def test_conversions_of_the_feed_are_time_in_which_the_step_had_no_input() -> None:
    loop = loop_of([0.0] * 100, 50.0, waits="none", buffer=0, kind="session")
    loop.leaves = (Leaf("feed['x:0']", "float64", (512, 4096), "list"),)
    loop.steps = [step._replace(converted_s=0.03) for step in loop.steps]
    found = judged(loop, trainer({NATIVE: 0.6, LOCK: 0.4}), parts=ONLY_STEP)
    assert found.verdict == "input.copy"
    assert found.recommendations[0].knob == "dtypes"
    assert found.speedup_if_input_free == pytest.approx(2.5, rel=0.05)
    assert found.figures is not None
    assert found.figures.starvation == pytest.approx(0.6, abs=0.01)
    assert found.figures.step_s == pytest.approx(0.020, rel=0.02)
    assert sum(found.figures.shares.values()) == pytest.approx(1.0, abs=0.01)


def test_reading_much_more_than_is_used_is_what_to_change() -> None:
    loop = loop_of([40.0] * 200, leaves=(Leaf("batch", "float32", (4, 1024), "torch.Tensor"),))
    made = producers(2, {DISK: 0.3, NATIVE: 0.6, OTHER: 0.1})
    found = judged(
        loop, trainer(), *made, machine=replace(MACHINE, disk_read_nbytes_s=2e8, own_cpu=2.0)
    )
    assert found.verdict == "input.disk"
    best = found.recommendations[0]
    assert (best.knob, best.value) == ("cache", "what is used")
    assert best.predicted_speedup == pytest.approx(5.0, rel=0.05)


def test_that_a_disk_has_more_to_give_is_not_sure_and_comes_behind_reading_less() -> None:
    """Both would make the step the limit, if the disk were twice as fast."""
    loop = loop_of([10.0] * 300, leaves=(Leaf("batch", "float32", (4, 1024), "torch.Tensor"),))
    made = producers(1, {DISK: 0.65, NATIVE: 0.35})
    machine = replace(MACHINE, disk_read_nbytes_s=2e8, own_cpu=0.4)
    best, *others = judged(loop, trainer(), *made, machine=machine).recommendations
    (more,) = [one for one in others if one.knob == "threads"]
    assert best.value == "what is used"
    assert best.predicted_speedup == pytest.approx(2.0, rel=0.02)
    assert more.predicted_speedup == pytest.approx(2.0, rel=0.05)
    assert 1 < more.interval[0] < 1 / 0.65


def test_conversions_of_a_batch_that_the_loop_has_got() -> None:
    """The step needs them before it can run: they are input, although the loop does not wait."""
    parts = fed_by(0.8, {NATIVE: 1.0}, copying=0.9, inner=LINE)
    found = judged(
        loop_of([0.02] * 200, 50.0, kind="queue"), trainer({NATIVE: 0.8, SLEEP: 0.2}), parts=parts
    )
    assert found.verdict == "input.copy"
    assert found.figures is not None and found.figures.starvation == pytest.approx(0.8, abs=0.02)
    assert found.recommendations[0].predicted_speedup == pytest.approx(5.0, rel=0.05)


def test_a_call_on_a_batch_that_may_be_the_model_is_no_input() -> None:
    inner = Place("backbone", "train.py", 30, users=True)
    parts = fed_by(0.8, {NATIVE: 1.0}, inner=inner)
    found = judged(loop_of([0.02] * 200, 50.0, kind="torch"), trainer({NATIVE: 1.0}), parts=parts)
    assert found.verdict == "step.bound"


@pytest.mark.parametrize(
    ("step_ms", "python", "places", "verdict"),
    [
        (60.0, 0.4, 20, "step.host"),
        (10.0, 0.1, 20, "step.host"),
        (10.0, 0.1, 1, "step.bound"),
    ],
)
def test_a_step_of_many_eager_calls(
    step_ms: float, python: float, places: int, verdict: str
) -> None:
    stacks = many_calls(10, count=places)
    busy = {PYTHON: python, NATIVE: 1.0 - python}
    found = judged(loop_of([0.01] * 100, step_ms), trainer(busy, stacks=stacks), parts=ONLY_STEP)
    assert found.verdict == verdict


def test_what_lies_under_the_noise_of_others_comes_second() -> None:
    loud = replace(MACHINE, other_cpu=1.6, own_cpu=0.4, runnable=1.0, disk_read_nbytes_s=2e8)
    made = producers(1, {DISK: 0.25, NATIVE: 0.15, RUNNABLE: 0.6}, queued_s=6.0)
    found = judged(loop_of([40.0] * 200), trainer(), *made, machine=loud)
    first, *others = [cause.code for cause in found.causes]
    assert first == "external.noise" and others and others[0].startswith("input.")


def test_no_change_of_the_input_gains_more_than_an_input_that_costs_nothing() -> None:
    """Steps that are dispatched and wait now and then for those before them: the median says
    little."""
    loop = loop_of([3.0] * 300, [*[0.2] * 9, 300.0] * 30, buffer=0)
    parts = fed_by(0.1, {PYTHON: 1.0}, inner=LINE)
    found = judged(loop, trainer({NATIVE: 0.9, PYTHON: 0.1}), parts=parts)
    limit = found.speedup_range[1]
    changes = [*found.recommendations, *found.may_cost]
    counts = [one for one in changes if one.knob in COUNT_KNOBS]
    assert all(one.predicted_speedup <= limit + 1e-9 for one in counts)


def test_batches_that_lie_ready_and_are_read_slowly() -> None:
    machine = replace(MACHINE, own_cpu=0.1, runnable=0.3)
    busy = {RUNNABLE: 0.2, PYTHON: 0.8}
    parts = fed_by(0.1, busy, inner=LINE)
    made = producers(2, {FULL: 0.97, PYTHON: 0.03}, pid=200)
    found = judged(loop_of([5.0] * 200, 35.0), trainer(), *made, parts=parts, machine=machine)
    assert found.verdict == "input.ipc"


@pytest.mark.parametrize(("queued_s", "verdict"), [(0.7, "step.bound"), (3.0, "external.noise")])
def test_little_noise_does_not_outrank_a_step_that_has_nearly_all_of_the_time(
    queued_s: float, verdict: str
) -> None:
    loud = replace(MACHINE, other_cpu=1.1, own_cpu=0.94 - queued_s / 10, runnable=0.94)
    tasks = (trainer({NATIVE: 0.94, RUNNABLE: 0.06}, queued_s=queued_s),)
    found = judged(loop_of([0.0] * 200, 50.0, waits="none", kind="session"), *tasks, machine=loud)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("kind", "busy", "native_cpu_s", "verdict"),
    [
        ("step", NATIVE, 1.0, "step.bound"),
        ("host", LOCK, 15.0, "step.bound"),
        ("host", LOCK, 1.0, "pause.periodic"),
        ("host", NATIVE, 15.0, "pause.periodic"),
    ],
)
def test_a_step_that_waits_for_those_before_it_is_no_pause(
    kind: str, busy: str, native_cpu_s: float, verdict: str
) -> None:
    """A jitted step takes 0.5 ms to enqueue, and the print of its loss every fifty steps 200 ms."""
    line = LoopPart(kind, LINE, 0.6, {busy: 1.0})
    parts = (LoopPart("step", CALL, 0.35), line, LoopPart("input", CALL, 0.05))
    loop = loop_of([0.0] * 1600, ([0.5] * 49 + [200.0]) * 32, kind="sampled")
    native = task(FRAMEWORK, {NATIVE: 0.8}, tid=300, cpu_s=native_cpu_s, stacks={})
    found = judged(loop, trainer({LOCK: 0.8, NATIVE: 0.2}), native, parts=parts)
    assert found.verdict == verdict


def test_a_process_from_which_a_thread_gets_its_data_is_no_second_producer() -> None:
    """A server that the script has started: threads ask it, and their number is what to change."""
    server = task(PRODUCER, {SLEEP: 1.0}, pid=PID + 50, tid=PID + 50)
    loop = loop_of([35.0] * 200, 5.0)
    alone, served = (
        judged(loop, trainer(), *producers(1, {SOCKET: 1.0}), *more) for more in ((), (server,))
    )
    assert served.recommendations[0].change == alone.recommendations[0].change
    assert served.recommendations[0].change.startswith("threads 1 -> ")
    assert served.recommendations[0].predicted_speedup == alone.recommendations[0].predicted_speedup


def test_a_thread_that_passes_on_what_processes_make_is_no_producer() -> None:
    workers = [task(PRODUCER, {NATIVE: 1.0}, pid=PID + n, tid=PID + n) for n in (50, 51)]
    passing = producers(1, {PIPE: 1.0})
    machine = replace(MACHINE, cores=8, own_cpu=2.5, runnable=2.5)
    found = judged(loop_of([20.0] * 200, 5.0), trainer(), *passing, *workers, machine=machine)
    assert found.recommendations[0].change.startswith("processes 2 -> ")


def test_little_starvation_is_a_cause_all_the_same() -> None:
    """A cause counts from 5 % on, which is the bound."""
    found = judged(loop_of([4.0] * 200, 50.0), trainer(), *producers(2, {SLEEP: 1.0}))
    assert found.verdict == "input.latency"


def test_a_feed_that_only_has_to_be_checked_is_no_cause() -> None:
    loop = loop_of([0.0] * 100, 12.0, waits="none", buffer=0, kind="session")
    loop.steps = [step._replace(converted_s=0.02 * 0.012) for step in loop.steps]
    found = judged(loop, trainer({NATIVE: 0.9, LOCK: 0.1}), parts=ONLY_STEP)
    assert (found.verdict, len(found.recommendations)) == ("step.bound", 0)
    assert found.figures is not None
    assert found.figures.starvation == pytest.approx(0.02, abs=0.001)


def test_pixels_that_are_set_one_by_one_are_no_copies() -> None:
    inner = Place("augment", "train.py", 12, users=True)
    parts = fed_by(0.85, {PYTHON: 0.95, NATIVE: 0.05}, inner=inner)
    loop = loop_of([0.0] * 100, 20.0, gap_ms=110.0, waits="none", buffer=0, kind="session")
    found = judged(loop, trainer({PYTHON: 0.85, LOCK: 0.15}), parts=parts)
    assert [cause.code for cause in found.causes[:2]] == ["input.serial", "input.gil"]
    assert found.recommendations[0].knob == "processes"


@pytest.mark.parametrize(("full", "verdict"), [(0.6, "input.straggler"), (0.05, "input.latency")])
def test_a_straggler_while_which_nobody_seems_idle(full: float, verdict: str) -> None:
    """Threads that are seen only while they work, as one: in the half of the time that is a wait it
    works."""
    loop = loop_of(([0.05] * 29 + [350.0]) * 10, buffer=2)
    found = judged(loop, trainer(), *producers(1, {FULL: full, SLEEP: 1 - full}))
    assert found.verdict == verdict


@pytest.mark.parametrize(("python", "code"), [(0.9, "step.host"), (0.3, "step.bound")])
def test_a_part_of_the_loop_that_is_mostly_bytecode_is_no_model(python: float, code: str) -> None:
    """A call without a telling name may be the model, unless it is bytecode."""
    loop = loop_of([0.0] * 400, 2.0, waits="none", buffer=0)
    parts = (
        LoopPart("host", CALL, 0.65, {PYTHON: python, NATIVE: 1 - python}),
        LoopPart("step", LINE, 0.35, {NATIVE: 1.0}),
    )
    tasks = (trainer({PYTHON: 0.4, NATIVE: 0.6}),)
    assert judged(loop, *tasks, parts=parts).verdict == code


@pytest.mark.parametrize(
    ("own_cpu", "free_ms", "state", "copying", "verdict"),
    [
        (1.9, 11.0, NATIVE, 0.8, "input.copy"),
        (1.9, 11.0, NATIVE, 0.0, "input.cpu"),
        (1.9, 17.9, NATIVE, 0.8, "step.bound"),
        (1.0, 11.0, NATIVE, 0.8, "input.copy"),
        (0.4, 11.0, PYTHON, 0.0, "input.gil"),
    ],
)
def test_steps_that_never_wait_may_lose_time_to_their_producers(
    own_cpu: float, free_ms: float, state: str, copying: float, verdict: str
) -> None:
    """A step takes less beside idle producers: it shares cores, caches or the lock with them."""
    loop = loop_of([0.02] * 300, 18.0, free=8, free_ms=free_ms)
    wall = {"wall_s": 5.4}
    made = producers(1, {state: 0.7, RUNNABLE: 0.3}, copying=copying, **wall)
    tasks = (trainer({NATIVE: 0.9}, **wall), *made)
    found = judged(loop, *tasks, machine=replace(MACHINE, own_cpu=own_cpu))
    assert found.verdict == verdict
    assert found.speedup_if_input_free == pytest.approx(18.0 / free_ms, rel=0.05)
    if verdict != "step.bound":
        assert found.lost_to_input == pytest.approx(1 - free_ms / 18.0, abs=0.05)
        assert found.causes[0].share <= found.lost_to_input + 0.01
        assert found.recommendations


@pytest.mark.parametrize(
    ("queued_s", "others", "verdict"), [(12.0, 1.3, "external.noise"), (12.0, 0.1, "step.bound")]
)
def test_a_step_waits_for_its_native_threads_which_get_no_core(
    queued_s: float, others: float, verdict: str
) -> None:
    """Its own thread only waits for them, asleep."""
    machine = replace(
        MACHINE, own_cpu=0.65, other_cpu=others, runnable=1.9, noisy=(("burn", others),)
    )
    pool = task(
        FRAMEWORK,
        {NATIVE: 0.3, RUNNABLE: 0.7},
        tid=300,
        cpu_s=6.0,
        queued_s=queued_s,
        stacks={},
        threads=2,
    )
    own = trainer({LOCK: 0.9, NATIVE: 0.1}, cpu_s=0.5, queued_s=0.5)
    found = judged(loop_of([0.1] * 200, 50.0, kind="keras"), own, pool, machine=machine)
    assert found.verdict == verdict
    if verdict == "external.noise":
        # The pool's threads run for a third of the time in which they could.
        assert found.recommendations[0].predicted_speedup > 1.7


@pytest.mark.parametrize(("wait_ms", "verdict"), [(10.0, "input.latency"), (0.02, "step.host")])
def test_calls_of_a_step_are_no_cause_where_input_is_missing(wait_ms: float, verdict: str) -> None:
    """Without them the step would only wait longer."""
    lines = many_calls()
    own = trainer({PYTHON: 0.4, NATIVE: 0.4, SLEEP: 0.2}, stacks=lines)
    busy = {SLEEP: 1.0} if wait_ms > 1 else {SLEEP: 0.1, FULL: 0.9}
    found = judged(loop_of([wait_ms] * 100, 20.0), own, *producers(1, busy))
    assert found.verdict == verdict
    codes = [cause.code for cause in found.causes]
    assert ("step.host" in codes) == (verdict == "step.host")


@pytest.mark.parametrize(
    ("runnable", "verdict"), [(6.5, "input.oversubscribed"), (2.0, "input.ipc")]
)
def test_who_waits_for_a_core_does_not_read(runnable: float, verdict: str) -> None:
    machine = replace(MACHINE, runnable=runnable, own_cpu=1.8)
    parts = fed_by(0.35, {RUNNABLE: 0.4, PYTHON: 0.2}, inner=LINE)
    busy = {NATIVE: 0.5, RUNNABLE: 0.5} if runnable > 4 else {NATIVE: 0.05, FULL: 0.95}
    made = producers(4, busy, pid=200)
    loop = loop_of([7.0] * 200, 14.0)
    found = judged(loop, trainer(), *made, parts=parts, machine=machine, pools={"torch": 4})
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("own_cpu", "late_s", "verdict"),
    [(1.05, 1.5e-3, "input.gil"), (1.9, 1.5e-3, "input.cpu"), (1.05, 1e-4, "input.cpu")],
    ids=["one core", "all cores", "nobody asks"],
)
def test_threads_that_get_one_core_between_them_want_the_lock(
    own_cpu: float, late_s: float, verdict: str
) -> None:
    """On a core or ready for one they seem to be, where another core has nothing to do."""
    made = producers(4, {NATIVE: 0.3, RUNNABLE: 0.15, PYTHON: 0.2, EMPTY: 0.35}, cpu_s=1.5)
    machine = replace(MACHINE, own_cpu=own_cpu, runnable=1.6)
    found = judged(
        loop_of([20.0] * 200, 10.0), trainer(), *made, machine=machine, gil_late_s=late_s
    )
    assert found.verdict == verdict
    changes = [*found.recommendations, *found.may_cost]
    assert ("processes" in [one.knob for one in changes]) == (verdict == "input.gil")


@pytest.mark.parametrize("queued_s", [0.0, 2.0, 8.0, 30.0])
def test_a_step_that_waits_for_a_core_is_not_input(queued_s: float) -> None:
    """Others take the cores while the loop makes its batches between its steps."""
    loud = replace(MACHINE, cores=2, other_cpu=0.96, own_cpu=0.9, runnable=1.0)
    busy = {NATIVE: 0.7, RUNNABLE: 0.3}
    parts = fed_by(0.84, busy, inner=LINE)
    tasks = (trainer(busy, queued_s=queued_s),)
    loop = loop_of([0.0] * 250, 8.0, gap_ms=40.0, waits="none", kind="session", buffer=0)
    found = judged(loop, *tasks, parts=parts, machine=loud)
    assert found.verdict == "input.serial"
    assert found.speedup_if_input_free < 1.1 * 48 / 8
