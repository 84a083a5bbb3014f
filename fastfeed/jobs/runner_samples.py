"""What an observer sees of a runner: samples, as values, and events.

The black box and the metrics show the same samples.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter, deque
from dataclasses import asdict, fields, is_dataclass
from typing import Any, NamedTuple, Protocol

from fastfeed.core import status
from fastfeed.core.stats import RESULTS, Decision, Snapshot
from fastfeed.core.status import FEED_STATES, STATES, FeedStatus, ProducerStatus, WorkerStatus
from fastfeed.core.unix import PAGE_NBYTES
from fastfeed.engine.feed import Feed
from fastfeed.options import FeedOptions, Pad, Remote, Shard, Skip

RECENT_S = 5.0  # of rates


class RunnerSample(NamedTuple):
    """A runner at one moment: its cumulative counters, its queue, and rates of the last seconds."""

    time_ns: int
    runner: int
    state: str  # of core.status.FEED_STATES
    error: str
    options: str  # those that differ from their defaults
    batches: int
    records: int
    nbytes: int
    wait_s: float
    elapsed_s: float
    depth: int
    depth_nbytes: int
    free: int  # slots of shared memory, by state
    filling: int
    ready: int
    lent: int
    rss: int  # bytes, of the trainer
    errors: int
    copied: int
    making: int  # producers
    blocked: int  # producers that wait for room
    waits: dict[str, float]  # parts of the starvation, by the stage that caused them
    decisions: dict[str, int]  # on a number that is "auto", by their result
    steps_per_second: float | None = None
    bytes_per_second: float | None = None
    starvation: float | None = None
    wait_ms: float | None = None  # of a step


class ProducerSample(NamedTuple):
    """One producer of a runner."""

    runner: int
    producer: int
    place: str  # its process, node or thread
    pid: int
    state: str  # of core.status.STATES
    hand: str  # the work in flight; "" if unknown
    where: str  # a line of code
    batches: int
    rss: int  # bytes, of a worker process
    busy: float | None  # share of the last seconds in which it did not wait
    stages: dict[str, float]  # parts of that share


class Sighting(NamedTuple):
    """A runner with its producers at one moment, and the events since the sighting before it."""

    sample: RunnerSample
    producers: list[ProducerSample]
    events: list[str]
    over: bool  # the feed yields nothing more, and no producer works for it


def by_name(values: Any) -> dict[str, Any]:
    """Return the values of a NamedTuple by name."""
    return dict(zip(type(values).__annotations__, values, strict=True))


class WatchedStream(Protocol):
    """The stream of a runner, as far as it is observed."""

    options: FeedOptions
    feed: Feed | None

    def snapshot(self) -> Snapshot:
        """Return the present counters."""


class WatchedRunner:
    """A runner, by references that do not keep it alive: feed -> error -> frames -> runner.

    `number` identifies it within this process; `target` is where its metrics are published. `begun`
    and `over` are those of its observation: another feed needs another one.
    """

    def __init__(self, stream: WatchedStream, number: int, *, target: str = "") -> None:
        self.stream = weakref.ref(stream)
        self.number = number
        self.target = target
        self.options = " ".join(_changed_options(stream.options))
        self.begun = self.over = False
        self.last: Sighting | None = None
        self._feed: weakref.ref[Feed] | None = None
        self._past: deque[tuple[float, Snapshot]] = deque()
        self._workers: dict[int, WorkerStatus] = {}
        self._started: set[int] = set()  # numbers of worker processes
        self._rows: list[ProducerSample] = []
        self._state = status.FEED_RUNS
        self._tuning: tuple[Decision, ...] = ()  # that was seen
        self._decisions = dict.fromkeys(RESULTS, 0)

    def look(self) -> Sighting | None:
        """Return the present status, without a wait; None before the start and after the end."""
        stream = self.stream()
        feed = None if stream is None else stream.feed
        if stream is None or feed is None:
            return None
        if self._feed is None or self._feed() is not feed:
            self._feed = weakref.ref(feed)
            self._past.clear()
            self._workers, self._started = {}, set()
        now, found = stream.snapshot(), feed.status()
        seconds, recent = self._recent(now)
        rss = {w.number: rss_of(w.pid) for w in found.workers if w.pid and not (w.ended or w.node)}
        decided = [one for one in now.tuning if one not in self._tuning]
        self._tuning = now.tuning
        for one in decided:
            self._decisions[one.result] += 1
        rows = [
            self._row(producer, rss=rss.get(producer.worker, 0), since=(seconds, recent))
            for producer in found.producers
        ]
        sample = self._sample(now, found, since=(seconds, recent))
        events = [*self._events(found, rows), *map(str, decided)]
        self.last = Sighting(sample, rows, events, found.over)
        return self.last

    def _recent(self, now: Snapshot) -> tuple[float, Snapshot | None]:
        """Return the length of the last seconds, and the counters of that time."""
        clock_s = time.perf_counter()
        while self._past and self._past[0][0] < clock_s - RECENT_S:
            self._past.popleft()
        self._past.append((clock_s, now))
        for _, earlier in self._past:  # from the first batch on
            same_producers = len(earlier.producers) == len(now.producers)
            if same_producers and 0 < earlier.elapsed_s < now.elapsed_s:
                return now.elapsed_s - earlier.elapsed_s, now - earlier
        return 0.0, None

    def _sample(
        self, now: Snapshot, found: FeedStatus, *, since: tuple[float, Snapshot | None]
    ) -> RunnerSample:
        consumed, states = now.consumed, Counter(row.state for row in found.producers)
        return RunnerSample(
            time_ns=time.time_ns(),
            runner=self.number,
            state=FEED_STATES[found.state],
            error=found.error,
            options=self.options,
            batches=consumed.batches,
            records=consumed.records,
            nbytes=consumed.nbytes,
            wait_s=consumed.wait_in_s,
            elapsed_s=now.elapsed_s,
            depth=now.depth,
            depth_nbytes=now.depth_nbytes,
            **asdict(now.slots),
            rss=rss_of(),
            errors=now.produced.errors,
            copied=consumed.copied,
            making=states[status.MAKING],
            blocked=states[status.ROOM],
            waits=_shares(since[1].blocked_s, since[0]) if since[1] is not None else {},
            decisions=dict(self._decisions),
            **_rates(*since),
        )

    def _row(
        self, seen: ProducerStatus, *, rss: int, since: tuple[float, Snapshot | None]
    ) -> ProducerSample:
        n, (seconds, recent) = seen.number, since
        counters = None if recent is None or n >= len(recent.producers) else recent.producers[n]
        return ProducerSample(
            self.number,
            n,
            f"thread {seen.tid}" if seen.kind == status.THREAD else f"worker {seen.worker}",
            seen.pid,
            STATES[seen.state],
            _work_in_flight(seen),
            seen.where,
            seen.counters.batches,
            rss,
            None if counters is None else min(1.0, max(0.0, counters.busy_s / seconds)),
            {} if counters is None else _shares(counters.stages, seconds),
        )

    def _events(self, found: FeedStatus, rows: list[ProducerSample]) -> list[str]:
        """Return the events since the last sighting, in words."""
        events = []
        feed_is_alive = found.state in (status.FEED_RUNS, status.FEED_PAUSED)
        workers = {worker.handle: worker for worker in found.workers}
        for handle, worker in self._workers.items():
            is_listed = handle in workers
            has_ended = not is_listed or workers[handle].ended
            if has_ended and not worker.ended and feed_is_alive:
                # A replaced worker is no longer listed: only the earlier rows show its work.
                events.append(_end_of_worker(worker, rows if is_listed else self._rows))
        for handle, worker in workers.items():
            if worker.pid and (handle not in self._workers or not self._workers[handle].pid):
                change = "began again" if worker.number in self._started else "is there"
                events.append(f"{_name(worker)} {change} ({_place(worker)})")
                self._started.add(worker.number)
        self._workers, self._rows = workers, rows
        if found.state != self._state:
            self._state = found.state
            reason = f": {found.error}" if found.error else ""
            events.append(f"the feed {FEED_STATES[found.state]}{reason}")
        return events


def rss_of(pid: int | str = "self") -> int:
    """Return the resident memory of a process in bytes, or 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read(80).split()[1]) * PAGE_NBYTES
    except (OSError, IndexError):
        return 0


