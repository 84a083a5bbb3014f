"""on_epoch_end of a source is called between epochs, and every copy of the source changes with
it."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, Mix, OptionError, ProducerError, StateError
from fastfeed.source.epoch_ends import EpochEnds
from tests.helpers.feeds import Broken
from tests.helpers.streams import LIMIT_S

RECORDS, BATCH, EPOCHS = 40, 4, 4
in_each = pytest.mark.parametrize(
    "producers",
    [
        {},
        {"threads": 3},
        {"threads": 3, "order": "any"},
        {"processes": 1},
        {"processes": 2, "threads": 2},
        {"processes": 2, "order": "any"},
    ],
    ids=str,
)


class Cells:
    """Batches of (record, call of on_epoch_end, entries of a cache), reshuffled as most data sets
    for Keras are."""

    def __init__(self, draw: Any = None) -> None:
        self.images = np.arange(RECORDS * 1000).reshape(RECORDS, 1000)  # too large to be sent again
        self.names = [str(number) for number in range(RECORDS)]
        self.draw = draw or random.Random(3)
        self.cache: dict[int, int] = {}
        self.step = self.calls_so_far  # a bound method leads back to the data set
        self.calls = -1
        self.on_epoch_end()

    def __len__(self) -> int:
        return RECORDS // BATCH

    def __getitem__(self, index: int) -> np.ndarray:
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        self.cache[index] = 1
        facts = [self.step()] * BATCH, [len(self.cache)] * BATCH
        return np.stack([self.images[rows, 0] // 1000, *facts], axis=1)

    def calls_so_far(self) -> int:
        return self.calls

    def on_epoch_end(self) -> None:
        self.order = list(range(len(self.names)))
        self.draw.shuffle(self.order)
        self.calls += 1
        self.cache.clear()


def epochs_of(source: Any, **options: Any) -> Iterator[np.ndarray]:
    options = {"epochs": EPOCHS, "records": False, **options}
    with FeedRunner(source, **options) as runner:
        for epoch in runner.epochs():
            yield np.concatenate(list(epoch))


@in_each
@pytest.mark.parametrize("draw", [random.Random, np.random.default_rng])
def test_each_epoch_is_that_of_its_call(producers: Any, draw: Any) -> None:
    alone, wanted = Cells(draw(3)), []
    for _ in range(EPOCHS):
        wanted.append([alone[index] for index in range(len(alone))])
        alone.on_epoch_end()
    for number, rows in enumerate(epochs_of(Cells(draw(3)), **producers)):
        found, expected = rows[:, 0].tolist(), np.concatenate(wanted[number])[:, 0].tolist()
        assert sorted(found) == list(range(RECORDS))
        if "order" not in producers:
            assert found == expected
        assert set(rows[:, 1]) == {number}, "no record is of another epoch"
        assert max(rows[:, 2]) <= len(alone), "the caches of all copies are emptied"


@pytest.mark.parametrize("producers", [{"threads": 2}, {"processes": 2}], ids=str)
def test_each_run_has_an_epoch_of_its_own(producers: Any) -> None:
    with FeedRunner(Cells(), records=False, epochs=1, **producers) as runner:
        found = [{int(batch[0, 1]) for batch in runner} for _ in range(EPOCHS)]
    assert found == [{number} for number in range(EPOCHS)]


left_early_in_each = pytest.mark.parametrize(
    "producers",
    [
        {},
        {"threads": 2},
        {"threads": 2, "prefetch": 4 * RECORDS},  # room for later epochs
        {"processes": 1},
        {"processes": 2, "threads": 2, "order": "any"},
    ],
    ids=str,
)


@left_early_in_each
def test_an_epoch_that_is_left_early_has_ended(producers: Any) -> None:
    with FeedRunner(Cells(), records=False, epochs=EPOCHS, **producers) as runner:
        found = []
        for epoch in runner.epochs():
            for batch in epoch:
                found.append(int(batch[0, 1]))
                break
    assert found == list(range(EPOCHS))


@left_early_in_each
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_of_a_sink_that_is_left_early_has_ended(producers: Any, epochs: int) -> None:
    with FeedRunner(Cells(), records=False, epochs=epochs, **producers) as runner:
        batches = runner.prefetch_to_device(lambda batch: batch.copy(), depth=1)
        found = []
        for turn in range(EPOCHS):
            for number, batch in enumerate(batches):
                found.append(int(batch[0, 1]))
                if turn != 1 and not number:  # the second one is read to its end
                    break
    length = RECORDS // BATCH
    second = [epochs + n for n in range(epochs) for _ in range(length)]
    assert found == [0, *second, *range(2 * epochs, EPOCHS * epochs, epochs)]


def test_a_worker_that_begins_later_has_what_was_changed() -> None:
    options: Any = {"records": False, "epochs": EPOCHS, "processes": 1, "prefetch": 1}
    with FeedRunner(Cells(), **options) as runner:
        for epoch in runner.epochs():
            if epoch.number == 1:
                runner.resize(processes=3)
            assert {int(call) for batch in epoch for call in batch[:, 1]} == {epoch.number}


def test_a_record_of_an_epoch_is_made_before_its_end_is_called() -> None:
    """One thread holds the last record back; the others wait for it with the next epoch."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Cells):
        def __getitem__(self, index: int) -> np.ndarray:
            if index == len(self) - 1 and not self.calls:
                begun.set()
                assert go_on.wait(LIMIT_S)
            return super().__getitem__(index)

    with FeedRunner(Slow(), records=False, epochs=2, threads=3, order="any") as runner:
        batches = iter(runner)
        found = [next(batches) for _ in range(RECORDS // BATCH - 1)]
        assert begun.wait(LIMIT_S)
        assert {int(batch[0, 1]) for batch in found} == {0}
        go_on.set()
        rest = [int(batch[0, 1]) for batch in batches]
    assert rest == [0] + [1] * (RECORDS // BATCH)


class Grown(Cells):
    """Attributes that come, go, and change in place."""

    def __init__(self) -> None:
        self.first = "there"
        self.table = np.zeros(20_000)
        super().__init__()

    def __getitem__(self, index: int) -> np.ndarray:
        facts = [hasattr(self, "first"), hasattr(self, "late"), int(self.table[-1])]
        return np.array([[*facts, len(self.images)]])

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        if self.calls:
            vars(self).pop("first", None)
            vars(self)["late"] = True
            self.table[-1] += 1


@pytest.mark.parametrize("producers", [{"threads": 2}, {"processes": 2}], ids=str)
def test_attributes_come_and_go(producers: Any) -> None:
    found = [set(map(tuple, rows.tolist())) for rows in epochs_of(Grown(), **producers)]
    assert found == [{(not n, bool(n), n, RECORDS)} for n in range(EPOCHS)]


class Nested(Cells):
    def __init__(self) -> None:
        self.inner = {"draw": random.Random(0)}
        super().__init__()

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self.inner["draw"].random()


class Opened(Cells):
    """A file that is no part of the state, which each copy opens itself."""

    def __init__(self) -> None:
        self.file: Any = threading.Lock()
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, file=threading.Lock())

    def on_epoch_end(self) -> None:
        with self.file:
            super().on_epoch_end()

    def __getitem__(self, index: int) -> np.ndarray:
        with self.file:
            return super().__getitem__(index)


class Otherwise(Cells):
    def __getstate__(self) -> Any:
        return [vars(self)]

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state[0])


class Failing(Cells):
    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        if self.calls:
            raise Broken("the index is gone")


def test_what_is_no_part_of_the_state_is_not_sent() -> None:
    rows = list(epochs_of(Opened(), processes=2))
    assert [set(each[:, 1]) for each in rows] == [{n} for n in range(EPOCHS)]


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (Nested(), "uses 'inner', which holds a random generator"),
        (Otherwise(), "its state is no dict"),
    ],
)
def test_what_cannot_be_sent(source: Any, match: str) -> None:
    assert len(list(epochs_of(source, threads=2))) == EPOCHS
    with pytest.raises(OptionError, match=match):
        list(epochs_of(source, processes=1))


