"""Sources that fill one array again, in producer threads."""

from __future__ import annotations

import ctypes
import queue
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import FeedRunner, SpecError
from fastfeed.core.structure import leaves_of, structure_of
from fastfeed.producers.process.work_socket import own_payload
from fastfeed.source.reused_memory import RING, ReusedMemory, arrays_in
from tests.helpers.dying import until

COUNT = 40


def filled(ring: int, *, view: bool = False) -> Callable[[], Iterator[Any]]:
    """Return a source that fills `ring` arrays in turn."""

    def batches() -> Iterator[Any]:
        arrays = [np.empty((8, 4), np.float32) for _ in range(ring)]
        for number in range(COUNT):
            array = arrays[number % ring]
            array[:] = number
            yield (array[:4] if view else array), np.arange(4 if view else 8)

    return batches


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("ring", [1, 2, 3, RING])
def test_a_source_that_fills_an_array_again_is_refused_in_threads(ring: int, view: bool) -> None:
    source = filled(ring, view=view)
    what = "memory of an earlier batch|changed while it waited"  # whichever is seen first
    with FeedRunner(source) as runner, pytest.raises(SpecError, match=what):
        list(runner)
    with FeedRunner(source, processes=1) as runner:
        assert [int(x[0, 0]) for x, _ in runner] == list(range(COUNT))


