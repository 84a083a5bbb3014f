"""One object that is filled again for each record is refused, wherever it comes from."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedWarning, SpecError
from fastfeed.source.record_watch import RefilledItem


def one_dict() -> Iterator[dict[str, Any]]:
    record: dict[str, Any] = {}
    for number in range(1000):
        record["x"] = np.full(3, number)
        record["y"] = number
        yield record


def one_array() -> Iterator[tuple[Any, int]]:
    buffer = np.empty(3)
    for number in range(1000):
        buffer[:] = number
        yield buffer, number


def two_arrays() -> Iterator[tuple[Any, int]]:
    buffers = np.empty((2, 3))
    for number in range(1000):
        buffers[number % 2] = number
        yield buffers[number % 2], number


def new_ones() -> Iterator[tuple[Any, int]]:
    for number in range(1000):
        yield np.full(3, number), number


def the_same() -> Iterator[tuple[Any, int]]:
    record = np.zeros(3), 0
    for _ in range(1000):
        yield record


class Unreadable:
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class Video:
    """Frames that take long to decode."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("nobody asked for it")


def unreadable() -> Iterator[Any]:
    for number in range(1000):
        yield {"x": np.full(3, number), "about": Unreadable(), "video": Video()}


class Resized:
    """Records whose picture is written into one buffer, as by cv2.resize(..., dst=)."""

    def __init__(self) -> None:
        self.buffer = np.empty(3)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.buffer[:] = index
        return self.buffer, index


def batches_of(source: Any, **options: Any) -> list[Any]:
    with FeedRunner(source, batch_size=8, epochs=1, **options) as runner:
        return list(runner)


class Example:
    """A record of a plain class, as parsers have them."""

    def __init__(self, number: int) -> None:
        self.number = number


def one_example() -> Iterator[Any]:
    example = Example(0)
    for number in range(1000):
        example.number = number
        yield example


def number_of(example: Example) -> int:
    return example.number


@pytest.mark.parametrize("options", [{"threads": 2}, {"processes": 1}], ids=str)
def test_records_of_a_plain_class_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="fills one object again for each record"):
        batches_of(one_example(), records=True, transform=number_of, **options)


class Parsed:
    """A record with slots, of which one is not set."""

    __slots__ = ("_other", "number")


class Sentence(Parsed):
    """A record with the slots of another class, and none of its own."""

    __slots__ = ()


class Header(ctypes.Structure):
    """A record that a library of C fills."""

    _fields_ = [("number", ctypes.c_int32)]  # as ctypes wants it


class Word(ctypes.Union):
    """Another one."""

    _fields_ = [("number", ctypes.c_int32), ("bytes", ctypes.c_uint8 * 4)]


@pytest.mark.parametrize("kind", [Parsed, Sentence, Header, Word])
def test_records_with_slots_and_of_ctypes_are_refused(kind: Any) -> None:
    def records() -> Iterator[Any]:
        one = kind()
        for number in range(64):
            one.number = number
            yield one

    with pytest.raises(SpecError, match="fills one object again for each record"):
        batches_of(records(), records=True, transform=number_of)


def filled_again(kind: str) -> Iterator[Any]:
    start = {"dict": {"n": 0}, "list": [0], "object": Example(0), "array": array("l", [0])}
    one: Any = start[kind]
    for number in range(64):
        if kind == "object":
            one.number = number
        else:
            one["n" if kind == "dict" else 0] = number
        yield one


def row_of(one: Any) -> Any:
    number = one.number if isinstance(one, Example) else one["n" if isinstance(one, dict) else 0]
    return np.full(2, number)


@pytest.mark.parametrize("kind", ["dict", "list", "object", "array"])
def test_one_object_for_all_items_is_copied_for_workers_and_refused_in_threads(kind: str) -> None:
    with FeedRunner(filled_again(kind), transform=row_of, processes=2) as runner:
        assert [int(batch[0]) for batch in runner] == list(range(64))
    with (
        FeedRunner(filled_again(kind), transform=row_of, threads=2) as runner,
        pytest.raises(SpecError, match="is the object of the batch before, with other values"),
    ):
        list(runner)