@pytest.mark.parametrize("producers", [{"threads": 2}, {"processes": 1}], ids=str)
def test_a_call_that_fails_ends_the_feed(producers: Any) -> None:
    with pytest.raises(ProducerError, match="Broken: the index is gone"):
        list(epochs_of(Failing(), **producers))


def test_an_end_that_failed_is_called_again() -> None:
    ends: list[int] = []

    def call() -> None:
        ends.append(len(ends))
        if len(ends) == 1:
            raise Broken

    first = EpochEnds(call)
    with pytest.raises(Broken):
        first.end_before(1)
    second = EpochEnds(call, before=first)
    second.end_before(1)
    second.end_before(1)
    assert len(ends) == 2


def test_the_next_feed_waits_for_an_end_that_runs_and_makes_the_others() -> None:
    begun, goes_on, ends = threading.Event(), threading.Event(), list[str]()

    def call() -> None:
        begun.set()
        assert goes_on.wait(LIMIT_S)
        ends.append(threading.current_thread().name)

    first = EpochEnds(call)
    old = threading.Thread(target=first.end_before, args=(2,), name="old")
    old.start()
    assert begun.wait(LIMIT_S)
    made: list[EpochEnds] = []
    new = threading.Thread(target=lambda: made.append(EpochEnds(call, before=first)), name="new")
    new.start()
    assert not made
    goes_on.set()
    old.join(LIMIT_S)
    new.join(LIMIT_S)
    made[0].end_before(2)
    assert ends == ["old", "old"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"shard": (0, 2)}, "shard="),
        ({"remote": "auto"}, "remote="),
        ({"cache": "memory", "records": True, "batch_size": 2}, "cache="),
    ],
    ids=str,
)
def test_copies_that_would_change_otherwise_are_refused(options: Any, name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.* of Cells|{name} with Cells"):
        FeedRunner(Cells(), **{"records": False, **options})


def test_it_is_refused_in_a_mix() -> None:
    with pytest.raises(OptionError, match="must not have an on_epoch_end, got Cells"):
        Mix([(Cells(), 1.0)])


def test_its_state_is_refused() -> None:
    with (
        FeedRunner(Cells(), records=False) as runner,
        pytest.raises(StateError, match="has an on_epoch_end"),
    ):
        runner.state()


def test_a_data_set_of_keras_without_its_own_has_a_state() -> None:
    keras = pytest.importorskip("keras")

    class Plain(Cells, keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
        on_epoch_end = keras.utils.PyDataset.on_epoch_end

        def __init__(self) -> None:
            keras.utils.PyDataset.__init__(self)

        def __getitem__(self, index: int) -> np.ndarray:
            return np.zeros(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with FeedRunner(Plain(), records=False) as runner:
            assert runner.state()
