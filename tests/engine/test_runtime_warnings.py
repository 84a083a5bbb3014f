"""Warnings of a running feed: producers that hold the lock, and none for those that do not."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedWarning
from fastfeed.core.stats import StageRow
from fastfeed.engine import runtime_warnings
from fastfeed.engine.runtime_warnings import NAPS, RuntimeWarnings
from fastfeed.options import FeedOptions
from fastfeed.probes.lock import LockProbe

LIMIT_S = 60.0


def burning() -> Iterator[Any]:
    """Batches of Python that holds the lock."""
    while True:
        total = 0
        for number in range(200_000):
            total += number
        yield np.full((2, 2), total)


@pytest.mark.slow
def test_producers_that_hold_the_lock_are_told_once_with_the_figure_and_the_knob(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # beside other programs they may get less of a core than counts, and are asked once
    monkeypatch.setattr(runtime_warnings, "BUSY", 0.0)
    monkeypatch.setattr(runtime_warnings, "CONTENDED_S", 0.0)
    end = time.monotonic() + LIMIT_S
    with warnings.catch_warnings(record=True) as said, FeedRunner(burning, threads=2) as runner:
        warnings.simplefilter("always")
        batches = iter(runner)
        while not said and time.monotonic() < end:
            next(batches)
        for _ in range(20):
            next(batches)
    (only,) = said
    assert only.category is FeedWarning
    assert "waits" in str(only.message) and "ms" in str(only.message)
    assert "processes=2, threads=1" in str(only.message)


class Rows:
    """Producers that use so much of a core."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.now_s = 0.0

    def __call__(self) -> list[StageRow]:
        return [StageRow(cpu_s=self.share * self.now_s)]


@pytest.mark.parametrize(
    ("share", "late_s", "says"), [(0.9, 0.005, True), (0.9, 0.0005, False), (0.1, 0.005, False)]
)
def test_only_where_the_lock_is_late_and_producers_are_busy(
    share: float, late_s: float, says: bool
) -> None:
    rows = Rows(share)
    hints = RuntimeWarnings(FeedOptions(threads=2), rows)
    hints.look(0.5, copied=0, first_s=0.0)  # still running in
    assert not hints.threads
    rows.now_s = 2.0
    hints.look(2.0, copied=0, first_s=0.0)
    (thread,) = hints.threads
    thread.join(LIMIT_S)
    hints._probe.delays_s[:] = [late_s] * NAPS
    rows.now_s = 3.0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        hints.look(3.0, copied=0, first_s=0.0)
        hints.look(4.0, copied=0, first_s=0.0)
    assert len(said) == says


@pytest.mark.parametrize(
    "given", [{"options": FeedOptions(processes=1), "shares": False}, {"shares": True}]
)
def test_worker_processes_and_followers_are_not_probed(given: Any) -> None:
    hints = RuntimeWarnings(given.pop("options", FeedOptions()), Rows(1.0), **given)
    hints.look(100.0, copied=0, first_s=0.0)
    assert not hints.threads


def test_the_probe_measures_a_quiet_process_and_ends_when_told() -> None:
    probe = LockProbe(times=3)
    probe.thread.start()
    probe.thread.join(LIMIT_S)
    assert probe.median_s is not None
    other = LockProbe(times=3)
    other.stop()
    other.thread.start()
    other.thread.join(LIMIT_S)
    assert other.median_s is None and not other.thread.is_alive()


def test_copies_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    hints = RuntimeWarnings(FeedOptions(processes=1), Rows(0.0))
    for copied in (0, 1, 2):
        hints.look(1.0, copied=copied, first_s=0.0)
    assert [record.message[:33] for record in caplog.records] == [
        "the consumer keeps so many batche"
    ]


def test_what_was_said_is_not_said_by_the_next_feed(caplog: pytest.LogCaptureFixture) -> None:
    said: set[str] = set()
    for _ in range(2):
        hints = RuntimeWarnings(FeedOptions(processes=1), Rows(0.0))
        hints.said = said
        hints.look(1.0, copied=1, first_s=0.0)
    assert len(caplog.records) == 1
