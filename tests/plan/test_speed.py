"""Producers for a step, by the simulated feed."""

from __future__ import annotations

import pytest

from fastfeed.model.bounds import LIMIT_DISK
from fastfeed.model.workload import Producers
from fastfeed.plan.footprint import FeedSize, MemoryCost
from fastfeed.plan.hardware import assume
from fastfeed.plan.plan_figures import figures_from
from fastfeed.plan.speed import (
    cores_needed,
    fewest,
    seconds_of_step,
    setting_of,
    with_exchange,
    workload_of,
)


def figures(words: str):
    return assume(figures_from(words.split()))


def test_a_waiting_source_needs_as_many_threads_as_steps_fit_into_a_batch():
    workload = workload_of(figures("batch=10 source=4ms wait=100% step=10ms cores=2"))
    assert 4 <= fewest(workload).count <= 6 and not fewest(workload).processes


def test_bytecode_needs_processes():
    workload = workload_of(figures("batch=10 source=2ms lock=100% step=10ms cores=8"))
    assert fewest(workload).processes >= 2
    assert cores_needed(workload) == pytest.approx(2.0)


def test_slow_storage_is_the_limit():
    workload = workload_of(
        figures("batch=100 source=10us step=10ms stored=100KB storage=100MB/s cores=4")
    )
    cost = MemoryCost.assumed(1e8)
    found = setting_of(workload, Producers(8), size=FeedSize(1e4), cost=cost).prediction
    assert found.rate == pytest.approx(10, rel=0.05) and found.limit == LIMIT_DISK


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("step=8ms", 0.008),
        ("batch=64 step=32:8ms", 0.016),
        ("batch=48 step=32:164ms,64:292ms", 0.228),
        ("batch=64 flops=1G peak=1T efficiency=50%", 0.128),
        ("batch=64", None),
    ],
)
def test_seconds_of_a_step(words, seconds):
    found = seconds_of_step(figures(words))
    assert found == (seconds if seconds is None else pytest.approx(seconds, rel=0.01))


def test_an_exchange_makes_steps_longer():
    workload = workload_of(figures("batch=10 source=1us step=10ms cores=2"))
    slower = with_exchange(workload, 0.005)
    cost = MemoryCost.assumed(1e8)
    rates = [
        setting_of(w, Producers(1), size=FeedSize(1e4), cost=cost).prediction.rate
        for w in (workload, slower)
    ]
    assert rates[0] / rates[1] == pytest.approx(1.5, rel=0.02)
