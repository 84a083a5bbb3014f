"""Another number of producers while the training runs: nothing is lost, repeated or reordered."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, Reorder
from fastfeed.core.status import FINISHED
from fastfeed.core.worker import Worker
from fastfeed.errors import FeedStopped, OptionError, StateError
from fastfeed.options import Auto, feed_options
from tests.helpers.dying import worker_pid

RECORDS = np.arange(90, dtype=np.int64)
orders = pytest.mark.parametrize("order", ["kept", "any", Reorder(3)], ids=str)
Changes = Sequence[tuple[int, int]]  # batches before, producers
CHANGES = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), max_size=5)


def drawn(record: Any, worker: Worker) -> Any:
    return record, worker.rng.random()


def read(runner: FeedRunner, changes: Changes = (), knob: str = "") -> list[Any]:
    """Read a run; after so many batches each, go on with so many producers."""
    got: list[Any] = []
    with runner:
        batches = iter(runner)
        for before, size in changes:
            got += [leaf.copy() for leaf, _ in islice(batches, before)]
            runner.resize(**{knob: size})
        got += [leaf.copy() for leaf, _ in batches]
    return got


def check(knob: str, order: Any, changes: Changes) -> None:
    """Compare a run whose producers change with one of a single thread."""
    options: dict[str, Any] = {"batch_size": 6, "transform": drawn, "seed": 1, "epochs": 3}
    options["shuffle"] = True
    expected = np.concatenate(read(FeedRunner(RECORDS, **options)))
    runner = FeedRunner(RECORDS, order=order, **options, **{knob: 2})
    got = np.concatenate(read(runner, changes, knob))
    if order == "kept":
        assert np.array_equal(got, expected)
    else:
        assert np.array_equal(np.sort(got.reshape(3, -1), axis=1), np.tile(RECORDS, (3, 1)))


@orders
@given(changes=CHANGES)
def test_threads_come_and_go(order: Any, changes: Changes) -> None:
    check("threads", order, changes)


@pytest.mark.slow
@orders
@settings(max_examples=8)
@given(changes=CHANGES)
def test_processes_come_and_go(order: Any, changes: Changes) -> None:
    check("processes", order, changes)


@pytest.mark.parametrize("knob", ["threads", "processes"])
def test_those_that_are_too_many_end(knob: str) -> None:
    options: dict[str, Any] = {"batch_size": 10, knob: 4}
    with FeedRunner(RECORDS, **options) as runner:
        list(runner)
        runner.resize(**{knob: 1})
        for _ in range(1000):  # each runs into what the others have left
            list(runner)
            status = runner.status()
            assert status is not None
            left = [p for p in status.producers if p.state != FINISHED]
            if len(left) == 1:
                break
        assert len(left) == 1


def test_an_iterator_is_read_on_by_others() -> None:
    with FeedRunner(iter(np.arange(60).reshape(30, 2)), processes=1, transform=abs) as runner:
        batches = iter(runner)
        got = [next(batches).copy()]
        runner.resize(processes=3)
        got += [next(batches).copy()]
        runner.resize(processes=1)
        got += [batch.copy() for batch in batches]
        runner.resize(processes=2)  # the feed is over
    assert np.array_equal(np.concatenate(got), np.arange(60))


def test_the_next_runs_and_the_status_have_the_new_number() -> None:
    with FeedRunner(RECORDS, batch_size=10, processes=1, threads=2) as runner:
        runner.resize(processes=2)  # before the start
        for processes in (2, 3, 1, 3):
            runner.resize(processes=processes)
            assert np.array_equal(np.concatenate([b.copy() for b in runner]), RECORDS)
            status = runner.status()
            assert status is not None
            assert processes <= sum(not worker.ended for worker in status.workers)
        assert runner.options.processes == 3


def test_the_counters_of_producers_that_have_left_stay() -> None:
    with FeedRunner(RECORDS, batch_size=10, threads=3) as runner:
        for threads in (1, 4, 1, 2):
            list(runner)
            runner.resize(threads=threads)
        list(runner)
        assert sum(row.batches for row in runner.snapshot().producers) >= 5 * 9


def test_a_worker_that_dies_while_it_leaves_loses_nothing() -> None:
    options: dict[str, Any] = {"batch_size": 2, "on_worker_death": "restart"}
    with FeedRunner(RECORDS, processes=3, **options) as runner:
        batches = iter(runner)
        got = [next(batches).copy()]
        last = worker_pid(runner, -1)
        runner.resize(processes=1)
        os.kill(last, signal.SIGKILL)
        got += [batch.copy() for batch in batches]
    assert np.array_equal(np.concatenate(got), RECORDS)


def test_a_validation_has_the_workers_of_the_training() -> None:
    with FeedRunner(RECORDS, batch_size=10, processes=1) as runner:
        validation = runner.also(RECORDS[:30], batch_size=10)
        for processes in (3, 2):
            runner.resize(processes=processes)
            assert (len(list(runner)), len(list(validation))) == (9, 3)
        with pytest.raises(StateError, match="first runner"):
            validation.resize(processes=2)


def test_any_threads_may_resize_while_another_reads() -> None:
    def change() -> None:
        for n in range(100):
            runner.resize(threads=1 + n % 4)

    with FeedRunner(RECORDS, batch_size=10, threads=2) as runner:
        threads = [threading.Thread(target=change) for _ in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert np.array_equal(np.concatenate([b.copy() for b in runner]), RECORDS)
        status = runner.status()
        assert status is not None and runner.options.threads == 4
        assert sum(p.state != FINISHED for p in status.producers) >= 4


def test_a_stopped_runner_is_not_resized() -> None:
    runner = FeedRunner(RECORDS, batch_size=10)
    runner.stop()
    with pytest.raises(FeedStopped):
        runner.resize(threads=2)


def own(worker: Worker) -> Iterator[Any]:
    yield np.arange(3) + worker.index


@pytest.mark.parametrize(
    ("source", "options", "wanted", "text"),
    [
        (own, {"threads": 2}, {"threads": 3}, "a callable, has a stream of its own"),
        (RECORDS, {"processes": 2}, {"threads": 2}, "can change processes=, not threads="),
        (RECORDS, {}, {"processes": 2}, "can change threads=, not processes="),
        (RECORDS, {}, {"producers": 2}, "not producers="),
        (RECORDS, {"processes": 1}, {"processes": 0}, "processes= must be at least 1"),
        (RECORDS, {}, {"threads": 2.5}, "threads must be an integer"),
    ],
)
def test_what_cannot_be_is_refused(
    source: Any, options: dict[str, Any], wanted: dict[str, Any], text: str
) -> None:
    batch = {} if source is own else {"batch_size": 10}
    with FeedRunner(source, **batch, **options) as runner:
        with pytest.raises(OptionError, match=text):
            runner.resize(**wanted)
        assert len(list(runner)) == (2 if source is own else 9)


@orders
def test_a_thread_that_cannot_start_changes_nothing(
    order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "fastfeed-producer-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    with FeedRunner(RECORDS, batch_size=6, order=order, epochs=3, stall_timeout_s=5) as runner:
        batches = iter(runner)
        got = [next(batches).copy()]
        monkeypatch.setattr(threading.Thread, "start", fail)
        with pytest.raises(OptionError, match=r"threads=4 do not fit: the system let 2 start"):
            runner.resize(threads=4)
        assert runner.options.threads == 1
        runner.resize(threads=2)
        got += [batch.copy() for batch in batches]
    assert np.array_equal(np.sort(np.concatenate(got)), np.repeat(RECORDS, 3))


def test_fewer_producers_always_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with FeedRunner(RECORDS, batch_size=6, threads=4) as runner:
        next(iter(runner))
        monkeypatch.setattr(feed_options, "threads_that_fit", lambda *_: (1, "the test"))
        runner.resize(threads=2)
        with pytest.raises(OptionError, match="threads=3 do not fit: 1 do, because of the test"):
            runner.resize(threads=3)
        assert runner.options.threads == 2


def test_a_number_of_the_users_stays() -> None:
    with FeedRunner(RECORDS, batch_size=6, threads="auto") as runner:
        next(iter(runner))
        runner.resize(threads=2)
        runner._stream.resize({"threads": Auto(4)})
        assert runner.options.threads == 2 and not runner.options.tuned
