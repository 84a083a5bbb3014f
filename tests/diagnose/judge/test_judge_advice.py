"""Predicted gains of changes, as far as they follow from the observations of the loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.diagnose.evidence import (
    CALLED_BACK,
    DISK,
    FRAMEWORK,
    FULL,
    LOCK,
    LOCK_PYTHON,
    NATIVE,
    PYTHON,
    RUNNABLE,
    SLEEP,
    Intervention,
    LoopPart,
)
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import Leaf, Mark
from tests.diagnose.evidences import (
    CALL,
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

LIBRARY = Place("call", "framework.py", 7, users=False)
READS = [Place("row", "rows.py", line, users=True) for line in (3, 4, 5)]


def test_work_between_the_steps_is_named_and_gains_what_it_took() -> None:
    journal = Place("journal", "train.py", 12, users=True)
    loop = loop_of([0.01] * 100, 30.0)
    marks = [Mark("callback", s.begin_s + 0.002, s.end_s - 0.001, "Journal") for s in loop.steps]
    own = trainer({PYTHON: 1.0}, stacks={(CALL, journal): 90, (CALL, LIBRARY): 10})
    found = judged(loop, own, marks=marks)
    assert found.verdict == "step.host"
    assert "pause.periodic" not in [cause.code for cause in found.causes], "in every step"
    (best,) = found.recommendations
    assert best.knob == "every"
    assert str(journal) in best.change
    assert best.predicted_speedup == pytest.approx(1 / (1 - 0.99 * 0.9), rel=0.05)


def test_a_line_that_sleeps_is_no_work_of_the_loops_own() -> None:
    """The line of the step is unknown."""
    statistics, step = (
        Place("<module>", "train.py", 50, users=True),
        Place("<module>", "train.py", 47, users=True),
    )
    parts = (
        LoopPart("host", statistics, 0.65, {PYTHON: 1.0}),
        LoopPart("host", step, 0.33, {SLEEP: 1.0}),
    )
    own = trainer({PYTHON: 0.98, SLEEP: 0.02})
    (best,) = judged(loop_of([0.01] * 100, 26.0), own, parts=parts).recommendations
    assert str(statistics) in best.change
    assert best.predicted_speedup == pytest.approx(1 / (1 - 0.99 * 0.65), rel=0.02)


def test_a_step_of_many_small_calls_becomes_one_call() -> None:
    lines = many_calls()
    own = trainer({PYTHON: 0.6, NATIVE: 0.4}, stacks=lines)
    loop = loop_of([0.01] * 100, 20.0, buffer=None)
    (best,) = judged(loop, own, parts=ONLY_STEP).recommendations
    assert best.knob == "compile"
    assert best.predicted_speedup == pytest.approx(10, rel=0.05), "a tenth is left"
    assert best.interval[0] < 0.5 * best.predicted_speedup, (
        "nothing that was seen says what a compiled step takes"
    )
    loop.kind = "keras"
    (best,) = judged(loop, own, parts=ONLY_STEP).recommendations
    assert best.knob == "steps_per_execution"


@pytest.mark.parametrize("used", [4096, 24 << 20])
def test_a_function_that_reads_what_nobody_uses(used: int) -> None:
    """24 MB are read for a batch, in three lines of one function, which the rest of the batch takes
    a tenth of."""
    stacks = {(CALL, line): 30 for line in READS} | {
        (CALL, Place("other", "rows.py", 9, users=True)): 10
    }
    made = producers(2, {DISK: 0.3, NATIVE: 0.7}, pid=200, stacks=stacks)
    loop = loop_of([30.0] * 200)
    loop.leaves = (Leaf("batch", "uint8", (used,), "array"),)
    given = evidence(loop, (trainer(), *made))
    rate = 200 / (loop.steps[-1].end_s - loop.steps[0].begin_s)
    read = replace(given.machine, disk_read_nbytes_s=rate * (24 << 20))
    found = judge(replace(given, machine=read))
    assert found.verdict == ("input.disk" if used == 4096 else "input.cpu")
    change = next((one for one in found.recommendations if one.value == "what is used"), None)
    if used > 4096:
        assert change is None
    else:
        assert change is not None
        assert change.predicted_speedup > 0.95 * min(10.0, found.speedup_if_input_free)
        assert change.interval[0] < 1 / (1 - 0.35), "at least what waits for the disk goes"


@pytest.mark.parametrize("straggles", [True, False])
def test_calls_of_tf_data_in_order_wait_for_the_one_that_takes_long(straggles: bool) -> None:
    """Four at once, of which three are idle while one is late; if all are as slow, more of them
    help."""
    waits = (
        [900.0 if number % 40 == 7 else 0.5 for number in range(400)] if straggles else [30.0] * 400
    )
    busy = {SLEEP: 0.4, FULL: 0.6} if straggles else {SLEEP: 0.99, FULL: 0.01}
    calls = [replace(task, producers=4) for task in producers(1, busy)]
    found = judged(loop_of(waits), trainer(), *calls)
    if straggles:
        assert found.verdict == "input.straggler"
    else:
        assert found.verdict == "input.latency"
        assert found.recommendations[0].knob == "num_parallel_calls"
        assert found.recommendations[0].change.startswith("num_parallel_calls 4 -> ")
        assert "private_threadpool_size=" in found.recommendations[0].change, (
            "its pool has a thread for each core"
        )


@pytest.mark.parametrize("called", [True, False])
def test_python_in_the_graph_of_a_session_needs_threads_of_its_pool(called: bool) -> None:
    """The pool has a thread for each core; queues filled by the script's threads do not use it."""
    makers = producers(1, {SLEEP: 1.0})
    makers = tuple(replace(one, name=CALLED_BACK) for one in makers) if called else makers
    best, *_ = judged(loop_of([60.0] * 200, kind="session"), trainer(), *makers).recommendations
    assert (best.knob, "inter_op_parallelism_threads=" in best.change) == ("threads", called)


