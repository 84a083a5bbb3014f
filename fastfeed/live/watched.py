"""One runner under observation: its last seconds, its news, and its figures as plain values."""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter, deque
from dataclasses import fields
from typing import Any

from fastfeed.core import status
from fastfeed.core.stats import Snapshot
from fastfeed.core.status import FEED_STATES, STATES, WorkerStatus
from fastfeed.live.record_layout import ProducerRow, RunnerSample
from fastfeed.live.runner_status import RunnerStatus, WatchedStream, status_of
from fastfeed.options import FeedOptions

RECENT = 10  # samples, a second apart: the length of "now"
KINDS = ("thread", "process")


class WatchedRunner:
    """A runner's stream, which it does not keep alive. `number` identifies it within this
    process."""

    def __init__(self, stream: WatchedStream, number: int, *, targets: tuple[str, ...]) -> None:
        self.stream = weakref.ref(stream)
        self.number = number
        self.targets = targets  # where its figures are published
        self.options = _said(stream.options)
        self.last: RunnerStatus | None = None
        self._past: deque[Snapshot] = deque(maxlen=RECENT)
        self._workers: dict[int, WorkerStatus] = {}
        self._rows: list[ProducerRow] = []
        self._had: set[int] = set()  # worker processes that were there before
        self._state = status.FEED_RUNS

    def update(self, *, keep: bool) -> RunnerStatus | None:
        """Return what it does now; `keep`: this sample counts for the figures of the last
        seconds."""
        stream = self.stream()
        found = None if stream is None else status_of(stream, self.number)
        if found is None:
            return None
        if self.last is not None and self.last.feed != found.feed:
            self._past.clear()
            self._workers, self._had = {}, set()
        self.last = found
        if keep:
            self._past.append(found.snapshot)
        return found

    def forget(self) -> None:
        """Release the feed, which may have to end."""
        self.last = None
        self._past.clear()
        self._workers = {}

    def new_events(self, found: RunnerStatus) -> list[str]:
        """Return what has happened since the last call."""
        said = []
        alive = found.state in (status.FEED_RUNS, status.FEED_PAUSED)
        now = {w.handle: w for w in found.workers}
        for handle, worker in self._workers.items():
            ended = now[handle].ended if handle in now else True
            if ended and not worker.ended and alive:
                # a worker that has a successor is no longer listed: its last item in flight is
                # known from before
                said.append(self._ended(worker, found.rows if handle in now else self._rows))
        for handle, worker in now.items():
            if worker.pid and (handle not in self._workers or not self._workers[handle].pid):
                how = "began again" if worker.number in self._had else "is there"
                said.append(f"worker process {worker.number} {how} (pid {worker.pid})")
                self._had.add(worker.number)
        self._workers, self._rows = now, found.rows
        if found.state != self._state:
            self._state = found.state
            said.append(
                f"the feed {FEED_STATES[found.state]}" + (f": {found.error}" if found.error else "")
            )
        return said

    @staticmethod
    def _ended(worker: WorkerStatus, rows: list[ProducerRow]) -> str:
        mine = [
            r for r in rows if r.pid == worker.pid and r.item >= 0 and r.state != status.FINISHED
        ]
        hand = "; last seen in its hand: " + ", ".join(map(hand_of, mine)) if mine else ""
        return f"worker process {worker.number} (pid {worker.pid}) has ended{hand}"

    def sample(self, found: RunnerStatus, rss: int) -> RunnerSample:
        """Return the sample in the form of the black box."""
        now, states = found.snapshot, Counter(row.state for row in found.rows)
        used, slots = now.consumed, now.slots
        return RunnerSample(
            time_ns=time.time_ns(),
            runner=self.number,
            state=found.state,
            batches=used.batches,
            records=used.records,
            nbytes=used.nbytes,
            wait_s=used.wait_in_s,
            elapsed_s=now.elapsed_s,
            depth=now.depth,
            depth_nbytes=now.depth_nbytes,
            free=slots.free,
            filling=slots.filling,
            ready=slots.ready,
            lent=slots.lent,
            rss=rss,
            errors=now.produced.errors,
            copied=used.copied,
            making=states[status.MAKING],
            blocked=states[status.ROOM],
            hungry=states[status.INPUT] + states[status.STARTING],
            dead=states[status.DEAD],
        )

    def figures(self, found: RunnerStatus) -> dict[str, Any]:
        """Return everything that is known, for JSON; what cannot be known yet is None."""
        now = found.snapshot
        seconds, recent = self._recent(now)
        return {
            "runner": self.number,
            "state": FEED_STATES[found.state],
            "error": found.error,
            "options": self.options,
            "steps": now.consumed.batches,
            "records": now.consumed.records,
            "nbytes": now.consumed.nbytes,
            "elapsed_s": now.elapsed_s,
            "wait_s": now.consumed.wait_in_s,
            "starvation": number(now.starvation),
            "recent": _rates(seconds, recent),
            "depth": now.depth,
            "room": now.slots.all or max(16, 4 * len(found.rows)),
            "depth_nbytes": now.depth_nbytes,
            "slots": {
                name: getattr(now.slots, name) for name in ("free", "filling", "ready", "lent")
            },
            "errors": now.produced.errors,
            "copied": now.consumed.copied,
            "set_aside": list(now.set_aside),
            "producers": [
                _producer(n, row, seconds=seconds, recent=recent)
                for n, row in enumerate(found.rows)
            ],
        }

    def _recent(self, now: Snapshot) -> tuple[float, Snapshot | None]:
        for then in self._past:  # the earliest one since the first batch
            if len(then.producers) == len(now.producers) and 0 < then.elapsed_s < now.elapsed_s:
                return now.elapsed_s - then.elapsed_s, now - then
        return 0.0, None


