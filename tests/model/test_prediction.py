"""The cost model of a feed: bounds, ranges, and what follows from them."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.model.prediction import (
    LivePoint,
    Producers,
    Profile,
    predict,
    starvation,
    utilisation,
)

costs = st.floats(1e-4, 1.0)


def figures(profile: Profile, producers: Producers) -> tuple[int, str]:
    """Return steps/s and the limit."""
    found = predict(profile, producers)
    return round(found.rate), found.limit


def test_waiting_producers_add_up_until_the_step_is_the_limit() -> None:
    profile = Profile(batch_s=0.05, cpu_s=0.0, gil_s=0.0, gil_wait_s=0.0, step_s=0.01, cores=2)
    assert [round(predict(profile, Producers(n)).rate) for n in (1, 2, 4, 8)] == [20, 40, 80, 100]
    assert [predict(profile, Producers(n)).limit for n in (1, 4, 8)] == [
        "the producers",
        "the producers",
        "the step",
    ]
    assert predict(profile, Producers(1)).starvation == pytest.approx(0.8)


def test_the_interpreter_lock_and_the_cores_bound_producers_that_compute() -> None:
    python = Profile(batch_s=0.01, cpu_s=0.01, gil_s=0.01, gil_wait_s=0.0, step_s=0.001, cores=4)
    native = Profile(batch_s=0.01, cpu_s=0.01, gil_s=0.0, gil_wait_s=0.0, step_s=0.001, cores=4)
    assert figures(python, Producers(8)) == (100, "the interpreter lock")
    assert figures(native, Producers(8)) == (400, "the cores")


def test_live_points_show_where_more_threads_stop_helping() -> None:
    live = (LivePoint(1, 20.0, 0.01, 0.008), LivePoint(4, 40.0, 0.01, 0.02))
    profile = Profile(
        batch_s=0.05, cpu_s=0.01, gil_s=0.0, gil_wait_s=0.0, step_s=0.004, cores=2, live=live
    )
    assert [predict(profile, Producers(n)).rate for n in (1, 2, 4, 16)] == pytest.approx(
        [20, 30, 40, 40]
    )
    assert [predict(profile, Producers(n)).starvation for n in (1, 4)] == pytest.approx(
        [1 - 20 * 0.008, 1 - 40 * 0.02]
    )


def test_what_fell_with_more_threads_goes_on_falling() -> None:
    live = (LivePoint(1, 90.0, 0.01, 0.01), LivePoint(4, 76.0, 0.01, 0.013))
    profile = Profile(
        batch_s=0.01, cpu_s=0.01, gil_s=0.01, gil_wait_s=0.005, step_s=0.004, cores=2, live=live
    )
    assert [predict(profile, Producers(n)).rate for n in (4, 8, 16)] == pytest.approx([76, 69, 62])
    assert predict(profile, Producers(10**6)).rate == pytest.approx(38)


def test_live_points_of_waiting_producers_go_on_until_the_step_is_the_limit() -> None:
    live = (LivePoint(1, 20.0, 0.01, 0.008), LivePoint(4, 80.0, 0.01, 0.006))
    profile = Profile(
        batch_s=0.05, cpu_s=0.0, gil_s=0.0, gil_wait_s=0.0, step_s=0.005, cores=2, live=live
    )
    assert [predict(profile, Producers(n)).rate for n in (1, 2, 8, 16)] == pytest.approx(
        [20, 40, 160, 200 / 1.1]
    )
    assert predict(profile, Producers(1)).starvation == pytest.approx(1 - 20 * 0.008)
    assert predict(profile, Producers(16)).starvation == pytest.approx(0)


def test_a_step_beside_a_held_lock_waits_for_it_and_longer_among_many() -> None:
    profile = Profile(
        batch_s=0.005, cpu_s=0.005, gil_s=0.005, gil_wait_s=0.005, step_s=0.01, cores=4
    )
    one, two = predict(profile, Producers(1)), predict(profile, Producers(2))
    assert one.rate == pytest.approx(1 / 0.015) and two.rate == pytest.approx(1 / 0.01625)
    assert one.limit == "the step" and one.starvation == pytest.approx(0)


def test_every_process_has_an_interpreter_lock_of_its_own() -> None:
    """5 ms of waiting and 10 ms of bytecode a batch: two threads fill a process, four the cores."""
    profile = Profile(
        batch_s=0.015, cpu_s=0.01, gil_s=0.01, gil_wait_s=0.005, step_s=0.001, cores=4
    )
    assert figures(profile, Producers(1, processes=1)) == (67, "the producers")
    assert figures(profile, Producers(4, processes=1)) == (100, "the interpreter lock")
    assert figures(profile, Producers(2, processes=3)) == (300, "the interpreter lock")
    assert figures(profile, Producers(2, processes=8)) == (400, "the cores")


def test_a_step_beside_processes_does_not_wait_for_the_lock_but_shares_the_cores() -> None:
    costs: Any = {"batch_s": 0.01, "cpu_s": 0.01, "gil_s": 0.01, "gil_wait_s": 0.005, "cores": 4}
    assert figures(Profile(**costs, step_s=0.01), Producers(1)) == (67, "the step")
    assert figures(Profile(**costs, step_s=0.01), Producers(1, processes=2)) == (100, "the step")
    assert figures(Profile(**costs, step_s=0.001, step_cpu_s=0.006), Producers(1, processes=8)) == (
        250,
        "the cores",
    )


def test_live_points_of_processes_add_up_as_their_locks_do() -> None:
    """80 batches/s of one process beside the step: its second thread uses the wait of the first."""
    live = (
        LivePoint(1, 80.0, 0.02, 0.005, processes=1),
        LivePoint(1, 320.0, 0.02, 0.005, processes=4),
    )
    costs: Any = {"batch_s": 0.012, "cpu_s": 0.008, "gil_s": 0.008, "gil_wait_s": 0.005, "cores": 8}
    profile = Profile(**costs, step_s=0.002, live=live)
    assert [predict(profile, Producers(1, processes=n)).rate for n in (1, 3)] == pytest.approx(
        [80, 240]
    )
    assert figures(profile, Producers(4, processes=2)) == (240, "the interpreter lock")
    assert figures(profile, Producers(4, processes=4)) == (455, "the step")


def test_live_points_of_processes_show_what_the_cores_carry() -> None:
    """Their rates add up to the measured one: unlike threads they do not share a lock."""
    live = (
        LivePoint(1, 80.0, 0.02, 0.006, processes=1),
        LivePoint(1, 150.0, 0.02, 0.008, processes=8),
    )
    costs: Any = {"batch_s": 0.01, "cpu_s": 0.01, "gil_s": 0.0, "gil_wait_s": 0.0, "cores": 2}
    profile = Profile(**costs, step_s=0.004, live=live)
    assert [
        predict(profile, Producers(1, processes=n)).rate for n in (1, 2, 8, 64)
    ] == pytest.approx([80, 150, 150, 150])
    assert predict(profile, Producers(1, processes=8)).limit == "the cores"
    found = [predict(profile, Producers(1, processes=n)).starvation for n in (1, 8)]
    assert found == pytest.approx([1 - 80 * 0.006, 0])
    falling = replace(profile, live=(live[0], replace(live[1], rate=60.0)))
    assert [predict(falling, Producers(1, processes=n)).rate for n in (1, 8)] == pytest.approx(
        [80, 60]
    )
    assert predict(falling, Producers(2, processes=8)).rate < 60


def test_one_live_point_of_processes_is_taken_in_proportion_until_the_cores_are_full() -> None:
    live = (LivePoint(2, 90.0, 0.02, 0.006, processes=2),)
    profile = Profile(0.04, 0.008, 0.0, 0.0, 0.003, 4, live, step_cpu_s=0.008)
    assert figures(profile, Producers(2, processes=2)) == (90, "the producers")
    assert figures(profile, Producers(4, processes=2)) == (180, "the producers")
    assert figures(profile, Producers(8, processes=2)) == (250, "the cores")


def test_live_points_of_threads_say_nothing_about_processes() -> None:
    live = (LivePoint(1, 20.0, 0.01, 0.008), LivePoint(4, 40.0, 0.01, 0.02))
    alone = Profile(batch_s=0.05, cpu_s=0.01, gil_s=0.0, gil_wait_s=0.0, step_s=0.004, cores=2)
    beside = replace(alone, live=live)
    assert predict(beside, Producers(1, processes=2)) == predict(alone, Producers(1, processes=2))
    assert predict(beside, Producers(4)) != predict(alone, Producers(4))


def test_producers_are_counted_and_named() -> None:
    assert [
        Producers(4).count,
        Producers(4, processes=1).count,
        Producers(4, processes=3).count,
    ] == [4, 4, 12]
    assert str(Producers(1)) == "1 thread"
    assert str(Producers(4, processes=2)) == "2 processes x 4 threads"
    assert str(Producers(1, processes=1)) == "1 process x 1 thread"


@given(costs, costs, costs, st.integers(1, 16), st.integers(1, 64), st.integers(0, 8))
def test_more_producers_never_promise_less_and_the_range_holds_the_rate(
    wait_s: float, cpu_s: float, step_s: float, cores: int, threads: int, processes: int
) -> None:
    profile = Profile(wait_s + cpu_s, cpu_s, cpu_s if processes else 0.0, 0.0, step_s, cores)
    now, more = (
        predict(profile, Producers(threads, processes)),
        predict(profile, Producers(threads + 1, processes)),
    )
    wider = predict(profile, Producers(threads, processes + 1))
    assert wider.rate >= now.rate
    assert more.rate >= now.rate
    assert now.low <= now.rate <= now.high * (1 + 1e-9)
    assert 0 <= now.starvation <= 1
    assert now.rate <= 1 / step_s * (1 + 1e-9)


def test_without_a_step_nothing_starves_and_nothing_is_bounded_by_it() -> None:
    found = predict(Profile(0.01, 0.0, 0.0, 0.0, 0.0, 2), Producers(4))
    assert found.rate == pytest.approx(400) and found.high < math.inf
    assert found.low < found.rate < found.high


def test_the_definitions_of_starvation_and_utilisation() -> None:
    assert starvation(20, 0.02) == pytest.approx(0.6)
    assert starvation(100, 0.02) == 0
    assert utilisation(100, 0.009, wall_s=1.0) == pytest.approx(0.9)
