"""When warm-up is over and when the report is due, by a clock of the test's."""

from __future__ import annotations

import pytest

from fastfeed.diagnose.hooks.context import Context
from fastfeed.diagnose.run.lifecycle import (
    MEASURES,
    OVER,
    REPORTS,
    WAITS,
    WARMS,
    Life,
    WatchPlan,
)
from fastfeed.steps.timeline import Loop, Step, Timeline


def life(plan: WatchPlan | None = None) -> tuple[Life, Context]:
    context = Context(Timeline())
    return Life(plan or WatchPlan(), context, begin_s=100.0, thread=1), context


def stepped(
    context: Context, name: str, *, to_s: float, period_s: float = 0.1, thread: int = 1
) -> Loop:
    """Its steps until then, from where it was or from 110 s on."""
    loop = context.timeline.loop(name, name=name, kind="watch", thread=thread)
    at = loop.steps[-1].end_s if loop.steps else 110.0
    while at + period_s <= to_s:
        loop.steps.append(Step(at, at + period_s, 0.0))
        at += period_s
    return loop


def test_twenty_seconds_from_the_first_step() -> None:
    found, context = life()
    assert found.look(109.0) == WAITS
    loop = stepped(context, "train", to_s=111.0)
    assert found.look(111.0) == WARMS
    assert context.main is loop
    stepped(context, "train", to_s=112.2)
    assert found.look(112.2) == MEASURES
    assert found.start_s == 112.2
    assert found.warmup_s == pytest.approx(2.2)
    assert found.end_s == pytest.approx(130.1)
    stepped(context, "train", to_s=130.0)
    assert found.look(130.0) == WAITS
    stepped(context, "train", to_s=130.2)
    assert found.look(130.2) == REPORTS
    assert found.look(200.0) == OVER


def test_warm_up_lasts_five_steps() -> None:
    found, context = life()
    stepped(context, "train", to_s=122.5, period_s=3.0)
    assert found.look(122.5) == WARMS
    stepped(context, "train", to_s=125.0, period_s=3.0)
    assert found.look(125.0) == MEASURES
    assert found.end_s == pytest.approx(135.0), "half of the time is measured at least"


def test_slow_steps_are_given_more_time() -> None:
    found, context = life()
    loop = stepped(context, "train", to_s=125.0, period_s=3.0)
    assert found.look(125.0) == MEASURES
    for now in range(126, 170):
        stepped(context, "train", to_s=now, period_s=3.0)
        assert found.look(now) == WAITS
    assert len(loop.steps) == 19
    assert found.look(174.0) == REPORTS, "three times as much, not more"


def test_another_loop_takes_over() -> None:
    """One that read the data once, for its mean, is no training."""
    found, context = life()
    stepped(context, "mean", to_s=114.0)
    assert found.look(114.0) == MEASURES
    train = stepped(context, "train", to_s=110.0)
    train.steps.append(Step(114.0, 114.1, 0.0))
    stepped(context, "train", to_s=116.0)
    assert found.look(116.0) == WAITS, "it may be an evaluation"
    stepped(context, "train", to_s=124.0)
    assert found.look(124.0) == MEASURES
    assert found.loop is train
    assert found.end_s == pytest.approx(134.1)


def test_a_loop_inside_another_is_not_the_main_one() -> None:
    found, context = life()
    train, inner = stepped(context, "train", to_s=110.5), stepped(context, "evaluation", to_s=119.0)
    context.nested.add(id(inner))
    found.look(119.0)
    assert found.loop is train


def test_the_scripts_own_thread_comes_first() -> None:
    found, context = life()
    stepped(context, "reader", to_s=115.0, thread=2)
    train = stepped(context, "train", to_s=113.0)
    found.look(115.0)
    assert found.loop is train
