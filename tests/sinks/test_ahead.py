"""Results made ahead in a thread, which always ends; and one batch ahead in the thread of the
loop."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, OptionError, ProducerError, Shuffle, StateError
from fastfeed.sinks.ahead import one_ahead
from tests.helpers.dying import LONG_S, until
from tests.helpers.feeds import Blocked, chunks
from tests.helpers.scripts import Script


def ten() -> Iterator[Any]:
    return chunks(40, 4)


def endless() -> Iterator[Any]:
    while True:
        yield np.zeros((4, 1000))


def first(batch: Any) -> int:
    return int(batch[0][0])


def threads() -> int:
    return sum(t.name == "fastfeed-ahead" for t in threading.enumerate())


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_results_come_in_order_and_never_too_far_ahead(depth: int) -> None:
    calls: list[int] = []

    def put(batch: Any) -> int:
        calls.append(first(batch))
        return calls[-1]

    with FeedRunner(ten) as runner:
        ahead = runner.prefetch_to_device(put, depth=depth)
        for number in range(2):  # a second pass has a thread of its own
            got = []
            for result in ahead:
                got.append(result)
                due = min(10, len(got) + depth) + 10 * number
                until(lambda due=due: len(calls) >= due, "as many as there is room for")
                assert len(calls) <= due
            assert got == list(range(0, 40, 4))
            until(lambda: threads() == 0, "the end of the thread")


def test_the_length_is_known_where_it_is_for_the_source() -> None:
    assert len(FeedRunner(list(range(10)), batch_size=4).prefetch_to_device(first)) == 3
    assert len(FeedRunner(list(range(10)), batch_size=4, epochs=2).prefetch_to_device(first)) == 6
    with pytest.raises(TypeError, match="not known"):
        len(FeedRunner(ten).prefetch_to_device(first))


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_failure_of_put_comes_behind_the_results_before_it_with_its_traceback(
    kind: type[BaseException],
) -> None:
    def fails_at_8(batch: Any) -> int:
        if first(batch) == 8:
            raise kind("no more")
        return first(batch)

    got = []
    with FeedRunner(ten) as runner:
        with pytest.raises(kind, match="no more") as caught:
            for result in runner.prefetch_to_device(fails_at_8, depth=3):
                got.append(result)
        assert got == [0, 4]
        assert "fails_at_8" in [
            frame.name for frame in traceback.extract_tb(caught.value.__traceback__)
        ]
        until(lambda: threads() == 0, "the end of the thread")


def test_a_put_that_raises_what_ends_a_loop_does_not_end_it_silently() -> None:
    def put(batch: Any) -> None:
        raise StopIteration

    with FeedRunner(ten) as runner, pytest.raises(RuntimeError):
        list(runner.prefetch_to_device(put))


def test_a_failed_producer_is_heard_of_behind_what_it_made() -> None:
    def source() -> Iterator[Any]:
        yield from chunks(12, 4)
        raise KeyError("lost")

    got = []
    with FeedRunner(source) as runner:
        with pytest.raises(ProducerError, match="lost") as caught:
            for result in runner.prefetch_to_device(first, depth=8):
                got.append(result)
        assert got == [0, 4, 8]
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_loop_that_is_left_ends_the_thread_and_the_next_pass_goes_on() -> None:
    with FeedRunner(endless) as runner:
        ahead = runner.prefetch_to_device(np.shape, depth=2)
        for _ in range(3):
            for result in ahead:
                assert result == (4, 1000)
                break
            until(lambda: threads() == 0, "the end of the thread")
        forgotten = iter(ahead)
        next(forgotten)
        assert threads() == 1
        del forgotten
        gc.collect()
        until(lambda: threads() == 0, "the end of the thread")


def test_a_known_length_begins_anew_behind_a_pass_that_was_left() -> None:
    with FeedRunner(list(range(40)), batch_size=4) as runner:
        ahead = runner.prefetch_to_device(lambda batch: int(batch[0]), depth=3)
        assert next(iter(ahead)) == 0
        assert list(ahead) == list(range(0, 40, 4))


def test_a_loop_left_while_the_thread_waits_for_a_batch() -> None:
    with Blocked(chunks(8, 4)) as source, FeedRunner(source) as runner:
        results = iter(runner.prefetch_to_device(first, depth=4))
        assert [next(results), next(results)] == [0, 4]
        results.close()
        source.let_go.set()
        until(lambda: threads() == 0, "the end of the thread")


def test_stop_ends_the_thread_that_waits_for_room_and_the_loop() -> None:
    put: list[Any] = []
    runner = FeedRunner(endless)
    results = iter(runner.prefetch_to_device(put.append, depth=2))
    next(results)
    until(lambda: len(put) == 3, "results that lie ready")
    runner.stop()
    until(lambda: threads() == 0, "the end of the thread")
    with pytest.raises(FeedStopped):
        next(results)  # though there are some


def test_stop_ends_a_loop_that_waits_for_a_result() -> None:
    with Blocked(chunks(4, 4)) as source:
        runner = FeedRunner(source)
        results = iter(runner.prefetch_to_device(first))
        next(results)
        stopping = threading.Thread(target=lambda: (source.reached.wait(LONG_S), runner.stop()))
        stopping.start()
        source.reached.wait(LONG_S)
        with pytest.raises(FeedStopped):
            next(results)
        source.let_go.set()
        stopping.join()


def test_the_older_of_two_loops_is_told() -> None:
    with FeedRunner(endless) as runner:
        ahead = runner.prefetch_to_device(np.shape, depth=1)
        older, newer = iter(ahead), iter(ahead)
        next(older)
        next(newer)
        with pytest.raises(StateError, match="prefetch_to_device has two iterators"):
            for _ in older:
                pass
        next(newer)
        newer.close()


def test_slots_are_held_as_long_as_results_hold_them() -> None:
    with FeedRunner(endless, processes=1, memory=16 * 36864) as runner:
        results = iter(runner.prefetch_to_device(lambda batch: batch, depth=3))
        kept = next(results)
        until(lambda: runner.snapshot().slots.lent == 4, "three ahead and the one here")
        results.close()
        assert not kept.any()
        del kept, results
        until(lambda: threads() == 0, "the end of the thread")
        assert runner.snapshot().slots.lent == 0


@pytest.mark.parametrize("depth", [0, -1, True, 1.5, None])
def test_a_depth_that_is_none(depth: Any) -> None:
    with pytest.raises(OptionError, match="depth="):
        FeedRunner(ten).prefetch_to_device(first, depth=depth)


def test_a_function_that_is_none() -> None:
    with pytest.raises(OptionError, match="function of one batch"):
        FeedRunner(ten).prefetch_to_device(2)


def test_the_interpreter_ends_beside_a_loop_that_was_not_left_and_waits_for_what_put_is_at() -> (
    None
):
    script = Script("""
        import atexit

        calls, reached, let_go = [], threading.Event(), threading.Event()

        def put(batch):
            calls.append(batch)
            if len(calls) == 2:
                reached.set()
                let_go.wait(10)
                time.sleep(0.2)  # as native code that lasts
                say("put is over")

        waits = iter(FeedRunner(endless, processes=1).prefetch_to_device(np.copy))
        next(waits)
        works = iter(FeedRunner(endless).prefetch_to_device(put))
        next(works)
        reached.wait(10)
        atexit.register(let_go.set)
    """)
    try:
        ended = script.ended()
        assert (ended.code, ended.err, ended.out) == (0, "", ["put is over"])
    finally:
        script.kill()


class Batches:
    """Batches as one_ahead sees them; the mark of each is its number."""

    ahead = True

    def __init__(self, batches: Iterator[int]) -> None:
        self._batches = batches
        self.taken = 0
        self.given: int | None = None
        self.left: list[Any] = []

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> int:
        raise AssertionError("batches are taken")

    def take(self) -> int | None:
        batch = next(self._batches, None)
        self.taken += batch is not None
        return batch

    def mark(self) -> int:
        return self.taken

    def give(self, mark: int | None) -> None:
        self.given = mark

    def keep(self, results: list[Any]) -> None:
        self.left = results

    def kept(self) -> list[Any]:
        found, self.left = self.left, []
        return found


def test_one_ahead_puts_the_next_before_it_gives_out_this_one() -> None:
    put: list[int] = []
    batches: Any = Batches(iter(range(4)))
    results = one_ahead(batches, lambda number: put.append(number) or number)
    seen = [(result, len(put), batches.given) for result in results]
    assert seen == [(0, 2, 1), (1, 3, 2), (2, 4, 3), (3, 4, 4)]
    assert batches.given is None
    for count in range(2):
        few: Any = Batches(iter(range(count)))
        assert list(one_ahead(few, str)) == ["0"][:count]


def test_what_was_made_ahead_of_a_loop_that_was_left_comes_next() -> None:
    batches: Any = Batches(iter(range(4)))
    for result in one_ahead(batches, str):
        if result == "1":
            break
    del result
    assert (batches.taken, batches.given, batches.left) == (3, 2, ["2"])
    rest = one_ahead(batches, str)
    assert [(result, batches.given) for result in rest] == [("2", 3), ("3", 4)]


@pytest.mark.parametrize(
    ("kind", "given"), [(ProducerError, [0, 1]), (ZeroDivisionError, [0, 1]), (FeedStopped, [0])]
)
def test_one_ahead_raises_behind_the_result_before_unless_the_loop_was_stopped(
    kind: type[Exception], given: list[int]
) -> None:
    def numbers() -> Iterator[int]:
        yield 0
        yield 1
        raise kind("here")

    got = []
    batches: Any = Batches(numbers())
    with pytest.raises(kind, match="here"):
        for result in one_ahead(batches, int):
            got.append(result)
    assert got == given


def test_a_batch_whose_put_failed_was_not_given() -> None:
    def put(batch: Any) -> Any:
        if batch[0] == 8:
            raise KeyError("no room")
        return batch.copy()

    with FeedRunner(np.arange(24), batch_size=4) as runner:
        with pytest.raises(KeyError, match="no room"):
            list(runner.prefetch_to_device(put, depth=2))
        assert runner.state()["batches"] == 2


@pytest.mark.parametrize("shuffle", [False, True, Shuffle(8, 4)])
@pytest.mark.parametrize("given", range(1, 6))
def test_a_state_counts_what_the_loop_was_given(given: int, shuffle: Any) -> None:
    """And none that the thread has put ahead of it."""

    def made() -> FeedRunner:
        data = np.arange(24, dtype=np.float32)
        return FeedRunner(data, batch_size=4, shuffle=shuffle, seed=3, threads=2)

    with made() as runner:
        batches = iter(runner.prefetch_to_device(np.copy, depth=2))
        first = [next(batches).tolist() for _ in range(given)]
        state = runner.state()
        assert state["batches"] == given
        rest = [batch.tolist() for batch in batches]
        assert runner.state()["batches"] == 6
    with made().restore(state) as runner:
        assert [batch.tolist() for batch in runner.prefetch_to_device(np.copy, depth=2)] == rest
    assert sorted(chain.from_iterable(first + rest)) == list(range(24))
