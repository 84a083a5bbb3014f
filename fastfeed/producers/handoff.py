"""The bounded buffer between producers and consumer: in order, by epoch, limited in bytes, and never a dead end."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from fastfeed.batch import Batch
from fastfeed.stats import StageRow

# After a failure the batches made before it are still delivered, but no longer than this: the consumer must know
# within a second.
GRACE_S = 0.5
POLL_S = 0.2  # no wait is longer without a look at the flag


class Made(NamedTuple):
    """A batch (None: it had no records) of one producer's stream, and its place for error texts."""

    batch: Batch | None
    stream: int
    place: str


END_OF_EPOCH = Made(None, -1, "")


@dataclass(frozen=True)
class Failure:
    """What a producer could not go on for; with a ticket where the order is known."""

    error: BaseException
    ticket: int | None
    time_s: float


class Timeout(Exception):
    """Nothing came in time."""


class Handoff:
    """Producers `put`, one consumer `take`s.

    Ordered: batches leave by ticket, and the one whose turn it is always gets in, however full the buffer is; so the
    bound cannot lock up. Unordered: batches leave as they come, but none before the epoch ahead of it is complete.
    """

    def __init__(self, producers: int, *, ordered: bool, max_batches: int, max_nbytes: int) -> None:
        self.ordered = ordered
        self._max_batches = max_batches
        self._max_nbytes = max_nbytes
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._ready: deque[Made] = deque()
        self._early: dict[int, list[Made]] = {}  # by ticket, or by epoch where there are no tickets
        self._turn = 0  # the ticket, or the epoch, that leaves now
        self._producers = producers
        self._open = producers  # producers that have not ended
        self._finished: dict[int, int] = {}  # how many producers ended an epoch
        self._failure: Failure | None = None
        self._stopped = False
        self._waiting = False
        self._blocked: list[int] = []  # the keys of those that wait for room
        self.depth = 0
        self.depth_nbytes = 0

    def put(self, made: Made, key: int, *, row: StageRow) -> bool:
        """Hands over a batch under its ticket or epoch; False when the feed was stopped and nobody wants it."""
        nbytes = made.batch.nbytes if made.batch else 0
        with self._lock:
            if self._full(key, nbytes) and not self._wait_for_room(key, nbytes, row=row):
                return False
            if self._stopped:
                return False
            self.depth += made.batch is not None
            self.depth_nbytes += nbytes
            self._insert(made, key)
        return True

    def end_epoch(self, epoch: int) -> None:
        """One producer has put everything that it has in this epoch; the last one lets the next epoch pass."""
        with self._lock:
            self._finished[epoch] = self._finished.get(epoch, 0) + 1
            while not self.ordered and self._finished.get(self._turn, 0) == self._producers:
                self._turn += 1
                self._ready.append(END_OF_EPOCH)
                self._ready.extend(self._early.pop(self._turn, ()))
            self._filled.notify()
            self._room.notify_all()

    def end(self) -> None:
        """One producer has ended, for whatever reason."""
        with self._lock:
            self._open -= 1
            self._filled.notify()

    def fail(self, error: BaseException, ticket: int | None) -> None:
        """The first failure counts; the consumer meets it in its place, or at the latest after the grace time."""
        with self._lock:
            if self._failure is None:
                self._failure = Failure(error, ticket, time.perf_counter())
            self._filled.notify()

    def take(self, timeout_s: float) -> Made | None:
        """The next batch or end of epoch; None at the end. Raises the failure, or Timeout after `timeout_s`."""
        with self._lock:
            if not self._ready or self._failure is not None:
                deadline = time.perf_counter() + timeout_s
                while not self._settled():
                    self._wait_for_batch(deadline)
            if self._stopped or not self._ready:
                return None
            made = self._ready.popleft()
            if made.batch is not None:
                self.depth -= 1
                self.depth_nbytes -= made.batch.nbytes
            # Waking producers one by one would cost two switches a batch; below half full they get a run of them.
            if self._blocked and (self.depth * 2 <= self._max_batches or not self._ready):
                self._room.notify_all()
            return made

    def stop(self) -> None:
        """Nobody takes any more: every `put` and `take` returns at once and what was made is let go."""
        self._stopped = True
        # A signal handler may call this inside our own `take`: the lock is ours then, and the waits see the flag.
        if not self._lock.acquire(timeout=POLL_S):
            return
        try:
            self._ready.clear()
            self._early.clear()
            self.depth = self.depth_nbytes = 0
            self._filled.notify_all()
            self._room.notify_all()
        finally:
            self._lock.release()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def _settled(self) -> bool:
        """Whether `take` can answer now; raises the failure when its time has come."""
        failure = self._failure
        if self._stopped:
            return True
        if failure is not None:
            last = not self._ready and (self._open == 0 or failure.ticket == self._turn)
            if last or time.perf_counter() - failure.time_s > GRACE_S:
                raise failure.error
        return bool(self._ready) or (self._open == 0 and failure is None)

    def _wait_for_batch(self, deadline: float) -> None:
        remaining = deadline - time.perf_counter()
        if self._failure is not None:
            remaining = min(remaining, self._failure.time_s + GRACE_S - time.perf_counter() + 0.001)
        elif remaining <= 0:
            raise Timeout
        self._waiting = True
        try:
            self._filled.wait(min(max(remaining, 0.0), POLL_S))
        finally:
            self._waiting = False

    def _full(self, key: int, nbytes: int) -> bool:
        if not self.depth or (key == self._turn and (self.ordered or not self._ready)):
            return False
        return self.depth >= self._max_batches or self.depth_nbytes + nbytes > self._max_nbytes

    def _wait_for_room(self, key: int, nbytes: int, *, row: StageRow) -> bool:
        start = time.perf_counter()
        self._blocked.append(key)
        try:
            while self._full(key, nbytes) and not self._stopped:
                self._room.wait(POLL_S)
        finally:
            self._blocked.remove(key)
            row.wait_out_s += time.perf_counter() - start
        return not self._stopped

    def _insert(self, made: Made, key: int) -> None:
        if key != self._turn:
            self._early.setdefault(key, []).append(made)
            return
        self._ready.append(made)
        if self.ordered:
            self._turn += 1
            while self._turn in self._early:
                self._ready.extend(self._early.pop(self._turn))
                self._turn += 1
            if self._turn in self._blocked:
                self._room.notify_all()  # the turn has come to one that waits for room
        if self._waiting:
            self._filled.notify()