def test_one_worker_is_called_one() -> None:
    """A batch costs less than a step: one process that makes them ahead is enough."""
    parts = fed_by(0.4, {PYTHON: 1.0}, inner=LIBRARY)
    (best,) = judged(loop_of([8.0] * 200, 12.0, buffer=0), trainer(), parts=parts).recommendations
    assert (best.change, best.knob, best.value) == (
        "make the batches in 1 worker process",
        "processes",
        "1",
    )
    assert best.predicted_speedup == pytest.approx(20 / 12, rel=0.02)


def test_as_many_producers_as_there_are_is_no_change() -> None:
    """One thread would do work that fills its time anyway."""
    copies = producers(1, {NATIVE: 1.0}, copying=0.9, cpu_s=10.0)
    found = judged(loop_of([40.0] * 200), trainer(), *copies, machine=replace(MACHINE, cores=1))
    assert [one.knob for one in found.recommendations] == ["dtypes"]


@pytest.mark.parametrize("count", [1, 2])
def test_two_processes_have_two_locks(count: int) -> None:
    """Threads in turns make a core's worth of bytecode; two processes would have a core each."""
    python = producers(count, {PYTHON: 1 / count, LOCK_PYTHON: 1 - 1 / count}, cpu_s=10.0 / count)
    found = judged(loop_of([40.0] * 200, 10.0), trainer(), *python, gil_late_s=5e-3)
    best = change(found, "processes")
    assert best.predicted_speedup == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(("state", "own_cpu"), [(NATIVE, 1.9), (PYTHON, 0.9)])
def test_two_producers_have_two_cores(state: str, own_cpu: float) -> None:
    parts = fed_by(0.8, {state: 1.0}, inner=LIBRARY)
    loop, own = loop_of([40.0] * 200, 10.0, buffer=0), trainer({state: 0.8, SLEEP: 0.2}, cpu_s=8.0)
    found = judged(loop, own, parts=parts, machine=replace(MACHINE, own_cpu=own_cpu))
    best = change(found, "threads", "processes")
    assert best.predicted_speedup == pytest.approx(2 * 50 / 40, rel=0.04)


