"""An observed runner: its last seconds, its events, and its figures as plain values."""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter, deque
from dataclasses import asdict, fields
from typing import Any

from fastfeed.core import status
from fastfeed.core.stats import Snapshot
from fastfeed.core.status import FEED_STATES, STATES, WorkerStatus
from fastfeed.live.record_lines import ProducerRow, RunnerSample
from fastfeed.live.runner_status import RunnerStatus, WatchedStream, status_of
from fastfeed.options import FeedOptions

RECENT_SAMPLES = 10  # one second apart
PRODUCER_KINDS = ("thread", "process", "remote")
RATES = ("steps_per_second", "starvation", "bytes_per_second", "wait_ms")


class WatchedRunner:
    """A runner's stream, by a weak reference. `number` identifies it within this process."""

    def __init__(self, stream: WatchedStream, number: int, *, targets: tuple[str, ...]) -> None:
        self.stream = weakref.ref(stream)
        self.number = number
        self.targets = targets  # where its figures are published
        self.options = _changed_options(stream.options)
        self.last: RunnerStatus | None = None
        self._past: deque[Snapshot] = deque(maxlen=RECENT_SAMPLES)
        self._workers: dict[int, WorkerStatus] = {}
        self._rows: list[ProducerRow] = []
        self._started: set[int] = set()  # numbers of worker processes
        self._state = status.FEED_RUNS

    def update(self, *, keep: bool) -> RunnerStatus | None:
        """Return the present status, and keep it for the figures of the last seconds if wanted."""
        stream = self.stream()
        current = None if stream is None else status_of(stream, self.number)
        if current is None:
            return None
        if self.last is not None and self.last.feed != current.feed:
            self._past.clear()
            self._workers, self._started = {}, set()
        self.last = current
        if keep:
            self._past.append(current.snapshot)
        return current

    def forget(self) -> None:
        """Release the snapshots and the descriptors of the workers."""
        self.last = None
        self._past.clear()
        self._workers = {}

    def new_events(self, current: RunnerStatus) -> list[str]:
        """Return the events since the last call, in words."""
        events = []
        feed_is_alive = current.state in (status.FEED_RUNS, status.FEED_PAUSED)
        workers = {worker.handle: worker for worker in current.workers}
        for handle, worker in self._workers.items():
            is_listed = handle in workers
            has_ended = not is_listed or workers[handle].ended
            if has_ended and not worker.ended and feed_is_alive:
                # A replaced worker is no longer listed: only the earlier rows show its work.
                rows = current.rows if is_listed else self._rows
                events.append(_end_of_worker(worker, rows))
        for handle, worker in workers.items():
            if worker.pid and (handle not in self._workers or not self._workers[handle].pid):
                change = "began again" if worker.number in self._started else "is there"
                node = f"{worker.node}, " if worker.node else ""
                events.append(f"worker process {worker.number} {change} ({node}pid {worker.pid})")
                self._started.add(worker.number)
        self._workers, self._rows = workers, current.rows
        if current.state != self._state:
            self._state = current.state
            reason = f": {current.error}" if current.error else ""
            events.append(f"the feed {FEED_STATES[current.state]}{reason}")
        return events

    def sample(self, current: RunnerStatus, rss: int) -> RunnerSample:
        """Return the sample in the form of the black box."""
        snapshot, states = current.snapshot, Counter(row.state for row in current.rows)
        consumed = snapshot.consumed
        return RunnerSample(
            time_ns=time.time_ns(),
            runner=self.number,
            state=current.state,
            batches=consumed.batches,
            records=consumed.records,
            nbytes=consumed.nbytes,
            wait_s=consumed.wait_in_s,
            elapsed_s=snapshot.elapsed_s,
            depth=snapshot.depth,
            depth_nbytes=snapshot.depth_nbytes,
            **asdict(snapshot.slots),
            rss=rss,
            errors=snapshot.produced.errors,
            copied=consumed.copied,
            making=states[status.MAKING],
            blocked=states[status.ROOM],
            hungry=states[status.INPUT] + states[status.STARTING],
            dead=states[status.DEAD],
        )

    def figures(self, current: RunnerStatus) -> dict[str, Any]:
        """Return all figures as JSON values; unknown ones are None."""
        snapshot = current.snapshot
        consumed = snapshot.consumed
        seconds, recent = self._recent(snapshot)
        return {
            "runner": self.number,
            "state": FEED_STATES[current.state],
            "error": current.error,
            "options": self.options,
            "steps": consumed.batches,
            "records": consumed.records,
            "nbytes": consumed.nbytes,
            "elapsed_s": snapshot.elapsed_s,
            "wait_s": consumed.wait_in_s,
            "starvation": finite(snapshot.starvation),
            "recent": _rates(seconds, recent),
            "depth": snapshot.depth,
            "room": snapshot.slots.all or max(16, 4 * len(current.rows)),
            "depth_nbytes": snapshot.depth_nbytes,
            "slots": asdict(snapshot.slots),
            "errors": snapshot.produced.errors,
            "copied": consumed.copied,
            "set_aside": list(snapshot.set_aside),
            "producers": [
                _producer(n, row, seconds=seconds, recent=recent)
                for n, row in enumerate(current.rows)
            ],
        }

    def _recent(self, now: Snapshot) -> tuple[float, Snapshot | None]:
        """Return the length of the last seconds, and the counters of that time."""
        for earlier in self._past:  # from the first batch on
            same_producers = len(earlier.producers) == len(now.producers)
            if same_producers and 0 < earlier.elapsed_s < now.elapsed_s:
                return now.elapsed_s - earlier.elapsed_s, now - earlier
        return 0.0, None


