"""order=Reorder(window): what is ready leaves, and nothing more than `window` batches late."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, OptionError, ProducerFailed, Reorder, Worker
from fastfeed.producers.reorder import END_OF_EPOCH, BoundedBuffer
from tests.helpers.feeds import Readable, shared_out
from tests.helpers.mixes import first_waits
from tests.helpers.streams import LIMIT_S, SEED

TOTAL, SLOW, WINDOW = 60, 5, 8
OVERTAKEN = [n for n in range(SLOW + WINDOW + 1) if n != SLOW]  # all that leaves without SLOW
# that is what is tested here
pytestmark = pytest.mark.filterwarnings("ignore:the state is .* the epoch")


class Straggler:
    """A transform that makes one record of an epoch after the test lets it, or another was made."""

    def __init__(self, slow: tuple[int, int] = (SLOW, 0), after: Any = None) -> None:
        self.slow, self.after = slow, after
        self.let_go, self.made = threading.Event(), threading.Event()

    def __call__(self, record: int, worker: Worker) -> int:
        this = (record, worker.epoch)
        if this == self.slow:
            assert self.let_go.wait(LIMIT_S)
        if this == self.after:
            self.let_go.set()
        if this == (TOTAL - 1, self.slow[1]):
            self.made.set()
        return record


def runner_of(transform: Callable[..., Any], threads: int, **options: Any) -> FeedRunner:
    options = {"order": Reorder(WINDOW), "batch_size": 1, "seed": SEED, **options}
    source = options.pop("source", range(TOTAL))
    return FeedRunner(
        source, threads=threads, transform=transform, stall_timeout_s=LIMIT_S, **options
    )


def numbers(batches: Any) -> list[int]:
    return [int(batch.flat[0]) for batch in batches]


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_slow_record_is_overtaken_by_the_window_and_then_waited_for(epoch: int) -> None:
    straggler = Straggler((SLOW, epoch))
    with runner_of(straggler, 4, epochs=2) as runner:
        batches = islice(runner, (epoch + 1) * TOTAL)
        assert sorted(numbers(islice(batches, epoch * TOTAL))) == list(range(epoch * TOTAL))
        first = numbers(islice(batches, len(OVERTAKEN)))
        assert sorted(first) == OVERTAKEN
        assert straggler.made.wait(LIMIT_S), "the others go on, ahead"
        straggler.let_go.set()
        rest = numbers(batches)
    assert rest[0] == SLOW, "no other was delivered, although all were ready"
    assert sorted(first + rest) == list(range(TOTAL))


def test_the_bound_of_batches_ahead_does_not_block_what_is_waited_for() -> None:
    straggler = Straggler()
    with runner_of(straggler, 3, prefetch=1, memory=1) as runner:
        batches = iter(runner)
        first = numbers(islice(batches, len(OVERTAKEN)))
        straggler.let_go.set()
        assert sorted(first) == OVERTAKEN
        assert sorted(first + numbers(batches)) == list(range(TOTAL))


@pytest.mark.parametrize("threads", [2, 5])
def test_what_was_overtaken_before_an_interruption_counts_after_it(threads: int) -> None:
    straggler = Straggler()
    with runner_of(straggler, 4) as runner:
        first = numbers(islice(runner, len(OVERTAKEN)))
        state = runner.state()
        straggler.let_go.set()
    again = Straggler(after=(TOTAL - 1, 0))
    with runner_of(again, threads).restore(state) as runner:
        rest = numbers(runner)
    assert rest[0] == SLOW, "it is late by the whole window already"
    assert sorted(first + rest) == list(range(TOTAL))


def test_a_state_of_any_order_goes_on_in_the_window() -> None:
    straggler = Straggler((0, 0))
    with runner_of(straggler, 2, order="any") as runner:
        first = numbers(islice(runner, 2 * WINDOW))
        state = runner.state()
        straggler.let_go.set()
    with runner_of(Straggler((0, 0), after=(TOTAL - 1, 0)), 3).restore(state) as runner:
        rest = numbers(runner)
    assert rest[0] == 0 and 0 not in first
    assert sorted(first + rest) == list(range(TOTAL))


def test_no_batch_overtakes_the_end_of_its_epoch() -> None:
    """The last record of an epoch is made after one of the next epoch."""
    straggler = Straggler((TOTAL - 1, 0), after=(3, 1))
    with runner_of(straggler, 4, order=Reorder(10 * TOTAL), epochs=3) as runner:
        found = [sorted(numbers(epoch)) for epoch in runner.epochs()]
    assert found == [list(range(TOTAL))] * 3


def test_no_batch_overtakes_an_end_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer that reads the end of an epoch puts it after a batch of the next one."""
    next_epoch, put = threading.Event(), BoundedBuffer.put

    def late(self: Any, produced: Any, key: int, **more: Any) -> bool:
        assert produced is not END_OF_EPOCH or next_epoch.wait(LIMIT_S)
        goes_on = put(self, produced, key, **more)
        if key > TOTAL:
            next_epoch.set()
        return goes_on

    monkeypatch.setattr(BoundedBuffer, "put", late)
    with runner_of(np.int64, 2, order=Reorder(10 * TOTAL), epochs=2) as runner:
        found = [sorted(numbers(epoch)) for epoch in runner.epochs()]
    assert found == [list(range(TOTAL))] * 2


