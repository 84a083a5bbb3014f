"""Release of a stopped runner: it keeps the memory that arrays of its batches need, but no
descriptor."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, Worker
from fastfeed.testing.scenes import until
from tests.helpers.feeds import LONG_S


@pytest.fixture(autouse=True)
def nobody_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the black box, which has a descriptor of its own."""
    monkeypatch.setenv("FASTFEED_BLACKBOX", "0")


def descriptors() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor that listed the folder
            continue
    return found


def shares(worker: Worker) -> Iterator[Any]:
    for i in range(worker.index, 10**6, worker.count):
        yield np.full((4, 3), i), np.full((4,), -i, np.float32)


def slow(worker: Worker) -> Iterator[Any]:
    yield np.zeros((4, 3))
    threading.Event().wait(LONG_S)


RUNNERS: dict[str, Callable[[], FeedRunner]] = {
    "a callable": lambda: FeedRunner(shares, processes=2),
    "an indexable": lambda: FeedRunner(range(10**6), processes=2, batch_size=4),
}


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_stopped_runner_has_nothing_open_and_its_batches_are_as_they_were(kind: str) -> None:
    before = descriptors()
    runner = RUNNERS[kind]()
    batches = [batch for batch, _ in zip(runner, range(5), strict=False)]
    copies = [np.copy(leaf) for leaf in leaves(batches)]
    runner.stop()
    assert descriptors() == before
    for have, want in zip(leaves(batches), copies, strict=True):
        assert (have == want).all()
        assert have.base is not None, "a view on a slot"
    runner.stop()
    with pytest.raises(FeedStopped):
        next(iter(runner))
    assert runner.snapshot().consumed.batches >= 4


def leaves(batches: list[Any]) -> list[np.ndarray]:
    return [leaf for batch in batches for leaf in (batch if isinstance(batch, tuple) else (batch,))]


@pytest.mark.parametrize("kind", RUNNERS)
def test_slots_that_come_back_late_are_written_into_nobodys_file(kind: str) -> None:
    before = descriptors()
    runner = RUNNERS[kind]()
    batches = [batch for batch, _ in zip(runner, range(5), strict=False)]
    had = descriptors().keys() - before.keys()
    runner.stop()
    with ExitStack() as stack:
        mine = [os.pipe() for _ in range(20)]
        for number in (number for pipe in mine for number in pipe):
            stack.callback(os.close, number)
        assert had <= {str(number) for pipe in mine for number in pipe}, (
            "what the runner's numbers mean now"
        )
        batches.clear()
        assert until(lambda: runner.snapshot().slots.lent == 0, LONG_S)
        runner.stop()
        assert "has ended" in runner._stream.feed.stacks()  # type: ignore[union-attr]
        assert not select.select([reading for reading, _ in mine], [], [], 0)[0]


def test_runners_that_share_the_workers() -> None:
    before = descriptors()
    runner = FeedRunner(shares, processes=2)
    other = runner.also(range(100), batch_size=4)
    kept = next(iter(runner)), next(iter(other))
    other.stop()
    assert (next(iter(runner))[0] >= 0).all()
    runner.stop()
    assert until(lambda: descriptors() == before, LONG_S), "the other one's thread ends by itself"
    assert (kept[1] == np.arange(4)).all()
    other.stop()


def test_a_runner_that_never_started() -> None:
    before = descriptors()
    runner = FeedRunner(shares, processes=2)
    runner.stop()
    assert descriptors() == before


def test_who_waits_meanwhile_is_told_and_then_all_is_closed() -> None:
    before = descriptors()
    runner = FeedRunner(slow, processes=1)
    batches = iter(runner)
    first, errors = next(batches), []

    def wait() -> None:
        try:
            next(batches)
        except BaseException as error:
            errors.append(error)

    waits = threading.Thread(target=wait)
    waits.start()
    runner.stop()
    waits.join(LONG_S)
    assert [type(error) for error in errors] == [FeedStopped]
    errors.clear()  # their tracebacks hold the frames of the wait
    assert until(lambda: descriptors() == before, LONG_S)
    assert (first == 0).all()
