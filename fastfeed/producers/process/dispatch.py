"""Where the source has one order, the trainer reads it and sends its items to the workers that ask;
it always knows which worker has which item."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastfeed.core.worker import Worker
from fastfeed.errors import FeedError, ProducerFailed
from fastfeed.producers.epoch_gate import EpochGate, EpochPlan
from fastfeed.producers.process.inbox import ORDER, REQUEST
from fastfeed.producers.process.work_item import (
    WorkItem,
    request_from,
    send_deals,
    tell,
    weight,
)
from fastfeed.producers.reorder import END_OF_EPOCH
from fastfeed.producers.reorder import ReorderBuffer as Order
from fastfeed.ring.memory import NOWHERE, Descriptor, ring
from fastfeed.source import EpochEnd, Source

READ_S = 0.002  # a worker that asked for many items gets what could be read in this time
# or what has reached this size: items lie beside the slots, and no bound counts them
MOST_NBYTES = 2**22
WAIT_MS = 500


class Ended:
    """Marks the end of all items, in place of one."""


def read(source: Source, course: EpochPlan, *, gate: EpochGate) -> Iterator[WorkItem | None]:
    """Yield all items of all epochs, in order; an EpochEnd has a ticket, too. None: the next epoch
    may not be begun yet."""
    for position, epoch in enumerate(course.epochs):
        while position >= gate.allowed:
            yield None
        for ticket, payload, number in source.open(Worker(0, 1, course.seed, epoch)):
            yield WorkItem(position, ticket or 0, payload, epoch, number)


class Dispatcher:
    """Reads in a thread of its own, which may wait in the user's code. Methods that say so are
    called under `lock`."""

    def __init__(
        self,
        deals: Iterator[WorkItem | None],
        order: Order[Any],
        *,
        lock: threading.Lock,
        wake: Callable[[], None],
    ) -> None:
        self._deals = deals
        self._order = order
        self._lock = lock
        self._wake = wake
        self._workers: dict[int, socket.socket] = {}
        # by worker and ticket: items that have not come back
        self._with: dict[int, dict[int, WorkItem]] = {}
        self._again: dict[int, deque[WorkItem]] = {}  # by worker: items that it inherits
        self._spare: deque[WorkItem] = deque()  # read for a worker that died before it got them
        self._left: dict[int, int] = {}  # by epoch: items that have not come back
        self._closed: set[int] = set()  # epochs of which every item was read
        self._requests: deque[tuple[int, int]] = deque()  # worker, items wanted
        self._position = 0  # of the epoch that is read
        self._read = False  # the source has ended
        self._complete = False
        self._over = False
        self._broken: BaseException | None = None
        self.ready_limit = 2**30  # batches that may be ready before no more items are sent
        self.held = False  # a worker asked in vain, because enough batches are ready or in flight
        self.reading = False  # the thread is in the user's code
        self._bell = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.thread = threading.Thread(target=self._run, name="fastfeed-dispatch", daemon=True)

    def start(self) -> None:
        """Begin to read when the first worker asks."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread when its present call into the user's code returns."""
        self._over = True
        self.ring()

    def join(self, timeout_s: float) -> bool:
        """Return True if the thread has ended, within the limit."""
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def release(self) -> None:
        """Close the bell: the thread has ended, or was never started."""
        self._bell = NOWHERE

    def attach(
        self, worker: int, work: socket.socket, *, inherits: Sequence[WorkItem] = ()
    ) -> None:
        """Add a worker, which begins with what it inherits: so each worker gets its tickets in
        rising order, and none can fill its slots with batches that wait for a later ticket. Under
        the lock."""
        self._workers[worker] = work
        self._again[worker] = deque(inherits)
        self.ring()

    def deal(self, worker: int, ticket: int) -> WorkItem:
        """Return what a worker has under a ticket. Under the lock."""
        return self._with[worker][ticket]

    def has(self, worker: int, ticket: int) -> bool:
        """Return True if a worker has the item under a ticket. Under the lock."""
        return ticket in self._with.get(worker, ())

    def received(self, worker: int, ticket: int) -> None:
        """Note that the item came back, as a batch or without records. Under the lock."""
        deal = self._with[worker].pop(ticket)
        self.give_up(deal)
        if deal.suspect or self._again.get(worker):
            self.ring()  # its worker may get more now
        self.taken()  # and others, if this one waits for a straggler

    def detach(self, worker: int) -> list[WorkItem]:
        """Remove a worker that has ended; return what it had, the lowest ticket first. Under the
        lock."""
        self._workers.pop(worker, None)
        lost = [*self._with.pop(worker, {}).values(), *self._again.pop(worker, ())]
        return sorted(lost, key=lambda d: d.ticket)

    def taken(self) -> None:
        """Note that a ready batch was taken. Under the lock."""
        if self.held and len(self._order.ready) * 2 <= self.ready_limit:
            self.held = False
            self.ring()

    def give_up(self, deal: WorkItem) -> None:
        """Note that the item will never come back. Under the lock."""
        self._left[deal.position] -= 1
        if not self._left[deal.position]:
            del self._left[deal.position]
            self._look_for_ends()

    def _look_for_ends(self) -> None:
        if not self._order.ordered:
            for position in sorted(p for p in self._closed if not self._left.get(p)):
                self._closed.remove(position)
                self._order.end_epoch(position)
        if self._read and not self._complete and not any(self._left.values()):
            self._complete = True
            self._order.end()
            self.ring()
            self._wake()

    def ring(self) -> None:
        """Wake the thread: there may be items to send."""
        ring(self._bell)

    def _run(self) -> None:
        try:
            while not self._over and (not self._complete or self._workers):
                self._listen()
                for _ in range(len(self._requests)):
                    request = self._requests.popleft()
                    if not self._answer(*request):
                        self._requests.append(request)
                if self._broken is not None:
                    raise self._broken
        except BaseException as error:
            failure = error if isinstance(error, FeedError) else ProducerFailed("the source", error)
            with self._lock:
                ticket = getattr(failure, "ticket", None) if self._order.ordered else None
                self._order.fail(
                    failure, ticket, epoch=self._position if error is self._broken else -1
                )
            self._wake()
        finally:
            self._deals.close()  # type: ignore[attr-defined]  # a generator

    def _listen(self) -> None:
        with self._lock:
            workers = {work.fileno(): (worker, work) for worker, work in self._workers.items()}
        poll, bell = select.poll(), self._bell
        for fd in (bell.fd, *workers):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(WAIT_MS):
            if fd == bell.fd:
                os.eventfd_read(fd)
                continue
            worker, work = workers[fd]
            data = request_from(work)
            if data:
                self._requests.append((worker, *REQUEST.unpack(data)))
            else:
                with self._lock:
                    self._workers.pop(worker, None)  # it has ended; the supervisor finds out how

    def _answer(self, worker: int, wanted: int) -> bool:
        """Send items, or the end; return False if there is nothing to send yet."""
        items, inherits = self._inherited(worker, wanted)
        if not inherits:
            items = self._next_items(worker, wanted)
        with self._lock:
            work = self._workers.get(worker)
            complete = self._complete
        if work is None:
            return True
        if items:
            send_deals(work, items)
        elif complete:
            tell(work, ORDER.pack(b"E", 0))
        return bool(items) or complete

    def _inherited(self, worker: int, wanted: int) -> tuple[list[WorkItem], bool]:
        """Return what a worker inherits, and True if it must make more of it first. Suspects are
        made one by one, with nothing beside them: so the next death shows which one it was."""
        with self._lock:
            again, has = self._again.get(worker), self._with.setdefault(worker, {})
            if any(d.suspect for d in has.values()):
                return [], True
            if not again or worker not in self._workers:
                return [], False
            items: list[WorkItem] = []
            while again and len(items) < wanted and not (again[0].suspect and (items or has)):
                items.append(again.popleft())
                if items[-1].suspect:
                    break
            has.update((d.ticket, d) for d in items)
            return items, True

    def _next_items(self, worker: int, wanted: int) -> list[WorkItem]:
        items: list[WorkItem] = []
        wanted = min(wanted, self._allowance(worker))
        end_s, nbytes = time.perf_counter() + READ_S, 0
        while len(items) < wanted and (
            not items or (nbytes < MOST_NBYTES and time.perf_counter() < end_s)
        ):
            deal = self._spare.popleft() if self._spare else self._next()
            if deal is None:
                break
            with self._lock:
                # it died meanwhile: the next worker that asks gets the item
                if worker not in self._workers:
                    self._spare.append(deal)
                    break
                self._with.setdefault(worker, {})[deal.ticket] = deal
            items.append(deal)
            nbytes += weight(deal.payload)
        return items

    def _allowance(self, worker: int) -> int:
        """Return how many items a worker may have: enough that the consumer need not wait, and no
        more, for every batch takes memory, also one that waits for a straggler."""
        with self._lock:
            ready, out = len(self._order.ready), sum(map(len, self._with.values()))
            least = 0 if self._with.get(worker) or ready >= self.ready_limit else 1
            allowance = max(self.ready_limit - ready - out, least)
            self.held = self.held or not allowance
            return allowance

    def _next(self) -> WorkItem | None:
        while not self._read and not self._over:
            deal: WorkItem | Ended | None = None
            self.reading = True
            try:
                deal = next(self._deals, Ended())
            except (
                BaseException
            ) as error:  # the user's iterator failed; items before it are still sent
                self._broken = error
            self.reading = False
            with self._lock:
                if self._broken is not None or deal is None:
                    return None
                if isinstance(deal, Ended):
                    self._read = True
                    self._look_for_ends()
                    return None
                self._position = deal.position + (deal.payload is EpochEnd)
                if deal.payload is not EpochEnd:
                    self._left[deal.position] = self._left.get(deal.position, 0) + 1
                    return deal
                if self._order.ordered:
                    self._order.insert(END_OF_EPOCH, deal.ticket)
                    self._wake()
                else:
                    self._closed.add(deal.position)
                self._look_for_ends()
        return None
