"""Random generators that the user's objects and modules hold: no two workers draw alike, and a run
repeats."""

from __future__ import annotations

import gc
import importlib
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, Worker
from fastfeed.producers import generators
from fastfeed.producers.generators import Generators
from fastfeed.testing.scenes import until
from tests.helpers.dying import LONG_S, once

TOTAL = 32
Held = tuple[np.random.Generator, np.random.RandomState, np.random.RandomState, random.Random]
names = (f"own_draws_{number}" for number in count())
MODULE = """
import random
import numpy as np

np.random.seed(0)
random.seed(0)
held = (np.random.default_rng(5), np.random.RandomState(5),
        np.random.RandomState(np.random.Philox(5)), random.Random(5))

def drawn(index, held=None):
    rng, legacy, other, plain = held or globals()["held"]
    return np.array([index, rng.integers(2**62), legacy.randint(2**62), other.randint(2**62),
                     plain.getrandbits(62), random.getrandbits(62), np.random.randint(2**62)])

class Composed:
    def __init__(self):
        self.steps = [{"held": held}]

    def __call__(self, index):
        return drawn(index, **self.steps[0])

composed = Composed()
"""


def make() -> Held:
    philox = np.random.RandomState(np.random.Philox(5))
    return np.random.default_rng(5), np.random.RandomState(5), philox, random.Random(5)


def drawn(index: int, held: Held) -> np.ndarray:
    """Return a record: its index, and a draw of each generator."""
    rng, legacy, other, plain = held
    draws = rng.integers(2**62), legacy.randint(2**62), other.randint(2**62), plain.getrandbits(62)
    return np.array([index, *draws])


class Data:
    """Records that draw from generators of the data set."""

    def __init__(self) -> None:
        self.held = make()

    def __len__(self) -> int:
        return TOTAL

    def __getitem__(self, index: int) -> np.ndarray:
        return drawn(index, self.held)


def closure() -> Callable[[int], np.ndarray]:
    held = make()
    return lambda index: drawn(index, held)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's, which workers import."""
    name = next(names)
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


def everywhere(module: Any) -> dict[str, Any]:
    """Return a source and a transform with generators in every place that holds some."""
    alone = closure(), partial(drawn, held=make()), module.drawn, module.composed

    def transform(record: np.ndarray) -> np.ndarray:
        return np.concatenate([record, *(one(int(record[0]))[1:] for one in alone)])

    return {"source": Data(), "transform": transform}


def rows(processes: int, threads: int = 1, *, source: Any = None, **options: Any) -> list[Any]:
    options = {"batch_size": 2, "seed": 7, "stall_timeout_s": LONG_S, **options}
    source = range(TOTAL) if source is None else source
    with FeedRunner(source, processes=processes, threads=threads, **options) as runner:
        return [row for batch in runner for row in batch.tolist()]


def check_distinct(found: list[Any]) -> None:
    """Every generator has drawn another number for each record."""
    columns = list(zip(*found, strict=True))
    assert sorted(columns[0]) == list(range(TOTAL))
    assert [len(set(column)) for column in columns] == [TOTAL] * len(columns)


def test_every_record_draws_anew_and_the_same_in_any_number_of_workers(module: Any) -> None:
    found = [rows(n, **everywhere(module)) for n in (1, 2, 4)]
    assert found[0] == found[1] == found[2]
    check_distinct(found[0])
    other = rows(2, **everywhere(module), seed=8)
    pairs = zip(zip(*other, strict=True), zip(*found[0], strict=True), strict=True)
    assert not any(set(mine) & set(theirs) for mine, theirs in list(pairs)[1:])


def test_workers_with_threads_do_not_draw_alike(module: Any) -> None:
    check_distinct(rows(2, 2, **everywhere(module)))


def test_workers_that_runners_share_do_not_draw_alike(module: Any) -> None:
    train = FeedRunner(Data(), batch_size=2, processes=2, stall_timeout_s=LONG_S)
    with train, train.also(range(TOTAL), batch_size=2, transform=module.composed) as validation:
        both = zip(train, validation, strict=True)
        first, second = zip(*((a.tolist(), b.tolist()) for a, b in both), strict=True)
    check_distinct(list(chain(*first)))
    check_distinct(list(chain(*second)))


@pytest.mark.parametrize("processes", [1, 3])
def test_callables_of_several_workers_draw_their_own(processes: int, module: Any) -> None:
    held = make()

    def stream(worker: Worker) -> Iterator[np.ndarray]:
        for index in range(worker.index, TOTAL, worker.count):
            yield np.concatenate([drawn(index, held), module.drawn(index)[1:]])[None]

    found = rows(processes, source=stream, batch_size=None)
    check_distinct(found)
    assert sorted(found) == sorted(rows(processes, source=stream, batch_size=None))


@pytest.mark.parametrize("seed", [7, None])
def test_it_is_said_once(seed: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fastfeed")
    rows(2, source=Data(), seed=seed)

    def found() -> list[Any]:
        return [r for r in caplog.records if "seed=" in r.getMessage()]

    assert until(lambda: bool(found()), LONG_S)  # a record may come after the end of a worker
    said = found()
    assert [r.levelname for r in said] == ["INFO" if seed else "WARNING"]
    assert "4 random generators" in said[0].getMessage()


def test_a_record_that_is_made_again_draws_the_same(tmp_path: Path) -> None:
    die = once(tmp_path / "died", lambda: os._exit(3))

    def dying(index: int, held: Held, die: Any = die) -> np.ndarray:
        row = drawn(index, held)
        if index == 9:
            die()
        return row

    undisturbed = rows(2, transform=partial(drawn, held=make()))
    restarted = rows(2, transform=partial(dying, held=make()), on_worker_death="restart")
    assert (tmp_path / "died").exists()
    assert restarted == undisturbed


@pytest.mark.slow
def test_torch_is_seeded_like_numpy(module: Any) -> None:
    torch = pytest.importorskip("torch")
    with open(module.__file__, "a") as file:
        file.write(
            "\nimport torch\ntorch.manual_seed(0)\nown = torch.Generator().manual_seed(0)\n"
            "def random_torch(index, given):\n"
            "    draws = [torch.randint(2**62, (), generator=g) for g in (None, own, given)]\n"
            "    return np.array([index, *map(int, draws)])\n"
        )
    module = importlib.reload(module)

    def transform() -> Any:
        return partial(module.random_torch, given=torch.Generator().manual_seed(0))

    found = [rows(n, transform=transform()) for n in (1, 2)]
    assert found[0] == found[1]
    check_distinct(found[0])
    check_distinct(rows(2, 2, transform=transform()))


def test_without_generations_references_decide_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on free-threaded Python, whose collector lists objects by their addresses."""
    monkeypatch.setattr(generators, "HAS_YOUNG", False)
    old, key = random.Random(0), (1, 2)
    gc.disable()
    try:
        present = Generators.present()
        made = [random.Random(n) for n in range(3)]
        draws = []
        for within in (tuple(made), tuple(made[::-1])):
            Generators.made_since(present, within=within).seed(key)
            draws.append([one.getrandbits(62) for one in within])
    finally:
        gc.enable()
    assert draws[0] == draws[1] and len(set(draws[0])) == len(made)
    assert old.getrandbits(62) == random.Random(0).getrandbits(62), "it was there before"
