"""Functions of the user's in the producers: filter, collate, batch_transform."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError, Pad, ProducerError, Shard, SpecError, Worker
from tests.helpers.streams import LIMIT_S

EXECUTORS = [(1, 0), (3, 0), (1, 2), (2, 2)]
in_each = pytest.mark.parametrize(("threads", "processes"), EXECUTORS, ids=str)


def odd(record: Any) -> bool:
    return bool(record % 2)


def with_length(records: list[Any]) -> dict[str, Any]:
    return {"x": np.array(records), "n": np.full(len(records), len(records))}


def noisy(batch: Any, worker: Worker) -> Any:
    return batch + worker.rng.random(len(batch))


def scaled(batch: Any) -> Any:
    return batch * np.float32(0.5)


def failing(batch: Any) -> Any:
    raise ValueError(f"no batch of {len(batch)}")


def failing_if_whole(batch: Any) -> Any:
    return batch if len(batch) < 4 else failing(batch)


def rows(source: Any, **options: Any) -> list[Any]:
    with FeedRunner(source, stall_timeout_s=LIMIT_S, **{"batch_size": 4, **options}) as runner:
        return [np.asarray(batch).tolist() for batch in runner]


@in_each
def test_a_filter_leaves_records_out_and_batches_are_filled_up(
    threads: int, processes: int
) -> None:
    found = rows(range(40), filter=odd, threads=threads, processes=processes)
    assert found == [list(range(1 + 8 * i, 9 + 8 * i, 2)) for i in range(5)]


@given(st.integers(1, 30), st.integers(1, 7), st.sets(st.integers(0, 29)), st.integers(1, 3))
def test_each_record_that_the_filter_keeps_comes_once(
    length: int, batch_size: int, kept: set[int], threads: int
) -> None:
    wanted = [n for n in range(length) if n in kept]
    if not wanted:
        return
    options: dict[str, Any] = {"batch_size": batch_size, "threads": threads, "shuffle": True}
    found = rows(range(length), filter=kept.__contains__, seed=1, **options)
    assert sorted(n for batch in found for n in batch) == wanted
    assert {len(batch) for batch in found[:-1]} <= {batch_size}


def test_a_filter_of_whole_batches() -> None:
    found = rows(
        [[1, 2], [3, 4], [5, 6]], records=False, batch_size=None, filter=lambda b: b[0] > 1
    )
    assert found == [[3, 4], [5, 6]]


@pytest.mark.parametrize("processes", [0, 2])
def test_a_filter_that_leaves_nothing(processes: int) -> None:
    with pytest.raises(SpecError, match="does filter= leave nothing"):
        rows(range(8), filter=lambda record: False, epochs=100, processes=processes)


def test_a_run_with_a_filter_resumes_behind_the_last_batch() -> None:
    options: dict[str, Any] = {"batch_size": 3, "filter": odd, "shuffle": True, "seed": 5}
    whole = rows(range(50), **options)
    with FeedRunner(range(50), **options) as runner:
        begun = [batch.tolist() for batch in islice(runner, 3)]
        state = json.loads(json.dumps(runner.state()))
    with FeedRunner(range(50), threads=3, **options) as runner:
        rest = [batch.tolist() for batch in runner.restore(state)]
    assert begun + rest == whole


@in_each
def test_a_collate_of_ones_own(threads: int, processes: int) -> None:
    options: dict[str, Any] = {"threads": threads, "processes": processes, "batch_size": 4}
    with FeedRunner(range(10), collate=with_length, **options) as runner:
        found = list(runner)
    assert [batch["x"].tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [set(batch["n"].tolist()) for batch in found] == [{4}, {4}, {2}]


@in_each
def test_draws_of_a_batch_transform_do_not_depend_on_the_producers(
    threads: int, processes: int
) -> None:
    options: dict[str, Any] = {"batch_transform": noisy, "seed": 3, "shuffle": True, "epochs": 2}
    found = rows(np.zeros(40), threads=threads, processes=processes, **options)
    assert found == rows(np.zeros(40), **options)
    assert len({value for batch in found for value in batch}) == 80


def test_a_batch_transform_may_change_the_dtype_and_follows_the_transform() -> None:
    with FeedRunner(
        range(6), batch_size=3, transform=lambda n: n + 1, batch_transform=scaled
    ) as runner:
        found = list(runner)
    assert {batch.dtype for batch in found} == {np.dtype(np.float64)}
    assert [batch.tolist() for batch in found] == [[0.5, 1.0, 1.5], [2.0, 2.5, 3.0]]


@pytest.mark.parametrize("processes", [0, 1])
def test_a_batch_transform_of_a_stream_of_batches(processes: int) -> None:
    found = rows(
        [np.ones(2)] * 3,
        records=False,
        batch_size=None,
        batch_transform=scaled,
        processes=processes,
    )
    assert found == [[0.5, 0.5]] * 3


def test_an_error_of_a_batch_transform_names_the_batch() -> None:
    with pytest.raises(ProducerError, match="batch 0.*no batch of 4"):
        rows(range(8), batch_transform=failing)
    assert rows(range(10), batch_transform=failing_if_whole, on_error="skip") == [[8, 9]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"filter": 3}, "filter must be a function of one item"),
        ({"collate": "x"}, "collate must be a function of a list of records"),
        ({"batch_transform": 1}, "batch_transform must be a function of one batch"),
        ({"filter": odd, "shard": Shard(0, 2, "drop")}, "sampler=indices"),
        ({"collate": with_length, "pad": Pad(lengths=True)}, "collate= replaces"),
        ({"collate": with_length, "records": False}, "records=True and batch_size="),
    ],
)
def test_functions_that_do_not_fit_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        FeedRunner(range(8), **{"batch_size": 4, **options})
