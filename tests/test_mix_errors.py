"""A producer's error reaches the consumer in the same words from processes and threads."""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedError, OptionError, ProducerError, Skip, SpecError, Worker
from tests.helpers.feeds import Broken, Readable, broken_after, chunks, copies
from tests.helpers.mixes import (
    MIXES,
    BrokenRows,
    broken_at,
    name,
    producers,
    runner_of,
)

in_every_mix = pytest.mark.parametrize("mix", MIXES, ids=name)
in_processes = pytest.mark.parametrize("mix", [m for m in MIXES if m[0]], ids=name)


def until_it_fails(
    source: Any, mix: tuple[int, int], **options: Any
) -> tuple[list[Any], FeedError]:
    """Return the batches before the failure, and the failure; every later loop raises it again."""
    batches = []
    with runner_of(source, mix, **options) as runner:
        with pytest.raises(FeedError) as caught:
            batches.extend(runner)
        with pytest.raises(type(caught.value)) as again:
            list(runner)
    assert again.value is caught.value
    return batches, caught.value


@in_every_mix
def test_all_batches_before_a_failing_one_come_in_order(mix: tuple[int, int]) -> None:
    batches, error = until_it_fails(iter(range(40)), mix, transform=broken_at(7))
    assert [int(b[0]) for b in batches] == list(range(7))
    assert type(error.__cause__) is Broken
    assert error.__cause__.args == ("the disk is gone", 7)
    assert str(error).startswith(
        "batch 7 raised Broken: ('the disk is gone', 7)\n\nIn the producer:\nTraceback"
    )
    assert 'raise Broken("the disk is gone", item)  # the user\'s own line' in str(error)
    assert "in transform\n" in str(error)
    assert f"{os.sep}loop.py" not in str(error), "our own loop is of no use to anybody"


@pytest.mark.slow
@in_every_mix
@pytest.mark.parametrize(
    ("source", "options", "place", "before"),
    [
        (copies(broken_after(3)), {}, "batch 3 of producer ", None),
        (Readable(broken_after(3)), {}, "batch 3 ", 3),
        (BrokenRows(8, {5}), {"batch_size": 2}, "record 5 of batch 2 ", 2),
        (
            BrokenRows(8, {5}),
            {"records": False, "transform": lambda i: np.array([i])},
            "item 5 ",
            5,
        ),
    ],
    ids=["callable", "iterable", "records", "items"],
)
def test_the_place_is_named(
    mix: tuple[int, int], source: Any, options: Any, place: str, before: int | None
) -> None:
    batches, error = until_it_fails(source, mix, **options)
    assert str(error).startswith(place), str(error)
    assert isinstance(error, ProducerError)
    assert type(error.__cause__) is Broken
    assert before is None or len(batches) == before


