"""shard=(rank, world): the ranks deliver an epoch together, in equally many steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError, Shard, Shuffle, Worker
from tests.helpers.feeds import Readable
from tests.helpers.streams import (
    LIMIT_S,
    SEED,
    Rows,
    play,
)
from tests.helpers.streams import Case as Stream

in_processes = settings(max_examples=4, phases=(Phase.explicit, Phase.reuse, Phase.generate))
EPOCHS = 2


def told(item: int, worker: Worker) -> np.ndarray:
    return np.array([item, worker.epoch])


def ranks(
    source: Any, mixes: list[tuple[int, int]], *, make: bool = False, **options: Any
) -> list[list[Rows]]:
    """Return the batches of each rank, one list for each of two epochs. With `make`, `source` is a
    function that makes one for each rank."""
    found, remainder = [], options.pop("remainder", None)
    for rank, mix in enumerate(mixes):
        shard = Shard(rank, len(mixes), remainder)
        own = {"seed": SEED, "stall_timeout_s": LIMIT_S, "shard": shard, **options}
        with FeedRunner(
            source() if make else source, processes=mix[0], threads=mix[1], **own
        ) as runner:
            found.append([[batch.tolist() for batch in runner] for _ in range(EPOCHS)])
    return found


def counted(parts: list[list[Rows]], epoch: int) -> Counter[int]:
    """Return the count of each id in an epoch, over all ranks."""
    found = Counter(row[0] for part in parts for rows in part[epoch] for row in rows)
    assert {row[1] for part in parts for rows in part[epoch] for row in rows} <= {epoch}
    return found


def check_shares(parts: list[list[Rows]], total: int, remainder: str) -> None:
    """Check that all ranks have equal steps and records, and all records come once, except a
    remainder that varies with the epoch."""
    world = len(parts)
    for epoch in range(EPOCHS):
        assert len({str([len(rows) for rows in part[epoch]]) for part in parts}) == 1, (
            "ranks take other steps"
        )
        each = -(-total // world) if remainder == "pad" else total // world
        found = counted(parts, epoch)
        assert sum(found.values()) == each * world
        if remainder == "drop":
            assert set(found.values()) == {1} and set(found) <= set(range(total))
        else:
            rounds, more = divmod(each * world, total)
            assert sorted(found.values()) == [rounds] * (total - more) + [rounds + 1] * more


shuffles = st.sampled_from([None, False, True, Shuffle(12, 4)])
sizes = {"total": st.integers(1, 30), "size": st.integers(1, 6), "world": st.integers(1, 5)}


@settings(max_examples=50)
@given(
    **sizes, shuffle=shuffles, remainder=st.sampled_from(["drop", "pad"]), threads=st.integers(1, 3)
)
def test_ranks_share_an_epoch(
    total: int, size: int, world: int, shuffle: Any, remainder: str, threads: int
) -> None:
    if remainder == "drop" and total < world:
        total = world
    mixes = [(0, (threads + rank) % 3 + 1) for rank in range(world)]
    options = {"transform": told, "batch_size": size, "shuffle": shuffle, "remainder": remainder}
    check_shares(ranks(range(total), mixes, **options), total, remainder)


@pytest.mark.slow
@in_processes
@given(total=st.integers(3, 30), size=st.integers(1, 6), shuffle=shuffles)
def test_ranks_share_an_epoch_whoever_works_for_them(total: int, size: int, shuffle: Any) -> None:
    options = {"transform": told, "batch_size": size, "shuffle": shuffle, "remainder": "drop"}
    check_shares(ranks(range(total), [(0, 2), (1, 1), (2, 1)], **options), total, "drop")


@settings(max_examples=30)
@given(**sizes, threads=st.integers(1, 3), records=st.booleans())
def test_ranks_share_an_iterable(
    total: int, size: int, world: int, threads: int, records: bool
) -> None:
    def transform(item: int, worker: Worker) -> np.ndarray:
        row = told(item, worker)
        return row if records else row[None]

    options: dict[str, Any] = {"transform": transform, "batch_size": size, "remainder": "drop"}
    mixes = [(0, threads)] * world
    source = Readable(lambda: range(max(total, world)))
    check_shares(ranks(source, mixes, records=records, **options), max(total, world), "drop")


@settings(max_examples=30)
@given(**sizes, threads=st.integers(1, 3))
def test_producers_of_all_ranks_share_a_callable(
    total: int, size: int, world: int, threads: int
) -> None:
    def stream(worker: Worker) -> Any:
        assert worker.count == world * threads
        return (np.array([[i, worker.epoch]]) for i in range(worker.index, total, worker.count))

    if total < world * threads:
        total = world * threads
    parts = ranks(stream, [(0, threads)] * world, batch_size=size)
    assert all(counted(parts, epoch) == Counter(range(total)) for epoch in range(EPOCHS))


@settings(max_examples=30)
@given(total=st.integers(6, 30), size=st.integers(1, 4), cut=st.integers(0, 8), shuffle=shuffles)
def test_a_rank_goes_on_with_its_share(total: int, size: int, cut: int, shuffle: Any) -> None:
    """The remainder that a shuffle leaves out differs in each epoch."""
    for rank in range(3):
        case = Stream(
            "indexable", total, size, {"shard": Shard(rank, 3, "drop"), "shuffle": shuffle}
        )
        whole = play(case, (0, 1), cut + 6)[0]
        first, state = play(case, (0, 2), cut)
        assert first + play(case, (0, 3), 6, state)[0] == whole


def test_what_is_left_out_is_another_record_in_each_epoch_of_a_shuffle() -> None:
    parts = ranks(
        range(10), [(0, 1)] * 3, transform=told, batch_size=2, shuffle=True, remainder="drop"
    )
    left = [set(range(10)) - set(counted(parts, epoch)) for epoch in range(EPOCHS)]
    assert [len(gone) for gone in left] == [1, 1]
    assert left[0] != left[1]


def test_one_rank_may_save_for_all_where_the_order_is_kept() -> None:
    def rank(number: int, **more: Any) -> FeedRunner:
        return FeedRunner(range(40), batch_size=4, shuffle=True, seed=2, shard=(number, 2), **more)

    with rank(0) as runner:
        next(iter(runner))
        state = runner.state()
    with rank(1) as runner:
        whole = [batch.tolist() for batch in runner]
    with rank(1).restore(state) as runner:
        assert [batch.tolist() for batch in runner] == whole[1:]
    with rank(0, order="any") as runner, pytest.raises(OptionError, match="rank was 0 and is 1"):
        rank(1, order="any").restore(runner.state())
