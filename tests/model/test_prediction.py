"""Predictions with their interval, and the fit to live runs."""

from dataclasses import replace

import numpy as np
import pytest

from fastfeed.model.prediction import LivePoint, calibrated, predict, resampled
from fastfeed.model.simulate import simulate
from fastfeed.model.workload import Producers, Workload
from tests.model.feeds import workload

SIM = {"accelerator": 0.008}


def test_an_interval_holds_the_rate_and_is_wider_after_fewer_batches() -> None:
    times = 0.05 * np.random.default_rng(0).lognormal(0, 1, 400)
    many, few = (predict(workload({"wait": times[:n]}, SIM), Producers(2)) for n in (400, 4))
    for one in (many, few):
        assert one.low < one.rate < one.high
        assert 0 <= one.starvation <= 1
    assert few.high / few.low > many.high / many.low


def test_a_profile_of_one_batch_is_enough() -> None:
    found = predict(workload({"wait": 0.05}, SIM), Producers(4))
    assert found.rate == pytest.approx(80, rel=0.01)
    assert found.limit == "the producers"


def test_a_resampled_workload_has_rows_of_the_observed_one() -> None:
    feed = workload({"wait": [0.1, 0.2, 0.3], "lock": [0.01, 0.02, 0.03]}, SIM)
    rows = {tuple(row) for row in feed.batches.tolist()}
    assert {tuple(row) for row in resampled(feed, seed=1).batches.tolist()} <= rows
    assert resampled(feed, seed=1).batches.tolist() == resampled(feed, seed=1).batches.tolist()


def live(feed: Workload, producers: Producers) -> tuple[Workload, LivePoint]:
    found = simulate(feed, producers)
    return feed, LivePoint(producers, found.rate, found.starvation)


def test_live_runs_tell_contention_and_turns_at_the_lock() -> None:
    costs = {"native": 0.012, "lock": 0.002}, {"native": 0.01, "lock": 0.001}
    truth = workload(*costs, cores=2, contention=0.6, turns=4.0)
    runs = [live(truth, Producers(n)) for n in (1, 4)]
    plain = workload(*costs, cores=2)
    found = replace(plain, **calibrated(plain, [(plain, point) for _, point in runs]))
    for _, point in runs:
        assert simulate(found, point.producers).rate == pytest.approx(point.rate, rel=0.05)
    assert simulate(found, Producers(2)).rate == pytest.approx(
        simulate(truth, Producers(2)).rate, rel=0.1
    )


def test_a_workload_that_explains_its_live_runs_stays() -> None:
    feed = workload({"wait": 0.05}, SIM)
    assert calibrated(feed, [live(feed, Producers(2))]) == {}
    assert calibrated(feed, []) == {}


def test_a_step_that_asks_often_for_the_lock_is_slower_beside_a_producer_that_keeps_up() -> None:
    """Twelve short kernels in a step, bytecode beside them: nothing waits, a fifth is lost."""
    feed = workload({"lock": 0.018}, {"accelerator": 0.038}, cores=2)
    alone = simulate(feed, Producers(1))
    assert alone.rate == pytest.approx(1 / 0.038, rel=0.02)
    found = replace(feed, **calibrated(feed, [(feed, LivePoint(Producers(1), 21.5, 0.0))]))
    assert simulate(found, Producers(1)).rate == pytest.approx(21.5, rel=0.05)
    assert simulate(found, Producers(1, 1)).rate == pytest.approx(alone.rate, rel=0.02)
