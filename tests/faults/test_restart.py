"""on_worker_death="restart": another worker goes on, every record comes exactly once, and a record
that kills repeatedly is set aside."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, Reorder, Worker
from fastfeed.errors import ProducerDied
from tests.helpers import dying
from tests.helpers.dying import (
    MIXES,
    Deadly,
    numbered,
    once,
    until,
    workers,
)

mixes = pytest.mark.parametrize("mix", MIXES, ids="{0[0]}x{0[1]}".format)
in_order = pytest.mark.parametrize(
    ("mix", "order"),
    [((1, 1), "kept"), ((2, 3), "kept"), ((2, 1), "any"), ((2, 2), Reorder(3))],
    ids=str,
)
TOTAL = 4000


def exit_3() -> None:
    os._exit(3)


def restarting(source: Any, mix: tuple[int, int], **more: Any) -> FeedRunner:
    processes, threads = mix
    return FeedRunner(
        source,
        processes=processes,
        threads=threads,
        on_worker_death="restart",
        stall_timeout_s=dying.LONG_S,
        **more,
    )


def read_while_killing(runner: FeedRunner, at: tuple[int, ...] = (40, 120, 200)) -> list[int]:
    """Return the records, while one worker after another is killed from outside."""
    ids: list[int] = []
    kills = itertools.count()
    for number, batch in enumerate(runner):
        ids += (batch[0] if isinstance(batch, tuple) else batch).tolist()
        if number in at:
            victims = workers(1)
            victims[next(kills) % len(victims)].kill()
    return ids


class Records:
    """Records that take a moment, so that the workers live while they are killed."""

    def __len__(self) -> int:
        return TOTAL

    def __getitem__(self, index: int) -> Any:
        if index % 16 == 0:
            time.sleep(0.001)
        return np.int64(index)


def slow_batch(index: int) -> Any:
    time.sleep(0.001)
    return np.arange(index * 8, index * 8 + 8)


@in_order
def test_an_indexable(mix: tuple[int, int], order: Any) -> None:
    with restarting(Records(), mix, batch_size=8, order=order) as runner:
        ids = read_while_killing(runner)
        assert runner.snapshot().set_aside == ()
    assert sorted(ids) == list(range(TOTAL))
    assert order != "kept" or ids == sorted(ids)


@pytest.mark.slow
@in_order
def test_an_iterator(mix: tuple[int, int], order: Any) -> None:
    with restarting(iter(range(TOTAL // 8)), mix, transform=slow_batch, order=order) as runner:
        ids = read_while_killing(runner)
    assert sorted(ids) == list(range(TOTAL))
    assert order != "kept" or ids == sorted(ids)


@pytest.mark.slow
@mixes
def test_a_callable_goes_on_where_it_was(mix: tuple[int, int]) -> None:
    def stream(worker: Worker) -> Iterator[Any]:
        for batch in numbered(TOTAL, 8)(worker):
            time.sleep(0.001)
            yield batch

    with restarting(stream, mix) as runner:
        ids = read_while_killing(runner)
    assert sorted(ids) == list(range(TOTAL))


def test_over_epochs_the_shares_stay_whole() -> None:
    """Each epoch is complete before the next one begins, with any assignment to workers."""
    with restarting(Records(), (2, 3), batch_size=8, epochs=2, seed=1, shuffle=True) as runner:
        ids = read_while_killing(runner, at=(100, 450, 550, 900))
    assert sorted(ids[:TOTAL]) == sorted(ids[TOTAL:]) == list(range(TOTAL))
    assert ids[:TOTAL] != ids[TOTAL:], "it was shuffled"


def test_the_same_order_with_and_without_deaths() -> None:
    with FeedRunner(Records(), batch_size=8, seed=3, shuffle=True) as runner:
        undisturbed = np.concatenate(list(runner)).tolist()
    with restarting(Records(), (2, 1), batch_size=8, seed=3, shuffle=True) as runner:
        assert read_while_killing(runner) == undisturbed


def test_the_fork_server_is_killed() -> None:
    """Another one starts, with other workers and the items that the old ones had in flight."""
    ids: list[int] = []
    with restarting(Records(), (2, 3), batch_size=8) as runner:
        for number, batch in enumerate(runner):
            ids += batch.tolist()
            if number in (40, 200):
                dying.server().kill()
    assert ids == list(range(TOTAL))


@mixes
def test_a_record_that_kills_is_set_aside(mix: tuple[int, int], tmp_path: Path) -> None:
    """Two deaths are enough. Its neighbours, in its batch and in other threads, are delivered all
    the same."""
    deaths = tmp_path / "deaths"

    def die() -> None:
        with deaths.open("a") as file:
            file.write("x")
        os._exit(3)

    with restarting(Deadly(400, 101, die), mix, batch_size=8) as runner:
        ids = np.concatenate(list(runner)).tolist()
        aside = runner.snapshot().set_aside
    assert ids == [i for i in range(400) if i != 101]
    assert aside == ("record 5 (index 101) of batch 12",)
    assert deaths.read_text() == "xx"


@pytest.mark.parametrize("beside", [0, 2])
def test_an_item_that_kills_is_set_aside_alone(beside: int) -> None:
    """Other threads have other items in flight at each of its deaths: those are innocent."""

    def make(index: int) -> Any:
        if index == 20:
            os._exit(3)
        time.sleep(0.02)
        return np.full(2, index)

    with restarting(range(40), (1, 1 + beside), records=False, transform=make) as runner:
        ids = [int(b[0]) for b in runner]
        aside = runner.snapshot().set_aside
    assert ids == [i for i in range(40) if i != 20]
    assert len(aside) == 1
    assert "batch 20" in aside[0]


@pytest.mark.parametrize(
    ("total", "size", "deadly"), [(40, 8, (17, 19)), (12, 2, (4, 5))], ids=["two", "all"]
)
def test_records_of_one_batch_that_kill(total: int, size: int, deadly: tuple[int, ...]) -> None:
    """Also all of them, which leaves a gap and no stall."""

    class Several(Deadly):
        def __getitem__(self, index: int) -> Any:
            if index in deadly:
                exit_3()
            return np.int64(index)

    with restarting(Several(total, -1, exit_3), (1, 1), batch_size=size) as runner:
        ids = np.concatenate(list(runner)).tolist()
        aside = runner.snapshot().set_aside
    assert ids == [i for i in range(total) if i not in deadly]
    assert [f"(index {i})" in text for i, text in zip(deadly, aside, strict=True)] == [True, True]


def test_signals_from_outside_are_no_proof(tmp_path: Path) -> None:
    """The same item is in flight at two deaths from outside: the third worker delivers it."""

    at, go = tmp_path / "at", tmp_path / "go"

    def make(index: int) -> Any:
        if index == 3 and not go.exists():
            at.write_text(str(os.getpid()))
            time.sleep(dying.LONG_S)
        return np.full(2, index)

    with restarting(range(8), (1, 1), records=False, transform=make) as runner:
        stream = iter(runner)
        ids = [int(next(stream)[0]) for _ in range(3)]
        dead = 0
        for last in (False, True):
            dead = until(
                lambda dead=dead: at.exists() and int(at.read_text() or 0) not in (0, dead),
                "item 3 in hand",
            )
            dead = int(at.read_text())
            if last:
                go.touch()
            os.kill(dead, signal.SIGKILL)
        ids += [int(b[0]) for b in stream]
        assert runner.snapshot().set_aside == ()
    assert ids == list(range(8))


@pytest.mark.parametrize("delivered", [0, 10])
def test_a_callable_that_always_dies_at_the_same_place(delivered: int) -> None:
    """After some tries another worker will not do better: the feed ends, behind all batches."""

    def stream() -> Iterator[Any]:
        yield from (np.full(4, i) for i in range(delivered))
        exit_3()

    got = []
    with restarting(stream, (1, 1)) as runner, pytest.raises(ProducerDied, match="exit code 3"):
        got.extend(int(b[0]) for b in runner)
    assert got == list(range(delivered))


def test_one_thread_of_a_worker_that_always_dies_beside_healthy_ones() -> None:
    """The others deliver between the deaths, and the feed must end all the same."""

    def stream(worker: Worker) -> Iterator[Any]:
        for i in itertools.count():
            if worker.index == 1 and i == 3:
                os._exit(3)
            time.sleep(0.0005)
            yield np.full(4, i)

    with restarting(stream, (1, 3)) as runner, pytest.raises(ProducerDied, match="exit code 3"):
        for _ in itertools.islice(runner, 100_000):
            pass


def test_a_crash_of_native_code_that_does_not_come_again(tmp_path: Path) -> None:
    crash = once(tmp_path / "once", dying.by_abort)

    def make(index: int) -> Any:
        if index == 5:
            crash()
        return np.full(2, index)

    with restarting(range(10), (1, 1), records=False, transform=make) as runner:
        assert [int(b[0]) for b in runner] == list(range(10))
        assert runner.snapshot().set_aside == ()
