"""Rounds of a job on a clock of its own: what they find, what they cost, and what they leave."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.evidence import Intervention
from fastfeed.diagnose.interventions import schedule
from fastfeed.diagnose.interventions.doses import Dose
from fastfeed.diagnose.interventions.schedule import MAX_LOST, Interventions
from fastfeed.steps.recorder import NEVER
from fastfeed.steps.timeline import DOSED, Mark, Step
from tests.diagnose.interventions.jobs import Job


def found_in(job: Job, *doses: Dose, end_s: float = 18.0) -> tuple[Intervention, ...]:
    """Return what is found in a job that gets these doses."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(schedule, "perf_counter", job.clock)
        patches.setattr(schedule, "doses_for", lambda *_, **__: list(doses))
        tried = Interventions(job.log)
        tried.plan(0.0, end_s, loop=job.loop)
        tried.run(job.wait)
    return tried.results()


def noisy(step_s: float, spread: float) -> Iterator[float]:
    draw = random.Random(1)
    while True:
        yield step_s * max(0.1, draw.gauss(1.0, spread))


@pytest.mark.parametrize("step_s", [0.001, 0.01, 0.05])
def test_the_effects_are_found(step_s: float) -> None:
    job = Job(noisy(step_s, 0.02), buffer=0)
    cores, lock, none = found_in(
        job, job.dose("cores", 1, 0.12), job.dose("lock", 0.25, 0.3), job.dose("cores", 2, 0.0)
    )
    for one, truth in ((cores, 0.12), (lock, 0.3), (none, 0.0)):
        assert one.effect == pytest.approx(truth, abs=0.03)
        assert one.interval is not None and one.interval[0] - 0.02 < truth < one.interval[1] + 0.02
    assert cores.cost_s + lock.cost_s + none.cost_s == pytest.approx(job.lost_s, abs=0.15)
    assert 0 < job.lost_s < MAX_LOST * 18


def test_batches_that_come_together_are_told_from_pauses() -> None:
    """Four workers that began together: three of four steps find their batch."""
    steps_s = (0.08 if i % 4 == 0 else 0.002 for i in iter(int, 1) for i in range(4))
    job = Job(steps_s, buffer=8)
    (one,) = found_in(job, job.dose("producers", 0.25, 0.33))
    assert one.effect == pytest.approx(0.33, abs=0.05)


def test_steps_of_a_minute_in_a_short_watch() -> None:
    job = Job(60.0, over_s=600.0)
    (one,) = found_in(job, job.dose("cores", 1, 0.1))
    assert (one.effect, one.interval, job.given) == (None, None, [])
    assert "--seconds" in one.note


def test_steps_of_a_minute_in_a_long_watch() -> None:
    job = Job(60.0, over_s=9000.0)
    (one,) = found_in(job, job.dose("cores", 1, 0.1), end_s=9000.0)
    assert one.effect == pytest.approx(0.1, abs=0.01)


def test_blocks_with_a_checkpoint_do_not_count() -> None:
    job = Job(0.02, pauses=dict.fromkeys((1.3, 4.1, 7.7), 1.0))
    (one,) = found_in(job, job.dose("cores", 1, 0.1))
    assert one.effect == pytest.approx(0.1, abs=0.001)
    always = Job(0.02, pauses={i * 0.2: 0.05 for i in range(90)})
    (one,) = found_in(always, always.dose("cores", 1, 0.1))
    assert one.effect is None


def test_steps_that_vary_too_much_tell_nothing() -> None:
    job = Job(noisy(0.05, 0.9))
    (one,) = found_in(job, job.dose("cores", 1, 0.05))
    assert one.effect is None and "vary too much" in one.note


def test_a_dose_that_costs_too_much_is_cut_short() -> None:
    job = Job(0.1)
    (one,) = found_in(job, job.dose("lock", 0.25, 19.0))
    assert one.interval is not None and 0.2 < one.interval[0] < 19.0, "it is at least so much"
    assert "may be more" in one.note
    assert job.lost_s <= MAX_LOST * 18 + 0.4