@pytest.mark.parametrize(
    ("pool_s", "own_cpu", "knob"), [(9.0, 0.9, "num_parallel_calls"), (19.0, 1.9, "work")]
)
def test_native_threads_that_have_all_cores_cannot_be_more(
    pool_s: float, own_cpu: float, knob: str
) -> None:
    pool = task(FRAMEWORK, {NATIVE: pool_s / 20}, tid=300, cpu_s=pool_s, threads=2, stacks={})
    machine = replace(MACHINE, own_cpu=own_cpu, runnable=own_cpu)
    found = judged(loop_of([30.0] * 200, 20.0, kind="tfdata"), trainer(), pool, machine=machine)
    assert found.verdict == "input.cpu"
    assert [one.knob for one in found.recommendations] == [knob]


@pytest.mark.parametrize("step", [SLEEP, NATIVE])
def test_a_step_that_shares_the_cores_gains_less_from_cheaper_batches(step: str) -> None:
    """Half of the producers' work can be saved; a step of 40 ms that computes is a limit, too."""
    made_s, step_s = (16.0, 0.0) if step == SLEEP else (12.0, 8.0)
    waits_ms, step_ms = (40.0, 10.0) if step == SLEEP else (10.0, 40.0)
    own = trainer({step: 0.8, LOCK: 0.2}, cpu_s=step_s)
    makers = producers(
        2, {NATIVE: made_s / 20, RUNNABLE: 1 - made_s / 20}, cpu_s=made_s / 2, pid=200
    )
    machine = replace(MACHINE, own_cpu=2.0, runnable=3.0)
    found = judged(loop_of([waits_ms] * 200, step_ms), own, *makers, machine=machine)
    assert found.verdict == "input.cpu"
    best = change(found, "work")
    assert best.predicted_speedup == pytest.approx(2.0 if step == SLEEP else 1.45, rel=0.15)


def test_pools_that_fight_for_the_cores_lose_more_than_their_number_says() -> None:
    """Two runnable threads for each core: their work takes 2^0.6 times as long."""
    spins = producers(2, {NATIVE: 0.5, RUNNABLE: 0.5}, cpu_s=10.0, pid=200)
    machine = replace(MACHINE, own_cpu=2.0, runnable=4.0)
    found = judged(loop_of([40.0] * 200), trainer(), *spins, machine=machine, pools={"torch": 2})
    best = change(found, "OMP_NUM_THREADS")
    assert best.predicted_speedup == pytest.approx(2**0.6, rel=0.02)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("for x, y in train_loader:", "train_loader"),
        ("for i, (x, y) in enumerate(self.batches, 0):", "self.batches"),
        ("for batch in tqdm(enumerate(loader)):", "loader"),
    ],
)
def test_a_data_loader_is_changed_by_its_own_name(text: str, name: str) -> None:
    loop = loop_of([40.0] * 200, kind="torch", buffer=0, where="train.py:41", text=text)
    parts = fed_by(0.8, {SLEEP: 1.0})
    best, *_ = judged(loop, trainer(), parts=parts).recommendations
    assert best.where == "train.py:41"
    assert best.code.startswith(f"{name} = DataLoader(..., num_workers={best.value}")


@pytest.mark.parametrize("text", ["while True:", "for batch in make(a, b)[0]:", ""])
def test_a_line_without_a_name_gives_no_code(text: str) -> None:
    loop = loop_of([40.0] * 200, text=text)
    best, *_ = judged(loop, trainer(), *producers(1, {SLEEP: 1.0})).recommendations
    assert best.code == ""


BUSY_CORE = Intervention("cores", 1, 0.1, (0.05, 0.15))
HELD_LOCK = Intervention("lock", 0.25, 0.5, (0.4, 0.6))


