"""runner.epochs(), and consecutive passes: exact epochs from the same producers, and nothing left
behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, FeedStopped, ProducerError, Shuffle, Worker
from tests.helpers.feeds import (
    LONG_S,
    Broken,
    Readable,
    chunks,
    ids_of,
)
from tests.helpers.stream_cases import cases, thread_mixes
from tests.helpers.streams import (
    CALLABLES,
    KINDS,
    LIMIT_S,
    Case,
    Rows,
    passes,
    record,
    records,
)

MIXES = [(0, 1), (0, 3), (1, 2)]
in_each_mix = pytest.mark.parametrize("mix", MIXES, ids=str)
ORDERED = tuple(kind for kind in KINDS if kind not in CALLABLES)


def runner_of(source: Any, mix: tuple[int, int], **options: Any) -> FeedRunner:
    options = {"seed": 7, "stall_timeout_s": LIMIT_S, **options}
    return FeedRunner(source, processes=mix[0], threads=mix[1], **options)


def of_records(mix: tuple[int, int], total: int = 10, **options: Any) -> FeedRunner:
    return runner_of(range(total), mix, **{"transform": record, "batch_size": 4, **options})


def columns(batches: Any) -> tuple[list[int], set[int]]:
    """Return the ids and the epochs."""
    rows = [row for batch in batches for row in batch.tolist()]
    return [row[0] for row in rows], {row[1] for row in rows}


@in_each_mix
def test_epochs_are_exact_and_numbered(mix: tuple[int, int]) -> None:
    for options in ({}, {"shuffle": True}, {"shuffle": Shuffle(25, 4)}, {"order": "any"}):
        with of_records(mix, epochs=3, **options) as runner:
            found = [(epoch.number, *columns(epoch)) for epoch in runner.epochs()]
            again = [(epoch.number, *columns(epoch)) for epoch in runner.epochs()]
        assert [(n, sorted(ids), epochs) for n, ids, epochs in found] == [
            (n, [*range(10)], {n}) for n in range(3)
        ]
        assert [n for n, _, _ in again] == [3, 4, 5], "a second call goes on"


@in_each_mix
def test_without_epochs_there_is_no_end(mix: tuple[int, int]) -> None:
    with of_records(mix) as runner:
        found = [(epoch.number, *columns(epoch)) for epoch in islice(runner.epochs(), 12)]
    assert found == [(n, [*range(10)], {n}) for n in range(12)]


@settings(max_examples=40)
@given(cases(ORDERED), thread_mixes, st.lists(st.integers(0, 5), min_size=2, max_size=4))
def test_the_rest_of_an_epoch_that_is_left_is_passed_over(
    case: Case, mix: Any, counts: list[int]
) -> None:
    case.options.pop("order", None)
    case.options["epochs"] = len(counts)
    found: list[tuple[int, list[Rows]]] = []
    with case.runner(mix) as runner:
        for epoch, count in zip(runner.epochs(), counts, strict=True):
            found.append((epoch.number, [batch.tolist() for batch in islice(epoch, count)]))
        assert runner.state()["epoch"] >= len(counts) - 1
    (whole,) = passes(case, (0, 1))
    parts = [[rows for rows in whole if rows[0][1] == n] for n in range(len(counts))]
    assert found == [
        (n, part[:count]) for n, (part, count) in enumerate(zip(parts, counts, strict=True))
    ]


@in_each_mix
def test_a_loop_over_an_epoch_goes_on_where_it_was_left(mix: tuple[int, int]) -> None:
    with of_records(mix) as runner:
        epochs = runner.epochs()
        epoch = next(epochs)
        assert columns(islice(epoch, 1))[0] == [0, 1, 2, 3]
        assert not epoch.complete
        assert columns(epoch)[0] == [4, 5, 6, 7, 8, 9]
        assert epoch.complete and columns(epoch)[0] == []
        assert columns(next(epochs)) == ([*range(10)], {1})
        assert columns(epoch)[0] == [], "which is over"


@in_each_mix
def test_epochs_and_plain_loops_take_turns(mix: tuple[int, int]) -> None:
    with of_records(mix, epochs=2) as runner:
        assert columns(islice(runner, 4)) == ([*range(10), 0, 1, 2, 3], {0, 1})
        assert [(epoch.number, *columns(epoch)) for epoch in runner.epochs()] == [
            (1, [4, 5, 6, 7, 8, 9], {1})
        ]
        assert columns(runner) == ([*range(10)] * 2, {2, 3})
        assert columns(islice(next(runner.epochs()), 1)) == ([0, 1, 2, 3], {4})
        assert columns(runner) == ([4, 5, 6, 7, 8, 9, *range(10)], {4, 5}), (
            "a run ends where it would have"
        )


@pytest.mark.parametrize("mix", [(0, 1), (0, 2), (1, 1)], ids=str)
def test_an_iterator_has_one_epoch(mix: tuple[int, int]) -> None:
    for take in (None, 2):
        with runner_of(chunks(40, 4), mix) as runner:
            found = [(epoch.number, ids_of(islice(epoch, take))) for epoch in runner.epochs()]
        assert found == [(0, [*range(40)][: None if take is None else 8])]


@pytest.mark.parametrize("mix", [(0, 3), (2, 1)], ids=str)
@pytest.mark.parametrize("shuffle", [None, Shuffle(12, 4)], ids=str)
def test_every_pass_has_the_same_workers(mix: tuple[int, int], shuffle: Any) -> None:
    def who(item: int) -> np.ndarray:
        time.sleep(0.001)  # so that none is quick enough to do it all
        return np.array([os.getpid(), threading.get_ident()])

    with runner_of(range(60), mix, transform=who, batch_size=2, shuffle=shuffle) as runner:
        threads = [{tuple(row) for batch in runner for row in batch.tolist()} for _ in range(3)]
        threads += [
            {tuple(row) for batch in epoch for row in batch.tolist()}
            for epoch in islice(runner.epochs(), 2)
        ]
    # A worker process that was slow to start may have had no share in the first passes.
    assert len(set().union(*threads)) <= max(1, mix[0]) * mix[1], (
        "a worker was started between passes"
    )


def test_a_callable_is_called_once_for_each_epoch_by_the_same_threads() -> None:
    calls: list[tuple[int, int, int]] = []

    def stream(worker: Worker) -> Iterator[np.ndarray]:
        calls.append((worker.epoch, worker.index, threading.get_ident()))
        yield records(0, worker, total=4, size=4)

    with runner_of(stream, (0, 2)) as runner:
        for _ in range(5):
            assert len(list(runner)) == 2
    assert len(calls) == len({call[:2] for call in calls}), "an epoch is made once"
    assert len({call[2] for call in calls}) == 2


@in_each_mix
def test_the_next_epoch_is_made_while_this_one_is_consumed(mix: tuple[int, int]) -> None:
    with of_records(mix, memory="8MB") as runner:
        for epoch in islice(runner.epochs(), 3):
            batches = iter(epoch)
            next(batches)
            deadline = time.monotonic() + LONG_S
            while runner.snapshot().produced.batches < 3 * (epoch.number + 2):
                assert time.monotonic() < deadline, "the next epoch is not begun"
                time.sleep(0.002)
            list(batches)


def test_the_last_of_a_given_number_of_epochs_is_followed_by_none() -> None:
    """A pass is produced only if it is certainly wanted."""
    with of_records((0, 2), epochs=2) as runner:
        list(runner)
        time.sleep(0.05)
        assert runner.snapshot().produced.records == 20


Ends = Callable[[FeedRunner], Any]
ENDS: dict[str, Ends] = {
    "between passes": lambda runner: list(runner),
    "after two passes": lambda runner: (list(runner), list(runner)),
    "inside a pass": lambda runner: next(iter(runner)),
    "between epochs": lambda runner: [list(epoch) for epoch in islice(runner.epochs(), 2)],
    "inside an epoch": lambda runner: [next(iter(epoch)) for epoch in islice(runner.epochs(), 2)],
    "before any": lambda runner: next(runner.epochs()),
    "started": lambda runner: runner.start(),
}


@pytest.mark.slow
@pytest.mark.parametrize("mix", [(0, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("end", ENDS)
def test_a_runner_that_is_forgotten_or_stopped_leaves_nothing(
    mix: tuple[int, int], end: str
) -> None:
    """The fixture of every test checks this."""
    ENDS[end](of_records(mix))
    gc.collect()
    with of_records(mix, shuffle=Shuffle(12, 4)) as runner:
        ENDS[end](runner)
    with pytest.raises(FeedStopped):
        list(runner)


@in_each_mix
def test_what_the_loop_raises_between_and_inside_epochs_changes_nothing(
    mix: tuple[int, int],
) -> None:
    with of_records(mix, epochs=3) as runner:
        found: list[int] = []
        for error in (Broken, KeyboardInterrupt):
            with pytest.raises(error):
                for batch in runner:
                    found += batch[:, 0].tolist()
                    raise error
        found += columns(runner)[0]
        assert found == [*range(10)] * 3
        epochs = runner.epochs()
        with pytest.raises(KeyboardInterrupt):
            for epoch in epochs:
                assert columns(epoch)[1] == {3}
                raise KeyboardInterrupt
        assert [(epoch.number, columns(epoch)[0]) for epoch in epochs] == [
            (4, [*range(10)]),
            (5, [*range(10)]),
        ]


@in_each_mix
def test_a_failure_in_a_later_epoch_comes_in_its_place(mix: tuple[int, int]) -> None:
    def transform(item: int, worker: Worker) -> np.ndarray:
        if (worker.epoch, item) == (1, 5):
            raise Broken("the disk is gone")
        return np.array([item])

    with runner_of(Readable(lambda: range(8)), mix, transform=transform) as runner:
        found: list[list[int]] = []
        with pytest.raises(ProducerError, match="Broken"):
            for epoch in runner.epochs():
                found.append([])
                for batch in epoch:
                    found[-1] += batch.tolist()
        assert found == [[*range(8)], [*range(5)]]
        with pytest.raises(ProducerError, match="Broken"):
            next(iter(next(runner.epochs())))


class Following:
    """A sampler that gives the next indices each time that it is iterated over."""

    first = 0

    def __iter__(self) -> Iterator[int]:
        first, self.first = self.first, self.first + 4
        return iter(range(first, first + 4))


@pytest.mark.parametrize("options", [{}, {"threads": 2}, {"processes": 1}], ids=str)
def test_a_sampler_is_iterated_over_once_an_epoch(options: Any) -> None:
    with FeedRunner(range(12), batch_size=4, sampler=Following(), epochs=3, **options) as runner:
        assert [batch.tolist() for batch in runner] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
