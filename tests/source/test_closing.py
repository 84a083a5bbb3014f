"""Generators are closed where a loop is left, and errors of any class are no end of data."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, ProducerError, Worker
from tests.helpers.feeds import Readable, copies
from tests.helpers.streams import LIMIT_S

MIXES = [(0, 1), (0, 2), (1, 1), (2, 1)]
in_each_mix = pytest.mark.parametrize("mix", MIXES, ids=str)


class Numbered:
    """An iterator that is no generator, with a method `close`."""

    def __init__(self, file: Path, *, fails: bool = False) -> None:
        self.numbers, self.file, self.fails = itertools.count(), file, fails

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        time.sleep(0.002)
        return np.full(2, next(self.numbers))

    def close(self) -> None:
        with self.file.open("ab") as file:
            file.write(b".")
        if self.fails:
            raise ValueError("not closed well")


def generated(file: Path, *, fails: bool = False) -> Iterator[Any]:
    numbers = Numbered(file, fails=fails)
    try:
        yield from (next(numbers) for _ in itertools.count())
    finally:
        numbers.close()


def runner_of(source: Any, mix: tuple[int, int], **options: Any) -> FeedRunner:
    options = {"stall_timeout_s": LIMIT_S, "seed": 1, **options}
    return FeedRunner(source, processes=mix[0], threads=mix[1], **options)


def refuse(batch: Any) -> Any:
    raise ValueError("not wanted")


@in_each_mix
@pytest.mark.parametrize("make", [Numbered, generated])
@pytest.mark.parametrize("shared", [True, False], ids=["iterable", "callable"])
@pytest.mark.filterwarnings("ignore:.*gain nothing here")
def test_an_iterator_is_closed_once(
    mix: tuple[int, int], make: Any, *, shared: bool, tmp_path: Path
) -> None:
    streams = 1 if shared else max(1, mix[0]) * mix[1]
    ends: dict[str, tuple[dict[str, Any], int]] = {
        "left": ({}, streams),
        "fails": ({"transform": refuse}, streams),
        "nothing": ({"filter": lambda batch: batch[0] < 1}, streams),
    }
    for end, (options, closed) in ends.items():
        file = tmp_path / end
        opened = partial(make, file)
        source = Readable(opened) if shared else copies(opened)
        with runner_of(source, mix, **options) as runner:
            batches = iter(runner)
            try:
                for _ in range(1 if end == "nothing" else 3 * streams):
                    next(batches)
            except ProducerError:
                assert end == "fails"
        assert file.stat().st_size == closed, end


@in_each_mix
def test_an_iterator_of_the_user_stays_open(mix: tuple[int, int], tmp_path: Path) -> None:
    stream = Numbered(tmp_path / "closed")
    with runner_of(stream, mix, transform=np.copy) as runner:
        next(iter(runner))
    assert not stream.file.exists()


@pytest.mark.parametrize("mix", MIXES[:2], ids=str)
@pytest.mark.parametrize("shared", [True, False], ids=["iterable", "callable"])
@pytest.mark.filterwarnings("ignore:.*gain nothing here")
def test_an_error_of_closing_is_said(
    mix: tuple[int, int], *, shared: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Iterator[Any]:
        return generated(tmp_path / "closed", fails=True)

    with (
        caplog.at_level(logging.ERROR, "fastfeed"),
        runner_of(Readable(make) if shared else copies(make), mix) as runner,
    ):
        next(iter(runner))
    assert "not closed well" in caplog.text


RAISED = (GeneratorExit, FeedStopped, StopAsyncIteration, SystemExit, KeyboardInterrupt, IndexError)


class Raises:
    """Records by index and a stream of numbers, of which those from 5 on raise."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> int:
        return int(self.check(number))

    def check(self, number: Any) -> Any:
        if np.max(number) >= 5:
            raise self.error("mine")
        return number

    def stream(self, worker: Worker) -> Iterator[Any]:
        for number in range(10):
            yield self.check(np.array([number]))


class AtOnce(Raises):
    """Records that are read all at once."""

    def __getitems__(self, numbers: list[int]) -> list[int]:
        return [self[number] for number in numbers]


SOURCES: dict[str, Callable[[Any], tuple[Any, dict[str, Any]]]] = {
    "record": lambda error: (Raises(error), {"batch_size": 2}),
    "records": lambda error: (AtOnce(error), {"batch_size": 2}),
    "transform": lambda error: (range(10), {"batch_size": 2, "transform": Raises(error).check}),
    "filter": lambda error: (range(1, 11), {"batch_size": 2, "filter": Raises(error).check}),
    "collate": lambda error: (
        range(10),
        {"batch_size": 2, "collate": lambda rows: Raises(error).check(np.array(rows))},
    ),
    "batch_transform": lambda error: (
        range(10),
        {"batch_size": 2, "batch_transform": Raises(error).check},
    ),
    "callable": lambda error: (Raises(error).stream, {}),
    "call": lambda error: (lambda worker: Raises(error).check(5), {}),
    "iterable": lambda error: (
        Readable(lambda: Raises(error).stream(Worker(0, 1, 0, 0))),
        {"transform": np.copy},
    ),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mix", [(0, 1), (1, 1)], ids=str)
def test_what_the_code_of_a_user_raises_is_an_error(source: str, mix: tuple[int, int]) -> None:
    for error in RAISED if mix == (0, 1) else RAISED[:2]:
        given, options = SOURCES[source](error)
        with (
            runner_of(given, mix, **options) as runner,
            pytest.raises(ProducerError, match="mine") as raised,
        ):
            list(runner)
        assert isinstance(raised.value.__cause__, error)


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "call"])
@pytest.mark.parametrize("mix", [(0, 1), (1, 1)], ids=str)
def test_a_lost_stop_iteration_is_an_error(source: str, mix: tuple[int, int]) -> None:
    given, options = SOURCES[source](StopIteration)
    with runner_of(given, mix, **options) as runner, pytest.raises(ProducerError, match="Stop"):
        list(runner)
