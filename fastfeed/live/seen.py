"""What a runner and each of its producers are doing, read from another thread: nothing waits for
the reader."""

from __future__ import annotations

import os
import weakref
from typing import NamedTuple, Protocol

from fastfeed.core.stats import Snapshot
from fastfeed.core.status import ProducerStatus, WorkerStatus
from fastfeed.engine.feed import Feed
from fastfeed.errors import StateError
from fastfeed.live.record_layout import ProducerRow
from fastfeed.options import FeedOptions

PAGE = os.sysconf("SC_PAGE_SIZE")


class WatchedStream(Protocol):
    """What is observed: the stream of a runner."""

    options: FeedOptions
    feed: Feed | None

    def snapshot(self) -> Snapshot:
        """Return the counters of now; raise StateError before anything was started."""


class RunnerStatus(NamedTuple):
    """A runner at one moment. The feed is not held: its error holds the frames that hold the
    runner."""

    feed: weakref.ref[Feed]
    state: int
    error: str
    snapshot: Snapshot
    rows: list[ProducerRow]
    workers: list[WorkerStatus]
    over: bool  # nothing more will come, and nobody works for it


def look(stream: WatchedStream, runner: int) -> RunnerStatus | None:
    """Return what a runner is doing; None before anything was started."""
    feed = stream.feed
    if feed is None:
        return None
    try:
        snapshot = stream.snapshot()
    except StateError:  # the feed was released just now
        return None
    status = feed.status()
    rss = {w.number: rss_of(w.pid) for w in status.workers if w.pid and not w.ended}
    rows = [
        _row(producer, runner=runner, number=n, rss=rss.get(producer.worker, 0))
        for n, producer in enumerate(status.producers)
    ]
    return RunnerStatus(
        weakref.ref(feed), status.state, status.error, snapshot, rows, status.workers, status.over
    )


def rss_of(pid: int | str = "self") -> int:
    """Return the bytes of memory that a process has; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read(80).split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _row(producer: ProducerStatus, *, runner: int, number: int, rss: int) -> ProducerRow:
    """Return the status in the form of the black box."""
    *head, counters, where = producer
    kind, state, *place = head
    counted = (counters.batches, counters.busy_s, counters.wait_in_s, counters.wait_out_s)
    return ProducerRow._make((runner, number, kind, state, *place, *counted, rss, where))
