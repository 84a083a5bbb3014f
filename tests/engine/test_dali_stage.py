"""The stage alone, with small pipelines that can fail and that show their resources."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import augment as A
from fastfeed.augment.packing import PackedBatch, SampleKind
from fastfeed.core.batch import Batch, infer
from fastfeed.core.collate import collate
from fastfeed.core.stats import StageRow
from fastfeed.engine.dali_stage import AHEAD, DaliQueue, DaliStage
from fastfeed.engine.stage import Stage
from fastfeed.errors import BadImage, FeedError, ProducerFailed
from fastfeed.options import FeedOptions
from tests.augment.dalis import executed

SPEC = A.Augment([A.Flip(1.0)], on="dali-cpu")
BAD = 255  # the first pixel of an image that no pipeline can do with


class Fake:
    """Returns images unchanged. A bad one ends it, which it reports only at the next request, as
    DALI does."""

    made = 0

    def __init__(self, kinds: Sequence[SampleKind], rows: int) -> None:
        self._waiting: deque[PackedBatch] = deque()
        self._dead = False
        type(self).made += 1

    def start(self, packed: PackedBatch) -> None:
        if self._dead:
            raise RuntimeError("this pipeline is no longer valid")
        self._waiting.append(packed)

    def finish(self) -> list[Any]:
        if self._dead or any(
            sample.flat[0] == BAD for packed in self._waiting for sample in packed.samples[0]
        ):
            self._dead = True
            raise RuntimeError(
                "Critical error\nencountered:\n\nFailed to decode sample #0 : \nCurrent pipeline "
                "object"
            )
        packed = self._waiting.popleft()
        return [np.stack([sample.copy() for sample in column]) for column in packed.samples]


class Source(Stage):
    """Batches of images that are all of one number; None where it stands in `numbers`."""

    ready = True
    spec: Any = None

    def __init__(self, numbers: Sequence[Any], *, ready: bool = True) -> None:
        self.ready = ready
        self._numbers = iter(numbers)
        self._taken: Any = []
        self.leases: list[weakref.ref[Any]] = []

    def take(self) -> Batch | None:
        number = next(self._numbers)
        if isinstance(number, FeedError):
            raise number
        if number is None:
            return None
        self._taken = number
        return self.batch(number)

    def mark(self) -> Any:
        return {"taken": self._taken}

    def state(self) -> Any:
        return {"taken": self._taken, "batches": 0, "records": 0}

    def batch(self, numbers: Sequence[int]) -> Batch:
        records = [(np.full((2, 3, 1), n, np.uint8), n) for n in numbers]
        made = [executed(SPEC, record, 0, place=f"record {record[1]}") for record in records]
        value, varied = collate(made, None, place="a test")
        self.spec = self.spec or infer(value, ragged=True, varied=varied)
        checked: Batch = self.spec.check(value, "a test")
        self.leases.append(weakref.ref(checked.leaves[0]))
        return checked


class Landing(NamedTuple):
    """A batch that came through, the packed records that it stands for, and the state after it."""

    batch: Batch
    rows: int
    state: Any


def stage_of(source: Source, **options: Any) -> DaliStage:
    given = FeedOptions(augment=SPEC, **options)
    stage = DaliStage(given, list, row=StageRow(), queue=DaliQueue(SPEC, given, make=Fake))
    stage.after(source)
    return stage


def landing(stage: DaliStage) -> Iterator[Landing]:
    while (batch := stage.take()) is not None:
        yield Landing(batch, batch.rows + stage.lost, stage.state()["taken"])


def labels(landed: list[Landing]) -> list[list[int]]:
    return [one.batch.leaves[1].tolist() for one in landed]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=9), st.booleans())
def test_batches_land_in_their_order_and_with_their_marks(
    numbers: list[list[int]], ready: bool
) -> None:
    source = Source([*numbers, None], ready=ready)
    stage = stage_of(source)
    landed = list(landing(stage))
    assert labels(landed) == numbers
    assert [one.state for one in landed] == numbers
    assert all(
        (one.batch.leaves[0] == np.reshape(n, (-1, 1, 1, 1))).all()
        for one, n in zip(landed, numbers, strict=True)
    )
    assert stage.ended


def test_nothing_is_taken_beyond_an_end_before_it_was_told() -> None:
    source = Source([[1], None, [2], None])
    stage = stage_of(source)
    assert labels(list(landing(stage))) == [[1]]
    assert labels(list(landing(stage))) == [[2]]


def test_a_few_are_in_flight_and_hold_their_memory_until_they_land() -> None:
    source = Source([[n] for n in range(9)])
    stage = stage_of(source)
    flying = landing(stage)
    first = next(flying)
    gc.collect()
    assert stage.depth == AHEAD
    assert [lease() is not None for lease in source.leases] == [False, *[True] * AHEAD], (
        "the first has been read"
    )
    assert first.batch.leaves[0].shape == (1, 2, 3, 1)


def test_a_source_that_is_not_ready_is_not_waited_for_while_something_flies() -> None:
    source = Source([[n] for n in range(9)], ready=False)
    stage = stage_of(source)
    next(landing(stage))
    assert len(source.leases) == 1


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_bad_record_is_named_whatever_batch_it_is_in(at: int) -> None:
    numbers = [[10 * n, 10 * n + 1] for n in range(4)]
    numbers[at][1] = BAD
    source = Source([*numbers, None])
    stage = stage_of(source)
    landed = []
    with pytest.raises(ProducerFailed, match="record 255") as caught:
        landed += [one for one in landing(stage)]  # noqa: C416  # as far as they came
    assert isinstance(caught.value.__cause__, BadImage)
    assert "Failed to decode sample" in str(caught.value)


@given(st.lists(st.lists(st.sampled_from([1, 2, BAD]), min_size=1, max_size=4), max_size=7))
def test_bad_records_are_left_out_and_counted(numbers: list[list[int]]) -> None:
    source = Source([*numbers, None])
    stage = stage_of(source, on_error="skip")
    landed = list(landing(stage))
    good = [[n for n in batch if n != BAD] for batch in numbers]
    assert labels(landed) == [batch for batch in good if batch]
    assert stage._row.errors == sum(batch.count(BAD) for batch in numbers)
    rows = sum(map(len, numbers)) - (len(numbers[-1]) if numbers and not good[-1] else 0)
    assert sum(one.rows for one in landed) >= rows - sum(
        len(b) for b, g in zip(numbers, good, strict=True) if not g
    )


def test_whole_batches_only_where_they_were_promised() -> None:
    source = Source([[1, 2], [3, BAD], [4, 5], None])
    stage = stage_of(source, on_error="skip", last_batch="drop")
    landed = list(landing(stage))
    assert labels(landed) == [[1, 2], [4, 5]]
    assert [one.rows for one in landed] == [2, 4], "those left out count as had"


def test_what_came_amidst_is_done_again() -> None:
    """An exception of a signal handler, while a batch is waited for."""
    source = Source([[1], [2], [3], None])
    stage = stage_of(source)
    flying = landing(stage)
    assert labels([next(flying)]) == [[1]]
    pipe = stage._flights.oldest.pipe
    finish, pipe.finish = pipe.finish, interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        next(landing(stage))
    pipe.finish = finish  # type: ignore[method-assign]
    assert labels(list(landing(stage))) == [[2], [3]]


def interrupted() -> list[Any]:
    raise KeyboardInterrupt
