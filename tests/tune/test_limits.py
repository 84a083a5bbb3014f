"""How many producers there may be."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import FeedRunner, Remote
from fastfeed.core import machine
from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.options import FeedOptions
from fastfeed.producers.process.workers import share_of_worker
from fastfeed.ring.layout import slot_nbytes
from fastfeed.tune import limits
from fastfeed.tune.count_tuner import NOTHING_YET
from fastfeed.tune.limits import ProducerLimits


def snapshot_of(runner: FeedRunner) -> Snapshot:
    list(islice(runner, 20))
    return runner.snapshot()


def test_memory_bounds_the_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "cores_of_rank", lambda: 1000)
    records = np.zeros((100, 1000))
    with FeedRunner(records, batch_size=10, memory=400_000, threads=1) as runner:
        found = ProducerLimits("threads", runner.options).most(snapshot_of(runner), 1)
    assert found == (5, "memory=")


@pytest.mark.parametrize("remote", [None, Remote("local", producers=1)])
@pytest.mark.parametrize("processes", [1, 3])
@given(memory=st.integers(2**20, 2**32), nbytes=st.integers(1, 2**22), threads=st.integers(1, 4))
def test_each_worker_has_room_for_its_slots(
    remote: Remote | None, processes: int, memory: int, nbytes: int, threads: int
) -> None:
    given_ = FeedOptions(memory=memory, threads=threads, processes=processes, remote=remote)
    knob = "processes" if remote is None else "producers"
    most = limits.most_in_memory(given_, nbytes, knob=knob)

    def fit(count: int) -> bool:
        local = count if remote is None else processes
        now = given_.with_workers(local, 0 if remote is None else count)
        slot = slot_nbytes(2 * nbytes)
        return share_of_worker(now).fits(slot) and (
            remote is None or share_of_worker(now, remote=True).fits(slot)
        )

    assert most < 1 or fit(most)
    assert not fit(max(1, most + 2))  # a byte may be missing


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the limits, and the seconds of stalls for memory."""
    found = Clock()
    monkeypatch.setattr(limits, "time", found)
    monkeypatch.setattr(limits, "memory_stalls_s", lambda: found.stalls_s)
    monkeypatch.setattr(limits, "nearly_full", lambda share: found.full)
    monkeypatch.setattr(limits, "cores_of_rank", lambda: 1000)
    return found


class Clock:
    def __init__(self) -> None:
        self.now_s, self.stalls_s, self.full = 1000.0, 500.0, False
        self.cpu_s = 7.0

    def process_time(self) -> float:
        return self.cpu_s

    def monotonic(self) -> float:
        return self.now_s

    def go_on(self, seconds: float, *, stalls_s: float = 0.0) -> None:
        self.now_s += seconds
        self.stalls_s += stalls_s


WORK = Snapshot(9.0, StageRow(), StageRow(batches=9, nbytes=90), 0, 0, ())


def test_producers_leave_under_pressure(clock: Clock) -> None:
    limit = ProducerLimits("processes", FeedOptions(processes=8, memory="1GB"))
    assert limit.most(WORK, 8)[0] > 8
    clock.go_on(1.0, stalls_s=0.2)
    assert limit.most(WORK, 8) == (6, "the pressure on the memory")
    clock.go_on(1.0, stalls_s=0.2)
    assert limit.most(WORK, 6) == (5, "the pressure on the memory")
    clock.go_on(1.0, stalls_s=0.05)  # it is over at once
    assert limit.most(WORK, 5) == (5, "the pressure on the memory")
    clock.go_on(29.5)
    assert limit.most(WORK, 5)[0] > 8
    clock.full = True
    clock.go_on(1.0)
    assert limit.most(WORK, 1) == (1, "the pressure on the memory")
    threads = ProducerLimits("threads", FeedOptions(memory="1GB"))
    assert threads.most(WORK, 8) == (8, "the pressure on the memory"), "they would free nothing"


def test_streams_of_whose_batches_nothing_is_known_are_not_limited() -> None:
    assert limits.fitting(FeedOptions(remote=Remote("local")), 0, knob="producers") > 1000


