"""The slots of worker processes that DALI reads: lent for as long as it does, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("nvidia.dali", reason="needs fastfeed[dali]")
from fastfeed import FeedRunner
from fastfeed import augment as A
from fastfeed.engine.dali_stage import AHEAD, DaliBatch, DaliQueue
from tests.helpers.dying import until
from tests.helpers.rings import give_back_early
from tests.helpers.streams import LIMIT_S

SIZE, BATCHES = 4, 16


class Numbered:
    """Images that are full of their index; some 120 KB in a batch, so that there are a few slots
    only."""

    def __len__(self) -> int:
        return SIZE * BATCHES

    def __getitem__(self, index: int) -> Any:
        return np.full((100, 100, 3), index, np.uint8), np.int64(index)


@pytest.fixture
def runner() -> Iterator[FeedRunner]:
    spec = A.Augment([A.Flip(0.0)], on="dali-cpu")
    options = {"processes": 1, "memory": "1MB", "stall_timeout_s": LIMIT_S}
    with FeedRunner(Numbered(), batch_size=SIZE, augment=spec, **options) as runner:
        yield runner


@pytest.fixture
def late(runner: FeedRunner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """DALI begins as late as can be: when the worker has written into every slot that it was given
    back. How many were lent then."""
    begin, finish = DaliQueue._begin, DaliQueue.finish
    lent: list[int] = []

    def busy() -> bool:
        now = runner.snapshot()
        return now.slots.free + now.slots.filling == 0 or now.produced.batches == BATCHES

    def finished(self: DaliQueue) -> Any:
        until(busy, "the worker to fill all slots")
        lent.append(runner.snapshot().slots.lent)
        begin(self, self.oldest)
        return finish(self)

    monkeypatch.setattr(DaliQueue, "_begin", lambda self, flight: None)
    monkeypatch.setattr(DaliQueue, "finish", finished)
    return lent


def right(runner: FeedRunner) -> list[bool]:
    """Return True if each batch belongs to its place: the labels lie in the slot, too."""
    found = []
    for number, (images, labels) in enumerate(runner):
        numbers = np.arange(number * SIZE, (number + 1) * SIZE)
        found.append(
            np.array_equal(labels, numbers) and bool((images == numbers[:, None, None, None]).all())
        )
    return found


def test_what_is_in_flight_stays_until_dali_has_read_it(
    runner: FeedRunner, late: list[int]
) -> None:
    assert right(runner) == [True] * BATCHES
    assert max(late) >= AHEAD
    until(lambda: runner.snapshot().slots.lent == 0, "the slots to come back")


def test_a_slot_that_came_back_too_early_would_be_seen(
    runner: FeedRunner, late: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that the test before this one can fail."""

    def ended(self: DaliQueue, flight: DaliBatch) -> None:
        give_back_early(flight.batch)

    monkeypatch.setattr(DaliQueue, "_begin", ended)
    assert not all(right(runner))


def test_results_are_dali_s_own_and_keep_no_slot(runner: FeedRunner) -> None:
    kept = list(runner)
    until(
        lambda: runner.snapshot().slots.lent == 0,
        "the slots to come back, whoever holds the results",
    )
    assert np.concatenate([labels for _, labels in kept]).tolist() == list(range(SIZE * BATCHES))
    assert all((images == labels[:, None, None, None]).all() for images, labels in kept)
