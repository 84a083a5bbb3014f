"""The arithmetic of a feed: bounds, ranges, and what follows from them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.model import LivePoint, Profile, predict, starvation, utilisation

costs = st.floats(1e-4, 1.0)


def test_waiting_producers_add_up_until_the_step_is_the_limit() -> None:
    profile = Profile(batch_s=0.05, cpu_s=0.0, gil_s=0.0, gil_wait_s=0.0, step_s=0.01, cores=2)
    assert [round(predict(profile, n).rate) for n in (1, 2, 4, 8)] == [20, 40, 80, 100]
    assert [predict(profile, n).limit for n in (1, 4, 8)] == ["the producers", "the producers", "the step"]
    assert predict(profile, 1).starvation == pytest.approx(0.8)


def test_the_interpreter_lock_and_the_cores_bound_producers_that_compute() -> None:
    python = Profile(batch_s=0.01, cpu_s=0.01, gil_s=0.01, gil_wait_s=0.0, step_s=0.001, cores=4)
    native = Profile(batch_s=0.01, cpu_s=0.01, gil_s=0.0, gil_wait_s=0.0, step_s=0.001, cores=4)
    assert predict(python, 8).rate == pytest.approx(100) and predict(python, 8).limit == "the interpreter lock"
    assert predict(native, 8).rate == pytest.approx(400) and predict(native, 8).limit == "the cores"


def test_live_points_show_where_more_threads_stop_helping() -> None:
    live = (LivePoint(1, 20.0, 0.01, 0.008), LivePoint(4, 40.0, 0.01, 0.02))
    profile = Profile(batch_s=0.05, cpu_s=0.01, gil_s=0.0, gil_wait_s=0.0, step_s=0.004, cores=2, live=live)
    assert [predict(profile, n).rate for n in (1, 2, 4, 16)] == pytest.approx([20, 30, 40, 40])
    assert [predict(profile, n).starvation for n in (1, 4)] == pytest.approx([1 - 20 * 0.008, 1 - 40 * 0.02])


def test_what_fell_with_more_threads_goes_on_falling() -> None:
    live = (LivePoint(1, 90.0, 0.01, 0.01), LivePoint(4, 76.0, 0.01, 0.013))
    profile = Profile(batch_s=0.01, cpu_s=0.01, gil_s=0.01, gil_wait_s=0.005, step_s=0.004, cores=2, live=live)
    assert [predict(profile, n).rate for n in (4, 8, 16)] == pytest.approx([76, 69, 62])
    assert predict(profile, 10**6).rate == pytest.approx(38)


def test_live_points_of_waiting_producers_go_on_until_the_step_is_the_limit() -> None:
    live = (LivePoint(1, 20.0, 0.01, 0.008), LivePoint(4, 80.0, 0.01, 0.006))
    profile = Profile(batch_s=0.05, cpu_s=0.0, gil_s=0.0, gil_wait_s=0.0, step_s=0.005, cores=2, live=live)
    assert [predict(profile, n).rate for n in (1, 2, 8, 16)] == pytest.approx([20, 40, 160, 200 / 1.1])
    assert predict(profile, 1).starvation == pytest.approx(1 - 20 * 0.008)
    assert predict(profile, 16).starvation == pytest.approx(0)


def test_a_step_beside_a_held_lock_waits_for_it_and_longer_among_many() -> None:
    profile = Profile(batch_s=0.005, cpu_s=0.005, gil_s=0.005, gil_wait_s=0.005, step_s=0.01, cores=4)
    assert predict(profile, 1).rate == pytest.approx(1 / 0.015)
    assert predict(profile, 2).rate == pytest.approx(1 / 0.01625)
    assert predict(profile, 1).limit == "the step" and predict(profile, 1).starvation == pytest.approx(0)


@given(costs, costs, costs, st.integers(1, 16), st.integers(1, 64))
def test_more_threads_never_promise_less_and_the_range_holds_the_rate(
    wait_s: float, cpu_s: float, step_s: float, cores: int, threads: int
) -> None:
    profile = Profile(wait_s + cpu_s, cpu_s, 0.0, 0.0, step_s, cores)
    now, more = predict(profile, threads), predict(profile, threads + 1)
    assert more.rate >= now.rate
    assert now.low <= now.rate <= now.high * (1 + 1e-9)
    assert 0 <= now.starvation <= 1
    assert now.rate <= 1 / step_s * (1 + 1e-9)


def test_without_a_step_nothing_starves_and_nothing_is_bounded_by_it() -> None:
    found = predict(Profile(0.01, 0.0, 0.0, 0.0, 0.0, 2), 4)
    assert found.rate == pytest.approx(400) and found.high < math.inf
    assert found.low < found.rate < found.high


def test_the_definitions_of_starvation_and_utilisation() -> None:
    assert starvation(20, 0.02) == pytest.approx(0.6)
    assert starvation(100, 0.02) == 0
    assert utilisation(100, 0.009, wall_s=1.0) == pytest.approx(0.9)