def opened_by_the_last(path: str) -> Callable[[int], np.ndarray]:
    """A transform that makes item 0 after item 19."""

    def transform(item: int) -> np.ndarray:
        if item == 19:
            with open(path, "w"):
                pass
        return first_waits(path, lambda _: 1)(item)

    return transform


@pytest.mark.parametrize(
    "source", [range(20), Readable(lambda: range(20))], ids=["indexable", "iterable"]
)
def test_worker_processes_overtake_and_go_on_as_another_number(source: Any, tmp_path: Path) -> None:
    """The first item of each epoch waits for a FIFO in its process. The others overtake it before
    an interruption, and cannot do so again."""
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    options: dict[str, Any] = {"records": False, "order": Reorder(3), "stall_timeout_s": LIMIT_S}
    waits = first_waits(gate, lambda _: 1)
    openers = [threading.Thread(target=lambda: open(gate, "w").close()) for _ in range(2)]
    with FeedRunner(source, processes=2, threads=2, transform=waits, **options) as runner:
        openers[0].start()
        assert sorted(numbers(runner)) == list(range(20))
        batches = iter(runner)
        first = numbers(islice(batches, 3))
        state = runner.state()
        openers[1].start()
        rests = [numbers(batches)]
        for opener in openers:
            opener.join()
    assert sorted(first) == [1, 2, 3]
    options["transform"] = opened_by_the_last(gate)
    for processes, threads in ((1, 2), (2, 3), (0, 3)):
        options |= {"processes": processes, "threads": threads}
        with FeedRunner(source, **options).restore(state) as runner:
            rests.append(numbers(runner))
    for rest in rests:
        assert rest[0] == 0
        assert sorted(first + rest) == list(range(20))
        assert all(abs(place - n) <= 3 for place, n in enumerate(first + rest))


@pytest.mark.parametrize("threads", [1, 4])
def test_a_callable_has_no_order_to_keep_near(threads: int) -> None:
    text = r"^order=Reorder\(window=8\) requires .* an iterable, got a callable.*Leave out order="
    with pytest.raises(OptionError, match=text):
        FeedRunner(shared_out(20, 2), threads=threads, order=Reorder(WINDOW))


def test_a_record_that_fails_is_met_in_its_window() -> None:
    class Lost(Exception):
        pass

    def failing(record: int) -> int:
        if record == SLOW:
            raise Lost
        return record

    with runner_of(failing, 3, on_error="skip") as runner:
        found = numbers(runner)
    assert sorted(found) == [n for n in range(TOTAL) if n != SLOW]
    got: list[int] = []
    with runner_of(failing, 3) as runner, pytest.raises(ProducerFailed, match="batch 5"):
        for batch in runner:
            got += numbers([batch])
    assert set(got) <= set(OVERTAKEN)


def test_one_producer_keeps_the_order() -> None:
    with runner_of(np.negative, 1) as runner:
        assert numbers(runner) == [-n for n in range(TOTAL)]
