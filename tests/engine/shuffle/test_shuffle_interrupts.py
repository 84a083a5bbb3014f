"""An exception of a signal handler at any instruction of a draw has no effect: the next draw
returns the same batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, Shuffle, StateError
from fastfeed.core.batch import Batch
from fastfeed.engine.shuffle import ShufflePool
from tests.helpers.pools import (
    Action,
    Push,
    drawn,
    had,
    lengths,
    numbers,
    plan,
    ragged,
    rooms,
    same,
    sizes,
    words,
)
from tests.helpers.streams import LIMIT_S, SEED

ROOM = ("shuffle/", "numpy/", "collate.py")
untimed = settings(max_examples=60)


class Interrupt(KeyboardInterrupt):
    """The exception of a Ctrl-C handler."""


@contextmanager
def interrupted(at: int, within: tuple[str, ...] = ROOM) -> Iterator[None]:
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


def is_interrupted(call: Callable[[], Any], at: int) -> tuple[bool, Any]:
    try:
        with interrupted(at):
            return False, call()
    except Interrupt:
        return True, None


def again(pool: ShufflePool, room: dict[str, Any], items: list[Push]) -> ShufflePool:
    """Return a pool that is restored from the state, after the items were produced again."""
    restored = ShufflePool.restored(json.loads(json.dumps(pool.state())), **room)
    for item in items:
        for of_next in (False, True):
            restored.place(item.batch, stream=3, item=item.ids[0], of_next=of_next)
    assert not restored.missing()
    return restored


def had_once(pool: ShufflePool, at: list[int], check: Callable[[], None]) -> Batch | None:
    """Draw and confirm a batch, with an exception in each attempt as long as some are left."""
    while True:
        hit, batch = is_interrupted(pool.draw, at.pop() if at else -1)
        if not hit:
            check()
            if batch is None:
                pool.start_next_epoch()
                return None
            hit, _ = is_interrupted(pool.confirm, at.pop() if at else -1)
            # had, if nothing is left but to let go of the records
            if not hit or not pool._draw_state.drawn:
                return batch
        check()


@untimed
@given(
    rooms(),
    lengths,
    sizes,
    st.sampled_from([numbers, words, ragged]),
    st.lists(st.integers(1, 250), max_size=60),
    st.booleans(),
)
def test_every_draw_may_be_interrupted_anywhere(
    room: dict[str, Any],
    lengths: list[int],
    cuts: list[int],
    leaves: Any,
    at: list[int],
    resumes: bool,
) -> None:
    room |= {"seed": 7, "pad": -1 if leaves is ragged else None}
    whole = drawn(ShufflePool(**room), plan(lengths, cuts, leaves))
    items = [action for action in plan(lengths, cuts, leaves) if isinstance(action, Push)]
    pool = ShufflePool(**room)
    actions = plan(lengths, cuts, leaves)
    found: list[Batch | None] = []

    def check() -> None:
        if resumes:
            copy, rest = again(pool, room, items), list(pushed_later())
            assert same(whole[len(found) :], drawn(copy, iter(rest)))

    done = 0

    def pushed_later() -> Iterator[Action]:
        return islice(plan(lengths, cuts, leaves), done, None)

    while True:
        while pool.wants():
            next(actions)(pool)
            done += 1
        if pool.finished:
            break
        found.append(had_once(pool, at, check))
    assert same(whole, found)
    assert not pool.held


def instructions(call: Callable[[], Any]) -> int:
    """Return the number of instructions."""
    left = 10**9
    with interrupted(left) as _:
        trace = sys.gettrace()
        call()
    assert trace is not None
    return left - next(
        c.cell_contents for c in trace.__closure__ if isinstance(c.cell_contents, int)
    )


def full() -> ShufflePool:
    """Return a pool whose epoch drains, after some draws, while the next one has begun."""
    pool, actions = ShufflePool(Shuffle(40, 20), batch_size=8, seed=1), plan([70, 50], [5], words)
    for _ in range(5):
        while pool.wants():
            next(actions)(pool)
        had(pool)
    return pool


def test_every_single_instruction() -> None:
    wanted = [had(pool) for pool in [full()] * 2]
    count = instructions(full().draw)
    assert count > 100
    for at in range(1, count + 1):
        pool = full()
        assert is_interrupted(pool.draw, at)[0]
        assert same([had(pool), had(pool)], wanted), f"interrupted at {at}"
    pool = full()
    pool.draw()
    for at in range(1, instructions(pool.confirm) + 1):
        pool = full()
        batch = pool.draw()
        assert is_interrupted(pool.confirm, at)[0]
        is_had = not pool._draw_state.drawn
        assert same([batch if is_had else had(pool), had(pool)], wanted), f"interrupted at {at}"


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
@example([6], False)  # before a push: what was received is pushed later
@example([6], True)
def test_a_loop_goes_on_after_an_interrupted_draw(hits: list[int], resumes: bool) -> None:
    """The loop continues in the same runner or in a new one. While records are on their way into
    the pool, there is no state."""

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
        with pytest.raises(Interrupt), interrupted(40, within=("shuffle/storage",)):
            list(runner)
        for call in (runner.state, lambda: list(runner)):
            with pytest.raises(StateError, match="interrupted the shuffle"):
                call()
