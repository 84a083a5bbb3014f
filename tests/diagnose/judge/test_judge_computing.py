"""Steps that are computed elsewhere while the loop makes its next batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed.diagnose.evidence import FRAMEWORK, NATIVE, PYTHON, LoopPart, Task
from fastfeed.diagnose.judge.entries import ledger_of
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.judge.producer_profile import producer_profile_of
from fastfeed.probes.gpu import GpuUsage
from tests.diagnose.evidences import CALL, LINE, MACHINE, evidence, loop_of, task, trainer

PARTS = (LoopPart("input", CALL, 0.4, {PYTHON: 1.0}, inner=LINE), LoopPart("step", CALL, 0.6))


def programs(share: float, **facts: float) -> Task:
    return replace(task(FRAMEWORK, {NATIVE: share}, tid=9, stacks={}, **facts), computes=True)


@pytest.mark.parametrize(("computing", "starved"), [(0.3, 0.4), (0.8, 0.2), (1.0, 0.0)])
def test_a_step_that_is_still_computed_does_not_starve(computing: float, starved: float) -> None:
    """The loop makes its batch for 4 of 10 ms; the step before may go on meanwhile."""
    loop = loop_of([4.0] * 200, 6.0, kind="sampled", buffer=0)
    seen = evidence(loop, (trainer({PYTHON: 1.0}), programs(computing)), parts=PARTS)
    rows = ledger_of(seen)
    assert rows.starvation == pytest.approx(starved)
    assert rows.share(rows.inside) == pytest.approx(1 - starved), "nothing of the time is lost"
    assert (judge(seen).verdict == "input.serial") == (starved > 0)


def test_an_accelerator_that_is_always_busy_does_not_starve() -> None:
    loop = loop_of([4.0] * 200, 6.0, kind="torch", buffer=0)
    machine = replace(MACHINE, gpus=(GpuUsage("H100", 0.97, 0.5),))
    seen = evidence(loop, (trainer({PYTHON: 1.0}),), parts=PARTS, machine=machine)
    assert ledger_of(seen).starvation == pytest.approx(0.03)
    assert judge(seen).speedup_if_input_free < 1.05
    assert not judge(seen).recommendations


@pytest.mark.parametrize(("together", "starved"), [(0.0, 0.4), (0.5, 0.2), (1.0, 0.0)])
def test_input_that_is_made_while_a_step_is_computed_costs_nothing(
    together: float, starved: float
) -> None:
    """The programs have work for 60 % of the time, some of it while the loop makes its batch."""
    loop = loop_of([4.0] * 200, 6.0, kind="sampled", buffer=0)
    made, step = PARTS
    parts = (replace(made, computing=together), step)
    seen = evidence(loop, (trainer({PYTHON: 1.0}), programs(0.6)), parts=parts)
    assert ledger_of(seen).starvation == pytest.approx(starved)


def test_threads_of_compiled_programs_make_no_batches() -> None:
    """tf.data makes a batch with a tenth of a core beside a step of JAX that takes both."""
    loop = loop_of([1.0] * 200, 9.0, kind="tf.data", buffer=2)
    pools = task(FRAMEWORK, {NATIVE: 0.1}, tid=8, cpu_s=0.2, stacks={})
    made = producer_profile_of(evidence(loop, (trainer(), pools, programs(0.9, cpu_s=3.4))))
    assert made is not None and (made.kind, made.cpu_s) == ("native", 0.2)
    alone = evidence(loop, (trainer(), programs(0.9, cpu_s=3.4)))
    assert producer_profile_of(alone) is None
