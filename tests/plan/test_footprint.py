"""The memory of a feed, by the ring's and the buffer's own arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from fastfeed import FeedRunner
from fastfeed.core.worker import batches_ahead
from fastfeed.model.workload import Producers
from fastfeed.plan.balance import CostLine
from fastfeed.plan.footprint import FeedSize, MemoryCost, footprint, ring_nbytes

BATCH = np.zeros((64, 4096), np.uint8)


def batches(worker):
    while True:
        yield BATCH.copy()


def test_threads_have_the_buffer_and_a_batch_each():
    assert ring_nbytes(FeedSize(10**6), Producers(8)) == (batches_ahead(8) + 8) * 10**6
    assert ring_nbytes(FeedSize(10**6), Producers(8), starved=True) == 9 * 10**6


@pytest.mark.parametrize("producers", [Producers(1, 1), Producers(2, 2)])
def test_the_ring_has_as_many_slots_as_planned(producers):
    planned, slots = ring_nbytes(FeedSize(BATCH.nbytes), producers) / BATCH.nbytes, 0
    with FeedRunner(batches, threads=producers.threads, processes=producers.processes) as runner:
        for _ in zip(range(5000), runner, strict=False):  # until the last worker has begun
            slots = runner.snapshot().slots.all
            if slots >= planned:
                break
    assert slots == planned


def test_the_parts_add_up():
    cost = MemoryCost(100e6, CostLine(110e6, 1e6), CostLine(150e6, 10e6))
    found = footprint(FeedSize(1e6, pool=5e6, captured=40e6), Producers(1, 2), cost=cost)
    assert found.workers == pytest.approx(70e6) and found.captured == 40e6
    assert found.total == pytest.approx(100e6 + 70e6 + 40e6 + 5e6 + found.ring)
    threads = footprint(FeedSize(1e6, pool=5e6, captured=40e6), Producers(2), cost=cost)
    assert threads.captured == 0 and threads.workers == pytest.approx(12e6)


def test_an_assumed_worker_is_an_interpreter():
    cost = MemoryCost.assumed(500e6)
    assert footprint(FeedSize(1e3), Producers(1, 4), cost=cost).workers == 4 * 30e6


def test_batches_that_do_not_fit_still_have_a_size():
    size = FeedSize(1e9, memory=10**9)
    assert ring_nbytes(size, Producers(1)) == 2e9
    assert ring_nbytes(size, Producers(1, 2)) == pytest.approx(2 * 3 * 1e9, rel=0.01)
