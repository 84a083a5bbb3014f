"""The simulation of a feed: what it must explain, and what it may never exceed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from fastfeed.model.simulate import simulate
from fastfeed.model.workload import (
    LIMIT_CORES,
    LIMIT_LOCK,
    LIMIT_PRODUCERS,
    LIMIT_STEP,
    Outcome,
    Producers,
    Workload,
    demands,
)
from tests.model.feeds import producers, workload, workloads

SIM = {"accelerator": 0.008}
RNG = np.random.default_rng(0)
TAIL = 0.05 * RNG.lognormal(0, 1, 500)


def rate(feed: Workload, made_by: Producers = Producers(1), **options: Any) -> float:  # noqa: B008
    return simulate(feed, made_by, **options).rate


@settings(deadline=None, max_examples=200)
@given(feed=workloads(), made_by=producers)
def test_no_bound_is_exceeded(feed: Workload, made_by: Producers) -> None:
    """Whole cycles of the observed batches and steps have their mean costs, except for batches that
    others overtook."""
    steps = 60 * len(feed.batches) * len(feed.steps)
    found = simulate(feed, made_by, steps=steps, warmup=0)
    overtaken = 0 if feed.ordered else made_by.count * len(feed.batches) / steps
    demand = max(demands(feed, made_by).values())
    assert found.rate * (1 - overtaken) * demand <= 1 + 1e-6
    assert 0 <= found.starvation <= 1
    assert 0 <= found.wait_p50_s <= found.wait_p99_s
    assert all(0 <= share <= 1 for share in found.busy.values())
    assert found.limit


@settings(deadline=None, max_examples=30)
@given(feed=workloads(), made_by=producers)
def test_a_seed_repeats(feed: Workload, made_by: Producers) -> None:
    assert simulate(feed, made_by, steps=50) == simulate(feed, made_by, steps=50)


def test_waits_overlap_until_the_step_is_the_limit() -> None:
    feed = workload({"wait": 0.05}, SIM)
    found = [simulate(feed, Producers(n)) for n in (1, 2, 4, 8)]
    assert [one.rate for one in found] == pytest.approx([20, 40, 80, 125], rel=0.01)
    assert [one.limit for one in found] == [
        LIMIT_PRODUCERS,
        LIMIT_PRODUCERS,
        LIMIT_PRODUCERS,
        LIMIT_STEP,
    ]
    assert found[0].starvation == pytest.approx(1 - 20 * 0.008, abs=0.01)
    assert found[0].wait_p50_s == pytest.approx(0.042, rel=0.01)


def test_threads_share_a_lock_and_processes_do_not() -> None:
    feed = workload({"lock": 0.02}, {"accelerator": 0.001}, turns=0.0)
    threads, processes = simulate(feed, Producers(4)), simulate(feed, Producers(1, 4))
    assert (threads.rate, threads.limit) == (pytest.approx(50, rel=0.01), LIMIT_LOCK)
    assert processes.rate == pytest.approx(200, rel=0.02)


def test_a_step_pays_a_switch_interval_for_each_rival() -> None:
    """Measured on two cores, with 10.2 ms of bytecode and a sleep of 8.2 ms: 85, 72, 68, 62 to 65
    and 61 steps/s."""
    costs = {"lock": 0.0102}, {"accelerator": 0.0082}
    found = [
        rate(workload(*costs, cores=2, depth=max(16, 4 * n), refill=0.5), Producers(n))
        for n in (1, 2, 4, 8, 16)
    ]
    assert found == pytest.approx([85, 72, 68, 64, 61], rel=0.1)


def test_producers_and_step_share_the_cores() -> None:
    feed = workload({"native": 0.03}, {"native": 0.01}, cores=2, contention=0.0)
    found = simulate(feed, Producers(8))
    assert (found.rate, found.limit) == (pytest.approx(50, rel=0.02), LIMIT_CORES)
    assert rate(feed, Producers(1)) == pytest.approx(1 / 0.03, rel=0.02)


def test_native_work_takes_longer_beside_other_work_and_bytecode_does_not() -> None:
    beside = {"native": 0.01}
    native = workload({"native": 0.02}, beside, cores=2, contention=0.3)
    python = workload({"lock": 0.02}, beside, cores=2, contention=0.3)
    assert rate(native, Producers(1, 1)) < 0.9 / 0.02
    assert rate(python, Producers(1, 1)) == pytest.approx(1 / 0.02, rel=0.01)


def test_a_disk_serves_so_many_reads_at_once() -> None:
    assert rate(workload({"disk": 0.02}, SIM), Producers(8)) == pytest.approx(125, rel=0.01)
    assert rate(workload({"disk": 0.02}, SIM, disks=1.0), Producers(8)) == pytest.approx(50, 0.01)


def test_a_heavy_tail_stalls_an_order_that_is_kept() -> None:
    kept = simulate(workload({"wait": TAIL}, SIM, ordered=True), Producers(8))
    early = simulate(workload({"wait": TAIL}, SIM, ordered=True, early=1000), Producers(8))
    deep = simulate(workload({"wait": TAIL}, SIM, ordered=True, depth=200), Producers(8))
    any_order = simulate(workload({"wait": TAIL}, SIM), Producers(8))
    assert kept.rate < 0.8 * any_order.rate
    assert kept.rate < early.rate <= any_order.rate * 1.01
    assert kept.rate < deep.rate
    assert kept.limit == "the order of the batches"


@pytest.mark.parametrize(("depth", "hidden"), [(1, False), (40, True)])
def test_a_deeper_buffer_hides_bursts_and_pauses_of_the_step(depth: int, hidden: bool) -> None:
    """Ten batches at once after 90 ms, for a step of 8 ms; a step pauses for 90 ms now and then."""
    burst = {"wait": [0.07, *[0.0] * 9]}
    steps = {"accelerator": [0.094, *[0.004] * 19]}
    found = rate(workload(burst, steps, depth=depth))
    ideal = 1 / (0.004 + 0.09 / 20)
    assert (found > 0.97 * ideal) == hidden


def test_the_training_thread_makes_its_batches_itself() -> None:
    found = simulate(workload({"wait": 0.05, "native": 0.01}, SIM), Producers(0))
    assert found.rate == pytest.approx(1 / 0.068, rel=0.01)
    assert found.starvation == pytest.approx(0.06 / 0.068, abs=0.01)


@pytest.mark.parametrize("made_by", [Producers(0), Producers(3), Producers(2, 2)], ids=str)
def test_a_step_of_no_time_and_batches_of_no_time(made_by: Producers) -> None:
    found: Outcome = simulate(workload({"wait": 0.0}, {}), made_by, steps=100)
    assert found.rate > 1e6


@pytest.mark.parametrize("depth", [0, 1])
def test_without_a_buffer_a_batch_waits_in_its_producers_hands(depth: int) -> None:
    feed = workload({"wait": 0.01}, {"accelerator": 0.01}, depth=depth)
    assert rate(feed, Producers(2)) == pytest.approx(100, rel=0.02)
