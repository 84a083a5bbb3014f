"""Random generators that the code of a worker makes after its start, and keeps."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from fastfeed import FeedRunner
from fastfeed.producers.generators import Generators

RECORDS, PER_BATCH, BEFORE = 256, 8, 2  # batches that a worker makes before it has found them


class Lazy:
    """A transform that makes its generators at its first record, each with the same seed."""

    def __init__(self) -> None:
        self.rng: Any = None

    def __call__(self, record: Any) -> Any:
        if self.rng is None:
            self.rng = np.random.default_rng(42), random.Random(7), np.random.RandomState(3)
        one, two, three = self.rng
        return np.array([record, one.random(), two.random(), three.rand()])


def test_workers_draw_different_numbers_from_what_they_make_late() -> None:
    options: dict[str, Any] = {"batch_size": PER_BATCH, "records": True, "seed": 1}
    found = []
    for count in (1, 2):
        with FeedRunner(
            np.arange(float(RECORDS)), transform=Lazy(), processes=count, **options
        ) as runner:
            rows = np.concatenate(list(runner))
        assert sorted(rows[:, 0]) == list(range(RECORDS))
        late = rows[np.argsort(rows[:, 0])][2 * BEFORE * PER_BATCH :]
        assert all(len(set(column)) == len(late) for column in late.T)
        found.append(late)
    np.testing.assert_array_equal(*found, "a record draws the same in any worker")


def test_only_what_is_kept_is_adopted() -> None:
    generators = Generators(known=present(), adopts=True)
    kept: list[Any] = [np.random.default_rng(1)]
    replaced = [np.random.default_rng(2)]
    assert generators.adopt() == 0
    replaced[0] = np.random.default_rng(3)
    kept.append(random.Random(4))
    assert generators.adopt() == 1
    assert generators.adopt() == 2 and generators.adopt() == 0
    seeds = []
    for _ in range(2):
        generators.seed((1, 2))
        seeds.append([one.random() for one in (*kept, *replaced)])
    assert seeds[0] == seeds[1]


def present() -> list[Any]:
    """All generators of this process, which a worker has frozen."""
    other = Generators(adopts=True)
    other.adopt()
    return other._met
