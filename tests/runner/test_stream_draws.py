"""Random draws in the producers: every item draws other numbers, and runs repeat, for any number of
producers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, Shard, Shuffle, Worker
from fastfeed.samplers import Balanced, Weighted
from fastfeed.source.mix import Mix
from tests.helpers.feeds import Readable
from tests.helpers.streams import (
    LIMIT_S,
    Case,
    flat,
    passes,
    play,
)

in_processes = settings(max_examples=3, phases=(Phase.explicit, Phase.reuse, Phase.generate))
MIXES = [(0, 4), (1, 2)]
of_each_mix = pytest.mark.parametrize("mix", MIXES, ids=str)
KINDS = ("indexable", "sequence", "mix", "iterable", "records")


def global_draws(index: int) -> np.ndarray:
    """Return a record: its index, and draws of code without access to its worker."""
    return np.array([index, random.getrandbits(62), np.random.randint(2**62)])


def told(index: int, worker: Worker) -> np.ndarray:
    return np.array([index, worker.epoch, worker.rng.integers(2**62)])


def rows(source: Any, mix: tuple[int, int], count: int = 1, **options: Any) -> np.ndarray:
    """Return the records of so many passes."""
    options = {"seed": 7, "stall_timeout_s": LIMIT_S, **options}
    with FeedRunner(source, processes=mix[0], threads=mix[1], **options) as runner:
        return np.concatenate([batch for _ in range(count) for batch in runner])


def repeated(drawn: np.ndarray) -> int:
    """Return the number of values that came more than once."""
    return drawn.size - np.unique(drawn).size


@pytest.mark.parametrize("kind", KINDS)
@of_each_mix
def test_no_two_items_draw_the_same_and_a_run_repeats(kind: str, mix: tuple[int, int]) -> None:
    case = Case(kind, 48, 4, {"epochs": 3})
    first = flat(passes(case, mix)[0])
    assert first == flat(passes(case, (0, 1))[0])
    assert repeated(np.array(first)[:, 2]) == 0
    other = flat(passes(Case(kind, 48, 4, {"epochs": 3, "seed": 8}), (0, 1))[0])
    assert not {row[2] for row in first} & {row[2] for row in other}


@settings(max_examples=40)
@given(
    total=st.integers(1, 40),
    size=st.integers(1, 7),
    threads=st.integers(1, 4),
    shuffling=st.sampled_from([None, True, "any", "pool"]),
    cut=st.integers(0, 8),
)
def test_a_record_draws_by_its_index_wherever_it_comes(
    total: int, size: int, threads: int, shuffling: Any, cut: int
) -> None:
    """Its draw in an epoch is the same in another order, from other producers, and after an
    interruption."""
    options: dict[str, Any] = {"any": {"order": "any"}, "pool": {"shuffle": Shuffle(20, 5)}}.get(
        shuffling, {"shuffle": shuffling}
    )
    case = Case("indexable", total, size, options)
    first = passes(Case("indexable", total, 1, {"epochs": 12}), (0, 1))[0]
    known = {(i, e): drawn for i, e, drawn in flat(first)}
    found, state = play(case, (0, threads), cut)
    found += play(case, (0, 5 - threads), cut, state)[0]
    assert all(known[i, e] == drawn for i, e, drawn in flat(found) if e < 12)


@of_each_mix
@pytest.mark.parametrize("repeats", ["weighted", "balanced", "pad", "mix", "own"])
def test_a_record_that_is_repeated_draws_anew(repeats: str, mix: tuple[int, int]) -> None:
    class Own(list[int]):
        repeats = True

    source: Any = (
        Mix([(range(30), 1), (range(100, 103), 1)], stop="all") if repeats == "mix" else range(30)
    )
    options: dict[str, Any] = {
        "weighted": {"sampler": Weighted([30, *[1] * 29])},
        "balanced": {"sampler": Balanced([0] * 28 + [1] * 2)},
        "pad": {"shard": Shard(3, 4, "pad")},
        "own": {"sampler": Own([3, 3, 4, 3, 5, 5])},
    }.get(repeats, {})
    found = rows(source, mix, 2, transform=told, batch_size=4, **options)
    assert (
        found.tolist() == rows(source, (0, 1), 2, transform=told, batch_size=4, **options).tolist()
    )
    assert repeats == "pad" or len(np.unique(found[:, 0])) < len(found) / 2 - 1
    assert repeated(found[:, 2]) == 0


def test_ranks_draw_by_index_too() -> None:
    """Every rank that has a record delivers it with the same draws."""
    whole = {
        row[0]: row[2] for row in rows(range(24), (0, 2), transform=told, batch_size=4).tolist()
    }
    for world in (2, 3):
        parts = [
            rows(range(24), (0, 1), transform=told, batch_size=4, shard=(r, world))
            for r in range(world)
        ]
        found = np.concatenate(parts)
        assert {row[0]: row[2] for row in found.tolist()} == whole
        assert repeated(found[:, 2]) == 0


@pytest.mark.parametrize(
    "source", [range(40), Readable(lambda: range(40))], ids=["indexable", "records"]
)
def test_random_and_numpy_are_seeded_for_each_record_in_worker_processes(source: Any) -> None:
    def drawn_rows(processes: int, **options: Any) -> np.ndarray:
        return rows(
            source, (processes, 1), 2, transform=global_draws, records=True, batch_size=3, **options
        )

    one, two = drawn_rows(1), drawn_rows(2)
    assert one.tolist() == two.tolist(), "the same for any number of processes, and a run repeats"
    assert [repeated(one[:, column]) for column in (1, 2)] == [0, 0]
    assert not set(drawn_rows(2, seed=8)[:, 1]) & set(one[:, 1])


@pytest.mark.slow
@in_processes
@given(cut=st.integers(0, 12), shuffle=st.sampled_from([None, True, Shuffle(12, 4)]))
def test_random_and_numpy_draw_the_same_after_an_interruption(cut: int, shuffle: Any) -> None:
    def runner(processes: int) -> FeedRunner:
        options = {
            "transform": global_draws,
            "batch_size": 4,
            "epochs": 2,
            "seed": 7,
            "stall_timeout_s": LIMIT_S,
        }
        return FeedRunner(range(25), processes=processes, shuffle=shuffle, **options)

    with runner(1) as whole:
        wanted = [batch.tolist() for batch in whole]
    with runner(2) as first:
        found = [batch.tolist() for batch in islice(first, cut)]
        state = json.loads(json.dumps(first.state()))
    with runner(1).restore(state) as second:
        found += [batch.tolist() for batch in second]
    assert found == wanted


class Drawn:
    """Records that are drawn when they are read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([index, random.getrandbits(62), np.random.randint(2**62)])


