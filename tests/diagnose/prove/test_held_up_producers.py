"""Producer threads that are held up at random while checksums are taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from fastfeed import FeedRunner
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.prove.batch_log import hold_up_producers
from fastfeed.producers import builder
from fastfeed.steps.timeline import Timeline

COUNT = 200


@pytest.fixture
def held_up() -> Iterator[None]:
    undo = hold_up_producers(builder, HookLog(Timeline()))
    yield
    undo()


def test_threads_that_share_a_generator_show_it(held_up: None) -> None:
    """Without that, who comes first may be the same for hundreds of batches."""
    alone, shared = np.random.default_rng(0), np.random.default_rng(0)
    runner = FeedRunner(itertools.count(), transform=lambda _: shared.random(4), threads=2)
    with runner:
        found = [batch.tolist() for batch in itertools.islice(runner, COUNT)]
    assert found != [alone.random(4).tolist() for _ in range(COUNT)]
