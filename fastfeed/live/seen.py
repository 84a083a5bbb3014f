"""What a runner and each of its producers are doing, looked at from another thread: nothing waits
for it, nothing is asked of the producers."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

from fastfeed.core.stats import Snapshot, StageRow
from fastfeed.engine.feed import Feed
from fastfeed.errors import StateError
from fastfeed.live.record_layout import ProducerRow
from fastfeed.options import FeedOptions
from fastfeed.producers.process.dispatch import Dispatcher
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.producers.process.processes import ProcessProducers
from fastfeed.producers.threads import ThreadProducers

STATES = (
    "starting",
    "making",
    "waits for room",
    "waits for input",
    "waits for the next pass",
    "finished",
    "dead",
)
STARTING, MAKING, ROOM, INPUT, IDLE, FINISHED, DEAD = range(len(STATES))
FEED_STATES = ("runs", "has ended", "failed", "was stopped", "waits for the next pass")
RUNS, ENDED, FAILED, STOPPED, PAUSED = range(len(FEED_STATES))
THREAD, PROCESS = range(2)
OWN = str(Path(__file__).parents[1])
LIBRARIES = (sysconfig.get_path("stdlib"), "<frozen", "<string>")
# Where of our own code a thread waits, and what for; anywhere else it is at work for the user.
WAITS = {
    ("buffer.py", "_wait_for_room"): ROOM,
    ("epoch_gate.py", "admit"): IDLE,
    ("shared.py", "open"): INPUT,
}
DEEPEST = 60  # frames
PAGE = os.sysconf("SC_PAGE_SIZE")


class WatchedStream(Protocol):
    """What is looked at: the stream of a runner."""

    options: FeedOptions
    feed: Feed | None

    def snapshot(self) -> Snapshot:
        """Raises StateError before anything was started."""


class WorkerStatus(NamedTuple):
    """A worker process: the number of its lane, its own, and what tells of its end (-1 before it is
    there)."""

    lane: int
    number: int
    pid: int
    pidfd: Any  # holds the descriptor open
    ended: bool


class RunnerStatus(NamedTuple):
    """A runner at one moment. The feed is not held: its error holds the frames that hold the
    runner."""

    feed: weakref.ref[Feed]
    state: int
    error: str
    snapshot: Snapshot
    rows: list[ProducerRow]
    workers: list[WorkerStatus]
    over: bool  # nothing more will ever come, and nobody works for it


def look(stream: WatchedStream, runner: int) -> RunnerStatus | None:
    """What a runner is doing; None before anything was started."""
    feed = stream.feed
    if feed is None:
        return None
    try:
        snapshot = stream.snapshot()
    except StateError:  # it was let go just now
        return None
    producers = feed._producers  # no public name: nobody else looks at producers one by one
    state = _feed_state(feed)
    error = str(feed.error) if feed.error is not None else ""
    over = state in (FAILED, ENDED, STOPPED) and not any(
        thread.is_alive() for thread in feed.threads
    )
    if isinstance(producers, ProcessProducers):
        lanes = list(producers._crew.lanes.values())
        rows = _of_processes(lanes, producers._dispatcher, runner=runner)
        workers = [
            WorkerStatus(lane.task.lane, lane.task.index, lane.pid, lane.pidfd, lane.exited)
            for lane in lanes
        ]
        return RunnerStatus(weakref.ref(feed), state, error, snapshot, rows, workers, over)
    rows = _of_threads(producers, snapshot.producers, runner=runner)
    return RunnerStatus(weakref.ref(feed), state, error, snapshot, rows, [], over)


def _feed_state(feed: Feed) -> int:
    if feed.error is not None:
        return FAILED
    if feed._producers.stopped:
        return STOPPED
    return ENDED if feed.ended else PAUSED if feed.schedule.told else RUNS


def rss_of(pid: int | str = "self") -> int:
    """Bytes of memory that a process has; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read(80).split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _of_threads(
    producers: ThreadProducers, counters: Sequence[StageRow], *, runner: int
) -> list[ProducerRow]:
    frames = sys._current_frames()
    # with its own frame in it this would be a cycle, which holds the stream
    frames.pop(threading.get_ident(), None)
    rows = []
    for n, (thread, producer, row) in enumerate(
        zip(producers.threads, producers._producers, counters, strict=True)
    ):
        state, where = (STARTING if thread.ident is None else FINISHED), ""
        if thread.is_alive():
            state, where = place_of(frames.get(thread.ident or -1))
        head = (runner, n, THREAD, state, 0, os.getpid(), thread.native_id or 0)
        stream = -1 if producer._source.ordered else producer._stream
        rows.append(
            ProducerRow._make((*head, stream, producer._item, -1, *_counted(row, rss=0), where))
        )
    return rows


def place_of(frame: FrameType | None) -> tuple[int, str]:
    """What a producer's thread does, and the innermost line of the user's own code, as "decode
    data.py:41"."""
    inner = own = ""
    for _ in range(DEEPEST):
        if frame is None:
            break
        code = frame.f_code
        path = code.co_filename
        if path.startswith(OWN):
            state = WAITS.get((path[path.rfind("/") + 1 :], code.co_name), MAKING)
            return state, (own or inner) if state == MAKING else ""
        if not own:
            text = f"{code.co_name} {path[path.rfind('/') + 1 :]}:{frame.f_lineno}"
            inner = inner or text
            own = "" if path.startswith(LIBRARIES) or "site-packages" in path else text
        frame = frame.f_back
    return MAKING, own or inner


def _of_processes(
    lanes: Sequence[WorkerHandle], dispatcher: Dispatcher | None, *, runner: int
) -> list[ProducerRow]:
    rows = []
    for lane in lanes:
        slots, rss = lane.reader.audit(), rss_of(lane.pid) if lane.pid and not lane.exited else 0
        full = bool(slots.all) and not slots.free and not slots.filling
        for thread in range(lane.task.threads):
            hand, n = lane.board.hand(thread), lane.task.producer(thread)
            state = _state(lane, thread, dispatcher=dispatcher, full=full)
            head = (runner, n, PROCESS, state, lane.task.index, lane.pid, 0)
            mine = (-1 if dispatcher is not None else n, hand.item, hand.record)
            rows.append(
                ProducerRow._make((*head, *mine, *_counted(lane.board.row(thread), rss=rss), ""))
            )
    return rows


def _state(lane: WorkerHandle, thread: int, *, dispatcher: Dispatcher | None, full: bool) -> int:
    """As far as can be known without asking: what a worker waits for inside, it does not say."""
    if thread in lane.ended:
        return FINISHED
    if lane.exited:
        return DEAD
    if not lane.pid:
        return STARTING
    if full:
        return ROOM
    if dispatcher is None:
        begun, allowed = lane.progress[lane.task.producer(thread)][0], lane.owner._crew._allowed
        return IDLE if begun >= allowed else MAKING
    if dispatcher.has(lane.task.lane, lane.board.hand(thread).key):
        return MAKING
    return ROOM if dispatcher.held else INPUT


def _counted(row: StageRow, *, rss: int) -> tuple[Any, ...]:
    return (row.batches, row.busy_s, row.wait_in_s, row.wait_out_s, rss)
