"""A state that was changed is refused, whatever was changed in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, OptionError, Shard, Shuffle, Worker
from fastfeed.ranks import ShardServer
from tests.helpers.feeds import Readable
from tests.helpers.mutations import mutated

LENGTH = 40
EACH = 100


def numbers(worker: Worker) -> Iterator[Any]:
    for number in range(worker.index, LENGTH // 4, worker.count):
        yield np.arange(4 * number, 4 * number + 4)


def chunks() -> Iterator[Any]:
    return iter(np.arange(LENGTH).reshape(-1, 4))


def of_records(**options: Any) -> FeedRunner:
    return FeedRunner(range(LENGTH), **{"batch_size": 4, "shuffle": True, "epochs": 2, **options})


RUNNERS: dict[str, Callable[[], FeedRunner]] = {
    "indexed": of_records,
    "any order": lambda: of_records(order="any", shard=(0, 2), seed=3, threads=2),
    "iterable": lambda: FeedRunner(Readable(chunks), epochs=2, threads=2, transform=np.copy),
    "callable": lambda: FeedRunner(numbers, threads=2, epochs=2),
    "pool": lambda: of_records(shuffle=Shuffle(12, 4), seed=3),
}


def state_of(runner: FeedRunner, taken: int = 7) -> dict[str, Any]:
    with runner:
        assert len(list(islice(runner, taken))) == taken
        state: dict[str, Any] = json.loads(json.dumps(runner.state()))
    return state


def check_refused(runner: FeedRunner, state: Any) -> None:
    """Restore changed copies of a state, and then the state itself."""
    for seed in range(EACH):
        damaged = mutated(state, seed=seed)
        if damaged != state:
            with pytest.raises(OptionError, match="state"):
                runner.restore(damaged)
    with runner.restore(state):
        assert len(list(islice(runner, 1))) == 1


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.filterwarnings("ignore:the state is:fastfeed.FeedWarning")
def test_a_changed_state_is_refused(kind: str) -> None:
    check_refused(RUNNERS[kind](), state_of(RUNNERS[kind]()))


def test_changed_states_of_several_ranks_are_refused() -> None:
    def job(rank: int, world: int) -> FeedRunner:
        return of_records(shard=Shard(rank, world, "drop"), order="any", seed=5)

    states = [state_of(job(rank, 2), 2) for rank in range(2)]
    check_refused(job(0, 4), states)
    check_refused(job(0, 2), [state_of(job(rank, 4).restore(states), 1) for rank in range(4)])


def test_changed_states_of_a_shared_job_are_refused() -> None:
    with ShardServer() as server:
        state = state_of(of_records(shard=server.address))
    with ShardServer() as server:
        check_refused(of_records(shard=server.address), state)