def hand_of(row: ProducerRow) -> str:
    """Return what a producer has in flight, in words; "" if unknown."""
    if row.item < 0:
        return ""
    record = f", record {row.record}" if row.record >= 0 else ""
    return f"item {row.item}{record}" + (f" of stream {row.stream}" if row.stream >= 0 else "")


def number(value: float) -> float | None:
    """Return the value, or None for nan, which JSON does not have."""
    return value if math.isfinite(value) else None


def _rates(seconds: float, recent: Snapshot | None) -> dict[str, float | None]:
    if recent is None:
        names = ("steps_per_second", "starvation", "bytes_per_second", "wait_ms")
        return {"seconds": seconds, **dict.fromkeys(names)}
    used = recent.consumed
    return {
        "seconds": seconds,
        "steps_per_second": used.batches / seconds,
        "starvation": number(recent.starvation),
        "bytes_per_second": used.nbytes / seconds,
        "wait_ms": used.wait_in_s / used.batches * 1000 if used.batches else None,
    }


def _producer(
    n: int, row: ProducerRow, *, seconds: float, recent: Snapshot | None
) -> dict[str, Any]:
    mine = (
        recent.producers[row.number]
        if recent is not None and row.number < len(recent.producers)
        else None
    )
    return {
        "producer": row.number,
        "kind": KINDS[row.kind],
        "state": STATES[row.state],
        "worker": row.worker,
        "pid": row.pid,
        "tid": row.tid,
        "hand": hand_of(row),
        "where": row.where,
        "batches": row.batches,
        "busy_s": row.busy_s,
        "wait_in_s": row.wait_in_s,
        "wait_out_s": row.wait_out_s,
        "rss": row.rss,
        "batches_per_second": None if mine is None else mine.batches / seconds,
        "busy": None if mine is None else min(1.0, max(0.0, mine.busy_s / seconds)),
    }


def _said(options: FeedOptions) -> dict[str, Any]:
    """Return the options that differ from their defaults, as text if they are no plain values."""
    given = {f.name: getattr(options, f.name) for f in fields(FeedOptions)}
    own = {f.name: given[f.name] for f in fields(FeedOptions) if given[f.name] is not f.default}
    return {
        name: v if isinstance(v, (int, float, str, bool)) and v == v else _short(v)
        for name, v in own.items()
    }


def _short(value: Any) -> str:
    """Return a short text; a user's own __repr__, which may take long or fail, is not called."""
    plain = (tuple, list, dict) if not isinstance(value, (tuple, list)) or len(value) < 4 else ()
    if isinstance(value, plain) and all(isinstance(v, (int, float, str)) for v in value):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)
