"""Every promise can be broken, and the check of that name catches the broken sink."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fastfeed import OptionError
from fastfeed.testing import PROMISES, SinkBroken, SinkTraits, check_sink
from fastfeed.testing.scenes import Trial
from tests.testing import broken_sinks as sinks

GOES_ON = SinkTraits(goes_on=True)
SOURCES = ("epochs", "unknown length", "padded")  # promises about some sources
LIMIT_S = 4.0  # of the sinks that hang


@pytest.fixture(autouse=True)
def short_collections() -> Iterator[None]:
    """Freeze what other tests imported, because the battery often collects garbage.

    Each collection of it takes a third of a second.
    """
    gc.freeze()
    yield
    gc.unfreeze()


def broken_by(sink: Any, **options: Any) -> SinkBroken:
    with pytest.raises(SinkBroken) as caught:
        check_sink(sink, **{"traits": GOES_ON, "processes": (0,), **options})
    assert isinstance(caught.value, AssertionError)
    assert set(caught.value.broken) <= set(PROMISES)
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sink", "broken", "told"),
    [
        (
            sinks.DropsTheLast,
            {"once", "early break", "second epoch"},
            "2 records missing: 400, 401",
        ),
        (
            sinks.RepeatsOne,
            {"once", "early break", "second epoch"},
            "4 records more than once: 200, 201, 202, 203",
        ),
        (sinks.Reorders, {"order", "early break"}, "record 200 came after record 207"),
        (sinks.ChangesAValue, {"values", "padded"}, "element 0: batch.nested[1][1] is"),
        (
            sinks.ChangesADtype,
            {"dtypes"},
            "element 0: batch.index has dtype int32 instead of int64",
        ),
        (sinks.ChangesTheStructure, {"structure"}, "instead of Element(index=array"),
        (sinks.ChangesAShape, {"values", "padded"}, "has the shape (4, 1) instead of (4,)"),
        (
            sinks.ReplaysTheFirstPass,
            {"early break", "second epoch"},
            "it has the same order as the first one",
        ),
        (
            sinks.SwallowsErrors,
            {"errors"},
            "ended after the record [19] without an error",
        ),
        (sinks.LosesTheTraceback, {"errors"}, "lacks 'unreadable' of the original traceback"),
        (sinks.LosesTheCause, {"errors"}, "__cause__ is None instead of"),
        (sinks.RaisesAnother, {"errors"}, "KeyError"),
        (sinks.EndsWhenStopped, {"stop"}, "the iteration ended without an error"),
        (
            sinks.NeverEnds,
            {"once", "early break", "second epoch", *SOURCES},
            "402 records more than once: 0, 1, 2",
        ),
        (sinks.Fails, {"once"}, "ZeroDivisionError: a mistake of the sink's own"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_promise_is_named(sink: Any, broken: set[str], told: str) -> None:
    error = broken_by(sink)
    assert set(error.broken) == broken
    assert told in str(error)
    for promise in broken:
        assert (
            f"{promise} (thread producers)\n  promised: {PROMISES[promise]}\n  happened: "
            in str(error)
        )


class EndsAfterAnEpoch(sinks.Loop):
    def __iter__(self) -> Iterator[Any]:
        yield from next(self.runner.epochs()) if self.runner.options.epochs == 2 else self.runner


class EndsWhereNobodyKnowsTheLength(sinks.Loop):
    def __iter__(self) -> Iterator[Any]:
        for element in self.runner:
            yield element
            if self.runner.options.records and not self.runner.options.padded:
                return


class CutsWhatIsPadded(sinks.Loop):
    def __iter__(self) -> Iterator[Any]:
        for element in self.runner:
            number, (levels, zeros) = element.nested
            most = 4 if self.runner.options.padded else None
            yield element._replace(nested=(number, [levels[:, :most], zeros]))


@pytest.mark.parametrize(
    ("sink", "promise", "told", "alone"),
    [
        (EndsAfterAnEpoch, "epochs", "64 records missing: 0, 1, 2", True),
        (EndsWhereNobodyKnowsTheLength, "unknown length", "60 records missing: 4, 5, 6", True),
        (CutsWhatIsPadded, "padded", "nested[1][0] has the shape (4, 4) instead of (4, 5)", True),
        (sinks.RepeatsWhereNothingIsReady, "fast consumer", "came instead of", False),
        # which one depends on the pace
        (sinks.SkipsWhereItIsBehind, "slow consumer", "came instead of", False),
        (sinks.OverwritesWhatItGave, "slow consumer", "the element changed while it", False),
    ],
)
def test_what_only_some_sources_or_paces_show(
    sink: Any, promise: str, told: str, alone: bool
) -> None:
    error = broken_by(sink)
    (found,) = (f for f in error.findings if f.promise == promise)
    assert told in found.happened
    assert not alone or error.broken == (promise,)


def test_options_reach_every_runner() -> None:
    seeds: list[Any] = []
    check_sink(
        lambda runner: seeds.append(runner.options.seed) or runner,
        traits=GOES_ON,
        options={"seed": 5},
    )
    assert set(seeds) == {0, 5}, "the shuffled one has a seed of its own"


def test_a_batch_that_one_pass_leaves_to_the_next() -> None:
    assert broken_by(sinks.KeepsWhatItTookAhead, traits=SinkTraits()).broken == ("early break",)


def test_an_error_that_overtakes_a_batch() -> None:
    error = broken_by(sinks.RaisesTooEarly, traits=SinkTraits(goes_on=True, ahead=1))
    assert "4 records missing: 16" in next(
        f.happened for f in error.findings if f.promise == "errors"
    )


def test_views_of_memory_that_was_given_back() -> None:
    error = broken_by(sinks.GivesMemoryBackTooEarly, traits=SinkTraits(), processes=(1,))
    assert "kept" in error.broken
    assert "kept (process producers)" in str(error)


@pytest.mark.slow
def test_leases_that_are_kept_for_ever() -> None:
    leases: list[Any] = []
    error = broken_by(lambda runner: sinks.KeepsLeases(runner, leases), processes=(1,))
    assert error.broken == ("leases",), "the memory has no descriptor"
    assert "1 batches are still lent (" in str(error)


@contextmanager
def let_go_at_last() -> Iterator[threading.Event]:
    """Yield an event that releases the threads of a broken sink at the end of the test."""
    others = set(threading.enumerate())
    let_go = threading.Event()
    try:
        yield let_go
    finally:
        let_go.set()
        for thread in set(threading.enumerate()) - others:
            thread.join()


def hangs_in_a_pass(let_go: threading.Event) -> Callable[[Any], Any]:
    return lambda runner: sinks.Hangs(runner, let_go)


@pytest.mark.slow
def test_a_hang_ends_the_battery_with_the_stacks_of_all_threads() -> None:
    with let_go_at_last() as let_go:
        error = broken_by(hangs_in_a_pass(let_go), limit_s=LIMIT_S)
    assert error.broken == ("no hang",)
    assert "while checking 'once': the call did not return within 4 s" in str(error)
    assert "stacks of all threads:\nthread check_sink:\n" in str(error)
    assert "self.let_go.wait()" in str(error)


def test_a_hang_is_named_by_what_hung() -> None:
    """The error names the hung call, not the exception that followed when it was unblocked."""
    go_on = threading.Event()

    def scene(trial: Trial) -> None:
        trial.begin("once")
        trial.unblock_with(go_on.set)
        go_on.wait()
        trial.begin("errors")

    trial = Trial(lambda runner: runner, None, SinkTraits(), 0.05, {})
    assert not trial.play(scene)
    assert trial.current == "errors"
    assert trial.findings[0].happened.startswith(
        "while checking 'once': the call did not return within 0.05 s"
    )


@pytest.mark.slow
def test_a_sink_that_needs_one_more_than_it_says() -> None:
    error = broken_by(sinks.NeedsOneMore, limit_s=LIMIT_S)
    assert error.broken == ("early break", "errors", "no hang")
    assert "while checking 'fast consumer'" in str(error)
    assert str(error).endswith("SinkTraits(ahead=1)")


@pytest.mark.slow
def test_a_thread_that_is_left() -> None:
    with let_go_at_last() as let_go:
        error = broken_by(lambda runner: sinks.LeaksAThread(runner, let_go))
    assert error.broken == ("nothing left",)
    assert "thread forgotten" in str(error)


class LeaksAnEventfd(sinks.Loop):
    def __init__(self, runner: Any, opened: list[int]) -> None:
        super().__init__(runner)
        opened.append(os.eventfd(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sink", "told"), [(sinks.LeaksADescriptor, "pipe:"), (LeaksAnEventfd, "[eventfd]")]
)
def test_descriptors_that_are_left(sink: Any, told: str) -> None:
    opened: list[int] = []
    try:
        error = broken_by(lambda runner: sink(runner, opened))
    finally:
        for number in opened:
            os.close(number)
    assert error.broken == ("nothing left",)
    assert told in str(error)


def test_what_is_no_sink() -> None:
    with pytest.raises(OptionError, match="must be a function of a runner"):
        check_sink(3)  # type: ignore[arg-type]