KINDS: dict[str, Callable[[], Any]] = {
    "small": lambda: np.empty((4, 3)),
    "large": lambda: np.empty((64, 200)),
    "columns": lambda: np.empty((200, 64)).T,
    "bytes": lambda: np.empty(4, object),
    "many bytes": lambda: np.empty(400, object),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ring", [RING + 1, 12, 16])
def test_a_batch_whose_array_is_filled_again_while_it_waits_is_not_delivered(
    ring: int, kind: str
) -> None:
    """Also where another leaf is larger and new, and in an epoch of few batches."""
    filled_ones = []

    def batches() -> Iterator[Any]:
        arrays = [KINDS[kind]() for _ in range(ring)]
        for number in range(18):
            array = arrays[number % ring]
            array[:] = b"%d" % number
            filled_ones.append(number)
            yield array, np.zeros((len(array), 300))

    with FeedRunner(batches, prefetch=16) as runner:
        runner.start()
        until(lambda: len(filled_ones) > 16, "the array of the first batch is filled again")
        with pytest.raises(SpecError, match="batch 0 .*has changed while it waited"):
            next(iter(runner))


@pytest.mark.parametrize("rows", [8, 9], ids=["all", "rest"])
def test_what_is_cut_from_an_array_that_is_filled_again_is_not_delivered(rows: int) -> None:
    """Of parts that wait after their array has left the buffer, and of records that wait for those
    of the next one. How many records it has varies."""
    again, filled_ones = threading.Event(), []

    def batches() -> Iterator[Any]:
        array = np.empty((rows + 1, 2))
        for number in range(2):
            if number:
                assert again.wait(60)
            part = array[: rows + number % 2]
            part[:] = number
            filled_ones.append(number)
            yield part

    with FeedRunner(batches, batch_size=rows - 4, last_batch="keep") as runner:
        found = iter(runner)
        assert not next(found).any()
        again.set()
        until(lambda: len(filled_ones) > 1, "the array is filled again")
        with pytest.raises(SpecError, match="changed while it waited|an earlier batch"):
            next(found)


@pytest.mark.parametrize("ring", range(1, RING + 1))
@pytest.mark.parametrize("kind", ["rows", "bytes"])
def test_an_array_that_the_loop_may_have_is_refused_as_soon_as_it_comes_again(
    ring: int, kind: str
) -> None:
    memory, count = ReusedMemory(), 0
    arrays = [np.empty(9, object if kind == "bytes" else float) for _ in range(ring)]
    with pytest.raises(SpecError, match="an earlier batch"):
        for count in range(COUNT):
            part = arrays[count % ring][: 9 - (kind == "rows" and count % 5)]
            part[:] = b"%d" % count
            memory.refuse([part], "a batch")
    assert count == ring


def pool_of(rows: int, *, count: int) -> tuple[queue.Queue[Any], Callable[[], Iterator[Any]]]:
    """Return twelve arrays, and a source that fills those that are there."""
    pool: queue.Queue[Any] = queue.Queue()
    for _ in range(12):
        pool.put(np.empty((rows, 3)))

    def batches() -> Iterator[Any]:
        for number in range(count):
            array = pool.get(timeout=30)
            array[:] = number
            yield array

    return pool, batches


def test_arrays_that_come_back_from_the_loop_are_filled_again() -> None:
    """A pool as small as what may wait is large enough if the loop gives its arrays back."""
    found, (pool, batches) = list[int](), pool_of(4, count=200)
    with FeedRunner(batches, prefetch=10) as runner:
        for x in runner:
            found.append(int(x[0, 0]))
            pool.put(x)
    assert found == list(range(200))


def test_arrays_that_come_back_when_their_parts_were_used_are_filled_again() -> None:
    found, (pool, batches) = list[int](), pool_of(6, count=100)
    with FeedRunner(batches, prefetch=10, batch_size=3) as runner:
        for x in runner:
            found.append(int(x[0, 0]))
            if len(found) % 2 == 0:
                pool.put(x.base)
            del x
    assert found == [number // 2 for number in range(200)]


def test_a_loop_may_change_the_parts_of_an_array_that_is_new() -> None:
    def batches() -> Iterator[Any]:
        for number in range(COUNT):
            yield np.full((7, 4), number)

    with FeedRunner(batches, batch_size=2) as runner:
        found = []
        for x in runner:
            found += x[:, 0].tolist()
            x[:] = -1
    assert found == [number // 7 for number in range(7 * COUNT)]


def test_a_transform_that_fills_an_array_again_is_refused() -> None:
    x = np.empty((2, 3))

    def fill(batch: Any) -> Any:
        x[:] = batch[0]
        return x

    runner = FeedRunner(([n, n] for n in range(9)), records=False, transform=fill)
    with runner, pytest.raises(SpecError, match="Yield copies"):
        list(runner)


def shuffled() -> Iterator[Any]:
    """Of records, which change their places in one array after each four batches."""
    draws, data = np.random.default_rng(1), np.arange(32 * 9.0).reshape(32, 3, 3)
    while True:
        yield from np.split(data, 4)
        draws.shuffle(data)


def test_a_batch_that_changes_while_it_waits_is_refused() -> None:
    with FeedRunner(shuffled, prefetch=3) as runner:
        batches = iter(runner)
        with pytest.raises(SpecError, match="changed while it waited"):
            for _ in range(COUNT):
                next(batches)
                until(lambda: runner.snapshot().depth == 3, "three batches wait")


def test_copies_of_it_may_wait() -> None:
    with FeedRunner(lambda: (batch.copy() for batch in shuffled())) as runner:
        passes = np.stack([batch for batch, _ in zip(runner, range(COUNT), strict=False)])
    assert (np.sort(passes.reshape(-1, 288)) == np.arange(288.0)).all()


class Refilled:
    """An iterable, of which another thread works on what it fills again."""

    def __iter__(self) -> Iterator[Any]:
        return filled(1)()


def double(batch: Any) -> Any:
    return batch[0] * 2, batch[1]


def test_an_iterable_that_several_threads_read_is_refused() -> None:
    with (
        FeedRunner(Refilled(), transform=double, threads=3) as runner,
        pytest.raises(SpecError, match="memory of an earlier batch"),
    ):
        list(runner)


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Sample:
    x: Any
    y: Any


CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [[x, 1], y],
    "dict": lambda x, y: {"x": x, "y": y},
    "ordered": lambda x, y: OrderedDict(y=y, x=[x]),
    "named": Pair,
    "dataclass": Sample,
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_is_sent_to_workers_holds_no_array_that_the_source_fills(name: str) -> None:
    x = np.zeros(3)
    payload = CONTAINERS[name](x, "text")
    sent = own_payload(payload)
    x[:] = 1
    assert type(sent) is type(payload)
    (array,) = [one for one in arrays_in_all(sent) if isinstance(one, np.ndarray)]
    assert not array.any()


def mapped(folder: Path, mode: Any = "r+") -> Any:
    path = folder / "map"
    path.write_bytes(bytes(4))
    return np.memmap(path, np.uint8, mode)


MEMORY: dict[str, Callable[[Path], Any]] = {
    "map": mapped,
    "recarray": lambda _: np.zeros(4, np.uint8).view(np.recarray),
    "view": lambda _: memoryview(bytearray(4)),
    "ctypes": lambda _: (ctypes.c_uint8 * 4)(),
}


@pytest.mark.parametrize("name", MEMORY)
def test_what_is_sent_to_workers_is_no_memory_that_the_source_fills(
    name: str, tmp_path: Path
) -> None:
    one = MEMORY[name](tmp_path)
    sent = own_payload({"x": one})["x"]
    one[0] = 7
    assert type(sent) is (bytes if name == "view" else type(one))
    assert bytes(sent) == bytes(4)


def test_views_within_objects_and_arrays_are_sent_as_they_were() -> None:
    buffer = bytearray(4)
    row = np.zeros(2)
    objects = np.empty(2, object)
    objects[0], objects[1] = memoryview(buffer), [row]
    sent = own_payload((Pair(memoryview(buffer), row), objects))
    buffer[:], row[:] = b"7777", 7
    assert sent[0].x == bytes(4) and not sent[0].y.any()
    assert sent[1][0] == bytes(4) and not sent[1][1][0].any()


def test_a_row_and_the_objects_of_an_array_are_sent_as_they_were() -> None:
    table, objects = np.zeros(2, "u1,u1"), np.array([{"n": 0}, None])
    row, copied = own_payload((table[0], objects))
    table["f0"], objects[0]["n"] = 7, 7
    assert row["f0"] == 0 and copied[0] == {"n": 0}


def test_a_file_that_nobody_writes_is_sent_without_a_copy(tmp_path: Path) -> None:
    part = mapped(tmp_path, "r")[1:3]
    assert own_payload(part) is part


def test_objects_that_hold_each_other_are_sent_once() -> None:
    one, two = Sample(np.zeros(2), []), Plain()
    one.y.append(two)
    two.of = one
    sent = own_payload([one, threading.Lock(), ValueError, len])
    one.x[:] = 1
    two.name = "changed"
    copied = sent[0].y[0]
    assert not sent[0].x.any() and copied.name == "plain" and copied.of is sent[0]
    assert sent[2:] == [ValueError, len]


class Plain:
    """An object of a plain class."""

    def __init__(self) -> None:
        self.name, self.of = "plain", None


def arrays_in_all(value: Any) -> Any:
    return leaves_of(structure_of(value), value)


def test_what_has_no_arrays_is_sent_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(2)
    sent = own_payload((tensor, tensor.shape, tensor.dtype, object))
    tensor += 1
    assert sent[1:] == ((2,), torch.float32, object) and not sent[0].any()


class Pool:
    """An iterable of the memory of batches that nobody uses any more."""

    def __iter__(self) -> Iterator[Any]:
        memory, free = np.empty((9, 8, 4)), deque(range(9))
        for number in range(COUNT):
            at = free.popleft()
            batch = memory[at]
            batch[:] = number
            weakref.finalize(batch, free.append, at)
            yield batch
            del batch


@pytest.mark.parametrize("kind", [Pair, Sample, lambda x, y: OrderedDict(x=x, y=y), "torch"])
def test_any_leaf_that_several_threads_read_is_refused(kind: Any) -> None:
    if kind == "torch":
        torch = pytest.importorskip("torch")
        kind = lambda x, y: torch.from_numpy(x)  # noqa: E731

    def again() -> Iterator[Any]:
        memory = np.empty(4)
        record = kind(memory, 1)
        for number in range(64):
            memory[:] = number
            yield record

    class Again:
        def __iter__(self) -> Iterator[Any]:
            return again()

    with (
        FeedRunner(Again(), transform=lambda record: np.zeros(4), threads=3) as runner,
        pytest.raises(SpecError, match="has the memory of an earlier batch"),
    ):
        list(runner)


@pytest.mark.parametrize("name", ["map", "view"])
def test_new_views_of_one_memory_that_several_threads_read_are_refused(
    name: str, tmp_path: Path
) -> None:
    def views() -> Iterator[Any]:
        memory, given = MEMORY[name](tmp_path), []
        for number in range(8):
            memory[0] = number
            given.append(memory[:2])
            yield given[-1]

    class Views:
        def __iter__(self) -> Iterator[Any]:
            return views()

    with (
        FeedRunner(Views(), transform=lambda view: np.zeros(4), threads=3) as runner,
        pytest.raises(SpecError, match="has the memory of an earlier batch"),
    ):
        list(runner)


def test_objects_that_hold_each_other_are_read_once() -> None:
    one, two = Sample(np.zeros(2), []), Sample(np.ones(2), [])
    one.y.append(two)
    two.y.append(one)
    assert [leaf.tolist() for leaf in arrays_in(one)] == [[0.0, 0.0], [1.0, 1.0]]


def test_memory_that_nobody_uses_may_be_filled_by_several_threads() -> None:
    with FeedRunner(Pool(), transform=lambda batch: batch * 2, threads=2) as runner:
        assert [int(x[0, 0]) for x in runner] == list(range(0, 2 * COUNT, 2))


@pytest.mark.parametrize("options", [{"processes": 1}, {"processes": 2}, {}], ids=str)
def test_an_iterable_that_fills_its_batches_again_may_be_read_by_one(options: Any) -> None:
    with FeedRunner(Refilled(), transform=double, **options) as runner:
        assert [int(x[0, 0]) for x, _ in runner] == list(range(0, 2 * COUNT, 2))


def constant() -> Iterator[Any]:
    x = np.ones((8, 4))
    for _ in range(COUNT):
        yield x


def fresh() -> Iterator[Any]:
    for number in range(COUNT):
        yield np.full((8, 4), number)


def parts() -> Iterator[Any]:
    data = np.arange(8 * COUNT)
    for number in range(COUNT):
        yield data[8 * number : 8 * number + 8]


def views() -> Iterator[Any]:
    """Of one array that nobody changes: parts of it, and its columns."""
    data = np.arange(64).reshape(8, 8)
    for number in range(COUNT):
        yield data.T if number % 3 == 1 else data[: 8 - number % 3]


@pytest.mark.parametrize("source", [constant, fresh, parts, views])
def test_other_sources_pass(source: Callable[[], Iterator[Any]]) -> None:
    with FeedRunner(source) as runner:
        assert sum(1 for _ in runner) == COUNT


@given(st.integers(1, 3), st.integers(0, 200), st.booleans())
def test_nothing_is_said_of_memory_that_was_free_meanwhile(
    leaves: int, count: int, empty: bool
) -> None:
    """As the allocator gives it to one array after another."""
    memory, shape = ReusedMemory(), (0 if empty else 5, 2)
    for number in range(count):
        made = tuple(np.full(shape, number) for _ in range(leaves))
        memory.refuse(made, "a batch")