@pytest.mark.parametrize(
    ("state", "made", "missing"),
    [
        (SLEEP, (BUSY_CORE,), ()),
        (SLEEP, (), ("one more busy core: not measured",)),
        (
            SLEEP,
            (replace(BUSY_CORE, effect=None, interval=None, note="no core"),),
            ("core: no core",),
        ),
        (PYTHON, (BUSY_CORE, HELD_LOCK), ()),
    ],
)
def test_advice_is_sure_where_experiments_support_it(
    state: str, made: tuple[Intervention, ...], missing: tuple[str, ...]
) -> None:
    parts = fed_by(0.8, {state: 1.0}, inner=LIBRARY)
    loop = loop_of([40.0] * 200, 10.0, buffer=0)
    own = trainer({state: 0.8, NATIVE: 0.2})
    found = judged(loop, own, parts=parts, interventions=made)
    best = change(found, "threads", "processes")
    assert bool(best.untested) == bool(missing)
    assert all(one in best.untested for one in missing)


def test_what_another_core_costs_a_step_is_taken_from_the_gain() -> None:
    parts = fed_by(0.8, {NATIVE: 1.0}, inner=LIBRARY)
    loop, own = loop_of([40.0] * 200, 10.0, buffer=0), trainer({NATIVE: 0.8, SLEEP: 0.2})
    gains = []
    for effect in (0.0, 0.5, 1.0):
        slower = replace(BUSY_CORE, effect=effect)
        seen = judged(loop, own, parts=parts, interventions=(slower,))
        changes = [*seen.recommendations, *seen.may_cost]
        gains += [one.predicted_speedup for one in changes if one.knob in ("threads", "processes")]
    assert gains == sorted(gains, reverse=True) and gains[0] > gains[-1]


def test_what_is_sure_comes_before_greater_gains() -> None:
    steps = [10.0 if i % 20 else 30.0 for i in range(400)]
    loop = loop_of([0.01] * 400, steps)
    marks = [Mark("checkpoint", one.end_s - 0.02, one.end_s) for one in loop.steps[::20]]
    own = trainer({NATIVE: 0.94, RUNNABLE: 0.06}, queued_s=3.0)
    loud = replace(MACHINE, other_cpu=1.1, own_cpu=0.64, runnable=0.94)
    found = judged(loop, own, marks=marks, machine=loud)
    kinds = [bool(one.untested) for one in found.recommendations]
    assert kinds == sorted(kinds) and kinds[0] is False and True in kinds


@pytest.mark.parametrize("one_reader", [False, True])
def test_more_producers_of_one_iterator_gain_only_if_each_reads_its_share(one_reader: bool) -> None:
    rows = StageRow(batches=200, read_s=8.0)
    feed = Snapshot(6.0, rows, StageRow(batches=200), 0, 0, (rows,), one_reader=one_reader)
    loop = loop_of([15.0] * 200, 5.0, kind="runner")
    found = judged(loop, trainer(), *producers(2, {SLEEP: 1.0}), feed=feed)
    assert found.verdict == "input.latency"
    best = change(found, "threads")
    assert ("takes `worker`" in best.change) == one_reader
    assert best.predicted_speedup > 2


def test_threads_that_spin_beside_the_input_are_no_work_of_the_step() -> None:
    """A pool of torch keeps all cores busy while the loop's thread decodes: workers have none."""
    loop = loop_of([300.0] * 60, 40.0, kind="torch", waits="modelled", buffer=0)
    seconds = loop.steps[-1].end_s
    line = Place("__getitem__", "train.py", 30, users=True)
    own = trainer({PYTHON: 0.1, NATIVE: 0.9}, wall_s=seconds)
    pool = task(FRAMEWORK, {NATIVE: 1.0}, wall_s=seconds, cpu_s=15 * seconds)
    found = judged(
        loop,
        own,
        pool,
        machine=replace(MACHINE, cores=16, own_cpu=15.9, runnable=16.0),
        parts=(LoopPart("input", CALL, 0.88, {NATIVE: 0.9, PYTHON: 0.1}, inner=line),),
    )
    best = max(found.recommendations, key=lambda one: one.predicted_speedup)
    assert best.knob == "num_workers"
    assert int(best.value) >= 6
    assert best.predicted_speedup > 4
