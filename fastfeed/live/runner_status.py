"""The status of a runner and its producers, read from another thread without a wait."""

from __future__ import annotations

import weakref
from typing import NamedTuple, Protocol

from fastfeed.core.stats import Snapshot
from fastfeed.core.status import ProducerStatus, WorkerStatus
from fastfeed.core.unix import PAGE_NBYTES
from fastfeed.engine.feed import Feed
from fastfeed.live.record_lines import ProducerRow
from fastfeed.options import FeedOptions


class WatchedStream(Protocol):
    """The stream of a runner, as far as it is observed."""

    options: FeedOptions
    feed: Feed | None

    def snapshot(self) -> Snapshot:
        """Return the present counters."""


class RunnerStatus(NamedTuple):
    """A runner at one moment.

    A reference to the feed would keep the runner alive: feed -> error -> frames -> runner.
    """

    feed: weakref.ref[Feed]
    state: int
    error: str
    snapshot: Snapshot
    rows: list[ProducerRow]
    workers: list[WorkerStatus]
    over: bool  # the feed yields nothing more, and no producer works for it


def status_of(stream: WatchedStream, runner: int) -> RunnerStatus | None:
    """Return the status of a runner, or None before its start."""
    feed = stream.feed
    if feed is None:
        return None
    snapshot = stream.snapshot()
    status = feed.status()
    rss = {w.number: rss_of(w.pid) for w in status.workers if w.pid and not (w.ended or w.node)}
    rows = [
        _row(producer, runner=runner, number=n, rss=rss.get(producer.worker, 0))
        for n, producer in enumerate(status.producers)
    ]
    return RunnerStatus(
        weakref.ref(feed), status.state, status.error, snapshot, rows, status.workers, status.over
    )


def rss_of(pid: int | str = "self") -> int:
    """Return the resident memory of a process in bytes, or 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read(80).split()[1]) * PAGE_NBYTES
    except (OSError, IndexError):
        return 0


def _row(producer: ProducerStatus, *, runner: int, number: int, rss: int) -> ProducerRow:
    """Return the status in the form of the black box."""
    *place, counters, where = producer
    counts = (counters.batches, counters.busy_s, counters.wait_in_s, counters.wait_out_s)
    return ProducerRow._make((runner, number, *place, *counts, rss, where))
