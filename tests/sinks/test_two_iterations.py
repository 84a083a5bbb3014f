"""Two iterations over one runner at once are refused, in every sink: each would get only some of
the batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, StateError, Worker
from tests.helpers.feeds import LONG_S

MIXES = [(0, 1), (0, 2), (1, 1)]
SINKS: dict[str, Callable[[FeedRunner], Iterable[Any]]] = {
    "runner": lambda runner: runner,
    "epoch": lambda runner: next(runner.epochs()),
    "prefetch_to_device": lambda runner: runner.prefetch_to_device(np.copy),
    "torch": lambda runner: runner.torch(),
    "jax": lambda runner: runner.jax(),
    "dataset": lambda runner: runner.dataset(),
    "keras": lambda runner: runner.keras(),
}
NEEDS = {"dataset": "tensorflow", "torch": "torch", "jax": "jax", "keras": "keras"}
BOTH: dict[str, Callable[[Any], Any]] = {
    "nested loops": lambda batches: [None for _ in batches for _ in batches],
    "zip": lambda batches: list(zip(batches, batches, strict=False)),
}


def runner_of(mix: tuple[int, int], total: int = 10, **options: Any) -> FeedRunner:
    rows = np.arange(total, dtype=np.float32)[:, None]
    return FeedRunner((rows, rows), batch_size=2, processes=mix[0], threads=mix[1], **options)


def stream(worker: Worker) -> Iterator[Any]:
    """Yield four batches, of unknown number."""
    for number in range(worker.index, 4, worker.count):
        yield (np.full((2, 1), number, np.float32),)


def ids(batches: Iterable[Any]) -> list[int]:
    return [int(row[0]) for batch in batches for row in np.asarray(batch[0])]


def refused() -> Any:
    return pytest.raises(StateError, match="two iterators at once.*a second FeedRunner")


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("both", BOTH)
@pytest.mark.parametrize("sized", [True, False])
def test_two_at_once_are_refused(sink: str, both: str, sized: bool) -> None:
    if sink in NEEDS:
        pytest.importorskip(NEEDS[sink])
    with runner_of((0, 1)) if sized else FeedRunner(stream) as runner, refused():
        BOTH[both](SINKS[sink](runner))


@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("sink", ["runner", "epoch"])
def test_a_loop_gets_all_or_an_error(mix: tuple[int, int], sink: str) -> None:
    for both in BOTH.values():
        with runner_of(mix) as runner, refused():
            both(SINKS[sink](runner))
    with runner_of(mix, total=2) as runner, refused():
        list(zip(*[SINKS[sink](runner)] * 2, strict=True))  # one batch, which the first would lose
    with runner_of(mix) as runner:
        batches = SINKS[sink](runner)
        iter(batches)
        for batch in batches:
            assert ids([batch]) == [0, 1]
            break
        unused, other = iter(batches), iter(batches)
        assert ids(other) == [*range(2, 10)], "a loop that was left goes on"
        assert ids(unused) == ([*range(10)] if sink == "runner" else [])


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_loops_and_epochs_are_iterations_of_one_runner(mix: tuple[int, int]) -> None:
    others: list[Callable[[FeedRunner], Any]] = [
        lambda runner: next(iter(runner)),
        lambda runner: next(iter(next(runner.epochs()))),
    ]
    for other in others:
        with runner_of(mix) as runner:
            for batches in (iter(runner), iter(next(runner.epochs()))):
                next(batches)
                other(runner)
                with refused():
                    next(batches)
        with runner_of(mix) as runner, refused():
            for epoch in runner.epochs():
                assert ids(epoch) == [*range(10)]
                other(runner)
    with runner_of(mix) as runner:
        epochs = runner.epochs()
        first = iter(next(epochs))
        next(first)
        assert ids(next(epochs)) == [*range(10)]
        with refused():  # the rest of its epoch was skipped
            next(first)


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_of_two_threads_one_gets_all_and_the_other_an_error(mix: tuple[int, int]) -> None:
    found: list[list[int]] = []
    errors: list[BaseException] = []
    both_run = threading.Barrier(2)

    def read() -> None:
        mine: list[int] = []
        try:
            for batch in runner:
                mine += ids([batch])
                if len(mine) == 2:
                    both_run.wait(LONG_S)
            found.append(mine)
        except StateError as error:
            both_run.abort()
            errors.append(error)
            found.append(mine)
        except threading.BrokenBarrierError:
            found.append(mine + ids(runner))

    with runner_of(mix, total=40) as runner:
        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
            assert not thread.is_alive()
    assert "two iterators at once" in str(errors[0])
    assert len(errors) == 1
    assert sorted(found[0] + found[1]) == [*range(40)]


def test_a_runner_of_also_is_another_one() -> None:
    with runner_of((1, 1)) as runner:
        check = runner.also((np.arange(4.0)[:, None],), batch_size=2)
        for _ in runner:
            assert ids(check) == [0, 1, 2, 3]
