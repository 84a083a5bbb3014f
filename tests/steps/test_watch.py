"""`watch` passes batches through unchanged and records every step."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import fastfeed
from fastfeed.steps.recorder import (
    StepLog,
    StepRecorder,
    leaves,
    site_of,
)
from fastfeed.steps.timeline import Loop, Step, Timeline
from fastfeed.steps.watch import watch


@pytest.fixture
def log() -> Iterator[StepLog]:
    """The log of a running diagnosis."""
    watch.log = StepLog(Timeline())
    yield watch.log
    watch.log = None


def only(timeline: Timeline) -> Loop:
    (loop,) = timeline.loops.values()
    return loop


def line_of(marker: str) -> int:
    return next(
        i
        for i, line in enumerate(Path(__file__).read_text().splitlines(), 1)
        if line.rstrip().endswith(f"# {marker}")
    )


class Clock:
    """A clock whose every reading is a second later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_the_batches_as_they_are() -> None:
    batches = ["x", {"a": 1}, None]
    watched = watch(batches)
    assert all(a is b for a, b in zip(watched, batches, strict=True))
    assert len(watched) == 3
    assert watched.index({"a": 1}) == 1, "what the loader can"
    assert [b is a for a, b in zip(batches, watched, strict=True)] == [True] * 3, "again"
    with pytest.raises(TypeError):
        len(watch(iter(batches)))
    with pytest.raises(AttributeError, match="absent"):
        watched.absent  # noqa: B018
    assert copy.copy(watched)._loader is batches
    assert pickle.loads(pickle.dumps(watched))._loader[1] == {"a": 1}


def test_an_iterator_stays_one() -> None:
    def source() -> Any:
        got = 0
        while True:
            got = yield got

    iterator = iter(watch(source()))
    assert iter(iterator) is iterator
    assert next(iterator) == 0
    assert iterator.send(5) == 5
    iterator.close()
    with pytest.raises(StopIteration):
        next(iterator)


def test_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastfeed.steps.recorder.perf_counter", Clock())
    watched = watch([np.zeros((2, 3), np.uint8), 1])
    for _ in watched:  # the loop
        pass
    loop = only(watched.timeline)
    assert (loop.name, loop.kind, loop.waits) == ("list", "watch", "exact")
    assert loop.where == f"test_watch.py:{line_of('the loop')}"
    assert loop.leaves == leaves(np.zeros((2, 3), np.uint8))
    assert loop.steps == [Step(1.0, 3.0, 1.0), Step(3.0, 5.0, 1.0)]


def test_epochs_go_to_the_same_loop() -> None:
    watched = watch([1, 2, 3])
    for epoch in range(3):
        for number in watched:
            if epoch == 1 and number == 2:
                break
    assert len(only(watched.timeline).steps) == 8
    marks = watched.timeline.marks
    assert [mark.kind for mark in marks] == ["epoch", "epoch"]
    assert [mark.start_s for mark in marks] == [
        only(watched.timeline).steps[i].begin_s for i in (3, 5)
    ]


def test_an_exception_is_the_loaders() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("mine")

    watched = watch(source())
    with pytest.raises(ValueError, match="mine"):
        for _ in watched:
            pass
    assert len(only(watched.timeline).steps) == 1


def test_a_loop_inside_a_step_is_an_evaluation(log: StepLog) -> None:
    for i in watch([1, 2, 3]):
        if i == 2:
            for _ in watch([7, 8]):
                pass
    train, inner = log.timeline.loops.values()
    assert [mark.kind for mark in log.timeline.marks] == ["evaluation"]
    mark = log.timeline.marks[0]
    assert train.steps[1].begin_s < mark.start_s < mark.end_s < train.steps[1].end_s
    assert log.nested == {id(inner)}


