"""Loops over a FeedRunner, as they are and seen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner
from fastfeed.diagnose.hooks.experiments import Experiments, RecordedInput
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import RECORDER
from fastfeed.steps.recorder import StepRecorder
from fastfeed.steps.timeline import Timeline
from tests.helpers.dying import until

RECORDS = np.arange(60)


class Bursting(HookLog):
    """Takes ahead wherever it may."""

    def experiment(self, steps: StepRecorder, take: Any) -> None:
        steps.source = steps.source._replace(idle=lambda: True)
        if self.experiments is not None:
            self.experiments.burst(RecordedInput(self.experiments, steps, get=take))
            self.due_s = 0.0


@pytest.fixture
def log() -> Iterator[Bursting]:
    found = Bursting(Timeline())
    imports = ImportHooks(found, ("feed_runner",))
    imports.start()
    found.experiments = Experiments(found)
    found.experiments.plan(0.0, 600.0)
    found.due_s = 0.0
    yield found
    imports.undo()


def runner(**options: Any) -> FeedRunner:
    return FeedRunner(RECORDS, batch_size=4, shuffle=False, seed=1, **options)


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch.tolist()]


def test_loops_and_epochs(log: Bursting) -> None:
    with runner() as feed:
        assert numbers(feed) == RECORDS.tolist()
        assert numbers(feed) == RECORDS.tolist()
    with runner(epochs=2) as feed:
        assert [numbers(epoch) for epoch in feed.epochs()] == [RECORDS.tolist()] * 2
    (loop,) = log.timeline.loops.values()  # both in one line of this file
    assert (loop.kind, loop.name, loop.buffer, len(loop.steps)) == ("runner", "FeedRunner", 16, 60)
    assert any(step.free for step in loop.steps)


def test_a_loop_that_is_left_amid_a_burst_goes_on(log: Bursting) -> None:
    with runner() as feed:
        seen = []
        for batch in feed:
            seen += batch.tolist()
            if len(seen) == 8:
                break
        state = feed.state()
        for batch in feed:
            seen += batch.tolist()
    assert seen == RECORDS.tolist()
    log.active = False
    with runner().restore(state) as feed:
        assert numbers(feed) == RECORDS[8:].tolist(), "what was taken ahead does not count"


def test_idle_producers(log: Bursting) -> None:
    log.experiments = None
    with FeedRunner(lambda: itertools.repeat(RECORDS), threads=1) as feed:
        next(iter(feed))
        idle = feed.__dict__[RECORDER].source.idle
        # a producer that may go on waits for room until it has a core
        until(lambda: feed.snapshot().depth >= 8 and idle(), "a full buffer")


def test_tensors(log: Bursting) -> None:
    pytest.importorskip("torch")
    with runner() as feed:
        assert numbers(feed.torch()) == RECORDS.tolist()
    (loop,) = log.timeline.loops.values()
    assert loop.name == "FeedRunner (TorchBatches)"
    assert not any(step.free for step in loop.steps), "it counts what it hands out"


def test_off(log: Bursting) -> None:
    log.active = False
    with runner() as feed:
        assert numbers(feed) == RECORDS.tolist()
    assert not log.timeline.loops
