"""End of the warm-up and time of the report, by the clock of the test."""

from __future__ import annotations

import pytest

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.run.lifecycle import Lifecycle, Phase, WatchPlan
from fastfeed.steps.timeline import Loop, Step, Timeline


def life(plan: WatchPlan | None = None) -> tuple[Lifecycle, HookLog]:
    context = HookLog(Timeline())
    return Lifecycle(plan or WatchPlan(), context, begin_s=100.0, thread=1), context


def stepped(
    context: HookLog, name: str, *, to_s: float, period_s: float = 0.1, thread: int = 1
) -> Loop:
    """Add steps until `to_s`, from the last step or from 110 s on."""
    loop = context.timeline.loop(name, name=name, kind="watch", thread=thread)
    at = loop.steps[-1].end_s if loop.steps else 110.0
    while at + period_s <= to_s:
        loop.steps.append(Step(at, at + period_s, 0.0))
        at += period_s
    return loop


def test_twenty_seconds_from_the_first_step() -> None:
    found, context = life()
    assert found.update(109.0) == Phase.WAITING
    loop = stepped(context, "train", to_s=111.0)
    assert found.update(111.0) == Phase.WARMING_UP
    assert context.main is loop
    stepped(context, "train", to_s=112.2)
    assert found.update(112.2) == Phase.MEASURING
    assert found.start_s == 112.2
    assert found.warmup_s == pytest.approx(2.2)
    assert found.end_s == pytest.approx(130.1)
    stepped(context, "train", to_s=130.0)
    assert found.update(130.0) == Phase.WAITING
    stepped(context, "train", to_s=130.2)
    assert found.update(130.2) == Phase.REPORTING
    assert found.update(200.0) == Phase.OVER


def test_warm_up_lasts_five_steps() -> None:
    found, context = life()
    stepped(context, "train", to_s=122.5, period_s=3.0)
    assert found.update(122.5) == Phase.WARMING_UP
    stepped(context, "train", to_s=125.0, period_s=3.0)
    assert found.update(125.0) == Phase.MEASURING
    assert found.end_s == pytest.approx(135.0), "half of the time is measured at least"


def test_slow_steps_are_given_more_time() -> None:
    found, context = life()
    loop = stepped(context, "train", to_s=125.0, period_s=3.0)
    assert found.update(125.0) == Phase.MEASURING
    for now in range(126, 170):
        stepped(context, "train", to_s=now, period_s=3.0)
        assert found.update(now) == Phase.WAITING
    assert len(loop.steps) == 19
    assert found.update(174.0) == Phase.REPORTING, "three times as much, not more"


def test_another_loop_takes_over() -> None:
    """A loop that read the data once, for its mean, is no training."""
    found, context = life()
    stepped(context, "mean", to_s=114.0)
    assert found.update(114.0) == Phase.MEASURING
    train = stepped(context, "train", to_s=110.0)
    train.steps.append(Step(114.0, 114.1, 0.0))
    stepped(context, "train", to_s=116.0)
    assert found.update(116.0) == Phase.WAITING, "it may be an evaluation"
    stepped(context, "train", to_s=124.0)
    assert found.update(124.0) == Phase.MEASURING
    assert found.loop is train
    assert found.end_s == pytest.approx(134.1)


def test_a_loop_inside_another_is_not_the_main_one() -> None:
    found, context = life()
    train, inner = stepped(context, "train", to_s=110.5), stepped(context, "evaluation", to_s=119.0)
    context.nested.add(id(inner))
    found.update(119.0)
    assert found.loop is train


def test_the_scripts_own_thread_comes_first() -> None:
    found, context = life()
    stepped(context, "reader", to_s=115.0, thread=2)
    train = stepped(context, "train", to_s=113.0)
    found.update(115.0)
    assert found.loop is train
