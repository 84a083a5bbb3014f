"""Errors name what cannot be sent to another process: the part, its object, the reason, the
remedy."""

from __future__ import annotations

import contextlib
import csv
import functools
import logging
import re
import sqlite3
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastfeed.errors import OptionError
from fastfeed.producers.process import unpicklable
from fastfeed.producers.process.ship import pack


def numbers() -> Iterator[int]:
    yield 1


def explain(source: Any) -> str:
    with pytest.raises(OptionError) as failed:
        pack((source, 5), what="the source").close()
    assert str(failed.value).startswith("the source cannot be sent to worker processes")
    return str(failed.value)


class Holder:
    def __init__(self, lock: Any) -> None:
        self.fine = [1, 2]
        self.lock = lock
        self.me = self

    def batches(self) -> Any:
        return self.lock


class Slots:
    __slots__ = ("fine", "lock")

    def __init__(self, lock: Any) -> None:
        self.fine, self.lock = 1, lock


class Named(NamedTuple):
    fine: int
    file: Any


LOCK = threading.Lock()


def functions(lock: Any = LOCK) -> dict[str, Any]:
    """Return functions by the place of the lock. What is defined inside a function is pickled by
    value, as in a main module."""
    holder = Holder(lock)

    def closure() -> Any:
        return holder

    def default(fine: int = 1, locked: Any = lock, *, last: int = 0) -> Any:
        return locked

    def keyword(*, locked: Any = lock) -> Any:
        return locked

    def marked() -> None:
        pass

    marked.lock = lock  # type: ignore[attr-defined]
    scope: dict[str, Any] = {"sock": lock, "unused": lock, "__name__": "__main__"}
    exec("def uses(): return [sock for _ in (1,)]", scope)
    return {
        "attribute `lock` of `holder` in the closure of `closure`": closure,
        "attribute `lock` of the Holder that `Holder.batches` is bound to": holder.batches,
        "global variable `sock` of `uses`": scope["uses"],
        "default argument `locked` of `default`": default,
        "default argument `locked` of `keyword`": keyword,
        "attribute `lock` of `marked`": marked,
        "item [1] of item [1] of the state of the partial": functools.partial(numbers, 1, lock),
        "item ['locked'] of item [2] of the state of the partial": functools.partial(
            numbers, locked=lock
        ),
    }


def objects(locked: Any = LOCK) -> dict[str, Any]:
    class Shared:
        lock = locked

    class Property:
        @property
        def rows(self) -> Any:
            return locked

    return {
        "attribute `lock` of the Holder": Holder(locked),
        "attribute `lock` of item ['f'] of item [1] of the list": [1, {"f": Holder(locked)}],
        "attribute `lock` of the Slots": Slots(locked),
        "attribute `lock` of the class `Shared`": Shared(),
        "`locked` in the closure of `Property.rows`": Property,
        "item ['f'] of the dict": {"e": 1, "f": locked},
        "item [0] of item ['g'] of the defaultdict": defaultdict(list, g=[locked]),
        "item [1] of the deque": deque([1, locked]),
        "item [1] of the Named": Named(1, locked),
        "item [1, 0] of the ndarray": np.array([[1], [locked]], object),
        "a key of the dict": {locked: 1},
        "an element of the set": {1, locked},
    }


CASES = {**functions(), **objects()}


@pytest.mark.parametrize("text", CASES)
def test_the_part_is_named_with_its_reason_and_a_way_out(text: str) -> None:
    found = explain(CASES[text]).removeprefix("the source cannot be sent to worker processes: ")
    named, reason, ways_out = re.split(r" \((?=TypeError)|(?<=object)\)\. ", found)
    assert (named, reason) == (
        f"{text}, of type _thread.lock, cannot be pickled",
        "TypeError: cannot pickle '_thread.lock' object",
    )
    assert all(
        way in ways_out
        for way in ("inside the function", "`__getstate__`", "threads= instead of processes=")
    )


def test_an_object_may_refuse_by_itself() -> None:
    class Refuses:
        def __getstate__(self) -> Any:
            raise RuntimeError("not me")

    assert (
        "item [0] of the list, of type test_unpicklable.Refuses, cannot be pickled "
        "(RuntimeError: not me)" in explain([Refuses()])
    )


def test_a_file_and_a_database_are_named() -> None:
    with open("/dev/null", "rb") as file, contextlib.closing(sqlite3.connect(":memory:")) as base:
        assert "item ['f'] of the dict, of type _io.BufferedReader, cannot be pickled" in explain(
            {"f": file}
        )
        assert "`base` in the closure of `<lambda>`, of type sqlite3.Connection, cannot" in explain(
            lambda: base
        )
        assert (
            "that `Connection.execute` is bound to, of type sqlite3.Connection, cannot"
            in explain(base.execute)
        )
        assert "Open it inside the function" in explain(file)


def test_an_option_is_named_too() -> None:
    lock = threading.Lock()
    with pytest.raises(OptionError, match="`lock` in the closure of `<lambda>`"):
        pack((numbers, {"transform": lambda item: (item, lock)}), what="the source")


async def later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("iterator", "text"),
    [
        (
            numbers,
            "of type generator, .*creates it: `numbers`, not `numbers\\(\\)`.(?m:$)",
        ),
        (
            lambda: [numbers()],
            "item \\[0\\] of the list, of type generator, .*creates it: `numbers`, not "
            "`numbers\\(\\)`.(?m:$)",
        ),
        (lambda: map(str, numbers()), "of type generator, cannot .*creates it: `numbers`"),
        (
            lambda: numbers().__next__,
            "the generator that `generator.__next__` is bound to, .*creates it: `numbers`",
        ),
        (
            later,
            "of type async_generator, cannot be pickled .*`later`, not `later\\(\\)`",
        ),
        (
            lambda: csv.reader([]),
            "of type _csv.reader, cannot be pickled .*pass the function that creates it.(?m:$)",
        ),
    ],
)
def test_what_is_running_has_its_own_way_out(iterator: Callable[[], Any], text: str) -> None:
    found = explain(iterator())
    assert re.search(text, found)
    assert "A running iterator or coroutine cannot continue in another process" in found


def test_a_weak_reference_is_no_iterator() -> None:
    assert "running" not in explain(weakref.proxy(threading.Thread()))


def test_what_is_nested_too_deeply_is_nobodys_fault() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert "deep recursion required.). Store it in a list" in explain(nested)


def test_cycles_end() -> None:
    lock = threading.Lock()
    first: dict[str, Any] = {}
    second = {"first": first}
    first["second"] = second
    second["lock"] = lock
    assert "item ['lock'] of item ['second'] of the dict" in explain(first)


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpicklable, "MAX_PARTS", 20)
    fillers = [object() for _ in range(50)]
    lock = threading.Lock()
    assert "processes: item [0] of the list, of type _thread.lock" in explain([lock, *fillers])
    assert "processes (TypeError: cannot pickle '_thread.lock' object" in explain([*fillers, lock])


def test_what_only_looks_as_if_it_could_not_be_pickled_is_not_blamed() -> None:
    """cloudpickle has its own way with some things that pickle refuses."""
    lock, logger = threading.Lock(), logging.getLogger(__name__)

    class Abstract(Iterator[int]):
        name = property(lambda self: logger)

        def __next__(self) -> int:
            return len({lock})

    assert "`lock` in the closure of `Abstract.__next__`, of type _thread.lock," in explain(
        Abstract
    )
