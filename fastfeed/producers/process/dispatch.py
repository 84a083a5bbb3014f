"""Dispatch of items to workers: the trainer reads an ordered source and records which worker
has which item."""

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
from fastfeed.producers.inbox import EpochPlan
from fastfeed.producers.process.data_changes import DataChanges
from fastfeed.producers.process.supervisor import ServingThread
from fastfeed.producers.process.work_socket import (
    REPLY,
    WorkItem,
    own_payload,
    payload_nbytes,
    receive_request,
    send_items,
    send_message,
)
from fastfeed.producers.reorder import END_OF_EPOCH, ReorderBuffer
from fastfeed.source import EpochEnd, Source
from fastfeed.source.base import close_left

MAX_READ_S = 0.002  # a worker that requests many items gets what can be read in this time
# or what reaches this many bytes: they lie outside the slots and are not counted
MAX_ANSWER_NBYTES = 2**22
ROOM_POLL_MS = 500


def read(
    source: Source, plan: EpochPlan, *, allowed: Callable[[], int]
) -> Iterator[WorkItem | None]:
    """Yield all items of all epochs, in order; an EpochEnd has a ticket, too. Yield None while the
    next epoch may not begin: `allowed` epochs in all may."""
    try:
        for position, epoch in enumerate(plan.epochs):
            while position >= allowed():
                yield None
            for ticket, given, number in source.open(Worker(0, 1, plan.seed, epoch)):
                payload = given if source.reader.indexed else own_payload(given)
                yield WorkItem(position, ticket or 0, payload, epoch, number)
    finally:
        close_left(source)


