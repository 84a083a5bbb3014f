"""Draws, fill values and parts of records are those of the user's functions, in streams and in
records alike."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, Shard, SpecError


def stream(worker: Any) -> Any:
    for _ in range(20):
        yield worker.rng.normal(size=(4, 2))


def with_noise(batch: Any, worker: Any) -> Any:
    return np.concatenate([batch, worker.rng.normal(size=batch.shape)], axis=1)


@pytest.mark.parametrize("option", ["transform", "batch_transform"])
def test_a_function_draws_other_numbers_than_its_stream_and_other_ranks(option: str) -> None:
    noise = []
    for rank in range(2):
        options: dict[str, Any] = {option: with_noise, "shard": Shard(rank, 2), "seed": 1}
        with FeedRunner(stream, epochs=1, **options) as runner:
            found = np.concatenate(list(runner))
        assert not np.isin(found[:, :2], found[:, 2:]).any()
        noise.append(found[:, 2:])
    assert not np.isin(*noise).any()


def is_kept(record: int) -> bool:
    return random.random() < 0.5


@pytest.mark.parametrize("processes", [1, 2])
def test_a_random_filter_keeps_the_same_records_in_any_worker(processes: int) -> None:
    options: dict[str, Any] = {"filter": is_kept, "batch_size": 10, "seed": 3}
    with FeedRunner(list(range(400)), processes=processes, **options) as runner:
        found = np.concatenate(list(runner)).tolist()
    with FeedRunner(list(range(400)), processes=1, **options) as runner:
        assert found == np.concatenate(list(runner)).tolist()
    assert 100 < len(found) < 300


def divided(record: dict[str, Any]) -> dict[str, Any]:
    record["x"] = record["x"] / 2
    return record


@pytest.mark.parametrize("options", [{}, {"processes": 1}])
def test_a_transform_that_replaces_parts_of_a_record_does_so_once(options: Any) -> None:
    data = [{"x": np.full(2, 8.0), "y": n} for n in range(20)]
    with FeedRunner(data, transform=divided, batch_size=5, epochs=3, **options) as runner:
        assert {float(x) for batch in runner for x in batch["x"].ravel()} == {4.0}


def test_arrays_are_not_changed_by_a_transform() -> None:
    def halve(row: Any) -> Any:
        row /= 2
        return row

    data = np.ones((20, 3))
    with (
        FeedRunner(data, transform=halve, batch_size=5) as runner,
        pytest.raises(Exception, match="read-only"),
    ):
        list(runner)
    assert (data == 1).all()


def padded(records: list[Any]) -> Any:
    width = max(len(one) for one in records)
    return np.array([[*one, *[-100] * (width - len(one))] for one in records])


RAGGED = [list(range(1 + n // 6 % 7)) for n in range(40)]


def test_the_fill_value_of_a_collate_is_not_replaced_by_another() -> None:
    options: dict[str, Any] = {"collate": padded, "batch_size": 8}
    with FeedRunner(RAGGED, pad=True, **options) as runner:
        assert {int(x) for batch in runner for x in batch.ravel()} == {-100, *range(7)}
    odd: dict[str, Any] = {**options, "filter": lambda one: len(one) != 3}
    with (
        FeedRunner(RAGGED, pad=True, **odd) as runner,
        pytest.raises(SpecError, match="fill value of collate= is unknown"),
    ):
        list(runner)
    with FeedRunner(RAGGED, pad=-100, **odd) as runner:
        assert sum(len(batch) for batch in runner) == 34


def test_a_collate_that_pads_to_one_width_needs_no_fill_value() -> None:
    """Also where a shuffle of a stream draws records into new batches."""
    options: dict[str, Any] = {"collate": lambda records: np.array(records), "batch_size": 8}
    shuffled = FeedRunner(
        lambda: iter([[n, n] for n in range(64)]),
        records=True,
        shuffle=True,
        pad=True,
        epochs=1,
        **options,
    )
    with shuffled as runner:
        assert sorted(int(row[0]) for batch in runner for row in batch) == list(range(64))


@pytest.mark.parametrize("option", ["collate", "batch_transform"])
def test_a_function_that_fills_one_array_is_refused(option: str) -> None:
    out = np.empty((8, 2))

    def fill(records: Any) -> Any:
        out[:] = np.asarray(records)
        return out

    data = np.arange(400.0).reshape(200, 2)
    options: dict[str, Any] = {option: fill, "batch_size": 8}
    with (
        FeedRunner(data, **options) as runner,
        pytest.raises(SpecError, match="memory of an earlier batch|has changed while it waited"),
    ):
        list(runner)


def test_large_arrays_and_views_that_are_filled_again_are_refused() -> None:
    def batches() -> Any:
        buffer = np.zeros((6, 3, 1024, 1024), np.uint8)
        for number in range(1, 8):
            buffer[:] = number
            yield buffer.transpose(0, 2, 3, 1)

    with (
        FeedRunner(batches) as runner,
        pytest.raises(SpecError, match="memory of an earlier batch|changed while it waited"),
    ):
        list(runner)


def test_large_integers_with_missing_values_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    ids = pandas.array([2**53 + 1, None, 3], dtype="Int64")
    table = pandas.DataFrame({"user": ids, "x": [0.0, 1.0, 2.0]})
    with pytest.raises(Exception, match="missing values|object"):
        list(FeedRunner(table, batch_size=3))
    small = pandas.DataFrame({"user": pandas.array([1, 2, 3], dtype="Int64")})
    with FeedRunner(small, batch_size=3) as runner:
        (batch,) = runner
    assert batch["user"].tolist() == [1, 2, 3]
