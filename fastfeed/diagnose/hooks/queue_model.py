"""Model of a queue of TensorFlow, which finds how long a step waited at it.

The queue serves `count` elements as soon as `count + minimum` are in it, first come, first served.
If every put and take is observed with its time, the moment at which a take was served is therefore
known without reading the graph. A thread that has put elements reports it only once it has the
interpreter lock again: the elements count as in the queue when the fastest recent put would have
put them.
"""

from __future__ import annotations

import bisect
import statistics
import threading
from collections import deque
from dataclasses import dataclass

MAX_DURATIONS = 31  # latest durations of puts, and computing times of steps, that are kept


@dataclass(eq=False)
class PendingFlow:
    """Elements on their way into a queue or out of it."""

    begin_s: float
    count: int

    def restart(self, now_s: float) -> None:
        """Set the time at which the put or take begins."""
        self.begin_s = now_s


@dataclass(eq=False)
class PendingPut(PendingFlow):
    """Elements on their way into the queue: `count` in all, of which `entered` are in it.

    `short` is True if there was no room for all of them.
    """

    entered: int
    short: bool

    def enter(self) -> int:
        """Let the rest of the elements enter, and return their number."""
        rest, self.entered = self.count - self.entered, self.count
        return rest


@dataclass(eq=False)
class PendingTake(PendingFlow):
    """Elements on their way out of the queue; `served` is True if they were there at once."""

    served: bool


class QueueModel:
    """One queue of `capacity` elements (None: without bound) that keeps `minimum` until it closes.

    Every method may be called by any thread; times are seconds of one clock.
    """

    def __init__(self, capacity: int | None, minimum: int = 0) -> None:
        self.capacity = capacity
        self.minimum = minimum
        self.taken = 0  # elements
        self.unobserved = 0  # elements that were taken, but whose put was not observed
        self._changed = threading.Condition()
        # times and numbers of elements that entered and are not taken yet
        self._arrivals: list[tuple[float, int]] = []
        self._entered = 0
        self._owed = 0  # elements that were taken before they were known to be in the queue
        self._puts: set[PendingPut] = set()
        self._takes: set[PendingTake] = set()
        self._closed_s: float | None = None
        # seconds of puts that found room
        self._putting: deque[float] = deque(maxlen=MAX_DURATIONS)
        # seconds of steps without their waits
        self._computing: deque[float] = deque(maxlen=MAX_DURATIONS)

    @property
    def level(self) -> int:
        """Number of elements in the queue."""
        return self._entered - self.taken - sum(take.count for take in self._takes if take.served)

    def begin_put(self, now_s: float, count: int) -> PendingPut:
        """Begin a put of `count` elements.

        If there is room for a part of them only, this part enters at once.
        """
        with self._changed:
            room = count if self.capacity is None else max(0, self.capacity - self._reserved())
            put = PendingPut(now_s, count, min(room, count) if room < count else 0, room < count)
            self._arrive(now_s, put.entered)
            self._puts.add(put)
            self._changed.notify_all()
        return put

    def end_put(self, put: PendingPut, now_s: float, *, done: bool = True) -> None:
        """End a put: all of it is in the queue, or (not `done`) no more of it will be."""
        with self._changed:
            self._puts.discard(put)
            if done:
                if not put.short:
                    self._putting.append(now_s - put.begin_s)
                self._land(put, now_s)
            self._changed.notify_all()

    def begin_take(self, now_s: float, count: int) -> PendingTake:
        """Begin a step that takes `count` elements."""
        with self._changed:
            take = PendingTake(now_s, count, self.level >= count + self._kept())
            self._takes.add(take)
        return take

    def end_take(self, take: PendingTake, end_s: float, *, done: bool = True) -> float:
        """End a step, and return the seconds that it waited for its elements; 0 if it failed."""
        with self._changed:
            self._takes.discard(take)
            if not done:
                return 0.0
            if self._reached_s(take.count + self._kept()) is None:
                for put in [put for put in self._puts if not put.short]:
                    self._land(put, end_s)
            served_s = self._served_s(take.count)
            duration_s = end_s - take.begin_s
            # a put without room has not ended yet, or the put was not observed
            if served_s is None:
                usual_s = statistics.median(self._computing) if self._computing else 0.0
                wait_s = max(0.0, duration_s - usual_s)
                self._add_unobserved(take.count, end_s)
            else:
                wait_s = min(max(0.0, served_s - take.begin_s), duration_s)
                self._computing.append(duration_s - wait_s)
            self.taken += take.count
            self._leave(take.count)
            self._changed.notify_all()
        return wait_s

    def close(self, now_s: float) -> None:
        """Close the queue: from now on it gives away what it has, down to nothing."""
        with self._changed:
            self._closed_s = now_s
            self._changed.notify_all()

    def wait_for(self, elements: int, limit_s: float) -> None:
        """Return when `elements` are in the queue, when no more can enter, or after `limit_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready(elements), limit_s)

    def _is_ready(self, elements: int) -> bool:
        stuck = bool(self._puts) and all(self._is_stuck(put) for put in self._puts)
        return self.level >= elements or stuck or self._closed_s is not None

    def _is_stuck(self, put: PendingPut) -> bool:
        """Return True if there is no room for the rest of a put."""
        if self.capacity is None:
            return False
        return put.count - put.entered > max(0, self.capacity - self.level)

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
        """Let the rest of a put arrive, if it has not yet."""
        fastest_s = min(self._putting, default=now_s - put.begin_s)
        self._arrive(now_s if put.short else min(now_s, put.begin_s + fastest_s), put.enter())

    def _leave(self, count: int) -> None:
        while count and self._arrivals:
            at_s, arrived = self._arrivals[0]
            leaving = min(count, arrived)
            count -= leaving
            if leaving == arrived:
                self._arrivals.pop(0)
            else:
                self._arrivals[0] = (at_s, arrived - leaving)
        self._owed += count

    def _served_s(self, needed: int) -> float | None:
        """Return when the queue could first give away `needed` elements; None: not observed."""
        times = [self._reached_s(needed + self.minimum)]
        if self._closed_s is not None:
            reached_s = self._reached_s(needed)
            times.append(None if reached_s is None else max(reached_s, self._closed_s))
        return min((at_s for at_s in times if at_s is not None), default=None)

    def _reached_s(self, total: int) -> float | None:
        """Return when `total` elements were in the queue; None: not observed."""
        for at_s, count in self._arrivals:
            total -= count
            if total <= 0:
                return at_s
        return None

    def _add_unobserved(self, needed: int, end_s: float) -> None:
        """Count the elements that a take needed, but whose put was not observed."""
        missing = needed + self._kept() - (self._entered - self.taken)
        missing -= sum(put.count - put.entered for put in self._puts)
        if missing > 0:
            self.unobserved += missing
            self._arrive(end_s, missing)