def _work_in_flight(seen: ProducerStatus) -> str:
    if seen.item < 0:
        return ""
    record = f", record {seen.record}" if seen.record >= 0 else ""
    return f"item {seen.item}{record}" + (f" of stream {seen.stream}" if seen.stream >= 0 else "")


def _name(worker: WorkerStatus) -> str:
    return f"worker process {worker.number}"


def _place(worker: WorkerStatus) -> str:
    return f"{worker.node}, pid {worker.pid}" if worker.node else f"pid {worker.pid}"


def _end_of_worker(worker: WorkerStatus, rows: list[ProducerSample]) -> str:
    finished = STATES[status.FINISHED]
    work = [r.hand for r in rows if r.pid == worker.pid and r.hand and r.state != finished]
    hand = f"; last seen in its hand: {', '.join(work)}" if work else ""
    return f"{_name(worker)} ({_place(worker)}) has ended{hand}"


def _rates(seconds: float, recent: Snapshot | None) -> dict[str, Any]:
    if recent is None:
        return {}
    consumed = recent.consumed
    return {
        "steps_per_second": consumed.batches / seconds,
        "bytes_per_second": consumed.nbytes / seconds,
        "starvation": recent.starvation if math.isfinite(recent.starvation) else None,
        "wait_ms": consumed.wait_in_s / consumed.batches * 1000 if consumed.batches else None,
    }


def _shares(stages: dict[str, float], seconds: float) -> dict[str, float]:
    return {name: min(1.0, max(0.0, one / seconds)) for name, one in stages.items()}


def _changed_options(options: Any) -> list[str]:
    """Return the options that differ from their defaults, as ["threads=2", "order=any"]."""
    values = ((field, getattr(options, field.name)) for field in fields(options))
    return [f"{f.name}={_plain(v)}" for f, v in values if v is not f.default]


def _plain(value: Any) -> int | float | str:
    """Return a number or text unchanged, and a short text for anything else.

    A user's own __repr__ is not called, because it may take long or fail.
    """
    if isinstance(value, (int, float, str)) and value == value:
        return value
    kind = type(value)
    if is_dataclass(value) and kind.__module__.startswith("fastfeed."):
        return f"{kind.__qualname__}({', '.join(_changed_options(value))})"
    is_short = isinstance(value, dict) or (isinstance(value, (tuple, list)) and len(value) < 4)
    is_short = is_short and all(isinstance(v, (int, float, str)) for v in value)
    if is_short or isinstance(value, (Pad, Remote, Shard, Skip)):
        return repr(value)
    return str(getattr(value, "__qualname__", kind.__qualname__))