class Unreadable(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoException(Exception):
    def __reduce__(self) -> Any:
        return str, ("no exception",)


class Holding(Exception):
    """Holds an object that cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeyError("x"), "KeyError: 'x'"),
        (lambda: KeyboardInterrupt("stop"), "KeyboardInterrupt: stop"),
        (lambda: SystemExit(3), "SystemExit: 3"),
        (lambda: Unreadable(1, 2), "Unreadable: 1 and 2"),
        (Unprintable, "Unprintable: "),
        (lambda: NoException("x"), "NoException: x"),
        (lambda: Holding("a lock"), "Holding: a lock"),
    ],
)
def test_any_exception_leaves_a_process(make: Callable[[], BaseException], message: str) -> None:
    def transform(item: int) -> Any:
        raise make()

    batches, error = until_it_fails(iter(range(3)), (1, 1), transform=transform)
    assert batches == []
    assert isinstance(error, ProducerError)
    assert isinstance(error.__cause__, BaseException)
    assert str(error).startswith("batch 0 raised ") and message in str(error), str(error)
    assert "raise make()" in str(error)
    assert traceback.format_exception(error), "it can be shown"


X, Y = np.zeros((4, 3), np.float32), np.arange(4)
CHANGES = {
    "structure": (
        (X,),
        "has another structure than the first: expected (array, array), got (array)",
    ),
    "dtype": (
        (X.astype("f8"), Y),
        "batch[0] of batch 5 has dtype float64: expected float32 as in the first batch",
    ),
    "shape": (
        (X[:, :2], Y),
        "batch[0] of batch 5 has records of shape (2,): expected (3,) as in the first batch",
    ),
    "rows": ((X, Y[:3]), "batch[1] of batch 5 has 3 records, batch[0] has 4: expected the same"),
}


@pytest.mark.slow
@in_every_mix
@pytest.mark.parametrize("change", CHANGES)
def test_a_batch_that_does_not_fit_names_the_leaf(mix: tuple[int, int], change: str) -> None:
    """The odd batch may be the first of the other worker: the difference is named all the same."""
    other, message = CHANGES[change]
    batches, error = until_it_fails([(X, Y)] * 5 + [other] + [(X, Y)] * 5, mix, records=False)
    assert isinstance(error, SpecError)
    assert len(batches) <= 5
    assert all(x.dtype == np.float32 and x.shape == (4, 3) and not x.any() for x, _ in batches)
    if mix[0] < 2:
        assert message in str(error)
        assert len(batches) == 5
    else:
        assert "batch 5" in str(error) or "produces different batches: " in str(error)


@pytest.mark.slow
@in_processes
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (lambda: np.full((4, 3), 7.0), "has dtype float64 instead of float32"),
        (lambda: np.full((4, 900), 7, np.float32), "has records of shape (900,) instead of (3,)"),
        (lambda: {"x": np.full((4, 3), 7, np.float32)}, "structure {'x': array} instead of array"),
        (lambda: np.full((4, 3), b"7"), "has dtype bytes instead of float32"),
    ],
)
def test_workers_that_differ_are_refused_and_no_batch_of_the_odd_one_passes(
    mix: tuple[int, int], odd: Callable[[], Any], message: str
) -> None:
    if mix[0] < 2:
        mix = (2, 3)

    def stream(worker: Worker) -> Iterator[Any]:
        for _ in range(100):
            yield odd() if worker.index == worker.count - 1 else np.zeros((4, 3), np.float32)

    batches, error = until_it_fails(stream, mix)
    assert isinstance(error, SpecError)
    sevens = [b for b in batches if isinstance(b, dict) or b.dtype != np.float32 or b.any()]
    assert len(sevens) in (0, len(batches)), (
        "the first batch says what all are: both kinds were delivered"
    )
    if "produces different batches" in str(error) and not sevens:
        assert message in str(error)


@in_every_mix
def test_a_finite_callable_under_several_producers_is_refused(mix: tuple[int, int]) -> None:
    if producers(mix) == 1:
        with runner_of(lambda: chunks(8, 4), mix) as runner:
            assert len(list(runner)) == 2
        return
    batches, error = until_it_fails(lambda: chunks(1600, 10), mix)
    assert isinstance(error, OptionError)
    ids = [record for batch in batches for record in batch[0].tolist()]
    assert len(ids) == len(set(ids)), "a record was delivered twice"
    texts = (
        "the data would be delivered several times",
        "`worker`",
        "transform=",
        "take `worker` and not use it",
    )
    assert not [text for text in texts if text not in str(error)]


@pytest.mark.slow
@in_every_mix
@pytest.mark.parametrize(
    "make",
    [lambda: lambda: iter([]), lambda: iter([]), lambda: Readable(list), lambda: iter([X[:0]])],
)
def test_a_source_without_a_batch_says_so(mix: tuple[int, int], make: Callable[[], Any]) -> None:
    batches, error = until_it_fails(make(), mix)
    assert batches == []
    assert isinstance(error, SpecError)
    assert "ended before its first batch" in str(error)


@in_processes
def test_what_cannot_be_sent_is_named_before_anything_starts(mix: tuple[int, int]) -> None:
    lock = threading.Lock()

    def stream() -> Iterator[Any]:
        yield np.arange(lock.locked())

    with pytest.raises(OptionError, match="`lock` in the closure of `stream`"):
        next(iter(runner_of(stream, mix)))


@pytest.mark.slow
@in_processes
def test_an_item_that_cannot_be_sent_is_named(mix: tuple[int, int]) -> None:
    _, error = until_it_fails(iter([threading.Lock()]), mix, transform=lambda item: np.arange(3))
    assert isinstance(error, OptionError)
    assert "an item of the source cannot be sent to worker processes" in str(error)


@in_every_mix
def test_records_that_fail_are_skipped_counted_and_logged(
    mix: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Single records, then whole items."""
    broken = {3, 4, 17}
    for options, lost in (
        ({"batch_size": 4}, broken),
        ({"records": False, "transform": lambda i: np.array([i])}, broken),
        ({"batch_size": 1}, broken),
    ):
        caplog.clear()
        runner = runner_of(BrokenRows(20, broken), mix, on_error=Skip(3), **options)
        with caplog.at_level(logging.WARNING, "fastfeed"), runner:
            found = np.concatenate(list(runner)).tolist()
        assert runner.snapshot().produced.errors == len(lost)
        assert found == [i for i in range(20) if i not in lost]
        assert sorted(r.message.count("raised Broken: row") for r in caplog.records) == [1] * len(
            lost
        )


@in_every_mix
def test_one_error_too_many_ends_the_feed(mix: tuple[int, int]) -> None:
    options = {"on_error": Skip(limit=2), "batch_size": 2}
    batches, error = until_it_fails(BrokenRows(20, {3, 8, 13, 19}), mix, **options)
    assert isinstance(error, ProducerError)
    assert type(error.__cause__) is Broken
    assert not {3, 8, 13, 19} & set(np.concatenate(batches).tolist())