def test_workers_that_grow_leave_no_room_for_many(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {7: 50_000_000, 8: 400_000_000}
    monkeypatch.setattr(limits, "private_nbytes", lambda pid: used[pid])
    monkeypatch.setattr(machine, "free_memory_nbytes", lambda: 1_000_000_000)
    limit = ProducerLimits("processes", FeedOptions(processes=2, memory="1GB"), pids=lambda: used)
    assert limit.most(WORK, 2) == (4, "the free memory, at 400 MB each")
    used[8] = 600_000_000
    clock.go_on(limits.ROOM_POLL_S)
    assert limit.most(WORK, 2) == (3, "the free memory, at 600 MB each")


def test_the_last_minute_says_what_a_producer_uses(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "cores_of_rank", lambda: 4)
    limit = ProducerLimits("threads", FeedOptions(memory="1GB"))
    for second in range(300):  # work for the cores, and then waits
        cpu_s, busy_s = 4.0 * min(second, 150), 4.0 * second
        made = StageRow(cpu_s=cpu_s, read_s=busy_s)
        clock.go_on(1.0)
        most, why = limit.most(replace(WORK, produced=made), 4)
        if 1 < second < 150:
            assert (most, why) == (6, "the number of cores"), "half as many again wait"
    assert most > 100


def test_a_first_batch_that_takes_a_core_has_it_alone(clock: Clock) -> None:
    limit = ProducerLimits("threads", FeedOptions(memory="1GB"))
    assert limit.most(NOTHING_YET, 1)[0] > 8
    clock.go_on(1.0)
    clock.cpu_s += 0.9
    assert limit.most(NOTHING_YET, 1) == (1, "the first batch, which takes a core,")
    clock.go_on(1.0)  # now it waits
    assert limit.most(NOTHING_YET, 1)[0] > 8
    clock.go_on(1.0)
    clock.cpu_s += 0.9
    assert limit.most(replace(NOTHING_YET, produced=StageRow(batches=1)), 1)[0] > 8


def test_a_refusal_is_forgotten(clock: Clock) -> None:
    limit = ProducerLimits("threads", FeedOptions(memory="1GB"))
    limit.refuse(3)
    assert limit.most(WORK, 3) == (3, "the system")
    clock.go_on(31.0)
    assert limit.most(WORK, 3)[0] > 3


def test_a_loop_begins_with_the_work_that_is_known_of_its_feed(clock: Clock) -> None:
    found = ProducerLimits("threads", FeedOptions(batch_size=1))
    for busy_s, cpu_s in ((0.05, 0.05), (0.5, 0.01)):
        row = StageRow(batches=1, cpu_s=cpu_s, read_s=busy_s)
        found.begin_feed()
        found.most(replace(NOTHING_YET, produced=row), 1)
        clock.now_s += 1.0
    assert found._core_share() >= 0.0


def test_the_nodes_of_a_cluster_limit_their_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's own memory does not."""
    monkeypatch.setattr(
        limits, "workers_that_fit", lambda count, *, nbytes: (2**30 // nbytes // 10**7, "memory")
    )
    for address, most in (("auto", 100), ("local", 1)):
        options = FeedOptions(remote=Remote(address, producers=1), memory="1GB")
        assert min(100, ProducerLimits("producers", options).most(NOTHING_YET, 1)[0]) == most


@pytest.mark.parametrize("auto", [{"threads": "auto"}, {"processes": "auto"}])
def test_memory_for_two_batches_is_enough(auto: dict[str, Any]) -> None:
    records = np.zeros((200, 1000))
    with FeedRunner(records, batch_size=10, memory=2_000_000, epochs=2, **auto) as runner:
        assert sum(len(one) for one in runner) == 400
    with FeedRunner(records, batch_size=10, memory=2 * 80_000, threads="auto") as runner:
        assert ProducerLimits("threads", runner.options).most(snapshot_of(runner), 1)[0] <= 2


@pytest.mark.parametrize("allowed", [0.5, 1.0])
def test_a_core_or_less_has_few_producers(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, allowed: float
) -> None:
    monkeypatch.setattr(machine, "quota", lambda: allowed)
    monkeypatch.setattr(limits, "cores_of_rank", machine.cores_of_rank)
    limit = ProducerLimits("threads", FeedOptions(memory="1GB"))
    for second in range(3):
        made = StageRow(cpu_s=float(second), read_s=float(second))
        clock.go_on(1.0)
        most = limit.most(replace(WORK, produced=made), 1)
    assert most == (2, "the number of cores")
