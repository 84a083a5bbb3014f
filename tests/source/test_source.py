"""Sources: recognised, shared between producers without loss, and refused if they cannot work."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedOptions, FeedRunner, OptionError, ProducerError, Worker
from fastfeed.source import CallableSource, EpochEnd, IndexedSource, Item, SharedSource, source_from
from tests.helpers.feeds import Readable


def worker(index: int = 0, count: int = 1, epoch: int = 0) -> Worker:
    return Worker(index, count, seed=5, epoch=epoch)


def pairs(items: Iterable[Item]) -> list[Any]:
    """Return tickets and payloads."""
    return [(item.ticket, item.payload) for item in items]


def read(given: Any, *, epoch: int = 0, **options: Any) -> list[Any]:
    """Return all items of one producer in one epoch."""
    return pairs(source_from(given, FeedOptions(**options)).open(worker(epoch=epoch)))


class Rows:
    """An indexable and nothing else."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index * 10


class OldIterable:
    """The iteration protocol from before __iter__."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise IndexError
        return index


class CallableRows(Rows):
    def __call__(self) -> Iterator[int]:
        return iter([1])


class Abstract:
    """The base class of all data sets, as in torch and others."""

    def __getitem__(self, index: int) -> int:
        raise NotImplementedError("Subclasses should implement __getitem__.")


class SizedIterable(Abstract):
    """An iterable with a length, as torch's IterableDataset and WebDataset may have."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def __len__(self) -> int:
        return self.length


class Concrete(Abstract):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("read by index")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (lambda: iter([]), CallableSource),
        (partial(iter, []), CallableSource),
        (CallableRows(2), IndexedSource),
        (partial(Rows, 2), CallableSource),
        (Concrete, CallableSource),
        (SizedIterable(3), SharedSource),
        (Concrete(), IndexedSource),
        (deque([1, 2]), IndexedSource),
        (array("i", [1, 2]), IndexedSource),
        (memoryview(b"ab"), IndexedSource),
        ({1: 2}.values(), SharedSource),
        ({1: 2}.items(), SharedSource),
        (zip([1], [2], strict=True), SharedSource),
        (iter([1]), SharedSource),
        ((i for i in range(2)), SharedSource),
        (iter(lambda: 1, 2), SharedSource),
        ({1, 2}, SharedSource),
        (OldIterable(), SharedSource),
        ([1, 2], IndexedSource),
        (np.arange(4), IndexedSource),
        (Rows(3), IndexedSource),
    ],
)
def test_each_kind_is_recognised(given: Any, kind: type) -> None:
    assert type(source_from(given, FeedOptions(batch_size=2))) is kind


@pytest.mark.parametrize("given", [3, None, "text", b"bytes", {"x": 3}, object()])
def test_what_is_no_source(given: Any) -> None:
    with pytest.raises(
        OptionError, match=f"the source must be a callable .*, got {type(given).__name__}(?m:$)"
    ):
        source_from(given, FeedOptions())


@pytest.mark.parametrize("producers", [{"threads": 2}, {"processes": 1}], ids=str)
def test_what_can_be_iterated_and_has_a_length(producers: dict[str, int]) -> None:
    options: dict[str, Any] = {"records": True, "batch_size": 3, "epochs": 2, **producers}
    with FeedRunner(SizedIterable(8), transform=lambda n: n, **options) as runner:
        assert np.concatenate(list(runner)).tolist() == [*range(8), *range(8)]
    with pytest.raises(OptionError, match="sampler= requires an indexable source"):
        FeedRunner(SizedIterable(8), sampler=[1], records=True, batch_size=2)


def test_data_sets_of_torch() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Sized(data.IterableDataset):  # type: ignore[misc, name-defined]
        __iter__, __len__ = SizedIterable.__iter__, SizedIterable.__len__
        length = 8

    class Callable(data.Dataset):  # type: ignore[misc, name-defined]
        __getitem__, __len__, __call__ = Rows.__getitem__, Rows.__len__, CallableRows.__call__
        length = 8

    for source, factor in ((Sized(), 1), (Callable(), 10), (data.Subset(Callable(), range(8)), 10)):
        with FeedRunner(source, records=True, batch_size=3) as runner:
            assert np.concatenate(list(runner)).tolist() == [n * factor for n in range(8)]


