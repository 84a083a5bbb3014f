"""`with runner.take() as batch`: the memory of a batch is reused after the block, unless it is
still referenced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, Worker
from tests.helpers.feeds import (
    Broken,
    Readable,
    broken_after,
    chunks,
)
from tests.helpers.mixes import (
    LIMIT_S,
    MIXES,
    name,
    producers,
)

in_every_mix = pytest.mark.parametrize("mix", MIXES, ids=name)
in_processes = pytest.mark.parametrize("mix", [(1, 1), (2, 2)], ids=name)


def runner_of(source: Any, mix: tuple[int, int], **options: Any) -> FeedRunner:
    return FeedRunner(source, processes=mix[0], threads=mix[1], stall_timeout_s=LIMIT_S, **options)


def nested(worker: Worker) -> Iterator[Any]:
    """Return batches that hold their number, in arrays in nested containers."""
    for number in range(200):
        yield {
            "x": [np.full((4, 3), number)],
            "y": (np.full(4, number), {"z": np.full((4, 1), number, "f4")}),
        }


def bare(worker: Worker) -> Iterator[Any]:
    for batch in nested(worker):
        yield batch["x"][0]


def values(kept: Any) -> set[float]:
    """Return all numbers in the objects that were kept."""
    if isinstance(kept, dict):
        return set().union(*map(values, kept.values()))
    if isinstance(kept, (list, tuple)):
        return set().union(*map(values, kept))
    return set(np.asarray(kept).reshape(-1).tolist())


# What somebody may keep of a batch beyond the block.
NESTED: dict[str, Callable[[Any], Any]] = {
    "the batch": lambda batch: batch,
    "in a list": lambda batch: [batch],
    "a copy of the containers": lambda batch: dict(batch),
    "an array": lambda batch: batch["x"][0],
    "the last array": lambda batch: batch["y"][1]["z"],
    "a container inside": lambda batch: batch["x"],
    "a container inside a container": lambda batch: batch["y"][1],
    "a view": lambda batch: batch["y"][0][::2],
    "a view of a view": lambda batch: batch["x"][0].T[1:][:, 1],
    "a memoryview": lambda batch: memoryview(batch["y"][0]),
}
BARE: dict[str, Callable[[Any], Any]] = {
    "the array": lambda batch: batch,
    "in a list": lambda batch: [batch],
    "a view": lambda batch: batch[:1],
    "other eyes": lambda batch: np.asarray(memoryview(batch)),
}


@in_processes
def test_what_is_kept_beyond_the_block_never_changes(mix: tuple[int, int]) -> None:
    """Use few slots, which are reused soon, and every way of keeping, in one run for each
    source."""
    for source, ways in ((nested, NESTED), (bare, BARE)):
        kept: dict[str, tuple[float, Any]] = {}
        with runner_of(source, mix, memory=mix[0] * 24 * 4096) as runner:
            for way, keep in ways.items():
                with runner.take() as batch:
                    number = max(values(batch))
                    kept[way] = number, keep(batch)
                del batch
                for _ in range(9):
                    with runner.take() as batch:
                        assert len(values(batch)) == 1
                changed = [way for way, (number, what) in kept.items() if values(what) != {number}]
                assert not changed, f"kept, and changed: {changed}"


@in_every_mix
def test_it_delivers_what_a_loop_delivers(mix: tuple[int, int]) -> None:
    ids: list[int] = []
    with runner_of(Readable(lambda: chunks(50, 4)), mix, epochs=2) as runner:
        with pytest.raises(StopIteration):
            while True:
                with runner.take() as (x, y):
                    assert (x == -y).all()
                    ids += x.tolist()
        assert ids == [*range(50), *range(50)]
        with runner.take() as (x, _):
            assert x.tolist() == [0, 1, 2, 3], "after the end a new pass begins"
        assert next(iter(runner))[0].tolist() == [4, 5, 6, 7], "and a loop goes on with it"


@in_processes
@pytest.mark.parametrize("source", [nested, bare])
def test_the_slot_is_free_where_the_block_ends(mix: tuple[int, int], source: Any) -> None:
    """The name of the block may still be bound."""
    with runner_of(source, mix) as runner:
        for _ in range(3):
            with runner.take() as batch:
                assert runner.snapshot().slots.lent == 1
            assert runner.snapshot().slots.lent == 0
        with pytest.raises(Broken), runner.take() as batch:
            raise Broken
        assert runner.snapshot().slots.lent == 0, "also when the block fails"
        del batch


@in_processes
def test_many_blocks_need_no_copies(mix: tuple[int, int]) -> None:
    with runner_of(nested, mix, memory=mix[0] * 24 * 4096) as runner:
        for _ in range(150 * producers(mix)):
            with runner.take() as batch:
                assert batch["y"][0].shape == (4,)
        assert runner.snapshot().consumed.copied == 0


@in_every_mix
def test_it_raises_what_a_loop_raises(mix: tuple[int, int]) -> None:
    with runner_of(Readable(broken_after(1)), mix) as runner:
        with runner.take() as (x, _):
            assert x.tolist() == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(Exception, match="batch 1 raised Broken"):
                runner.take()
    with pytest.raises(FeedStopped):
        runner.take()


@in_processes
def test_a_batch_that_is_left_twice_gives_back_once(mix: tuple[int, int]) -> None:
    with runner_of(nested, mix, memory=mix[0] * 24 * 4096) as runner:
        lease = runner.take()
        with lease:
            pass
        held = [next(iter(runner)) for _ in range(3)]
        numbers = [values(batch) for batch in held]
        lease.__exit__(None, None, None)
        for _ in range(20):
            next(iter(runner))
        assert [values(batch) for batch in held] == numbers
