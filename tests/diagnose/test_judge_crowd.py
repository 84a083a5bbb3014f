"""Workers that keep the training thread from a core, while it reads what they have made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed.diagnose.evidence import NATIVE, PYTHON, RUNNABLE, Part
from fastfeed.diagnose.judge import judge
from tests.diagnose.evidences import CALL, LINE, MACHINE, evidence, loop_of, producers, trainer


@pytest.mark.parametrize(("runnable", "verdict"), [(6.5, "input.oversubscribed"), (2.0, "input.ipc")])
def test_who_waits_for_a_core_does_not_read(runnable: float, verdict: str) -> None:
    machine = replace(MACHINE, runnable=runnable, own_cpu=1.8)
    parts = (Part("input", CALL, 0.35, {RUNNABLE: 0.4, PYTHON: 0.2}, inner=LINE), Part("step", CALL, 0.65))
    made = producers(4, {NATIVE: 0.5, RUNNABLE: 0.5}, pid=200, queued_s=5.0)
    loop = loop_of([7.0] * 200, 14.0)
    found = judge(evidence(loop, (trainer(), *made), parts=parts, machine=machine, pools={"torch": 4}))
    assert found.verdict == verdict