class Dispatcher(ServingThread):
    """Reads the source in a thread of its own, which may wait in the user's code. Methods whose
    docstring says so are called under `lock`."""

    def __init__(
        self,
        items: Iterator[WorkItem | None],
        reorder: ReorderBuffer[Any],
        *,
        lock: threading.Lock,
        wake: Callable[[], None],
        prefetch: int | None = None,
        changes: DataChanges | None = None,
    ) -> None:
        super().__init__("fastfeed-dispatch")
        self._items = items
        self._reorder = reorder
        self._lock = lock
        self._wake = wake
        self._changes = changes
        self._versions: dict[int, int] = {}  # of the changes, by worker
        self._workers: dict[int, socket.socket] = {}
        # by worker and ticket: items that are not back yet
        self._assigned: dict[int, dict[int, WorkItem]] = {}
        self._retired: set[int] = set()  # workers that get no other items
        self._inheritance: dict[int, deque[WorkItem]] = {}  # by worker: items of a dead worker
        self._spare: deque[WorkItem] = deque()  # read for a worker that died before it got them
        self._outstanding: dict[int, int] = {}  # by epoch: items that are not back yet
        self._fully_read: set[int] = set()  # epochs that were read completely
        self._requests: deque[tuple[int, int]] = deque()  # worker, items wanted
        self._worker = -1  # that is being answered
        self._collected: list[WorkItem] = []  # what was read for it, and is not sent
        self._position = 0  # of the epoch that is read
        self._read = False  # True once the source has ended
        self._complete = False
        self._stopping = False
        self._error: BaseException | None = None
        self.ready_limit = prefetch or 2**30  # limit of batches that are ready or in flight
        self._strict = prefetch is not None  # batches that wait for a straggler's count, too
        self.held = False  # True if a request was put off because of that limit
        self.reading = False  # True while the thread is in the user's code
        self.read_s = 0.0  # seconds in which it was

    def start(self) -> None:
        """Start the thread, which begins to read with the first request."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread when its present call into the user's code returns."""
        self._stopping = True
        self.notify()

    def limit(self, batches: int) -> None:
        """Set how many batches may be ready or in flight. Under the lock."""
        self.ready_limit = batches

    def attach(
        self, worker: int, work: socket.socket, *, inherits: Sequence[WorkItem] = ()
    ) -> None:
        """Add a worker, which first gets the items it inherits. Each worker thus gets its tickets
        in rising order, and none can fill its slots with batches that wait for a later ticket of
        its own. Under the lock."""
        self._workers[worker] = work
        self._inheritance[worker] = deque(inherits)
        self.notify()

    def retire(self, worker: int) -> None:
        """Give a worker no other items, except those that it inherits: it ends when it has made
        what it has. Under the lock."""
        self._retired.add(worker)
        self.notify()

    def follow(self, worker: int, predecessor: int) -> None:
        """Retire a worker whose predecessor was retired. Under the lock."""
        if predecessor in self._retired:
            self.retire(worker)

    @property
    def at_work(self) -> bool:
        """True while items are not back yet."""
        return bool(self._outstanding)

    def is_retired(self, worker: int) -> bool:
        """Return True for a worker that was retired. Under the lock."""
        return worker in self._retired

    def item_of(self, worker: int, ticket: int) -> WorkItem:
        """Return the item that a worker has under a ticket. Under the lock."""
        return self._assigned[worker][ticket]

    def has(self, worker: int, ticket: int) -> bool:
        """Return True if a worker has the item under a ticket. Under the lock."""
        return ticket in self._assigned.get(worker, ())

    def lowest(self, worker: int) -> WorkItem | None:
        """Return the item with the lowest ticket that a worker has, or None."""
        # a copy, made by one call: the dict changes in another thread
        items = list(self._assigned.get(worker, {}).values())
        return min(items, key=lambda item: item.ticket, default=None)

    def received(self, worker: int, ticket: int) -> None:
        """Note that the item is back, as a batch or as none. Under the lock."""
        item = self._assigned[worker].pop(ticket)
        self.give_up(item)
        if item.suspect or self._inheritance.get(worker):
            self.notify()  # its worker may get more now
        self.taken()  # other workers may, too, if this batch waits for a straggler

    def detach(self, worker: int) -> list[WorkItem]:
        """Remove a dead worker. Return the items it had, the lowest ticket first. Under the
        lock."""
        self._workers.pop(worker, None)
        lost = [*self._assigned.pop(worker, {}).values(), *self._inheritance.pop(worker, ())]
        return sorted(lost, key=lambda item: item.ticket)

    def pass_on(self) -> None:
        """Send the items that were read for a worker, if the source makes the thread wait for the
        next one, which may depend on the training or on the other ranks of a job. From a thread in
        which no signal handler runs."""
        with self._lock:
            worker, items = self._worker, self._collected
            work = self._workers.get(worker)
            if work is None or not items:
                return
            self._collected = []
        try:
            self._send(worker, work, items=items)
        except BaseException as error:
            self._fail(error)

    def taken(self) -> None:
        """Note that fewer batches are ready or in flight. Under the lock."""
        if self.held and len(self._reorder.ready) * 2 <= self.ready_limit:
            self.held = False
            self.notify()

    def give_up(self, item: WorkItem) -> None:
        """Give an item up, which will never come back. Under the lock."""
        self._outstanding[item.position] -= 1
        if not self._outstanding[item.position]:
            del self._outstanding[item.position]
            self._check_for_end()
            if self._changes is not None:
                self.notify()  # the next epoch may begin

    def _check_for_end(self) -> None:
        if not self._reorder.ordered:
            for position in sorted(p for p in self._fully_read if not self._outstanding.get(p)):
                self._fully_read.remove(position)
                self._reorder.end_epoch(position)
        if self._read and not self._complete and not any(self._outstanding.values()):
            self._complete = True
            self._reorder.end()
            self.notify()
            self._wake()

    def _run(self) -> None:
        try:
            while not self._stopping and (not self._complete or self._workers):
                self._listen()
                for _ in range(len(self._requests)):
                    request = self._requests.popleft()
                    if not self._answer(*request):
                        self._requests.append(request)
                if self._error is not None:
                    raise self._error
        except BaseException as error:
            self._fail(error)
        finally:
            self.reading = True  # the `finally` of a generator
            self._items.close()  # type: ignore[attr-defined]  # a generator
            if self._changes is not None:
                self._changes.shipment.close()
            self.reading = False

    def _fail(self, error: BaseException) -> None:
        failure = error if isinstance(error, FeedError) else ProducerFailed("the source", error)
        with self._lock:
            ticket = getattr(failure, "ticket", None) if self._reorder.ordered else None
            self._reorder.fail(
                failure, ticket, epoch=self._position if error is self._error else -1
            )
        self._wake()

    def _listen(self) -> None:
        with self._lock:
            workers = {work.fileno(): (worker, work) for worker, work in self._workers.items()}
        poll, wakeup = select.poll(), self._wakeup
        for fd in (wakeup.fd, *workers):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(ROOM_POLL_MS):
            if fd == wakeup.fd:
                os.eventfd_read(fd)
                continue
            worker, work = workers[fd]
            if wanted := receive_request(work):
                self._requests.append((worker, wanted))
            else:
                with self._lock:
                    self._workers.pop(worker, None)  # it has ended; the supervisor finds out how

    def _answer(self, worker: int, wanted: int) -> bool:
        """Send items, or the end. Return False if there is nothing to send yet."""
        items, inherits = self._inherited(worker, wanted)
        retired = worker in self._retired and not inherits
        if not (inherits or retired):
            read = self._next_items(worker, wanted)
            if read is None:
                return True
            items = read
        with self._lock:
            work = self._workers.get(worker)
            complete = self._complete or retired
        if work is None:
            return True
        if items:
            self._send(worker, work, items=items)
        elif complete:
            send_message(work, REPLY.pack(b"E", 0))
        return bool(items) or complete

    def _send(self, worker: int, work: socket.socket, *, items: Sequence[WorkItem]) -> None:
        """Send items, after the changes of their data set that the worker has not got."""
        changes = self._changes
        if changes is not None and self._versions.get(worker, 0) < changes.version:
            self._versions[worker] = changes.version
            shipment = changes.shipment
            send_message(work, REPLY.pack(b"C", shipment.nbytes), shipment.fd)
        send_items(work, items)

    def _inherited(self, worker: int, wanted: int) -> tuple[list[WorkItem], bool]:
        """Return what a worker inherits, and True if it may not get other items yet. Suspect items
        are sent one by one, with no other item in flight, so that the next death shows which one it
        was."""
        with self._lock:
            inheritance = self._inheritance.get(worker)
            assigned = self._assigned.setdefault(worker, {})
            if any(item.suspect for item in assigned.values()):
                return [], True
            if not inheritance or worker not in self._workers:
                return [], False
            suspect = inheritance[0].suspect
            limit = int(not assigned) if suspect else wanted
            items: list[WorkItem] = []
            while inheritance and len(items) < limit and inheritance[0].suspect == suspect:
                items.append(inheritance.popleft())
            assigned.update((item.ticket, item) for item in items)
            return items, True

    def _next_items(self, worker: int, wanted: int) -> list[WorkItem] | None:
        """Return items that were read, or None if they are sent already: see `pass_on`."""
        wanted = min(wanted, self._allowance(worker))
        end_s, count, nbytes = time.perf_counter() + MAX_READ_S, 0, 0
        self._worker = worker
        while count < wanted and (
            not count or (nbytes < MAX_ANSWER_NBYTES and time.perf_counter() < end_s)
        ):
            item = self._spare.popleft() if self._spare else self._next()
            if item is None:
                break
            with self._lock:
                # It died meanwhile, or has its answer: the next worker that asks gets the item.
                if worker not in self._workers or (count and not self._collected):
                    self._spare.appendleft(item)
                    break
                self._assigned.setdefault(worker, {})[item.ticket] = item
                self._collected.append(item)
            count += 1
            nbytes += payload_nbytes(item.payload)
        with self._lock:
            items, self._collected = self._collected, []
        return items if items or not count else None

    def _allowance(self, worker: int) -> int:
        """Return how many items a worker may get: enough that the consumer does not wait, and no
        more. Ready batches occupy memory as much as those that wait for a straggler's batch."""
        with self._lock:
            ready = len(self._reorder.ready) + (self._reorder.waiting if self._strict else 0)
            in_flight = sum(map(len, self._assigned.values()))
            minimum = 0 if self._assigned.get(worker) or ready >= self.ready_limit else 1
            allowance = max(self.ready_limit - ready - in_flight, minimum)
            self.held = self.held or not allowance
            return allowance

    def _next(self) -> WorkItem | None:
        # behind an error the generator would only end, as if there were no more
        while not (self._read or self._stopping) and self._error is None:
            item: WorkItem | None = None
            over, self.reading, start = False, True, time.perf_counter()
            try:
                item = next(self._items)
            except StopIteration:
                over = True
            # The user's iterator failed; earlier items are still sent.
            except BaseException as error:
                self._error = error
            self.reading = False
            self.read_s += time.perf_counter() - start
            with self._lock:
                if over:
                    self._read = True
                    self._check_for_end()
                if item is None:
                    return None
                self._position = item.position + (item.payload is EpochEnd)
                if item.payload is not EpochEnd:
                    self._outstanding[item.position] = self._outstanding.get(item.position, 0) + 1
                    return item
                if self._reorder.ordered:
                    self._reorder.insert(END_OF_EPOCH, item.ticket, epoch=item.position)
                    self._wake()
                else:
                    self._fully_read.add(item.position)
                self._check_for_end()
        return None