# webdataset leaves its file open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_web_dataset_with_a_length(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "0.tar")) as tar:
        for number in range(5):
            tar.write({"__key__": str(number), "cls": number})
    data = webdataset.WebDataset(str(tmp_path / "0.tar"), shardshuffle=False).decode()
    with FeedRunner(
        data.to_tuple("cls").with_length(5, silent=True), records=True, batch_size=2
    ) as runner:
        assert [n for (batch,) in runner for n in batch.tolist()] == list(range(5))


def test_a_callable_gets_worker_by_name_only_if_it_asks() -> None:
    def shared(worker: Worker) -> Iterator[int]:
        yield from range(worker.index, 10, worker.count)

    options = FeedOptions(threads=3)
    source = source_from(shared, options)
    parts = [[item.payload for item in source.open(worker(i, 3))] for i in range(3)]
    assert sorted(chain(*parts)) == list(range(10))
    assert read(lambda *args, **kwargs: iter([len(args) + len(kwargs)])) == [(None, 0)]
    assert read(lambda *, worker=None: iter([worker.epoch]), epoch=4) == [(None, 4)]


def test_a_callable_that_needs_more_is_refused_with_the_names() -> None:
    with pytest.raises(
        OptionError,
        match=r"must work without arguments.* it requires path, size.*functools\.partial",
    ):
        source_from(lambda path, size, worker: iter([]), FeedOptions())


@pytest.mark.parametrize("returned", [3, None, (1, 2), {"x": 1}, np.zeros(3)])
def test_a_callable_must_return_a_stream(returned: Any) -> None:
    with pytest.raises(
        OptionError,
        match=rf"must return an iterator of batches, it returned {type(returned).__name__}.*yield",
    ):
        read(lambda: returned)


@pytest.mark.parametrize(
    "makes", [lambda: [1, 2], lambda: iter([1, 2]), lambda: (i for i in (1, 2))]
)
def test_a_callable_may_return_any_stream(makes: Any) -> None:
    assert read(makes) == [(None, 1), (None, 2)]


def test_a_finite_callable_under_several_producers_names_three_ways_out() -> None:
    source = source_from(lambda: iter([1]), FeedOptions(threads=2))
    with pytest.raises(
        OptionError, match=r"2 producers.*`worker`.*transform=.*take `worker` and not use it"
    ):
        list(source.open(worker(0, 2)))
    allowed = source_from(lambda worker: iter([1]), FeedOptions(threads=2))
    assert [pairs(allowed.open(worker(i, 2))) for i in (0, 1)] == [[(None, 1)]] * 2


def test_one_generator_for_two_producers_is_refused() -> None:
    one = iter(range(5))
    source = source_from(lambda: one, FeedOptions(threads=2))
    first, second = source.open(worker(0, 2)), source.open(worker(1, 2))
    next(first)
    with pytest.raises(
        OptionError, match=r"same \w+ object to producers 0 and 1: it must return a new one"
    ):
        next(second)


def test_a_callable_that_returns_a_used_up_iterator() -> None:
    one = iter([1, 2])
    source = source_from(lambda: one, FeedOptions(epochs=2))
    assert len(list(source.open(worker()))) == 2
    with pytest.raises(OptionError, match="empty in epoch 1 .*new iterator"):
        list(source.open(worker(epoch=1)))


@pytest.mark.parametrize(
    ("given", "options"),
    [(lambda: iter("abcde"), {}), (iter("abcde"), {}), (set("abcde"), {}), (list("abcde"), {})],
)
def test_records_come_in_lists_of_batch_size(given: Any, options: dict[str, Any]) -> None:
    chunks = [
        chunk
        for _, chunk in read(given, records=True, batch_size=2, **options)
        if chunk is not EpochEnd
    ]
    assert list(map(len, chunks)) == [2, 2, 1]


