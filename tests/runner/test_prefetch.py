"""prefetch= bounds the batches that are made ahead of the training."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, Reorder, Worker
from tests.helpers.dying import until
from tests.helpers.streams import LIMIT_S

in_each_order = pytest.mark.parametrize(
    ("order", "indexed"),
    [("kept", True), ("kept", False), ("any", True), ("any", False), (Reorder(3), True)],
    ids=str,
)


class Noted:
    """Records that note in a file that they were read, from any process."""

    def __init__(self, file: Path, length: int = 400) -> None:
        self.file, self.length = file, length
        file.touch()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        with self.file.open("ab") as file:
            file.write(b".")
        return index

    def stream(self, worker: Worker) -> Iterator[np.ndarray]:
        """Yield this producer's share as batches of one record."""
        for index in range(worker.index, self.length, worker.count):
            yield np.array([self[index]])

    @property
    def reads(self) -> int:
        return self.file.stat().st_size


@pytest.mark.parametrize(("threads", "processes"), [(1, 0), (3, 0), (1, 2), (2, 2)], ids=str)
@in_each_order
def test_producers_run_no_further_ahead(
    threads: int, processes: int, *, order: Any, indexed: bool, tmp_path: Path
) -> None:
    noted = Noted(tmp_path / "reads")
    producers = threads * max(1, processes)
    source: Any = noted if indexed else noted.stream
    options: Any = {"threads": threads, "processes": processes, "order": order}
    options["batch_size"] = 1 if indexed else None
    with FeedRunner(source, prefetch=4, stall_timeout_s=LIMIT_S, **options) as runner:
        batches = iter(runner)
        for taken in (1, 4, 7):  # the producers are woken for several batches at once
            list(itertools.islice(batches, 3 if taken > 1 else 1))
            until(lambda: runner.snapshot().depth >= min(4, 4 * producers), "batches ahead")
            # one is in the making in each producer, one is held by the loop and one by its process
            assert noted.reads <= taken + max(4, processes) + 2 * producers + processes
        rest = list(batches)
    assert len(rest) == noted.length - 7


def test_a_straggler_holds_the_others_up(tmp_path: Path) -> None:
    noted, gate = Noted(tmp_path / "reads", 40), threading.Event()

    def slow(number: int) -> int:
        if number == 0:
            assert gate.wait(LIMIT_S)
        return number

    with FeedRunner(noted, batch_size=1, threads=4, prefetch=5, transform=slow) as runner:
        runner.start()
        until(lambda: runner.snapshot().depth == 5, "batches ahead")
        assert noted.reads <= 5 + 4
        gate.set()
        assert np.concatenate(list(runner)).tolist() == list(range(40))


def test_one_is_enough() -> None:
    for processes in (0, 2):
        options: Any = {"processes": processes, "threads": 3, "prefetch": 1}
        with FeedRunner(range(50), batch_size=5, stall_timeout_s=LIMIT_S, **options) as runner:
            assert np.concatenate(list(itertools.chain(runner))).tolist() == list(range(50))


@in_each_order
def test_one_needs_no_copies(order: Any, indexed: bool, tmp_path: Path) -> None:
    noted = Noted(tmp_path / "reads", 40)
    source: Any = noted if indexed else noted.stream
    options: Any = {"batch_size": 1} if indexed else {}
    with FeedRunner(
        source, prefetch=1, processes=1, order=order, stall_timeout_s=LIMIT_S, **options
    ) as runner:
        assert [int(batch[0]) for batch in runner] == list(range(40))
        assert runner.snapshot().consumed.copied == 0


@pytest.mark.parametrize("producers", [{"threads": 2}, {"processes": 1}])
def test_a_source_that_waits_for_the_training(producers: Any) -> None:
    """What was read is made into a batch while the source waits to give more, as one does whose
    next record depends on what the training has seen."""
    seen = [threading.Event() for _ in range(210)]

    def stream() -> Iterator[Any]:
        for number in range(210):
            # the first ones come quickly, so that workers ask for many at once
            assert number <= 200 or seen[number - 1].wait(LIMIT_S)
            yield np.full(1, number)

    with FeedRunner(stream(), stall_timeout_s=LIMIT_S, **producers) as runner:
        for batch in runner:
            seen[int(batch[0])].set()
    assert all(event.is_set() for event in seen)
