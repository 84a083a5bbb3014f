"""Workers that keep the training thread from a core while it reads their batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed.diagnose.evidence import EMPTY, FULL, NATIVE, PYTHON, RUNNABLE, SOCKET, LoopPart
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.judge.producer_profile import producer_profile_of
from tests.diagnose.evidences import CALL, LINE, MACHINE, evidence, loop_of, producers, trainer


@pytest.mark.parametrize(
    ("runnable", "verdict"), [(6.5, "input.oversubscribed"), (2.0, "input.ipc")]
)
def test_who_waits_for_a_core_does_not_read(runnable: float, verdict: str) -> None:
    machine = replace(MACHINE, runnable=runnable, own_cpu=1.8)
    parts = (
        LoopPart("input", CALL, 0.35, {RUNNABLE: 0.4, PYTHON: 0.2}, inner=LINE),
        LoopPart("step", CALL, 0.65),
    )
    busy = {NATIVE: 0.5, RUNNABLE: 0.5} if runnable > 4 else {NATIVE: 0.05, FULL: 0.95}
    made = producers(4, busy, pid=200)
    loop = loop_of([7.0] * 200, 14.0)
    found = judge(
        evidence(loop, (trainer(), *made), parts=parts, machine=machine, pools={"torch": 4})
    )
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
    found = judge(
        evidence(
            loop_of([20.0] * 200, 10.0), (trainer(), *made), machine=machine, gil_late_s=late_s
        )
    )
    assert found.verdict == verdict
    changes = [*found.recommendations, *found.may_cost]
    assert ("processes" in [one.knob for one in changes]) == (verdict == "input.gil")


@pytest.mark.parametrize(("sampled", "active"), [(True, 1.0), (False, 0.05 + 0.95 * 0.2)])
def test_workers_without_stacks_are_idle_while_no_step_waits(sampled: bool, active: float) -> None:
    """They live for an epoch, too short to be read: a wait for work looks like one on a socket."""
    made = producers(4, {NATIVE: 0.05, SOCKET: 0.95}, pid=200, sampled=sampled, stacks={})
    seen = evidence(loop_of([2.0] * 200, 8.0, kind="torch"), (trainer({NATIVE: 1.0}), *made))
    profile = producer_profile_of(seen)
    assert profile is not None
    assert profile.active == pytest.approx(active, abs=0.01)
    told = producers(4, {NATIVE: 0.05, SOCKET: 0.15, EMPTY: 0.8}, pid=200, sampled=False)
    known = producer_profile_of(replace(seen, tasks=(trainer(), *told)))
    assert known is not None and known.active == pytest.approx(0.2, abs=0.01), "as others do"
