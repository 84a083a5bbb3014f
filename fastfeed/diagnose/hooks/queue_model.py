"""How long a step waited at a queue, from outside: from the times and sizes of all puts and takes.

A queue of TensorFlow serves `count` elements as soon as `count + minimum` are in it, first come,
first served. If every put and take is observed with its time, the moment at which a take was served
is therefore known without reading the graph. A thread that has put something reports it only once
it has the interpreter lock again: elements count as in the queue when the fastest recent put would
have put them.
"""

from __future__ import annotations

import bisect
import statistics
import threading
from collections import deque
from dataclasses import dataclass

REMEMBERED = 31  # steps whose computing time is remembered, and puts


@dataclass(eq=False)
class PendingPut:
    """Elements on their way into the queue: `count` in all, of which `entered` are in; `short`:
    there was no room for all."""

    begin_s: float
    count: int
    entered: int
    short: bool


@dataclass(eq=False)
class PendingTake:
    """Elements on their way out of it."""

    begin_s: float
    count: int
    served: bool  # immediately


class QueueModel:
    """One queue of `capacity` elements (None: without bound) that keeps `minimum` until it is
    closed.

    Every method may be called by any thread; times are seconds of one clock.
    """

    def __init__(self, capacity: int | None, minimum: int = 0) -> None:
        self.capacity = capacity
        self.minimum = minimum
        self.unseen = 0  # elements that were taken without an observed put
        self._changed = threading.Condition()
        # when how many elements entered, of those not taken yet
        self._arrivals: list[tuple[float, int]] = []
        self._entered = 0
        self._owed = 0  # elements that were taken before they were known to be in
        self.taken = 0  # elements
        self._puts: set[PendingPut] = set()
        self._takes: set[PendingTake] = set()
        self._closed_s: float | None = None
        # seconds of puts with room
        self._putting: deque[float] = deque(maxlen=REMEMBERED)
        # seconds of steps without their waiting
        self._computing: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def level(self) -> int:
        """Elements in the queue now."""
        return self._entered - self.taken - sum(take.count for take in self._takes if take.served)

    def begin_put(self, now_s: float, count: int) -> PendingPut:
        """Note the start of a put of `count` elements; those with room enter at once."""
        with self._changed:
            room = count if self.capacity is None else max(0, self.capacity - self._reserved())
            put = PendingPut(now_s, count, min(room, count) if room < count else 0, room < count)
            self._arrive(now_s, put.entered)
            self._puts.add(put)
            self._changed.notify_all()
        return put

    def end_put(self, put: PendingPut, now_s: float, *, done: bool = True) -> None:
        """Note the end of a put: all of it is in the queue, or (not `done`) no more of it will
        be."""
        with self._changed:
            self._puts.discard(put)
            if done:
                if not put.short:
                    self._putting.append(now_s - put.begin_s)
                self._land(put, now_s)
            self._changed.notify_all()

    def begin_take(self, now_s: float, count: int) -> PendingTake:
        """Note the start of a step that takes `count` elements."""
        with self._changed:
            served = self.level >= count + self._kept()
            take = PendingTake(now_s, count, served)
            self._takes.add(take)
        return take

    def end_take(self, take: PendingTake, end_s: float, *, done: bool = True) -> float:
        """Return the seconds that the step waited for its elements, between 0 and its duration; 0
        if it failed."""
        with self._changed:
            self._takes.discard(take)
            if not done:
                return 0.0
            needed = take.count
            if self._reached(needed + self._kept()) is None:
                for put in [put for put in self._puts if not put.short]:
                    self._land(put, end_s)
            served_s = self._served_s(needed)
            duration = end_s - take.begin_s
            # a put without room has not ended yet, or the put was not observed
            if served_s is None:
                usual = statistics.median(self._computing) if self._computing else 0.0
                wait = max(0.0, duration - usual)
                self._account(needed, end_s)
            else:
                wait = min(max(0.0, served_s - take.begin_s), duration)
                self._computing.append(duration - wait)
            self.taken += take.count
            self._leave(take.count)
            self._changed.notify_all()
        return wait

    def close(self, now_s: float) -> None:
        """Note that the queue is closed: it gives away what it has, down to nothing."""
        with self._changed:
            self._closed_s = now_s
            self._changed.notify_all()

    def wait_for(self, elements: int, limit_s: float) -> None:
        """Return when `elements` are in the queue, when no more can enter, or after `limit_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready(elements), limit_s)

    def _ready(self, elements: int) -> bool:
        stuck = bool(self._puts) and all(self._stuck(put) for put in self._puts)
        return self.level >= elements or stuck or self._closed_s is not None

    def _stuck(self, put: PendingPut) -> bool:
        """Return True if there was no room for all of it, and there is none now."""
        return self.capacity is not None and put.count - put.entered > max(
            0, self.capacity - self.level
        )

    def _kept(self) -> int:
        return 0 if self._closed_s is not None else self.minimum

    def _reserved(self) -> int:
        return self.level + sum(put.count - put.entered for put in self._puts)

    def _arrive(self, at_s: float, count: int) -> None:
        self._entered += count
        late = min(count, self._owed)
        self._owed -= late
        if count > late:
            bisect.insort(self._arrivals, (at_s, count - late))

    def _land(self, put: PendingPut, now_s: float) -> None:
        """Note that the rest of a put is in, if it was not before."""
        fastest = min(self._putting, default=now_s - put.begin_s)
        self._arrive(
            now_s if put.short else min(now_s, put.begin_s + fastest), put.count - put.entered
        )
        put.entered = put.count

    def _leave(self, count: int) -> None:
        while count and self._arrivals:
            at_s, there = self._arrivals[0]
            gone = min(count, there)
            count -= gone
            if gone == there:
                self._arrivals.pop(0)
            else:
                self._arrivals[0] = (at_s, there - gone)
        self._owed += count

    def _served_s(self, needed: int) -> float | None:
        """Return when the queue first had `needed` elements to give away; None: not observed."""
        found = self._reached(needed + self.minimum)
        if self._closed_s is not None:
            least = self._reached(needed)
            early = None if least is None else max(least, self._closed_s)
            found = early if found is None else found if early is None else min(found, early)
        return found

    def _reached(self, total: int) -> float | None:
        for at_s, count in self._arrivals:
            total -= count
            if total <= 0:
                return at_s
        return None

    def _account(self, needed: int, end_s: float) -> None:
        """Count elements without an observed put."""
        missing = needed + self._kept() - (self._entered - self.taken)
        missing -= sum(put.count - put.entered for put in self._puts)
        if missing > 0:
            self.unseen += missing
            self._arrive(end_s, missing)
