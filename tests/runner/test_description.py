"""What a runner shows of itself: repr, notebook, length, counters before the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner

RECORDS = [np.full(2, i) for i in range(10)]


def few() -> Iterator[Any]:
    for _ in range(5):
        yield np.zeros(3)


def test_the_repr_follows_the_run() -> None:
    with FeedRunner(few, threads=1) as runner:
        assert repr(runner) == "<FeedRunner few, threads=1, not started>"
        batches = iter(runner)
        next(batches), next(batches)
        assert repr(runner).startswith("<FeedRunner few, threads=1, running, ")
        assert repr(runner).endswith(" steps/s>")
    assert ", stopped" in repr(runner)


def test_the_repr_names_what_was_chosen() -> None:
    with FeedRunner(RECORDS, processes=2, batch_size=4) as runner:
        assert repr(runner) == (
            "<FeedRunner list, threads=1, processes=2, batch_size=4, not started>"
        )


def test_counters_before_the_start_are_zero_and_can_be_subtracted() -> None:
    with FeedRunner(lambda worker: few(), threads=3) as runner:
        before = runner.snapshot()
        assert (before.elapsed_s, before.consumed.batches, before.depth) == (0.0, 0, 0)
        assert len(list(runner)) == 15
        assert (runner.snapshot() - before).consumed.batches == 14
        assert not runner.snapshot().one_reader
    with FeedRunner(few(), threads=1) as runner:
        assert len(list(runner)) == 5
        assert runner.snapshot().one_reader, "the producers share an iterator"
    with FeedRunner(few, threads=1) as runner:
        assert len(list(runner)) == 5
        assert runner.snapshot().one_reader, "another producer would read the same stream"


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, 3),
        ({"last_batch": "drop"}, 2),
        ({"epochs": 2, "last_batch": "drop"}, 4),
    ],
)
def test_the_length_of_a_run(options: dict[str, Any], batches: int) -> None:
    with FeedRunner(RECORDS, batch_size=4, **options) as runner:
        assert len(runner) == batches == len(list(runner))


@pytest.mark.parametrize("source", [few, (np.zeros(3) for _ in range(2))])
def test_without_a_known_length(source: Any) -> None:
    with FeedRunner(source) as runner:
        with pytest.raises(TypeError, match=r"known only for a source with len\(\) and \[index\]"):
            len(runner)
        assert runner
        assert len(list(runner)) in (2, 5)


def test_a_runner_of_no_batches_is_true() -> None:
    with FeedRunner(RECORDS, batch_size=4, shard=(0, 5), epochs=1) as runner:
        assert len(runner) == 1 and runner
