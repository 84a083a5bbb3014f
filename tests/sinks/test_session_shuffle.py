"""The shuffle of a session: batches as soon as their records are there, and the same for any
timing."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, ProducerError, Shuffle
from tests.helpers.feeds import (
    LONG_S,
    Broken,
    chunks,
    ids_of,
)

tf = pytest.importorskip("tensorflow")
from tests.helpers.graphs import drained, session  # noqa: E402

# of batches of 4, five may be copied at once: what is drawn from is 34 records
ROOM = Shuffle(50, 4)
WARM = 8  # batches, after which one comes in for each that goes out
pytestmark = pytest.mark.usefixtures("graph")


class OnDemand:
    """A stream of batches of 4, each produced at its request."""

    def __init__(self) -> None:
        self._asked = queue.SimpleQueue[bool]()
        self.produced = 0

    def __call__(self) -> Iterator[Any]:
        for batch in chunks(4000, 4):
            if not self._asked.get(timeout=LONG_S):
                return
            self.produced += 1
            yield batch

    def let(self, batches: int) -> None:
        for _ in range(batches):
            self._asked.put(True)

    def end(self) -> None:
        """End the source after the requested batches."""
        self._asked.put(False)


def needed(step: int) -> int:
    """Return the number of source batches that a step needs; the first step is 1."""
    return -(-(min(34, 4 + 4 * step) + 4 * (step - 1)) // 4)


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_source_that_is_not_ahead_gives_each_step_its_batch_at_once(ahead: int) -> None:
    """This includes a source that was ahead before."""
    source = OnDemand()
    source.let(needed(WARM) + ahead)
    runner = FeedRunner(source, shuffle=ROOM, epochs=1, stall_timeout_s=LONG_S / 4)
    with session(runner) as (sess, inputs):
        for _ in range(WARM + ahead):
            sess.run(inputs)
        for step in range(WARM + ahead + 1, WARM + 30):
            source.let(1)
            sess.run(inputs)
            assert source.produced == needed(step)
        source.end()
        drained(sess, inputs)


@pytest.mark.parametrize("together", [1, 7, 60])
def test_what_is_drawn_does_not_follow_from_how_much_came_at_once(together: int) -> None:
    def order(together: int) -> list[int]:
        source = OnDemand()
        source.let(together)
        runner = FeedRunner(source, shuffle=ROOM, seed=3, epochs=1, stall_timeout_s=LONG_S / 4)
        with tf.Graph().as_default(), session(runner) as (sess, inputs):
            found: list[Any] = []
            for there in range(together, 61, together):
                while needed(len(found) + 1) <= there:
                    found.append(sess.run(inputs))
                source.let(min(together, 60 - there))
            source.end()
            return ids_of([*found, *drained(sess, inputs)])

    found = order(together)
    assert sorted(found) == list(range(240)) != found
    assert found == order(4)


def test_what_was_drawn_together_is_enqueued_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfeed.sinks.session_queue import SessionQueue

    counts: list[int] = []
    plain = SessionQueue._enqueue_function
    monkeypatch.setattr(
        SessionQueue,
        "_enqueue_function",
        lambda self, count: counts.append(count) or plain(self, count),
    )
    with session(FeedRunner(lambda: chunks(400, 4), shuffle=ROOM, epochs=1)) as (sess, inputs):
        assert sorted(ids_of(drained(sess, inputs))) == list(range(400))
    assert max(counts) == 5, "at the end nothing else is awaited"


def large(records: int, size: int) -> Iterator[Any]:
    """Return batches of which four records are a megabyte."""
    for start in range(0, records, size):
        ids = np.arange(start, min(start + size, records))
        yield ids, np.broadcast_to(ids[:, None].astype(np.float32), (len(ids), 2**16)).copy()


def drawn_large(size: int, *, copier: bool) -> list[int]:
    """Return the order of large records, each of which must be intact, with and without a copying
    thread."""
    runner = FeedRunner(
        lambda: large(50, size),
        shuffle=Shuffle(16, 4),
        batch_size=4 if copier else 3,
        seed=3,
        epochs=1,
    )
    with tf.Graph().as_default(), session(runner) as (sess, inputs):
        threads = set()
        found: list[int] = []
        for ids, data in drained_while(
            sess, inputs, lambda: threads.update(t.name for t in threading.enumerate())
        ):
            assert (data == ids[:, None]).all()
            found += ids.tolist()
    assert any("fastfeed-shuffle" in name for name in threads) == copier
    return found


def drained_while(sess: Any, fetches: Any, check: Callable[[], None]) -> Iterator[Any]:
    try:
        while True:
            got = sess.run(fetches)
            check()
            yield got
    except tf.errors.OutOfRangeError:
        return


def test_large_records_come_once_and_in_the_order_of_the_seed() -> None:
    """A separate thread copies them out while the next ones are copied in."""
    found = drawn_large(4, copier=True)
    assert sorted(found) == list(range(50)) != found
    assert found == drawn_large(7, copier=True)
    assert sorted(drawn_large(4, copier=False)) == list(range(50))


def test_a_source_that_fails_beside_a_copy() -> None:
    def stream() -> Iterator[Any]:
        yield from large(40, 4)
        raise Broken("the disk is gone")

    runner = FeedRunner(stream, shuffle=Shuffle(16, 4), epochs=1)
    with session(runner) as (sess, inputs), pytest.raises(ProducerError, match="the disk is gone"):
        for _ in range(11):
            sess.run(inputs)
