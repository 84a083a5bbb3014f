"""Death of a worker process: the error names cause and item; bench/chaos.py measures that it comes
within a second."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner
from fastfeed.errors import ProducerDied, ProducerFailed
from fastfeed.producers.process import forkserver
from fastfeed.producers.process import workers as crew
from tests.helpers import dying
from tests.helpers.dying import (
    LONG_S,
    MIXES,
    SIGNALS,
    Deadly,
    endless,
    full,
    once,
    until,
    workers,
)

WAYS: dict[str, tuple[Callable[[], None], int | None, int | None]] = {
    "SIGKILL": (dying.by_signal(signal.SIGKILL), signal.SIGKILL, None),
    "SIGTERM": (dying.by_signal(signal.SIGTERM), signal.SIGTERM, None),
    "SIGSEGV": (dying.by_null_pointer, signal.SIGSEGV, None),
    "SIGABRT": (dying.by_abort, signal.SIGABRT, None),
    "exit code 3": (lambda: os._exit(3), None, 3),
    "exit code 0": (lambda: os._exit(0), None, 0),
}
mixes = pytest.mark.parametrize("mix", MIXES, ids="{0[0]}x{0[1]}".format)


def death_of(runner: FeedRunner) -> tuple[list[Any], ProducerDied]:
    """Return the batches before the death, and the error."""
    batches: list[Any] = []
    with pytest.raises(ProducerDied) as caught:
        batches.extend(runner)
    return batches, caught.value


def die_over_5(item: int) -> Any:
    if item == 5:
        os._exit(3)
    return np.full(4, item)


def options(mix: tuple[int, int], **more: Any) -> dict[str, Any]:
    """Return options with which an unnoticed death becomes a FeedTimeout."""
    return {"processes": mix[0], "threads": mix[1], "stall_timeout_s": LONG_S, **more}


@pytest.mark.parametrize("way", WAYS)
def test_the_error_says_how_and_over_what(way: str) -> None:
    die, number, code = WAYS[way]
    with FeedRunner(Deadly(100, 17, die), batch_size=8, processes=1) as runner:
        batches, error = death_of(runner)
    assert np.concatenate(batches).tolist() == list(range(16)), "what was made before is delivered"
    assert way in str(error)
    assert f"(pid {error.pid})" in str(error)
    assert "record 1 (index 17) of batch 2" in str(error)
    assert (error.signal, error.exit_code) == (number, code)


@pytest.mark.parametrize(
    ("source", "more", "hand"),
    [
        (list(range(20)), {"records": False, "transform": die_over_5}, "item 5 (batch 5)"),
        (iter(range(20)), {"transform": die_over_5}, "batch 5"),
    ],
    ids=["whole items", "an iterator with transform"],
)
def test_the_item_in_hand(source: Any, more: dict[str, Any], hand: str) -> None:
    with FeedRunner(source, processes=1, **more) as runner:
        batches, error = death_of(runner)
    assert len(batches) == 5
    assert hand in str(error)


@pytest.mark.parametrize("where", ["at once", "in the function", "after five"])
def test_in_a_callables_own_code(where: str) -> None:
    def stream() -> Iterator[Any]:
        if where != "at once":
            for _ in range(5):
                yield np.zeros(4)
        os._exit(3)

    def not_even_a_stream() -> Any:
        os._exit(3)

    source = not_even_a_stream if where == "in the function" else stream
    with FeedRunner(source, processes=1) as runner:
        batches, error = death_of(runner)
    made = 5 if where == "after five" else 0
    assert len(batches) == made
    assert f"batch {made} of producer 0" in str(error)


def test_sys_exit_is_an_exception_like_any_other() -> None:
    def stream() -> Iterator[Any]:
        yield np.zeros(4)
        sys.exit(7)

    with FeedRunner(stream, processes=1) as runner, pytest.raises(ProducerFailed) as caught:
        list(runner)
    assert isinstance(caught.value.__cause__, SystemExit)
    assert caught.value.__cause__.code == 7


@pytest.mark.parametrize(("mix", "number"), list(zip(MIXES, SIGNALS, strict=True)))
def test_killed_from_outside_while_its_slots_are_full(mix: tuple[int, int], number: int) -> None:
    """The trainer is in a long step meanwhile."""
    with FeedRunner(endless, **options(mix)) as runner:
        stream = iter(runner)
        next(stream)
        victim = workers(mix[0])[0]
        until(lambda: full(runner), "full slots")
        victim.send_signal(number)
        until(lambda: dying.state_of(victim.pid) == "", "the end of the worker")
        with pytest.raises(ProducerDied, match=signal.Signals(number).name) as caught:
            for _ in stream:
                pass
    assert caught.value.pid == victim.pid


def test_killed_before_the_first_batch_and_while_nobody_looks() -> None:
    """`start` returns before there is a worker; the first `next` meets the death."""

    def silent() -> Iterator[Any]:
        time.sleep(LONG_S)
        yield np.zeros(4)

    runner = FeedRunner(silent, processes=2).start()
    with runner:
        victim = workers(2)[1]
        victim.kill()
        with pytest.raises(ProducerDied, match="SIGKILL"):
            next(iter(runner))


def test_terminated_before_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of the fork server's is none of its own."""
    monkeypatch.setattr(forkserver, "__name__", dying.__name__)  # from where it imports `serve`
    with FeedRunner(endless, **options((2, 1))) as runner:
        _, error = death_of(runner)
    assert (error.signal, error.exit_code) == (signal.SIGTERM, None)


