"""A damaged state is refused, or is the state of another moment of the same stream: never a crash,
a record that is not there, or a wait without end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, OptionError, Shard, Shuffle, Worker
from fastfeed.errors import FeedError
from fastfeed.ranks import ShardServer
from tests.helpers.feeds import Readable
from tests.helpers.mutations import mutated

LENGTH = 40
EACH = 100
pytestmark = pytest.mark.filterwarnings("ignore:the state is:fastfeed.FeedWarning")


def numbers(worker: Worker) -> Iterator[Any]:
    for number in range(worker.index, LENGTH // 4, worker.count):
        yield np.arange(4 * number, 4 * number + 4)


def chunks() -> Iterator[Any]:
    return iter(np.arange(LENGTH).reshape(-1, 4))


RUNNERS: dict[str, Callable[[], FeedRunner]] = {
    "indexed": lambda: FeedRunner(range(LENGTH), batch_size=4, shuffle=True, epochs=2),
    "any order": lambda: FeedRunner(
        range(LENGTH), batch_size=4, shuffle=True, epochs=2, order="any", shard=(0, 2), threads=2
    ),
    "iterable": lambda: FeedRunner(Readable(chunks), epochs=2, threads=2, transform=np.copy),
    "callable": lambda: FeedRunner(numbers, threads=2, epochs=2),
    "pool": lambda: FeedRunner(
        range(LENGTH), batch_size=4, shuffle=Shuffle(12, 4), epochs=2, seed=3
    ),
}


def state_of(runner: FeedRunner, taken: int) -> dict[str, Any]:
    with runner:
        assert len(list(islice(runner, taken))) == taken
        state: dict[str, Any] = json.loads(json.dumps(runner.state()))
    return state


def used(runner: FeedRunner, state: Any) -> int:
    """Restore a state and use it; return 1 if it was refused."""
    with runner:
        try:
            runner.restore(state)
        except OptionError:
            return 1
        try:
            found = np.concatenate([np.zeros(0, int), *islice(runner, 30)])
        except OptionError:
            return 1
        assert len(found) <= 2 * LENGTH and set(found.tolist()) <= set(range(LENGTH))
        json.dumps(runner.state())
    return 0


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_damaged_state_is_refused_or_usable(kind: str) -> None:
    make = RUNNERS[kind]
    state = state_of(make(), 7)
    assert used(make(), state) == 0
    refused = sum(used(make(), mutated(state, seed=seed)) for seed in range(EACH))
    assert refused > EACH // 2


def test_damaged_states_of_several_ranks_are_refused_or_usable() -> None:
    def job(rank: int, world: int) -> FeedRunner:
        options: Any = {"batch_size": 4, "shuffle": True, "order": "any", "epochs": 2, "seed": 5}
        return FeedRunner(range(LENGTH), shard=Shard(rank, world, "drop"), **options)

    states = [state_of(job(rank, 2), 2) for rank in range(2)]
    with job(0, 4).restore(states) as third:
        again = state_of(third, 1)
    for document in (states, again):
        refused = 0
        for seed in range(EACH):
            refused += used(job(0, 4 if document is states else 2), mutated(document, seed=seed))
        assert refused > EACH // 2


def test_damaged_states_of_a_shared_job_are_refused_or_usable() -> None:
    def rank(server: ShardServer) -> FeedRunner:
        return FeedRunner(range(LENGTH), batch_size=4, shuffle=True, epochs=2, shard=server.address)

    with ShardServer() as server:
        state = state_of(rank(server), 7)
    refused = 0
    for seed in range(EACH // 4):
        with ShardServer() as server:
            refused += used(rank(server), mutated(state, seed=seed))
    assert refused > EACH // 8


@pytest.mark.parametrize("change", ["pool", "claims"])
def test_a_pool_that_was_changed_is_refused(change: str) -> None:
    make = RUNNERS["pool"]
    state = state_of(make(), 7)
    state[change] = None if change == "pool" else {"epoch": 0, "begun": {}}
    with make() as runner, pytest.raises(OptionError, match="the state is damaged"):
        runner.restore(state)
    assert issubclass(OptionError, FeedError)