def test_a_script_that_ends_in_a_block() -> None:
    whole = Job(0.05)
    found_in(whole, whole.dose("cores", 1, 0.1))
    _, begin_s, end_s = whole.given[0]
    job = Job(0.05, over_s=(begin_s + end_s) / 2)
    found_in(job, job.dose("cores", 1, 0.1))
    assert [kind for kind, _, _ in job.given] == ["cores"], "it has ended"
    assert job.given[0][2] < end_s
    (mark,) = job.log.timeline.marks
    assert mark.label == DOSED and mark.start_s <= begin_s


def test_what_cannot_be_given() -> None:
    job = Job(0.02)

    @contextmanager
    def broken(limit_s: float, period_s: float) -> Iterator[None]:
        raise ConnectionError("the process that does it has ended")
        yield

    refused, failed, given = found_in(
        job,
        job.dose("cores", 1, 0.1, refusal="the control group allows 0.5 cores"),
        Dose("cores", 2, broken),
        job.dose("lock", 0.25, 0.1),
    )
    assert (refused.effect, refused.note) == (None, "the control group allows 0.5 cores")
    assert (failed.effect, failed.note) == (None, "the process that does it has ended")
    assert given.effect == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("slack", "dosed"), [(0.1, [0.25]), (0.3, [0.25, 0.5, 1.0]), (2.0, [0.25, 0.5, 1.0])]
)
def test_longer_delays_follow_those_that_are_no_delay(slack: float, dosed: list[float]) -> None:
    """A delay shows as far as it is longer than the wait in the step."""
    job = Job(0.01)
    delays = [job.dose("delay", d, max(0.0, d - slack)) for d in (0.25, 0.5, 1.0)]
    found = found_in(job, *delays)
    assert [one.dose for one in found] == dosed
    for one in found:
        assert one.effect == pytest.approx(max(0.0, one.dose - slack), abs=0.01)


def test_rounds_make_room_for_bursts() -> None:
    """One that is due soon comes first; one that never comes does not hold them up."""
    job = Job(0.05)
    job.log.schedule_burst(6.0)
    found_in(job, job.dose("cores", 1, 0.1))
    before = [end_s for _, begin_s, end_s in job.given if begin_s < 6.0]
    after = [begin_s for _, begin_s, _ in job.given if begin_s >= 6.0]
    assert before and max(before) < 6.0
    assert after and min(after) > 6.0 + 8 * 0.05
    assert job.log.due_s != NEVER


def test_nothing_begins_while_a_burst_shows() -> None:
    job = Job(0.05)
    job.wait(3.0)
    job.log.add_mark(Mark("experiment", 2.9, 2.95))
    for number, step in enumerate(job.loop.steps[-4:], -4):
        job.loop.steps[number] = step._replace(free=True)
    last_s = job.loop.steps[-1].end_s
    found_in(job, job.dose("cores", 1, 0.1))
    assert job.given[0][1] > last_s + 8 * 0.05


@given(
    step_s=st.floats(0.001, 3.0),
    slower=st.lists(st.floats(0, 15), min_size=1, max_size=4),
    spread=st.floats(0, 0.5),
    over_s=st.floats(0.5, 40),
    due_s=st.one_of(st.just(NEVER), st.floats(0, 20)),
)
def test_whatever_the_loop_does(
    step_s: float, slower: list[float], spread: float, over_s: float, due_s: float
) -> None:
    """The cost has a limit, and every step that was dosed lies in a mark of a dose."""
    job = Job(noisy(step_s, spread), over_s=over_s, pauses={3.3: 0.7})
    job.log.schedule_burst(due_s)
    found_in(job, *[job.dose("cores", k, one) for k, one in enumerate(slower, 1)])
    marks = [mark for mark in job.log.timeline.marks if mark.label == DOSED]
    for _, begin_s, end_s in job.given:
        assert any(mark.start_s <= begin_s and end_s <= mark.end_s for mark in marks)
        assert end_s <= 18.0 or end_s <= over_s + 1
    longest_s = max((step.end_s - step.begin_s for step in job.loop.steps), default=0.0)
    assert job.lost_s <= MAX_LOST * 18 + 3 * longest_s + 0.1


def test_a_loop_without_steps() -> None:
    job = Job(100.0, over_s=20.0)
    (one,) = found_in(job, job.dose("cores", 1, 0.1))
    assert one.effect is None and job.given == []
    assert job.loop.steps == list[Step]()
