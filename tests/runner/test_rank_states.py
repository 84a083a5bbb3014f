"""The states of all ranks go on with any number of ranks: nothing of the epoch is lost or comes
twice."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError, Reorder, Shard
from fastfeed.samplers import Pairs

LENGTH = 24
WORLDS = st.sampled_from([1, 2, 3, 4])


def job(world: int, state: Any = None, **options: Any) -> list[FeedRunner]:
    """Return the runners of all ranks."""
    given = {"batch_size": 2, "order": "any", "seed": 3, "epochs": 2, "remainder": "drop"}
    runners = []
    for rank in range(world):
        own = {**given, **options}
        own["shard"] = Shard(rank, world, own.pop("remainder"))
        source = own.pop("source", range(LENGTH))
        runners.append(FeedRunner(source, **own))
        if state is not None:
            runners[-1].restore(state)
    return runners


def consume(runners: list[FeedRunner], steps: int) -> tuple[list[int], list[Any]]:
    """Return the records of so many steps of each rank, and the states after them."""
    found, states = [], []
    for runner in runners:
        with runner:
            batches = iter(runner)
            found += [int(n) for batch in islice(batches, steps) for n in batch]
            states.append(json.loads(json.dumps(runner.state())))
    return found, states


def rest(runners: list[FeedRunner], *, stop: bool = True) -> list[int]:
    found: list[int] = []
    for runner in runners:
        found += [int(n) for batch in runner for n in batch]
        if stop:
            runner.stop()
    return found


@given(
    worlds=st.tuples(WORLDS, WORLDS, WORLDS),
    steps=st.tuples(st.integers(0, 6), st.integers(0, 3)),
    size=st.integers(1, 4),
    shuffle=st.booleans(),
    last_batch=st.sampled_from(["keep", "drop"]),
)
@example(worlds=(3, 4, 1), steps=(3, 1), size=2, shuffle=False, last_batch="keep")
@example(worlds=(3, 4, 1), steps=(5, 2), size=1, shuffle=False, last_batch="keep")
def test_all_that_is_left_comes_once(
    worlds: Any, steps: Any, size: int, shuffle: bool, last_batch: str
) -> None:
    """The epoch is over when each rank has consumed its whole share: what remainder="drop" has left
    out of it stays left out, whether the last batch was full or not."""
    options = {"batch_size": size, "shuffle": shuffle, "epochs": 1, "last_batch": last_batch}
    first: list[int] = []
    states = None
    for world, count in zip(worlds, steps, strict=False):
        share = (LENGTH - len(first)) // world
        batches = share // size if last_batch == "drop" else -(-share // size)
        more, states = consume(job(world, states, **options), min(count, batches))
        first += more
        if count >= batches:
            last = job(worlds[2], states, **options)
            assert rest(last, stop=False) == [], "the run is over"
            share = LENGTH // worlds[2]
            each = share // size * size if last_batch == "drop" else share
            assert len(set(rest(last))) == each * worlds[2], "the next one is whole"
            break
    else:
        third = rest(
            job(worlds[2], states, **{**options, "remainder": "pad", "last_batch": "keep"})
        )
        found = Counter(first + third)
        assert set(found) == set(range(LENGTH))
        assert sum(found.values()) - LENGTH < worlds[2]  # what remainder="pad" repeats
        assert not {n for n in first if found[n] > 1} - set(third)
    assert max(Counter(first).values(), default=1) == 1


@pytest.mark.parametrize("order", ["any", Reorder(2)], ids=str)
def test_the_next_epoch_is_whole(order: Any) -> None:
    first, states = consume(job(2, order=order), 3)
    found = Counter(first + rest(job(3, states, order=order)))
    assert found == Counter(dict.fromkeys(range(LENGTH), 2))


def test_pairs_stay_together() -> None:
    labels = [n // 4 for n in range(LENGTH)]
    options = {"source": range(LENGTH), "sampler": Pairs(labels, 4), "batch_size": 4}
    _, states = consume(job(2, **options), 1)
    for runner in job(4, states, **options):
        with runner:
            for batch in runner:
                classes = [labels[n] for n in batch]
                assert classes[0::2] == classes[1::2]
                assert len(set(classes)) == 2


def test_ranks_at_the_end_of_an_epoch() -> None:
    runners = job(2)
    with runners[0] as one, runners[1] as two:
        loops = [iter(one), iter(two)]
        found = [int(n) for loop in loops for _ in range(6) for n in next(loop)]
        states = [one.state(), two.state()]
    found += rest(job(3, states))
    assert Counter(found) == Counter(dict.fromkeys(range(LENGTH), 2))


class TestRefusals:
    def test_an_order_that_is_promised(self) -> None:
        runners = job(2, order="kept")
        _, states = consume(runners, 1)
        with pytest.raises(OptionError, match='order="any": the rest of the epoch is divided'):
            job(3, states, order="kept")
        with pytest.raises(OptionError, match="world was 2 and is 3"):
            job(3, states[0], order="kept")
        with pytest.raises(OptionError, match='they were saved with order="kept"'):
            job(3, states)

    def test_a_rank_that_is_missing(self) -> None:
        _, states = consume(job(3), 1)
        with pytest.raises(OptionError, match=r"got those of ranks \[0, 2\] of world 3"):
            job(2, [states[0], states[2]])
        with pytest.raises(OptionError, match=r"got those of ranks \[\]"):
            job(2, [])

    def test_states_of_different_times(self) -> None:
        runners = job(2)
        _, early = consume(runners[:1], 1)
        _, late = consume(runners[1:], 9)
        with pytest.raises(OptionError, match="one rank is in epoch 0, another one in epoch 1"):
            job(3, early + late)

    def test_another_stream(self) -> None:
        _, states = consume(job(2), 1)
        with pytest.raises(OptionError, match="batch_size was 2 and is 4"):
            job(3, states, batch_size=4)
        _, others = consume(job(2, seed=4), 1)
        with pytest.raises(OptionError, match="differ in more than the rank"):
            job(3, [states[0], others[1]])

    def test_a_rest_that_cannot_be_divided(self) -> None:
        _, states = consume(job(2), 1)
        with pytest.raises(OptionError, match='remainder="drop"'):
            job(3, states, remainder=None)
        assert len(states) == 2


def test_states_of_a_filtered_stream_are_refused_within_a_batch() -> None:
    """A part of a batch counts the records that the filter has left, and no positions."""
    options: dict[str, Any] = {"filter": lambda n: n % 4, "batch_size": 4, "seed": 1}
    options |= {"order": "any"}
    with FeedRunner(range(LENGTH), **options) as runner:
        next(iter(runner))
        state = runner.state()
    with (
        FeedRunner(range(LENGTH), **options) as runner,
        pytest.raises(OptionError, match="several states with filter="),
    ):
        runner.restore([state])
        next(iter(runner))