def test_one_object_that_stays_what_it_is_may_come_again() -> None:
    stays = [{"n": 1}, Example(1), [1]]
    for one in stays:
        with FeedRunner(iter([one] * 16), transform=row_of, threads=2) as runner:
            assert [int(batch[0]) for batch in runner] == [1] * 16


def test_a_path_that_notes_its_text_may_come_again() -> None:
    path, watch = Path("images") / "1.png", RefilledItem()
    for number in (1, 2):
        watch.refuse(path, number)
        assert str(path)


@pytest.mark.parametrize("make", [one_dict, one_array, two_arrays])
@pytest.mark.parametrize("start", [lambda make: make, lambda make: make()])
def test_a_stream_that_fills_one_object_is_refused(
    make: Callable[[], Any], start: Callable[[Any], Any]
) -> None:
    with pytest.raises(SpecError, match="fills one object again for each record"):
        batches_of(start(make), records=True)


@pytest.mark.parametrize("options", [{}, {"threads": 2}, {"processes": 1}])
def test_a_data_set_that_fills_one_array_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="fills one object again"):
        batches_of(Resized(), **options)


def test_a_transform_that_fills_one_array_is_refused() -> None:
    buffer = np.empty(3)

    def transform(number: int) -> Any:
        buffer[:] = number
        return buffer

    with pytest.raises(SpecError, match="record 1 of .*fills one object again"):
        batches_of(range(1000), transform=transform)


def test_records_that_stay_what_they_are_pass() -> None:
    made = batches_of(new_ones, records=True)
    assert [int(labels[0]) for _, labels in made] == list(range(0, 1000, 8))
    assert len(batches_of(the_same(), records=True)) == 125
    pick = {"transform": lambda record: record["x"]}
    assert len(batches_of(unreadable(), records=True, **pick)) == 125


def halved_in_place(record: Any) -> Any:
    record[0][:] *= 0.5
    return record


def halved(record: Any) -> Any:
    return record[0] * 0.5, record[1]


def test_a_transform_that_changes_the_records_of_a_list_is_warned_of() -> None:
    records = [(np.full((4, 4), 8.0), n) for n in range(32)]
    with pytest.warns(FeedWarning, match="transform= changes the record in place"):
        batches_of(records, transform=halved_in_place)
    records = [(np.full((4, 4), 8.0), n) for n in range(32)]
    assert all((x == 4).all() for x, _ in batches_of(records, transform=halved))


def remembered(record: Any) -> Any:
    if record["x"] is None:
        record["x"] = np.full(3, record["n"])
    record["about"]["times"] = record["about"].get("times", 0) + 1
    return record["x"]


def test_a_transform_may_keep_what_it_has_made_in_the_records_of_a_list() -> None:
    records = [{"x": None, "n": n, "about": {}} for n in range(32)]
    with FeedRunner(records, batch_size=8, epochs=2, transform=remembered) as runner:
        assert [int(batch[0, 0]) for batch in runner] == 2 * [0, 8, 16, 24]


class Made:
    """Records that are made anew each time."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        return np.full((4, 4), 8.0), index


def test_a_transform_may_change_what_was_made_for_it() -> None:
    with FeedRunner(Made(), batch_size=8, epochs=2, transform=halved_in_place) as runner:
        assert all((x == 4).all() for x, _ in runner)


def one_buffer() -> Iterator[bytearray]:
    buffer = bytearray(4)
    for number in range(1000):
        buffer[:] = bytes([number % 256]) * 4
        yield buffer


def a_ring() -> Iterator[Any]:
    buffers = np.empty((5, 3))
    for number in range(1000):
        buffers[number % 5] = number
        yield buffers[number % 5]


class Ring:
    """A data set that fills three arrays in turn."""

    def __init__(self) -> None:
        self.buffers = np.empty((3, 2))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.buffers[index % 3] = index
        return self.buffers[index % 3]


@pytest.mark.parametrize("source", [one_buffer, a_ring, Ring()], ids=["buffer", "ring", "data"])
def test_memory_that_is_filled_in_turn_is_refused(source: Any) -> None:
    records = None if isinstance(source, Ring) else True
    with (
        FeedRunner(source, records=records, batch_size=8) as runner,
        pytest.raises(SpecError, match="has changed since it came"),
    ):
        list(runner)
