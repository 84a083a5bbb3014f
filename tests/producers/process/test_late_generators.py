"""Random generators that the code of a worker makes after its start, and keeps."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np

from fastfeed import FeedRunner
from fastfeed.producers.generators import Generators

RECORDS, PER_BATCH = 256, 8
BEFORE = 3 * PER_BATCH  # records that a worker may make before it has found them


class Lazy:
    """A transform that makes its generators at its first record, each with the same seed."""

    def __init__(self) -> None:
        self.rng: Any = None

    def __call__(self, record: Any) -> Any:
        if self.rng is None:
            self.rng = np.random.default_rng(42), random.Random(7), np.random.RandomState(3)
        one, two, three = self.rng
        return np.array([os.getpid(), record, one.random(), two.random(), three.rand()])


def test_workers_draw_different_numbers_from_what_they_make_late() -> None:
    options: dict[str, Any] = {"batch_size": PER_BATCH, "records": True, "seed": 1}
    found: list[dict[float, tuple[float, ...]]] = []
    for count in (1, 2):
        data = np.arange(float(RECORDS))
        with FeedRunner(data, transform=Lazy(), processes=count, **options) as runner:
            rows = np.concatenate(list(runner))
        assert sorted(rows[:, 1]) == list(data)
        late: dict[float, tuple[float, ...]] = {}
        for worker in set(rows[:, 0]):
            own = rows[rows[:, 0] == worker]  # in the order in which it made them
            late |= {record: tuple(draws) for _, record, *draws in own[BEFORE:]}
        assert all(len(set(column)) == len(late) for column in zip(*late.values(), strict=True))
        found.append(late)
    both = found[0].keys() & found[1].keys()
    assert both and all(found[0][one] == found[1][one] for one in both), "in any worker"


def test_only_what_is_kept_is_adopted() -> None:
    known = present()
    kept: list[Any] = [np.random.default_rng(1)]
    replaced = [np.random.default_rng(2)]
    generators = Generators(known=known, roots=[kept, replaced])
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
    other = Generators(roots=[None])
    other.adopt()
    return other._met


def test_one_for_each_record_is_none() -> None:
    kept: list[Any] = []
    generators = Generators(known=present(), roots=[kept])
    for count in (0, 100, 200):
        kept += [np.random.default_rng(n) for n in range(count)]
        assert generators.adopt() == 0