@pytest.mark.parametrize("given", [lambda: iter("ab"), iter("ab"), list("ab")])
def test_records_need_a_batch_size(given: Any) -> None:
    with pytest.raises(OptionError, match="single records needs batch_size="):
        source_from(given, FeedOptions(records=True))


def test_one_stream_is_read_once_by_all() -> None:
    source = source_from(iter(range(200)), FeedOptions(threads=4))
    got: list[list[Any]] = [[] for _ in range(4)]
    together = threading.Barrier(4)

    def reader(index: int) -> None:
        together.wait()
        got[index] += source.open(worker(index, 4))

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = sorted(pairs(chain(*got)), key=lambda item: item[0])
    assert every == [*((i, i) for i in range(200)), (200, EpochEnd)]


def test_tickets_count_on_over_epochs() -> None:
    source = source_from({7}, FeedOptions(epochs=2))
    assert pairs(source.open(worker())) == [(0, 7), (1, EpochEnd)]
    assert pairs(source.open(worker(epoch=1))) == [(2, 7), (3, EpochEnd)]
    assert pairs(source.open(worker())) == [], "who comes late finds the epoch over"


def test_a_stream_that_failed_has_ended_for_all() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    source = source_from(broken(), FeedOptions(threads=2))
    with pytest.raises(ProducerError, match="batch 1 raised OSError: disk"):
        list(source.open(worker()))
    assert pairs(source.open(worker(1, 2))) == []


def test_an_iterator_cannot_have_two_epochs() -> None:
    with pytest.raises(OptionError, match=r"epochs=2 needs a source that can be read again"):
        source_from(iter([1]), FeedOptions(epochs=2))


def test_indices_are_the_same_for_any_number_of_producers() -> None:
    def plan(seed: int, epoch: int) -> list[Any]:
        source = source_from(Rows(10), FeedOptions(batch_size=3, shuffle=True))
        items = pairs(source.open(Worker(0, 1, seed, epoch)))
        assert [t for t, _ in items] == list(range(5))
        return [part for _, part in items if part is not EpochEnd]

    assert sorted(chain(*plan(1, 0))) == list(range(10))
    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(1, 1)
    assert plan(1, 0) != plan(2, 0)
    assert source_from(Rows(10), FeedOptions(batch_size=3)).reader.fetch(4) == 40


def test_a_length_that_changes_between_epochs() -> None:
    rows = Rows(4)
    source = source_from(rows, FeedOptions(batch_size=2, epochs=2))
    list(source.open(worker()))
    rows.length = 5
    with pytest.raises(OptionError, match="changed from 4 to 5"):
        list(source.open(worker(epoch=1)))


@pytest.mark.parametrize(
    ("length", "options", "message"),
    [
        (0, {"batch_size": 2}, "the source is empty: it must have at least one record"),
        (
            3,
            {"batch_size": 4, "last_batch": "drop"},
            "batch_size=4 can never be filled: the source has 3 records",
        ),
    ],
)
def test_an_indexable_that_cannot_work(length: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source_from(Rows(length), FeedOptions(**options))


class BrokenRows(Rows):
    def __getitem__(self, index: int) -> int:
        raise OSError("disk")


def broken_stream() -> Iterator[int]:
    yield 1
    raise OSError("disk")


@pytest.mark.parametrize(
    "given", [broken_stream, broken_stream(), Readable(broken_stream), BrokenRows(4)]
)
def test_the_trace_of_an_error_begins_in_the_users_own_code(given: Any) -> None:
    options: dict[str, Any] = {"records": False, "transform": lambda item: np.full(2, item)}
    with pytest.raises(ProducerError) as caught, FeedRunner(given, **options) as runner:
        list(runner)
    frames = [line for line in str(caught.value).splitlines() if line.lstrip().startswith("File ")]
    assert __file__ in frames[0], "none of our own loops"