def test_a_loop_between_epochs_is_an_evaluation(log: StepLog) -> None:
    train, valid = watch(range(50)), watch(range(2))
    for _ in range(3):
        for _ in train:
            pass
        for _ in valid:
            pass
    kinds = [mark.kind for mark in log.timeline.marks if mark.label == "range"]
    assert kinds.count("epoch") == 4
    assert kinds.count("evaluation") == 2, "the last one ends no epoch that goes on"


def test_two_loaders_in_step(log: StepLog) -> None:
    slow = watch(clocked(range(5)))
    for _ in zip(watch(range(5)), slow, strict=True):
        pass
    first, second = log.timeline.loops.values()
    assert not log.timeline.marks
    assert (
        sum(s.wait_s for s in first.steps[1:]) > sum(s.wait_s for s in second.steps[1:-1]) > 0.002
    )


def clocked(items: Any) -> Iterator[Any]:
    """Items that take a millisecond each."""
    for item in items:
        until = perf_counter() + 0.001
        while perf_counter() < until:
            pass
        yield item


def test_what_waits_inside_is_a_part_of_it(log: StepLog) -> None:
    inner = watch(range(4))
    for _ in watch(n for n in inner):
        pass
    assert len(log.timeline.loops) == 1
    assert len(only(log.timeline).steps) == 4
    assert not log.waiting


def test_a_loop_that_is_left(log: StepLog) -> None:
    iterator = iter(watch([1, 2]))
    next(iterator)
    assert not only(log.timeline).steps
    del iterator
    gc.collect()
    assert len(only(log.timeline).steps) == 1
    assert not log.step_of(only(log.timeline).thread)


def test_blocks(log: StepLog) -> None:
    for _ in range(3):
        with watch.wait():
            pass
        with watch.step():  # the step
            pass
    loop = only(log.timeline)
    assert (loop.kind, loop.waits, loop.where) == (
        "watch",
        "exact",
        f"test_watch.py:{line_of('the step')}",
    )
    assert all(0 < step.wait_s < step.end_s - step.begin_s for step in loop.steps)
    assert len(loop.steps) == 3 and not log.waiting


def test_blocks_without_a_wait(log: StepLog) -> None:
    with pytest.raises(KeyError), watch.step():
        raise KeyError
    assert (only(log.timeline).waits, len(only(log.timeline).steps)) == ("none", 1)
    for _ in watch([1]):
        with watch.step():
            pass
    assert [len(loop.steps) for loop in log.timeline.loops.values()] == [1, 1], (
        "the iterator's step is the better one"
    )


def test_without_a_diagnosis(log: StepLog) -> None:
    log.active = False
    with watch.wait(), watch.step():
        pass
    for _ in watch([1]):
        pass
    assert not log.timeline.loops
    watched = watch(range(50_000))
    for _ in watched:
        pass
    assert 10_000 <= len(only(watched.timeline).steps) <= 20_000, "its memory is bounded"


def test_off_amid_a_loop(log: StepLog) -> None:
    found = []
    for i in watch(range(6)):
        found.append(i)
        log.active = i < 2
    assert found == list(range(6))
    assert len(only(log.timeline).steps) == 2


class Strange:
    """Has a dtype, and an unknown shape."""

    dtype = "text"

    @property
    def shape(self) -> Any:
        raise ValueError("unknown")


def test_leaves() -> None:
    batch = ({"image": np.zeros((2, 4), np.float32), "n": 3}, [Strange(), None])
    assert [tuple(leaf)[:3] for leaf in leaves(batch)] == [
        ("batch[0]['image']", "float32", (2, 4)),
        ("batch[0]['n']", "int", ()),
        ("batch[1][0]", "Strange", ()),
    ]
    assert len(leaves([np.zeros(1)] * 500)) == 64


def test_sites_without_a_line_of_the_users() -> None:
    assert site_of(None) == ""


def test_public() -> None:
    assert fastfeed.watch is watch
    assert StepRecorder(StepLog(Timeline()), "watch", name="x", buffer=None).in_step is False
