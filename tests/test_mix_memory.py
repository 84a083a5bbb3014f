"""Batches of the consumer never change, filled buffers are not copied, and memory is bounded.

All of it holds for every mix of processes and threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedOptions, OptionError, StateError, Worker
from fastfeed.core.stats import StageRow, total
from fastfeed.engine.feed import Feed
from fastfeed.ring.memory import PAGE
from tests.helpers.feeds import Readable, ids_of, shared_out
from tests.helpers.mixes import (
    LIMIT_S,
    MIXES,
    first_waits,
    name,
    producers,
    runner_of,
)
from tests.helpers.rings import mapped_nbytes

in_every_mix = pytest.mark.parametrize("mix", MIXES, ids=name)
in_processes = pytest.mark.parametrize("mix", [m for m in MIXES if m[0]], ids=name)
MB = 10**6


def numbered(total: int, rows: Callable[[int], int]) -> Callable[[Worker], Iterator[np.ndarray]]:
    """Batches that hold their number everywhere."""

    def stream(worker: Worker) -> Iterator[np.ndarray]:
        for number in range(worker.index, total, worker.count):
            yield np.full((rows(number), 5), number)

    return stream


@in_every_mix
def test_the_last_100_batches_never_change(mix: tuple[int, int]) -> None:
    """Their sizes vary, so that the ring grows meanwhile."""
    held: deque[tuple[int, np.ndarray]] = deque(maxlen=100)
    numbers = []
    with runner_of(
        numbered(600, lambda n: 1 + n % 7 * 40), mix, order="any", memory="1MB"
    ) as runner:
        for batch in runner:
            numbers.append(int(batch.flat[0]))
            held.append((numbers[-1], batch if len(numbers) % 3 else batch[-1:].T))
            if len(numbers) % 50 == 0:
                assert all((kept == number).all() for number, kept in held)
        now = runner.snapshot()
    assert sorted(numbers) == list(range(600))
    assert bool(now.consumed.copied) is (mix[0] > 0)
    assert now.consumed.copied < 600, "slots that are let go of are used again"
    assert now.slots.lent <= now.slots.all


@in_every_mix
def test_the_counters_add_up(mix: tuple[int, int]) -> None:
    with runner_of(shared_out(400, 4), mix, epochs=2) as runner:
        batches = iter(runner)
        first = next(batches)
        during = runner.snapshot()
        assert during.slots.lent == (mix[0] > 0)
        every = ids_of([first]) + ids_of(batches)
        del first
        now = runner.snapshot()
    assert sorted(every) == sorted([*range(400)] * 2)
    assert (now.produced.batches, now.produced.records, now.produced.nbytes) == (200, 800, 800 * 16)
    assert (now.consumed.batches, now.consumed.records, now.consumed.nbytes) == (199, 796, 796 * 16)
    assert now.produced == total(now.producers)
    assert len(now.producers) == producers(mix)
    assert all(row != StageRow() for row in now.producers)
    assert (now.depth, now.depth_nbytes) == (0, 0)
    assert (now.slots.filling, now.slots.ready) == (0, 0)
    assert now.slots.all == during.slots.all or mix[0] != 1, (
        "a worker that began later has brought its own"
    )
    assert bool(now.slots.all) is (mix[0] > 0)
    assert now.slots.free + now.slots.lent == now.slots.all and now.slots.lent <= 1


@in_every_mix
def test_what_is_filled_in_place_is_not_copied(mix: tuple[int, int]) -> None:
    """Prove it by a forbidden write: the holder sees a change of a batch that was yielded. Threads
    refuse that, and deliver the arrays themselves."""
    made: set[int] = set()

    def stream(worker: Worker) -> Iterator[Any]:
        last = None
        for number in range(3):
            batch = worker.empty({"x": np.empty((3, 7), "f4"), "y": [np.empty(3, "i2")]})
            batch["x"][:], batch["y"][0][:] = number, number
            assert all(a.ctypes.data % 64 == 0 for a in (batch["x"], batch["y"][0]))
            made.add(batch["x"].ctypes.data)
            if last is not None and mix[0]:
                last["y"][0][0] = 99
            yield batch
            last = batch

    with runner_of(stream, mix) as runner:
        batches = list(runner)
    assert len(batches) == 3 * producers(mix)
    for number in range(3):
        found = [b for b in batches if b["x"][1, 0] == number]
        assert len(found) == producers(mix)
        first = number if number == 2 or not mix[0] else 99
        for batch in found:
            assert mix[0] or batch["x"].ctypes.data in made
            assert (batch["x"] == number).all()
            assert batch["y"][0].tolist() == [first, number, number]
            assert all(a.ctypes.data % 64 == 0 for a in (batch["x"], batch["y"][0]))


@in_every_mix
def test_any_part_of_a_buffer_may_be_yielded(mix: tuple[int, int]) -> None:
    """Yield it from the stream and from a transform: whole, cut, or beside another array."""

    def parts(number: int, worker: Worker) -> Any:
        x, y = worker.empty((np.empty((4, 3)), np.empty(4, int)))
        x[:], y[:] = number, number
        ways = (
            (x, y),
            (x[:2], y[:2]),
            (x[1:], y[1:]),
            (x.copy(), y),
            (x, y.copy()),
            (x[::-2], y[::-2]),
        )
        return ways[number % len(ways)]

    def stream(worker: Worker) -> Iterator[Any]:
        for number in range(worker.index, 60, worker.count):
            worker.empty(np.empty((1000, 3)))  # dropped without use
            yield parts(number, worker)

    rows = [(4, 2, 3, 4, 4, 2)[n % 6] for n in range(60)]
    for source, options in ((stream, {}), (Readable(lambda: range(60)), {"transform": parts})):
        with runner_of(source, mix, order="any", memory="10MB", **options) as runner:
            batches = list(runner)
        assert sorted(int(y[0]) for _, y in batches) == list(range(60))
        for x, y in batches:
            assert x.shape == (rows[y[0]], 3) and y.shape == (rows[y[0]],)
            assert set(x.flat) == set(y.flat) and len(set(y.flat)) == 1


@in_processes
def test_a_buffer_is_for_one_batch(mix: tuple[int, int]) -> None:
    def twice(worker: Worker) -> Iterator[Any]:
        batch = worker.empty(np.empty((2, 3)))
        batch[:] = 1
        yield batch
        yield batch

    def hoarding(worker: Worker) -> Iterator[Any]:
        hoard = [worker.empty(np.empty(MB)) for _ in range(100)]
        yield hoard[0]

    for source, message in (
        (twice, "yielded twice"),
        (hoarding, "slots are held by the producers' own code"),
    ):
        with (
            runner_of(source, mix, memory="200MB") as runner,
            pytest.raises(StateError, match=message),
        ):
            list(runner)


@pytest.mark.parametrize(
    "like", [(), {}, [[]], 3, (np.zeros(3), 3), None, np.array([b"x"], object), "text"]
)
def test_a_buffer_like_nothing_is_refused(like: Any) -> None:
    def stream(worker: Worker) -> Iterator[Any]:
        yield worker.empty(like)

    for mix in ((0, 1), (1, 1)):
        with (
            runner_of(stream, mix) as runner,
            pytest.raises(OptionError, match=r"worker\.empty\(like\): .*must (be|hold)"),
        ):
            list(runner)


@in_processes
def test_slots_stay_within_the_memory(mix: tuple[int, int]) -> None:
    """Slots of 1 MB: their number is logged, and no more than `memory` is mapped."""
    budget, before = 24 * MB, mapped_nbytes()
    with runner_of(numbered(60, lambda n: MB // 40), mix, order="any", memory=budget) as runner:
        for count, _batch in enumerate(runner):
            if count % 10 == 0:
                now = runner.snapshot()
                assert 0 < now.slots.all * MB <= budget
                assert now.depth_nbytes <= budget
                assert mapped_nbytes() - before <= budget
        assert now.slots.all * MB > budget // 2, "and they are made use of"


@in_processes
def test_memory_for_too_few_slots_says_what_is_needed(mix: tuple[int, int]) -> None:
    least = mix[1] + 2
    with (
        runner_of(numbered(9, lambda n: MB // 40), mix, memory=2 * MB) as runner,
        pytest.raises(OptionError) as caught,
    ):
        list(runner)
    size = -(-MB // PAGE) * PAGE
    texts = (
        f"{2 * MB // mix[0]} bytes",
        f"slots of {size} bytes",
        f"at least {least}",
        "Raise memory=",
        "processes=",
    )
    assert not [text for text in texts if text not in str(caught.value)], str(caught.value)
    needed = f"{size * least * mix[0]}"
    with runner_of(numbered(9, lambda n: MB // 40), mix, memory=int(needed)) as runner:
        assert len(list(runner)) == 9, "with that much it works"


SIZES: dict[str, Callable[[int], int]] = {
    "all alike": lambda item: 1,
    "growing": lambda item: 1 + 10 * item,
    "the slow one is the largest": lambda item: 4000 if item == 0 else 1 + item,
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("mix", [(1, 2), (1, 4), (2, 2)], ids=name)
def test_a_straggler_finds_a_slot_for_its_batch(
    mix: tuple[int, int], rows: Any, tmp_path: Path
) -> None:
    """The first item is made when the others have filled every available slot and wait for it."""
    path = str(tmp_path / "gate")
    os.mkfifo(path)
    options = {"processes": mix[0], "threads": mix[1], "memory": 2 * MB, "stall_timeout_s": LIMIT_S}
    feed = Feed(
        Readable(lambda: range(400)),
        FeedOptions(transform=first_waits(path, rows), **options),
        seed=0,
    )
    done = threading.Event()

    def open_when_nothing_moves() -> None:
        was, now = None, feed.snapshot()
        while not done.wait(0.05) and (now.produced.batches == 0 or now != was):
            was, now = now, feed.snapshot()
        with open(path, "w"):
            pass

    opener = threading.Thread(target=open_when_nothing_moves)
    feed.start()
    opener.start()
    try:
        for item in range(400):
            batch = feed.take()
            assert batch is not None and batch.rows == rows(item)
            assert (batch.leaves[0] == item).all()
        assert feed.take() is None
    finally:
        done.set()
        feed.stop()
        opener.join()
