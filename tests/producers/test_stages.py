"""The stages of producers in threads and worker processes, by a clock that only user code moves."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastfeed import Augment, FeedRunner, Shuffle
from fastfeed.augment import Flip
from fastfeed.core import stage_clock
from fastfeed.core.stats import STAGES, StageRow, total
from fastfeed.engine import shuffle_stage
from fastfeed.producers import inbox, loop, reorder
from fastfeed.producers.process import outlet

HANDS = threading.local()
# seconds of a record, or of a batch, in each function of the user
READ_S, FILTER_S, TRANSFORM_S, COLLATE_S, BATCH_S = 2.0, 3.0, 5.0, 7.0, 11.0


def clock_of_the_thread() -> float:
    return float(getattr(HANDS, "now_s", 0.0))


FAKE = SimpleNamespace(perf_counter=clock_of_the_thread, thread_time=clock_of_the_thread)
CLOCKED = stage_clock, loop, inbox, reorder, outlet


def spend(seconds: float) -> None:
    HANDS.now_s = clock_of_the_thread() + seconds


class Records:
    """Records of a known time; also in a worker process, which installs the clock itself."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for module in CLOCKED:
            vars(module)["time"] = FAKE

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        spend(READ_S)
        return np.full(3, index)


class Deadly(Records):
    """The first process that reads the record 25 dies."""

    def __init__(self, length: int, flag: Path) -> None:
        super().__init__(length)
        self.flag = flag

    def __getitem__(self, index: int) -> Any:
        if index == 25 and not self.flag.exists():
            self.flag.touch()
            os._exit(3)
        return super().__getitem__(index)


def even(record: Any) -> bool:
    spend(FILTER_S)
    return not record[0] % 2


def twice(record: Any) -> Any:
    spend(TRANSFORM_S)
    return 2 * record


def stacked(records: list[Any]) -> Any:
    spend(COLLATE_S)
    return np.stack(records)


def halved(batch: Any) -> Any:
    spend(BATCH_S)
    return batch / 2


EVERYTHING: dict[str, Any] = {
    "batch_size": 4,
    "filter": even,
    "transform": twice,
    "collate": stacked,
    "batch_transform": halved,
}


@pytest.fixture(autouse=True)
def hands(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in CLOCKED:
        monkeypatch.setattr(module, "time", FAKE)


def expect(row: StageRow, *, items: int) -> None:
    """Check the stages of all batches of `items` records, half of which the filter leaves."""
    assert row.read_s == READ_S * 4 * items
    assert row.filter_s == FILTER_S * 4 * items
    assert row.transform_s == TRANSFORM_S * 2 * items + BATCH_S * items
    assert row.collate_s == COLLATE_S * items
    assert row.busy_s == sum(getattr(row, f"{stage}_s") for stage in STAGES)


@pytest.mark.parametrize("workers", [{"threads": 2}, {"processes": 2}])
def test_every_stage_has_its_own_time(workers: dict[str, int]) -> None:
    with FeedRunner(Records(80), **EVERYTHING, **workers) as runner:
        assert sum(len(batch) for batch in runner) == 40
        now = runner.snapshot()
    expect(total(now.producers), items=20)
    assert sum(row.batches for row in now.producers) == 20
    assert all(row.read_s == 4 * READ_S * row.batches for row in now.producers)


def test_resized_producers_keep_their_times() -> None:
    with FeedRunner(Records(80), threads=3, **EVERYTHING) as runner:
        for threads in (1, 4, 2):
            assert sum(len(batch) for batch in runner) == 40
            runner.resize(threads=threads)
        assert sum(len(batch) for batch in runner) == 40
    row = runner.snapshot().produced
    assert row.batches >= 80, "a further pass may have begun"
    expect(row, items=row.batches)


def test_the_time_of_a_dead_worker_stays(tmp_path: Path) -> None:
    options = {**EVERYTHING, "processes": 1, "on_worker_death": "restart"}
    with FeedRunner(Deadly(80, tmp_path / "died"), **options) as runner:
        assert sum(len(batch) for batch in runner) == 40
        row = total(runner.snapshot().producers)
    assert (tmp_path / "died").exists()
    expect(row, items=20)


def test_batches_of_a_callable_are_read_and_transformed() -> None:
    def batches() -> Iterator[Any]:
        for _ in range(6):
            spend(READ_S)
            yield np.ones((4, 3))

    def plus(batch: Any) -> Any:
        spend(TRANSFORM_S)
        return batch + 1

    with FeedRunner(batches, transform=plus) as runner:
        assert len(list(runner)) == 6
        row = runner.snapshot().produced
    assert row.stages == {"read": 6 * READ_S, "transform": 6 * TRANSFORM_S}


def test_augmentation_is_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cv2")
    from fastfeed.augment.opencv import OpenCV

    execute = OpenCV.execute

    def slow(self: OpenCV, record: Any) -> Any:
        spend(TRANSFORM_S)
        return execute(self, record)

    monkeypatch.setattr(OpenCV, "execute", slow)
    images = [np.zeros((8, 8, 3), np.uint8)] * 12
    with FeedRunner(images, batch_size=4, augment=Augment([Flip()])) as runner:
        assert len(list(runner)) == 3
        assert runner.snapshot().produced.stages == {"augment": 12 * TRANSFORM_S}


def test_the_wait_for_the_next_pass_is_in_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = inbox.EpochPermit.admit

    def late(self: inbox.EpochPermit, position: int) -> bool:
        spend(1000.0)
        return admit(self, position)

    monkeypatch.setattr(inbox.EpochPermit, "admit", late)
    with FeedRunner(Records(8), batch_size=4) as runner:
        for _ in range(3):
            list(runner)
    row = runner.snapshot().produced
    assert row.stages == {"read": 4 * READ_S * row.batches}


def test_a_shuffle_is_a_part_of_the_consumers_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    fake = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr(shuffle_stage, "time", fake)
    with FeedRunner(Records(80), batch_size=4, shuffle=Shuffle(16, 8)) as runner:
        stage = runner._stream
        assert len(list(runner)) == 20
        assert stage.feed is not None
        row, order = runner.snapshot().consumed, stage.feed._order
    assert 0 < row.shuffle_s < order.shuffle_s, "that of the first batch is warm-up"


def test_an_iterator_is_read_by_the_trainer_for_its_workers() -> None:
    def numbers() -> Iterator[Any]:
        for number in range(8):
            yield np.full((4, 3), number)

    with FeedRunner(numbers(), processes=1) as runner:
        assert len(list(runner)) == 8
        now = runner.snapshot()
    assert now.produced.read_s > sum(row.read_s for row in now.producers)
