"""An exception of a signal handler in the middle of a shuffle: every call says that the pool is
lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, Shuffle, StateError
from tests.helpers.streams import LIMIT_S, SEED


class Interrupt(KeyboardInterrupt):
    """The exception of a Ctrl-C handler."""


@contextmanager
def interrupted(at: int, within: tuple[str, ...]) -> Iterator[None]:
    """Raise before the `at`-th instruction of the code in these files, the only place at which
    handlers run."""
    left = at

    def each(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "call" and any(name in frame.f_code.co_filename for name in within):
            frame.f_trace_opcodes = True
            return each
        if event == "opcode":
            left -= 1
            if left == 0:
                raise Interrupt
            return each
        return None if event == "call" else each

    before = sys.gettrace()
    sys.settrace(each)
    try:
        yield
    finally:
        sys.settrace(before)


def rows_of(runner: FeedRunner, found: list[int], hits: list[int]) -> None:
    """Return the batches of a loop until its interruption."""
    batches = iter(runner)
    while True:
        try:
            with interrupted(hits.pop() if hits else -1, within=("fastfeed/engine/shuffle",)):
                batch = next(batches, None)
        except Interrupt:
            return
        if batch is None:
            return
        found += batch.tolist()


@settings(max_examples=40)
@given(st.lists(st.integers(1, 700), max_size=8), st.booleans())
@example([6], False)
@example([6], True)
def test_a_loop_never_goes_on_with_other_records(hits: list[int], resumes: bool) -> None:
    """The loop continues in the same runner or in a new one, unless there is no state any more."""

    def runner() -> FeedRunner:
        options = {
            "transform": np.int64,
            "batch_size": 4,
            "epochs": 2,
            "shuffle": Shuffle(12, 4),
            "seed": SEED,
        }
        return FeedRunner(range(30), stall_timeout_s=LIMIT_S, **options)

    with runner() as whole:
        wanted = [row for batch in whole for row in batch.tolist()]
    found: list[int] = []
    now = runner()
    try:
        while len(found) < len(wanted):
            rows_of(now, found, hits)
            try:
                state = now.state()
            except StateError:
                break
            if resumes:
                now.stop()
                now = runner().restore(json.loads(json.dumps(state)))
    finally:
        now.stop()
    assert found == wanted[: len(found)]


def test_a_push_that_was_interrupted_ends_the_runner() -> None:
    with FeedRunner(
        range(30), batch_size=4, shuffle=Shuffle(12, 4), stall_timeout_s=LIMIT_S
    ) as runner:
        with pytest.raises(Interrupt), interrupted(40, within=("shuffle_pool",)):
            list(runner)
        for call in (runner.state, lambda: list(runner)):
            with pytest.raises(StateError, match="interrupted the feed or its shuffle"):
                call()
