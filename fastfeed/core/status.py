"""Status of a feed, its producers and its worker processes, for an observer in another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fastfeed.core.stats import StageRow

STATES = (
    "starting",
    "making",
    "waits for room",
    "waits for input",
    "waits for the next pass",
    "finished",
    "dead",
    "waits for other ranks",
)
STARTING, MAKING, ROOM, INPUT, IDLE, FINISHED, DEAD, RANKS = range(len(STATES))
FEED_STATES = ("runs", "has ended", "failed", "was stopped", "waits for the next pass")
FEED_RUNS, FEED_ENDED, FEED_FAILED, FEED_STOPPED, FEED_PAUSED = range(len(FEED_STATES))
THREAD, PROCESS, REMOTE = range(3)
_WAITS: dict[int, int] = {}  # by thread: what it waits for


@contextmanager
def waiting(state: int) -> Iterator[None]:
    """Say that this thread waits, until the block ends: a producer waits for room, for example."""
    thread = threading.get_ident()
    _WAITS[thread] = state
    try:
        yield
    finally:
        del _WAITS[thread]


def activity_of(thread: int | None) -> int:
    """Return what a producer's thread waits for, as it says; MAKING if it does not wait."""
    return _WAITS.get(thread or 0, MAKING)


class ProducerStatus(NamedTuple):
    """One producer. `kind`: 0 for a thread of the trainer, 1 for one of a worker process, 2 for a
    remote one. `state`: an index into STATES of fastfeed.core.status. `worker`: the number of its
    worker process, 0 for a thread of the trainer. `pid`, `tid`: its process, and its thread in the
    trainer, else 0. `stream`, `item`, `record`: the record in flight, -1 for none or unknown.
    `counters`: what it has done. `where`: the innermost line of the user's code, as "decode
    data.py:41", or the node of a remote producer. `number`: its place in `Snapshot.producers`."""

    kind: int  # THREAD, PROCESS or REMOTE
    state: int  # an index into STATES
    worker: int
    pid: int
    tid: int
    stream: int
    item: int
    record: int
    counters: StageRow
    where: str
    number: int = 0


class WorkerStatus(NamedTuple):
    """A worker process. `handle` identifies it, and `number` its place, which its successor takes.

    `pid` is None until it exists. `ended`: its process is gone. `node`: where it runs, if that is
    not this machine's own process.
    """

    handle: int
    number: int
    pid: int | None
    ended: bool
    node: str = ""


class FeedStatus(NamedTuple):
    """A feed at one moment: its `state` (an index into FEED_STATES of fastfeed.core.status), the
    text of the `error` that ended it ("" without one), its `producers`, and its `workers`, the
    worker processes. `over`: no more batches will come, and no producer works for it."""

    state: int  # an index into FEED_STATES
    error: str
    over: bool
    producers: list[ProducerStatus]
    workers: list[WorkerStatus]


def state_of(conditions: tuple[bool, bool, bool, bool]) -> int:
    """Return the state of a feed that has failed, was stopped, has ended, or waits for the next
    pass: the first condition that holds decides."""
    return (FEED_FAILED, FEED_STOPPED, FEED_ENDED, FEED_PAUSED, FEED_RUNS)[
        (*conditions, True).index(True)
    ]
