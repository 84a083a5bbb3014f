"""The tuner finds the best number of producers, keeps it, and follows the training."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.tune.count_tuner import MOST_OWED, NOTHING_YET, CountTuner
from tests.tune.simulated import Curve, SimulatedTraining


def waiting(batch_s: float) -> Curve:
    return lambda count: count / batch_s


def on_cores(batch_s: float, cores: int) -> Curve:
    """Work that needs a core, and suffers from more producers than there are cores."""
    return lambda count: min(count, cores) / batch_s / (1 + 0.03 * max(0, count - cores))


# the speeds of a source behind one lock, as SPDL's authors have seen them
BEHIND_A_LOCK = {1: 40.0, 2: 70.0, 3: 90.0, 4: 80.0, 5: 72.0, 6: 66.0, 7: 60.0, 8: 55.0}


def behind_a_lock(count: int) -> float:
    return BEHIND_A_LOCK.get(count, 440.0 / count)


@pytest.mark.parametrize("step_s", [0.005, 0.02, 0.08])
@pytest.mark.parametrize(
    "rate",
    [waiting(0.05), waiting(0.3), on_cores(0.03, 4), on_cores(0.002, 2), behind_a_lock],
)
def test_the_best_number_is_found_in_20_seconds(rate: Curve, step_s: float) -> None:
    training = SimulatedTraining(rate, step_s=step_s)
    training.run(20)
    assert training.run(30) >= 0.95 * training.best, training.history
    assert not training.held_up


def test_batches_that_come_late_are_seen() -> None:
    training = SimulatedTraining(waiting(0.02), step_s=0.005, most=16)
    training.slow, training.slow_s = 0.02, 1.0
    training.run(60)
    assert training.held_up.startswith("steps wait for "), training.history


def test_a_lock_is_found_from_above() -> None:
    training = SimulatedTraining(behind_a_lock, step_s=0.001, count=8)
    training.run(30)
    assert training.count == 3, training.history


def test_fewer_do_as_well() -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.05, count=32)
    training.run(20)
    assert training.count <= 3, training.history
    assert training.run(20) >= 0.95 * training.best


@pytest.mark.parametrize("taken", [0.02, 0.1, 0.3])
@pytest.mark.parametrize(("batch_s", "count"), [(0.02, 1), (0.06, 8), (0.06, 16)])
def test_producers_that_take_cores_or_the_lock_from_the_step(
    taken: float, batch_s: float, count: int
) -> None:
    """Each beyond two makes the step slower, so that fewer are the best."""
    training = SimulatedTraining(waiting(batch_s), step_s=0.02, count=count)
    training.taken = taken
    training.run(30)
    steps = [0.02 * (1 + taken * max(0, n - 2)) for n in range(1, 33)]
    best = max(min(1 / step_s, n / batch_s) for n, step_s in enumerate(steps, 1))
    assert training.run(30) >= 0.95 * best, training.history
    assert training.count <= 4


@given(batch_s=st.floats(0.002, 0.5), step_s=st.floats(0.002, 0.1), cores=st.integers(1, 64))
def test_it_is_never_slower_than_one_producer(batch_s: float, step_s: float, cores: int) -> None:
    rate = on_cores(batch_s, cores)
    training = SimulatedTraining(rate, step_s=step_s)
    training.run(20 + 60 * batch_s)
    assert training.run(20) >= 0.97 * min(1 / step_s, rate(1)), training.history
    assert training.run(10) >= 0.9 * training.best, training.history


@pytest.mark.parametrize("slower", [0.25, 4.0])
def test_producers_that_change_are_followed(slower: float) -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.01)
    training.run(30)
    training.rate = waiting(0.05 * slower)
    training.run(20)
    assert training.run(20) >= 0.9 * training.best, training.history


def test_a_faster_step_is_followed() -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.02)
    training.run(30)
    training.step_s = 0.01
    training.run(20)
    assert training.run(20) >= 0.9 * training.best, training.history


def test_a_steady_training_is_left_alone() -> None:
    training = SimulatedTraining(on_cores(0.03, 2), step_s=0.01)  # waits, whatever is done
    training.run(60)
    training.changes.clear()
    training.run(1800)
    # another number is tried after 1, 2, 4, 8 and 16 minutes, and left at once
    tried = [at_s for at_s, count in training.changes if count != 2]
    assert 4 <= len(tried) <= 6
    assert all(later - before >= 60 for before, later in pairwise(tried))
    assert training.count == 2


def test_a_pause_of_the_training_changes_nothing() -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.02)
    training.run(30)
    count, known = training.count, training.history
    training.paused_until_s = training.now_s + 600
    training.run(700)
    assert (training.count, training.history) == (count, known)


def test_items_that_take_a_minute() -> None:
    training = SimulatedTraining(waiting(60.0), step_s=0.01, most=16)
    training.run(300)
    assert training.count == 16
    assert "no batch is ready yet" in training.history[0]


def test_no_more_than_is_allowed() -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.005)
    training.run(20)
    assert training.count >= 10
    training.most = 4
    training.run(1)
    assert training.count == 4
    assert training.history[-1].endswith("the test allows no more")
    training.run(30)
    assert training.count == 4
    assert max(count for _, count in training.changes[-3:]) >= training.count


@pytest.mark.parametrize("at_s", [0.5, 1.3, 1.6])
def test_a_pause_during_the_search(at_s: float) -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.005)
    training.run(at_s)
    training.paused_until_s = at_s + 5
    training.run(20 - at_s)
    assert training.run(20) >= 0.95 * training.best, training.history


def test_epochs_with_evaluations() -> None:
    training = SimulatedTraining(waiting(0.4), step_s=0.05)
    steps = 0.0
    for epoch in range(30):
        training.paused_until_s = training.now_s + 5
        rate = training.run(8)
        steps += rate * 8 * (epoch >= 10)
    assert steps >= 0.95 * 20 * 3 * training.best, training.history


@pytest.mark.parametrize("batch_s", [0.05, 0.2])
def test_loops_that_are_left_early(batch_s: float) -> None:
    training = SimulatedTraining(waiting(batch_s), step_s=batch_s / 10)
    for _ in range(20):
        training.run(2.5)
        training.begin_feed()
    assert training.run(2.5) >= 0.85 * training.best, training.history  # its first batch included
    assert training.changes[-1][0] < 20


def test_producers_that_become_cheaper() -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.01)
    training.run(60)
    training.rate = waiting(0.005)
    training.run(20)
    assert training.count == 1, training.history


def test_a_runner_that_waits_for_its_user_is_left_alone() -> None:
    training = SimulatedTraining(waiting(0.05), step_s=3600.0)
    training.run(3000)
    assert training.count == 1


def changes(training: SimulatedTraining, begin_s: float) -> int:
    return sum(at_s > begin_s for at_s, _ in training.changes)


def test_a_limit_that_ends_gives_the_number_back() -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.005)
    training.run(30)
    found, training.most = training.count, 4
    training.run(10)
    assert training.count == 4
    training.most = 64
    training.run(40)
    assert training.count == found
    assert training.history[-1] == f"threads 4 -> {found}: the test allows it again"


def test_a_limit_that_comes_and_goes() -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.005)
    training.run(60)
    for second in range(0, 600, 5):
        training.most = 64 if second % 10 else 4
        training.run(5)
    assert changes(training, 60) <= 14


def test_a_limit_that_comes_back_with_the_number_holds_ever_longer() -> None:
    """As the pressure on a memory that has room for five."""
    training = SimulatedTraining(waiting(0.05), step_s=0.005)
    training.run(60)
    for _ in range(3000):
        training.most = 5 if training.count > 5 else 64
        training.run(1)
    beyond = [at_s for at_s, count in training.changes if at_s > 60 and count > 5]
    assert beyond[1] < 200
    assert sum(at_s > 1000 for at_s in beyond) <= 5, training.history


def test_a_limit_counts_while_producers_start() -> None:
    tuner = CountTuner("threads", 8, limits=lambda *_: (3, "the test"))
    assert tuner.look(NOTHING_YET, 1.0, measures=False) == 3


@pytest.mark.parametrize("seed", range(3))
def test_a_heavy_tail(seed: int) -> None:
    training = SimulatedTraining(waiting(0.01), step_s=0.005, seed=seed)
    training.slow, training.slow_s = 0.02, 0.49
    training.run(40)
    assert training.run(300) >= 0.95 * 200, training.history  # the best fixed number has 200
    assert changes(training, 40) <= 10


@pytest.mark.parametrize("seed", range(4))
def test_batches_that_differ(seed: int) -> None:
    training = SimulatedTraining(on_cores(0.06, 2), step_s=0.01, seed=seed)
    training.noise = 0.7
    training.run(60)
    assert training.run(600) >= 0.85 * 2 / 0.06 / math.exp(0.7**2 / 2)
    assert changes(training, 60) <= 10 + MOST_OWED


@pytest.mark.parametrize("period_s", [4, 6, 15])
def test_a_step_that_alternates(period_s: int) -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.01)
    for turn in range(600 // period_s):
        training.step_s = 0.005 if turn % 2 else 0.01
        training.run(period_s)
    assert changes(training, 60) <= 14


def test_a_long_steady_training_still_follows_a_change() -> None:
    training = SimulatedTraining(on_cores(0.03, 2), step_s=0.01)
    training.run(3000)
    training.rate = waiting(0.05)
    training.run(20)
    assert training.run(20) >= 0.95 * training.best, training.history


def test_a_number_that_was_disturbed_is_measured_again() -> None:
    rates = {1: 50.0, 2: 95.0, 3: 70.0}
    training = SimulatedTraining(waiting(0.05), step_s=0.001, most=8)
    until: list[float] = []

    def rate(count: int) -> float:
        if count == 2 and not until:
            until.append(training.now_s + 4)
        slow = bool(until) and training.now_s < until[0]
        return rates.get(count, 60.0) * (0.35 if slow else 1.0)

    training.rate = rate
    training.run(40)
    assert until
    assert training.count == 2, training.history


def test_a_search_that_ended_too_high_goes_down_later() -> None:
    training = SimulatedTraining(lambda n: 95.0 if n == 2 else 70.0, step_s=0.001, count=3)
    training.tuner._have(3, why="the test")
    training.run(400)
    assert training.count == 2, training.history


def test_limits_cost_no_changes_of_their_own() -> None:
    training = SimulatedTraining(waiting(0.05), step_s=0.001, most=64)
    training.run(60)
    found = training.count
    for most in range(found, 0, -1):
        training.most = most
        training.run(1)
    training.most = 64
    training.run(150)
    assert training.count >= found / 2, training.history


def test_another_training_waits_for_no_debts() -> None:
    training = SimulatedTraining(on_cores(0.03, 2), step_s=0.01)
    training.run(60)
    for _ in range(6):  # searches that find nothing
        training.tuner._budget.note(gained=False)
        training.tuner._budget.spend(training.now_s)
    training.rate = waiting(0.2)
    training.run(200)
    assert training.count >= 12, training.history


def test_a_later_feed_that_begins_slowly_keeps_the_number() -> None:
    training = SimulatedTraining(waiting(0.01), step_s=0.02)
    training.run(30)
    found = training.count
    training.begin_feed()
    training.rate = lambda n: n / 5
    training.run(4.5)
    assert training.count == found, training.history