def work_in_flight(row: ProducerRow) -> str:
    """Return the work that a producer has in flight, in words; "" if unknown."""
    if row.item < 0:
        return ""
    record = f", record {row.record}" if row.record >= 0 else ""
    return f"item {row.item}{record}" + (f" of stream {row.stream}" if row.stream >= 0 else "")


def finite(value: float) -> float | None:
    """Return the value, or None for nan and infinities, which JSON does not have."""
    return value if math.isfinite(value) else None


def _end_of_worker(worker: WorkerStatus, rows: list[ProducerRow]) -> str:
    work = [
        work_in_flight(row)
        for row in rows
        if row.pid == worker.pid and row.item >= 0 and row.state != status.FINISHED
    ]
    hand = f"; last seen in its hand: {', '.join(work)}" if work else ""
    node = f"{worker.node}, " if worker.node else ""
    return f"worker process {worker.number} ({node}pid {worker.pid}) has ended{hand}"


def _rates(seconds: float, recent: Snapshot | None) -> dict[str, float | None]:
    if recent is None:
        return {"seconds": seconds, **dict.fromkeys(RATES)}
    consumed = recent.consumed
    return {
        "seconds": seconds,
        "steps_per_second": consumed.batches / seconds,
        "starvation": finite(recent.starvation),
        "bytes_per_second": consumed.nbytes / seconds,
        "wait_ms": consumed.wait_in_s / consumed.batches * 1000 if consumed.batches else None,
    }


def _producer(
    n: int, row: ProducerRow, *, seconds: float, recent: Snapshot | None
) -> dict[str, Any]:
    known = recent is not None and row.number < len(recent.producers)
    counters = recent.producers[row.number] if recent is not None and known else None
    return {
        "producer": row.number,
        "kind": PRODUCER_KINDS[row.kind],
        "state": STATES[row.state],
        "worker": row.worker,
        "pid": row.pid,
        "tid": row.tid,
        "hand": work_in_flight(row),
        "where": row.where,
        "batches": row.batches,
        "busy_s": row.busy_s,
        "wait_in_s": row.wait_in_s,
        "wait_out_s": row.wait_out_s,
        "rss": row.rss,
        "batches_per_second": None if counters is None else counters.batches / seconds,
        "busy": None if counters is None else min(1.0, max(0.0, counters.busy_s / seconds)),
    }


def _changed_options(options: FeedOptions) -> dict[str, Any]:
    """Return the options that differ from their defaults, as values for JSON."""
    values = ((field, getattr(options, field.name)) for field in fields(FeedOptions))
    return {field.name: _plain(value) for field, value in values if value is not field.default}


def _plain(value: Any) -> int | float | str:
    """Return a number or text unchanged, and a short text for anything else.

    A user's own __repr__ is not called, because it may take long or fail.
    """
    if isinstance(value, (int, float, str)) and value == value:
        return value
    is_short = isinstance(value, dict) or (isinstance(value, (tuple, list)) and len(value) < 4)
    if is_short and all(isinstance(v, (int, float, str)) for v in value):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))
