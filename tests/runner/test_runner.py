"""FeedRunner in a plain loop: every record exactly once, in order and without a copy, for any kind
of producers."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, FeedStopped, FeedWarning, Shuffle, StateError, Worker
from tests.helpers.batches import make, same, templates
from tests.helpers.feeds import (
    LONG_S,
    Blocked,
    Readable,
    chunks,
    ids_of,
    shared_out,
)


def one_record(index: int) -> tuple[int, int]:
    return index, -index


# Each makes (source, options) that deliver `total` records, produced in batches of `size`.
SOURCES = {
    "callable": lambda total, size: (shared_out(total, size), {}),
    "iterable": lambda total, size: (Readable(lambda: chunks(total, size)), {}),
    "sequence": lambda total, size: (list(chunks(total, size)), {"records": False}),
    "transformed": lambda total, size: (
        Readable(lambda: range(0, total, size)),
        {
            "transform": lambda start: next(
                chunks(min(start + size, total), size, offset=start // size)
            )
        },
    ),
    "records": lambda total, size: (
        Readable(lambda: map(one_record, range(total))),
        {"records": True},
    ),
    "indexable": lambda total, size: (range(total), {"transform": one_record}),
}
of_any_kind = pytest.mark.parametrize("kind", SOURCES)


def runner_of(kind: str, total: int, size: int, **options: Any) -> FeedRunner:
    source, needed = SOURCES[kind](total, size)
    if kind in ("records", "indexable"):
        options.setdefault("batch_size", size)
    return FeedRunner(source, **needed, **options)


@of_any_kind
@settings(max_examples=25)
@given(
    total=st.integers(1, 60),
    size=st.integers(1, 9),
    threads=st.integers(1, 4),
    epochs=st.integers(1, 3),
    batch_size=st.none() | st.integers(1, 12),
)
def test_everything_exactly_once(kind: str, total: int, size: int, **options: Any) -> None:
    options = {name: value for name, value in options.items() if value is not None}
    with runner_of(kind, total, size, **options) as runner:
        batches = list(runner)
    every, epochs = ids_of(batches), options["epochs"]
    in_order = kind != "callable" or options["threads"] == 1
    for epoch in range(epochs):
        ids = every[epoch * total : (epoch + 1) * total]
        assert (ids if in_order else sorted(ids)) == list(range(total))
    assert len(every) == epochs * total
    if batch_size := options.get("batch_size"):
        short = [batch_size] * (total // batch_size) + [total % batch_size] * (
            total % batch_size > 0
        )
        assert [len(ids) for ids, _ in batches] == short * epochs


@pytest.mark.slow
@of_any_kind
@pytest.mark.parametrize("threads", [1, 3])
def test_any_order_delivers_everything_too(kind: str, threads: int) -> None:
    runner = runner_of(kind, 50, 4, threads=threads, order="any", epochs=2, stall_timeout_s=LONG_S)
    every = ids_of(runner)
    assert [sorted(every[:50]), sorted(every[50:])] == [list(range(50))] * 2


def test_any_order_does_not_wait_for_a_straggler() -> None:
    straggler = threading.Event()

    def slow_first(number: int) -> np.ndarray:
        if number == 0:
            straggler.wait(LONG_S)
        return np.array([number])

    with FeedRunner(
        iter(range(5)), transform=slow_first, threads=2, order="any", stall_timeout_s=LONG_S
    ) as runner:
        batches = iter(runner)
        try:
            assert sorted(int(next(batches)[0]) for _ in range(4)) == [1, 2, 3, 4]
        finally:
            straggler.set()
        assert [int(b[0]) for b in batches] == [0]


@pytest.mark.parametrize("threads", [1, 2])
def test_order_is_kept_past_a_straggler(threads: int) -> None:
    others = threading.Semaphore(0)

    def slow_first(number: int) -> np.ndarray:
        if number == 0 and threads > 1:
            for _ in range(4):
                others.acquire()
        others.release()
        return np.array([number])

    runner = FeedRunner(iter(range(5)), transform=slow_first, threads=threads)
    assert [int(b[0]) for b in runner] == list(range(5))


@pytest.mark.slow
@of_any_kind
def test_the_remainder_is_dropped_when_asked(kind: str) -> None:
    batches = list(runner_of(kind, 11, 3, batch_size=4, last_batch="drop", epochs=2, threads=2))
    assert [len(ids) for ids, _ in batches] == [4, 4, 4, 4]


@given(templates, st.integers(1, 3))
def test_any_structure_arrives_as_it_was(template: Any, threads: int) -> None:
    wanted = [make(template, range(i, i + 3)) for i in range(4)]
    with FeedRunner(iter(wanted), threads=threads) as runner:
        assert all(map(same, runner, wanted))


def test_records_arrive_as_batches_of_their_structure() -> None:
    words = [{"ids": np.arange(n), "text": b"w" * n} for n in (1, 3, 2)]
    (first, last) = FeedRunner(words, batch_size=2, pad=True)
    assert first["ids"].tolist() == [[0, 0, 0], [0, 1, 2]]
    assert last["ids"].tolist() == [[0, 1]]
    assert [*first["text"], *last["text"]] == [b"w", b"www", b"ww"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("options", [{}, {"batch_size": 4}])
def test_arrays_are_not_copied(threads: int, options: dict[str, Any]) -> None:
    batches = list(chunks(20, 4))
    for source in (iter(batches), Readable(lambda: batches)):
        for want, have in zip(batches, FeedRunner(source, threads=threads, **options), strict=True):
            assert all(np.shares_memory(a, b) for a, b in zip(want, have, strict=True))


def test_batches_that_are_cut_are_views() -> None:
    array = np.arange(12)
    assert all(np.shares_memory(array, batch) for batch in FeedRunner(iter([array]), batch_size=4))


def test_a_second_loop_is_a_new_pass_with_the_next_epochs() -> None:
    started: list[int] = []

    def stream(worker: Worker) -> Iterator[Any]:
        started.append(worker.epoch)
        return chunks(4, 4)

    runner = FeedRunner(stream, epochs=2)
    assert ids_of(runner) == ids_of(runner) == [0, 1, 2, 3] * 2
    assert started[:4] == [0, 1, 2, 3], "and perhaps the next ones, made ahead"


def test_an_iterator_has_no_second_pass() -> None:
    runner = FeedRunner(chunks(8, 4))
    assert len(list(runner)) == 2
    with pytest.raises(FeedStopped, match="is an iterator and has ended"):
        list(runner)


def test_a_loop_that_was_left_goes_on_where_it_was() -> None:
    with FeedRunner(shared_out(20, 4)) as runner:
        for ids, _ in runner:
            assert ids[0] == 0
            break
        assert ids_of(runner) == list(range(4, 20))


def test_an_indexable_is_shuffled_the_same_for_any_number_of_threads() -> None:
    def order(threads: int, seed: int) -> list[int]:
        runner = FeedRunner(
            range(40), transform=one_record, batch_size=3, shuffle=True, threads=threads, seed=seed
        )
        first, second = ids_of(runner), ids_of(runner)
        assert sorted(first) == sorted(second) == list(range(40))
        assert first != second
        return first + second

    assert order(1, seed=1) == order(3, seed=1) != order(3, seed=2)


@pytest.mark.parametrize("shuffle", [True, Shuffle(10, 2)])
def test_plain_iteration_shuffles_the_records_of_any_source(shuffle: Any) -> None:
    got = ids_of(FeedRunner(shared_out(80, 4), shuffle=shuffle, batch_size=4, seed=1))
    assert got != list(range(80))
    assert sorted(got) == list(range(80))


@pytest.mark.parametrize("total", [1, 5, 80])
@pytest.mark.parametrize("count", [0, 1, 20])
@pytest.mark.filterwarnings("ignore:the state is .* the epoch:fastfeed.FeedWarning")
def test_an_iterator_that_is_shuffled_ends_and_goes_on(total: int, count: int) -> None:
    def runner() -> FeedRunner:
        return FeedRunner(chunks(total, 4), shuffle=Shuffle(20, 5), batch_size=4, seed=1)

    whole = ids_of(runner())
    assert sorted(whole) == list(range(total))
    first = runner()
    batches = list(islice(first, count))
    rest = runner().restore(first.state())
    first.stop()
    if len(ids_of(batches)) < total:
        assert ids_of([*batches, *rest]) == whole


@pytest.mark.slow
def test_a_loop_keeps_the_runner_that_nobody_else_holds() -> None:
    received = []
    for batch in FeedRunner(shared_out(40, 4), threads=2):
        gc.collect()
        received.append(batch)
    assert sorted(ids_of(received)) == list(range(40))


def test_a_forgotten_runner_ends_its_threads() -> None:
    with Blocked(chunks(400, 4)) as source:
        runner = FeedRunner(source)
        next(iter(runner))
        gone = weakref.ref(runner)
        del runner
        gc.collect()
        assert gone() is None
    # that its thread has ended is proved by the fixture of every test


def test_leaving_the_loop_early_and_the_with_ends_the_threads() -> None:
    with FeedRunner(shared_out(10**6, 1), threads=4) as runner:
        next(iter(runner))
        assert threading.active_count() > 4
    assert not [t for t in threading.enumerate() if t.name.startswith("fastfeed")]


def test_after_stop_nothing_goes_on() -> None:
    runner = FeedRunner(shared_out(10**6, 1))
    runner.stop()
    runner.stop()
    for use in (lambda: next(iter(runner)), runner.start, runner.get_inputs):
        with pytest.raises(FeedStopped, match="make a new"):
            use()


def test_stop_ends_a_loop_that_waits() -> None:
    with Blocked(chunks(4, 4)) as source, FeedRunner(source) as runner:
        batches = iter(runner)
        next(batches)

        def stop() -> None:
            source.reached.wait(LONG_S)
            source.let_go.set()
            runner.stop()

        stopper = threading.Thread(target=stop)
        stopper.start()
        with pytest.raises(FeedStopped):
            raise next(batches, FeedStopped("the source ended first"))
        stopper.join()


def test_a_producer_that_does_not_end_is_shown() -> None:
    with Blocked(chunks(4, 4)) as source:
        runner = FeedRunner(source)
        next(iter(runner))
        source.reached.wait(LONG_S)
        with pytest.warns(FeedWarning, match=r"did not end(.|\n)*let_go\.wait"):
            runner.stop()


def test_batches_are_made_ahead_within_the_memory() -> None:
    produced = threading.Semaphore(0)

    def stream() -> Iterator[np.ndarray]:
        for _ in range(50):
            produced.release()
            yield np.zeros(100, np.uint8)

    with FeedRunner(stream, memory=350) as runner:
        runner.start()
        for _ in range(4):
            assert produced.acquire(timeout=LONG_S)
        next(iter(runner))
        snapshot = runner.snapshot()
        assert snapshot.depth_nbytes <= 350
        assert len(list(runner)) == 49


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_larger_than_the_memory_still_passes(threads: int) -> None:
    assert len(list(FeedRunner(chunks(100, 10), memory=1, threads=threads))) == 10


def test_start_is_for_once() -> None:
    with FeedRunner(shared_out(8, 4)) as runner:
        assert runner.start() is runner
        with pytest.raises(StateError, match="called twice"):
            runner.start()
        assert ids_of(runner) == list(range(8))