def test_killed_in_native_code_that_holds_the_interpreter_lock() -> None:
    def stuck() -> Iterator[Any]:
        yield np.full(4, os.getpid())
        ctypes.PyDLL(None).sleep(30)

    with FeedRunner(stuck, processes=1) as runner:
        stream = iter(runner)
        pid = int(next(stream)[0])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ProducerDied, match="SIGKILL"):
            next(stream)


def test_every_call_meets_the_same_death() -> None:
    with FeedRunner(Deadly(100, 0, lambda: os._exit(3)), batch_size=8, processes=1) as runner:
        errors = [death_of(runner)[1] for _ in range(3)]
    assert len({str(e) for e in errors}) == 1


def test_while_the_ring_grows(tmp_path: Path) -> None:
    """Each batch is larger than any before and needs new memory: no batch is torn or lost."""

    def growing(index: int) -> Any:
        if index in (3, 9, 15):
            once(tmp_path / str(index), dying.by_signal(signal.SIGKILL))()
        return np.full((2, 1000 * (index + 1)), index)

    runner = FeedRunner(
        list(range(20)),
        records=False,
        transform=growing,
        pad=True,
        processes=2,
        on_worker_death="restart",
    )
    with runner:
        got = [(int(b[0, 0]), b.shape, bool((b == b[0, 0]).all())) for b in runner]
    assert got == [(i, (2, 1000 * (i + 1)), True) for i in range(20)]


def test_after_the_last_batch_a_death_is_no_matter() -> None:
    """Everything was delivered, so an end of the process that a library causes is harmless."""

    class Deadly:
        def write(self, text: str) -> None:
            return

        def flush(self) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    def stream() -> Iterator[Any]:
        sys.stdout = Deadly()  # type: ignore[assignment]  # flushed when all is over
        yield from (np.full(4, i) for i in range(3))

    with FeedRunner(stream, processes=1) as runner:
        assert len(list(runner)) == 3


@pytest.mark.parametrize("counts", [[4, 5], [None]], ids=["rose", "no counter"])
def test_the_out_of_memory_killer_is_named(
    counts: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the kernel's counter rose meanwhile."""
    kills = iter(counts)
    monkeypatch.setattr(crew, "oom_kills", lambda: next(kills, counts[-1]))
    with FeedRunner(Deadly(100, 17, WAYS["SIGKILL"][0]), batch_size=8, processes=1) as runner:
        _, error = death_of(runner)
    assert error.out_of_memory is (counts[0] == 4)
    assert [text in str(error) for text in ("out-of-memory killer", "memory=")] == [
        error.out_of_memory
    ] * 2


@mixes
def test_the_fork_server_is_killed(mix: tuple[int, int]) -> None:
    with FeedRunner(endless, **options(mix)) as runner:
        stream = iter(runner)
        next(stream)
        workers(mix[0])
        dying.server().kill()
        with pytest.raises(ProducerDied, match="SIGKILL"):
            for _ in stream:
                pass
