"""End of the warm-up and time of the report, by the clock of the test."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.evidence import Intervention
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.run.lifecycle import (
    GRACE_S,
    IMPORTS_OVER_S,
    Due,
    Lifecycle,
    WatchPlan,
)
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
    assert found.update(109.0, importing=True) == Due.NOTHING
    loop = stepped(context, "train", to_s=111.0)
    assert found.update(111.0) == Due.NOTHING
    assert context.main is loop
    stepped(context, "train", to_s=112.2)
    assert found.update(112.2) == Due.MEASURE
    assert found.start_s == 112.2
    assert found.warmup_s == pytest.approx(2.2)
    assert found.end_s == pytest.approx(130.1)
    stepped(context, "train", to_s=130.0)
    assert found.update(130.0) == Due.NOTHING
    stepped(context, "train", to_s=130.2)
    assert found.update(130.2) == Due.REPORT
    assert found.over and found.update(200.0) == Due.NOTHING


def test_warm_up_lasts_five_steps() -> None:
    found, context = life()
    stepped(context, "train", to_s=122.5, period_s=3.0)
    assert found.update(122.5) == Due.NOTHING
    stepped(context, "train", to_s=125.0, period_s=3.0)
    assert found.update(125.0) == Due.MEASURE
    assert found.end_s == pytest.approx(135.0), "half of the time is measured at least"


def test_slow_steps_are_given_more_time() -> None:
    """As long as there can be enough of them."""
    found, context = life()
    stepped(context, "train", to_s=118.0, period_s=1.4)
    assert found.update(118.0) == Due.MEASURE
    ends = (now for now in range(119, 170) if reports_at(found, context, now, period_s=1.4))
    assert next(ends) == 148, "20 steps after 118 s"
    found, context = life()
    stepped(context, "train", to_s=125.0, period_s=3.0)
    assert found.update(125.0) == Due.MEASURE
    ends = (now for now in range(126, 170) if reports_at(found, context, now, period_s=3.0))
    assert next(ends) == 135, "there cannot be 20 within 30 s more"


def reports_at(found: Lifecycle, context: HookLog, now: float, *, period_s: float) -> bool:
    stepped(context, "train", to_s=now, period_s=period_s)
    return found.update(now) == Due.REPORT


@given(
    seconds=st.floats(1, 60),
    imports_s=st.floats(0, 90),
    first_s=st.one_of(st.none(), st.floats(0, 100)),
    period_s=st.floats(0.05, 200),
    count=st.integers(0, 2000),
    stop=st.booleans(),
)
def test_a_report_comes_in_all_cases(
    seconds: float, imports_s: float, first_s: float | None, period_s: float, **more: Any
) -> None:
    """Within --seconds and 30 s of the start of the work, or of the first of two steps."""
    count: int = more["count"] if first_s is not None else 0
    context = HookLog(Timeline())
    plan = WatchPlan(seconds, min(2.0, seconds / 2), stop=more["stop"])
    found = Lifecycle(plan, context, begin_s=0.0, thread=1)
    begin_s = imports_s + (first_s or 0.0)
    ends = [begin_s + (i + 1) * period_s for i in range(count)]
    latest_s = imports_s + IMPORTS_OVER_S + seconds + GRACE_S
    now, reported_s, loop = 0.0, None, None
    while reported_s is None and now < 600:
        now += 0.5
        while ends and ends[0] <= now:
            loop = context.timeline.loop("train", name="train", kind="watch", thread=1)
            loop.steps.append(Step(ends[0] - period_s, ends[0], 0.0))
            ends.pop(0)
            if len(loop.steps) == 2 and now < latest_s:
                latest_s = max(latest_s, now + seconds + GRACE_S)
        if found.update(now, importing=now < imports_s) in (Due.REPORT, Due.UNSEEN):
            reported_s = now
    assert reported_s is not None and reported_s <= latest_s + 1.0


def test_nothing_is_seen() -> None:
    """The clock starts with the end of the imports; later steps still get their own report."""
    found, context = life()
    assert found.update(130.0, importing=True) == Due.NOTHING
    assert found.update(130.9) == Due.NOTHING
    assert found.update(131.5) == Due.MEASURE
    assert found.start_s == 130.0
    assert found.update(149.0) == Due.NOTHING
    assert found.update(150.5) == Due.SEARCH
    assert found.update(180.0) == Due.UNSEEN
    assert found.update(189.0) == Due.SEARCH, "samples may still show a loop"
    loop = context.timeline.loop("train", name="train", kind="watch", thread=1)
    loop.steps += [Step(190.0 + i, 191.0 + i, 0.0) for i in range(6)]
    assert found.seen_loop is loop and found.loop is None
    assert found.update(191.5) == Due.NOTHING
    assert found.update(196.0) == Due.MEASURE
    assert found.end_s == 211.0


def test_a_loop_that_ends_at_once_gets_its_report() -> None:
    found, context = life()
    stepped(context, "train", to_s=110.3)
    assert found.update(111.0) == Due.NOTHING
    assert found.update(161.0) == Due.REPORT


def test_another_loop_takes_over() -> None:
    """A loop that read the data once, for its mean, is no training."""
    found, context = life()
    stepped(context, "mean", to_s=114.0)
    assert found.update(114.0) == Due.MEASURE
    train = stepped(context, "train", to_s=110.0)
    train.steps.append(Step(114.0, 114.1, 0.0))
    stepped(context, "train", to_s=116.0)
    assert found.update(116.0) == Due.NOTHING, "it may be an evaluation"
    stepped(context, "train", to_s=124.0)
    assert found.update(124.0) == Due.MEASURE
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


def test_a_watch_without_an_experiment_is_short_until_half_of_it_is_over() -> None:
    found, context = life()
    assert found.short(109.0, ()) == "", "there is no loop"
    stepped(context, "train", to_s=111.0)
    found.update(111.0)
    assert "ended 1.0 s after the first step" in found.short(111.0, ()), "in the warm-up"
    stepped(context, "train", to_s=112.2)
    assert found.update(112.2) == Due.MEASURE
    half_s = (found.start_s + found.end_s) / 2
    unknown, known = Intervention("cores", 1.0), Intervention("cores", 1.0, 0.1, (0.0, 0.2))
    assert "was to last 20 s" in found.short(half_s - 0.1, (unknown,))
    assert found.short(half_s, ()) == found.short(114.0, (unknown, known)) == ""
    loop = context.timeline.loops["train"]
    loop.steps.append(Step(112.3, 112.4, 0.0, free=True))
    assert found.short(114.0, ()) == "", "a burst"
