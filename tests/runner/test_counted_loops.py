"""Loops that count their own steps, and are never told that an epoch has ended."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedWarning

RECORDS = np.arange(40)


def finite() -> Iterator[Any]:
    for number in range(10):
        yield np.full(4, number)


def counted(runner: Any, batches: Any, *, epochs: int = 5) -> list[int]:
    """Steps of each of some epochs."""
    return [sum(1 for _ in zip(range(10), batches, strict=False)) for _ in range(epochs)]


@pytest.mark.parametrize("options", [{}, {"threads": 2}, {"processes": 1}])
def test_each_epoch_of_a_loop_that_counts_its_steps_is_whole(options: dict[str, Any]) -> None:
    with FeedRunner(RECORDS, batch_size=4, **options) as runner:
        assert counted(runner, runner) == [10] * 5
        assert [len(list(runner)) for _ in range(2)] == [10] * 2


def test_the_epochs_hold_every_record() -> None:
    with FeedRunner(RECORDS, batch_size=4, shuffle=True, seed=1) as runner:
        for _ in range(4):
            found = [batch for _, batch in zip(range(10), runner, strict=False)]
            assert sorted(np.concatenate(found)) == RECORDS.tolist()


def test_a_stream_that_ends_begins_again() -> None:
    with FeedRunner(finite) as runner:
        assert counted(runner, runner) == [10] * 5


def test_batches_for_torch_begin_again() -> None:
    pytest.importorskip("torch")
    with FeedRunner(finite) as runner:
        assert counted(runner, runner.torch()) == [10] * 5


def test_an_iterator_is_read_once() -> None:
    with FeedRunner(finite()) as runner:
        assert counted(runner, runner, epochs=2) == [10, 0]


def test_a_run_that_was_restored_at_its_end_has_nothing_left() -> None:
    with FeedRunner(RECORDS, batch_size=4) as runner:
        for _, _ in zip(range(10), runner, strict=False):
            state = runner.state()
    with FeedRunner(RECORDS, batch_size=4).restore(state) as runner:
        assert counted(runner, runner, epochs=3) == [0, 10, 10]


class Staged:
    """A data set that the loop tells something."""

    def __init__(self) -> None:
        self.stage = 1

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return self.stage


@pytest.mark.parametrize("loop", [lambda runner: runner, lambda runner: next(runner.epochs())])
def test_an_attribute_that_copies_do_not_get_is_warned_of(loop: Any) -> None:
    data = Staged()
    with FeedRunner(data, batch_size=8, processes=1) as runner:
        assert len(list(loop(runner))) == len(list(loop(runner))) == 2
        data.stage = 2
        with pytest.warns(
            FeedWarning, match="stage of Staged was changed, or replaced, between two loops"
        ):
            assert [batch[0] for batch in loop(runner)] == [1, 1]
        list(loop(runner))  # is warned of once


def test_labels_that_copies_do_not_get_are_warned_of() -> None:
    data = Staged()
    data.labels = [0] * 16  # type: ignore[attr-defined]
    with FeedRunner(data, batch_size=8, processes=1) as runner:
        list(runner)
        data.labels = [1] * 16  # type: ignore[attr-defined]
        with pytest.warns(FeedWarning, match="labels of Staged was changed"):
            list(runner)


def test_new_workers_get_it() -> None:
    data = Staged()
    with FeedRunner(data, batch_size=4, processes=1) as runner:
        batches = runner.torch() if importlib.util.find_spec("torch") else runner.jax()
        next(iter(batches))
        data.stage = 2
        assert [int(batch[0]) for batch in batches] == [2, 2, 2, 2]


def test_threads_get_it() -> None:
    data = Staged()
    with FeedRunner(data, batch_size=8) as runner:
        list(runner)
        data.stage = 2
        assert [int(batch[0]) for epoch in range(3) for batch in runner][-1] == 2