def test_getitem_draws_by_index_too() -> None:
    one, two = (rows(Drawn(), (n, 1), 2, batch_size=3, shuffle=True) for n in (1, 2))
    assert one.tolist() == two.tolist()
    assert [repeated(one[:, column]) for column in (1, 2)] == [0, 0]


@of_each_mix
def test_producers_of_a_callable_draw_their_own(mix: tuple[int, int]) -> None:
    def stream(worker: Worker) -> Iterator[np.ndarray]:
        for number in range(5):
            yield np.array([[worker.index, worker.epoch, number, worker.rng.integers(2**62)]])

    one, again = (rows(stream, mix, 3) for _ in range(2))
    assert repeated(one[:, 3]) == 0
    assert sorted(one.tolist()) == sorted(again.tolist())


def test_ranks_of_a_callable_draw_their_own() -> None:
    def stream(worker: Worker) -> Iterator[np.ndarray]:
        yield np.array([[worker.index, worker.rng.integers(2**62), random.getrandbits(62)]])

    found = np.concatenate([rows(stream, (1, 2), shard=(rank, 2)) for rank in range(2)])
    assert sorted(found[:, 0]) == [0, 1, 2, 3]
    assert repeated(found[:, 1]) == 0


def test_the_trainers_own_generators_are_left_alone() -> None:
    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()
    rows(range(20), (0, 2), transform=told, batch_size=3, shuffle=True)
    rows(range(20), (1, 1), transform=told, batch_size=3)
    rows(range(20), (0, 2), transform=told, batch_size=3, shuffle=Shuffle(10, 2))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
