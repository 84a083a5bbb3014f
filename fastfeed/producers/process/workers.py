"""Group of one feed's worker processes: their handles, their counters, and the successors of those
that died."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fastfeed.core import stats
from fastfeed.core.machine import oom_kills
from fastfeed.core.position import ONLY_STREAM
from fastfeed.core.stats import NO_SLOTS, SlotCounts, StageRow
from fastfeed.core.status import (
    DEAD,
    FINISHED,
    IDLE,
    INPUT,
    MAKING,
    PROCESS,
    REMOTE,
    ROOM,
    STARTING,
    ProducerStatus,
    WorkerStatus,
)
from fastfeed.options import FeedOptions
from fastfeed.producers.failure import WorkerDeath
from fastfeed.producers.inbox import EpochPlan
from fastfeed.producers.process.dispatch import Dispatcher
from fastfeed.producers.process.handle import WorkerChannels, WorkerHandle
from fastfeed.producers.process.main import WorkerTask
from fastfeed.producers.process.work_socket import REPLY, send_message
from fastfeed.producers.reorder import LOG, ProducedBatch, ReorderBuffer
from fastfeed.ring.layout import MAX_SMALL_SLOTS, SMALL_NBYTES, MemoryShare
from fastfeed.ring.reader import SlotRef
from fastfeed.ring.status_page import NO_ITEM
from fastfeed.ring.writer import NO_NEED
from fastfeed.source import Source

MIN_IN_FLIGHT = 16  # batches in flight over all workers, at least
# Slots of a worker, if memory= has room for them, for batches that wait for a straggler's.
REORDER_SLOTS = 128
Skips = tuple[tuple[int, int], ...]
DEATHS_TO_BLAME = 2
# Signals from outside hit the same record now and then, the more so as a new worker begins with it.
ACCIDENTS_TO_BLAME = 6
# So many workers in a row that die before their first batch: another one will not do better.
# Repeated signals from outside prove less.
FRUITLESS_DEATHS, FRUITLESS_ACCIDENTS = 5, 20

# the item's ticket, and the record in the item's payload (-1: the item is one piece)
RecordKey = tuple[int, int]


class FailureCounter:
    """Counts the deaths over each record, and for each worker those in a row without any
    delivery."""

    def __init__(self) -> None:
        self._deaths: Counter[RecordKey] = Counter()
        self._fruitless: Counter[int] = Counter()

    def count_death(
        self, in_flight: Sequence[RecordKey], *, accidental: bool, beside: bool = False
    ) -> list[RecordKey]:
        """Count a death over the records in flight. Return the record that has killed too often.
        With several in flight, or others of another feed `beside` them, any could be the cause:
        only a record that was alone the last time is blamed."""
        self._deaths.update(in_flight)
        if (
            len(in_flight) != 1
            or beside
            or self._deaths[in_flight[0]] < (ACCIDENTS_TO_BLAME if accidental else DEATHS_TO_BLAME)
        ):
            return []
        ticket = in_flight[0][0]
        # the records behind it have other positions now
        for record in [r for r in self._deaths if r[0] == ticket]:
            del self._deaths[record]
        return [in_flight[0]]

    def is_hopeless(self, worker: int, *, fruitful: bool, accidental: bool) -> bool:
        """Count the death of a worker that had delivered something (`fruitful`) or not. Return True
        to give up."""
        self._fruitless[worker] = 0 if fruitful else self._fruitless[worker] + 1
        return self._fruitless[worker] >= (FRUITLESS_ACCIDENTS if accidental else FRUITLESS_DEATHS)


def describe(ticket: int, record: int, *, payload: Any, indexed: bool) -> str:
    """Describe a record for messages."""
    if record == NO_ITEM:
        return f"item {payload} (batch {ticket})" if indexed else f"batch {ticket}"
    index = f" (index {payload[record]})" if indexed else ""
    return f"record {record}{index} of batch {ticket}"


def without(payload: Any, records: Sequence[int]) -> Any:
    """Return the payload without these records, or None if nothing is left of it or it is one
    piece."""
    if not records:
        return payload
    if NO_ITEM in records:
        return None
    return [part for position, part in enumerate(payload) if position not in records] or None


class CurrentItem(NamedTuple):
    """Item that a producer works on, or did when its process died: the stream, and the fields of
    ring.status_page.InFlight."""

    stream: int
    key: int
    item: int
    record: int


def ready_limit(options: FeedOptions, slot_nbytes: int = SMALL_NBYTES) -> int:
    """Return how many batches of worker processes may wait for the consumer: more of small ones,
    which then cost fewer wake-ups. With prefetch=, as many as it says."""
    if options.prefetch is not None:
        return options.prefetch
    small = options.workers * min(MAX_SMALL_SLOTS, SMALL_NBYTES // slot_nbytes)
    return max(MIN_IN_FLIGHT, 4 * options.parallel, small)


def share_of_worker(
    options: FeedOptions, *, remote: bool = False, dispatched: bool = False, reorders: bool = False
) -> MemoryShare:
    """Return the memory of one worker's ring. A `remote` one has as much in its object store.
    `dispatched`: the trainer hands out the items; `reorders`: batches wait for a straggler's."""
    ready = max(1, ready_limit(options) // options.workers)
    threads = 1 if remote else options.threads
    return MemoryShare(
        budget=options.memory_nbytes // options.workers // (2 if remote else 1),
        wanted=ready + threads + 1 + (REORDER_SLOTS if reorders else 0),
        threads=threads,
        capped=options.prefetch is not None and not dispatched,
    )


class WorkerGroup:
    """Group of workers. Every call is under the feed's lock, except for those that only read."""

    def __init__(self, source: Source, options: FeedOptions, *, plan: EpochPlan) -> None:
        self._indexed = source.indexed
        self._dispatched = source.ordered
        self._reorders = source.ordered and options.order == "kept"
        self._options = options
        self._plan = plan
        self.allowed = plan.allowed  # epochs that may begin
        self.handles: dict[int, WorkerHandle] = {}
        self.released: deque[SlotRef] = deque()  # slots without views, to be returned
        self.min_release = 1  # number of them that is worth a message
        self.aside: list[str] = []  # records that repeatedly killed their worker
        self._added = 0
        # By index: the first of a worker's producers, and True for a remote one.
        self._places: list[tuple[int, bool]] = []
        self._vacant: list[int] = []  # indices of workers that have left
        # By producer: counters of workers that have died or left.
        self._past_rows: list[StageRow] = []
        self._failures = FailureCounter()
        self._oom_kills = oom_kills() or 0

    def new_places(self, options: FeedOptions, dispatcher: Dispatcher | None) -> list[int]:
        """Retire the workers that `options` has no place for. Return the index of each new one:
        local ones first."""
        self._options = options
        added = []
        for remote, wanted in ((False, options.processes), (True, options.remote_producers)):
            at_work = [w for w in self._at_work(dispatcher) if w.task.remote == remote]
            for handle in at_work[wanted:]:
                assert dispatcher is not None
                dispatcher.retire(handle.task.number)
            vacant = [index for index in self._vacant if self._places[index][1] == remote]
            for _ in range(wanted - len(at_work)):
                added.append(vacant.pop() if vacant else self._new_place(remote))
        self._vacant = [index for index in self._vacant if index not in added]
        return added

    def _at_work(self, dispatcher: Dispatcher | None) -> list[WorkerHandle]:
        """Return the workers that are to go on."""
        return [
            handle
            for handle in self.handles.values()
            if not (handle.exited or len(handle.ended) == handle.task.threads)
            and not (dispatcher is not None and dispatcher.is_retired(handle.task.number))
        ]

    def _new_place(self, remote: bool) -> int:
        self._places.append((len(self._past_rows), remote))
        threads = 1 if remote else self._options.threads
        self._past_rows += [StageRow() for _ in range(threads)]
        return len(self._places) - 1

    def add(
        self, index: int, channels: WorkerChannels, *, owner: Any = None, skip: Skips | None = None
    ) -> WorkerHandle:
        """Create the `index`-th worker, or its successor, which skips what was delivered."""
        options = self._options
        passed = self._plan.passed
        first, remote = self._places[index]
        producers = len(self._past_rows)
        skip = skip or tuple((0, items) for items in (*passed, *(0,) * (producers - len(passed))))
        share = share_of_worker(
            options, remote=remote, dispatched=self._dispatched, reorders=self._reorders
        )
        task = WorkerTask(
            number=self._added,
            index=index,
            count=len(passed) or producers,
            producers=producers,
            threads=share.threads,
            first=first,
            remote=remote,
            seed=self._plan.seed,
            first_epoch=self._plan.epochs.start,
            epochs=len(self._plan.epochs),
            skip=skip,
            dispatched=self._dispatched,
            rank=options.place[0],
            allowed=NO_NEED if self._dispatched else self.allowed,
            budget=share.budget,
            wanted=share.wanted,
            capped=share.capped,
            nbytes=channels.shipment.nbytes,
        )
        self._added += 1
        handle = self.handles[task.number] = WorkerHandle(
            task, self.released, channels=channels, owner=owner
        )
        return handle

    def allow(self, epochs: int) -> None:
        """Set how many epochs in all may begin; send it to the workers unless the trainer
        dispatches the items."""
        if epochs <= self.allowed:
            return
        self.allowed = epochs
        if not self._dispatched:
            for handle in self.handles.values():
                send_message(handle.work, REPLY.pack(b"A", epochs))

    def adapt_to(self, slot_nbytes: int) -> int:
        """Return how many batches may wait for the consumer, given the size of a slot."""
        ready = ready_limit(self._options, slot_nbytes)
        self.min_release = max(1, min(ready, self.audit().all) // 16)
        return ready

    def give_back(self) -> None:
        """Give slots that the consumer has released back to their workers."""
        refs = tuple(self.released)
        for reader in dict.fromkeys(ref.reader for ref in refs):
            reader.return_slots(ref for ref in refs if ref.reader is reader)
        for _ in refs:  # only now: an exception of a signal handler must not lose them
            self.released.popleft()

    def status(
        self, dispatcher: Dispatcher | None
    ) -> tuple[list[ProducerStatus], list[WorkerStatus]]:
        """Return what each producer is doing, and each worker process."""
        handles = list(self.handles.values())
        producers = [p for w in handles for p in producers_of(w, dispatcher, allowed=self.allowed)]
        workers = [
            WorkerStatus(w.task.number, w.task.index, w.pid, w.pidfd, w.exited, w.place)
            for w in handles
        ]
        return producers, workers

    def busy(self, handle: WorkerHandle, dispatcher: Dispatcher | None) -> bool:
        """Return True if a worker works for this feed now, as far as is known."""
        if dispatcher is not None:
            return bool(_current_items(handle, dispatcher))
        return any(
            handle.progress[handle.task.producer(thread)][0] < self.allowed
            for thread in set(range(handle.task.threads)) - handle.ended
        )

    def replace(
        self,
        handle: WorkerHandle,
        status: int,
        *,
        reorder: ReorderBuffer[Any],
        dispatcher: Dispatcher | None,
        beside: bool,
    ) -> WorkerHandle | None:
        """Handle the unexpected end of a worker: fail the feed, or return the successor."""
        current = _current_items(handle, dispatcher)
        named = [self._name(handle, item, dispatcher=dispatcher) for item in current]
        kills_before, self._oom_kills = self._oom_kills, oom_kills() or 0
        out_of_memory = self._oom_kills > kills_before
        death = WorkerDeath(
            handle.task.index, handle.pid, status, out_of_memory, named, handle.lost
        )
        blamed = []
        began = bool(handle.pid) or not handle.task.remote
        if dispatcher is not None and began:  # items of a callable cannot be left out
            records = [(item.key, item.record) for item in current]
            blamed = self._failures.count_death(records, accidental=death.accidental, beside=beside)
        fruitful = handle.delivered > 0 or bool(blamed)
        hopeless = self._failures.is_hopeless(
            handle.task.index, fruitful=fruitful, accidental=death.accidental
        )
        if self._options.on_worker_death == "raise" or hopeless:
            reorder.fail(death.error(), None)
            return None
        LOG.warning("%s A new worker takes its place.", str(death.error()).split("\n")[0])
        self._forget(handle)
        successor = self.add(
            handle.task.index, handle.channels, owner=handle.owner, skip=tuple(handle.progress)
        )
        successor.follow(handle)
        if dispatcher is None:
            _warn_of_fast_forward(handle)
            return successor
        items = dispatcher.detach(handle.task.number)
        keys = {item.key for item in current}
        kept = [
            item._replace(payload=payload, suspect=item.ticket in keys)
            for item in items
            if (payload := self._leave_out(item, blamed, reorder=reorder, dispatcher=dispatcher))
            is not None
        ]
        dispatcher.attach(successor.task.number, successor.work, inherits=kept)
        dispatcher.follow(successor.task.number, handle.task.number)
        return successor

    def _leave_out(
        self,
        item: Any,
        blamed: list[tuple[int, int]],
        *,
        reorder: ReorderBuffer[Any],
        dispatcher: Dispatcher,
    ) -> Any:
        """Return the payload of an item without the blamed records; None if nothing is left."""
        left_out = [record for ticket, record in blamed if ticket == item.ticket]
        self._set_aside(item.ticket, left_out, payload=item.payload)
        payload = without(item.payload, left_out)
        if payload is None:
            reorder.insert(
                ProducedBatch(None, ONLY_STREAM, "", item.number),
                item.ticket if reorder.ordered else item.position,
            )
            dispatcher.give_up(item)
        return payload

    def release(self) -> None:
        """Drop all descriptors: the feed was stopped, and no worker is left."""
        for handle in self.handles.values():
            handle.release()

    def rows(self) -> tuple[StageRow, ...]:
        """Return the counters of each producer."""
        rows = list(self._past_rows)
        for handle in list(self.handles.values()):
            for thread in range(handle.task.threads):
                producer = handle.task.producer(thread)
                rows[producer] = stats.total((rows[producer], handle.page.row(thread)))
        return tuple(rows)

    def audit(self) -> SlotCounts:
        """Return the number of slots in each state."""
        return sum((handle.reader.audit() for handle in list(self.handles.values())), NO_SLOTS)

    def depth(self) -> tuple[int, int]:
        """Return the number of ready batches, and the bytes of their slots."""
        count = total = 0
        for handle in list(self.handles.values()):
            ready, (borrowed, nbytes) = handle.reader.audit().ready, handle.borrowed.depth
            count += ready + borrowed
            total += ready * handle.reader.slot_nbytes + nbytes
        return count, total

    def stacks(self) -> str:
        """Describe what every worker is doing, and which state the slots are in."""
        handles = list(self.handles.values())
        for handle in handles:
            handle.request_stacks()
        return "\n".join([*(handle.stacks() for handle in handles), str(self.audit())])

    def _name(
        self, handle: WorkerHandle, item: CurrentItem, *, dispatcher: Dispatcher | None
    ) -> str:
        """Describe what a producer was working on."""
        if dispatcher is None:
            return f"batch {item.item} of producer {item.stream}"
        payload = dispatcher.item_of(handle.task.number, item.key).payload
        return describe(item.key, item.record, payload=payload, indexed=self._indexed)

    def _set_aside(self, ticket: int, records: list[int], *, payload: Any) -> None:
        for record in records:
            self.aside.append(describe(ticket, record, payload=payload, indexed=self._indexed))
            LOG.warning("set aside because its worker died each time: %s", self.aside[-1])

    def leave(self, handle: WorkerHandle) -> None:
        """Forget a worker that was retired and has ended; another may take its place."""
        self._vacant.append(handle.task.index)
        self._forget(handle)

    def _forget(self, handle: WorkerHandle) -> None:
        """Keep only the counters of a worker."""
        del self.handles[handle.task.number]
        for thread in range(handle.task.threads):
            producer = handle.task.producer(thread)
            self._past_rows[producer] = stats.total(
                (self._past_rows[producer], handle.page.row(thread))
            )


def _current_items(handle: WorkerHandle, dispatcher: Dispatcher | None) -> list[CurrentItem]:
    return [
        item
        for thread in range(handle.task.threads)
        for item in _current_items_of(handle, thread, dispatcher=dispatcher)
    ]


def _current_items_of(
    handle: WorkerHandle, thread: int, *, dispatcher: Dispatcher | None
) -> list[CurrentItem]:
    """Return what a producer was working on: nothing, or one item. Its entry in the status page is
    never cleared, only replaced. For a callable, which works before it yields, it may be the next
    item of any of the producer's streams."""
    if dispatcher is not None:
        item = handle.in_flight(thread, dispatcher)
        return (
            [CurrentItem(ONLY_STREAM, *item)]
            if dispatcher.has(handle.task.number, item.key)
            else []
        )
    streams = () if thread in handle.ended else handle.task.streams(thread)
    return [CurrentItem(stream, *handle.progress[stream], NO_ITEM) for stream in streams]


def _warn_of_fast_forward(handle: WorkerHandle) -> None:
    streams = (
        stream for thread in range(handle.task.threads) for stream in handle.task.streams(thread)
    )
    items = sum(handle.progress[stream][1] for stream in streams)
    if items:
        LOG.warning(
            "the new worker runs the callable again and skips the %d batches that were delivered",
            items,
        )


def producers_of(
    worker: WorkerHandle, dispatcher: Dispatcher | None, *, allowed: int
) -> Iterator[ProducerStatus]:
    """Return the status of each producer of a worker, without a request to it. `allowed`: epochs
    that it may begin."""
    slots = worker.reader.audit()
    full = bool(slots.all) and not slots.free and not slots.filling
    for thread in range(worker.task.threads):
        in_flight, n = worker.in_flight(thread, dispatcher), worker.task.producer(thread)
        yield ProducerStatus(
            kind=REMOTE if worker.task.remote else PROCESS,
            state=_state(worker, thread, dispatcher=dispatcher, full=full, allowed=allowed),
            worker=worker.task.index,
            pid=worker.pid,
            tid=0,
            stream=-1 if dispatcher is not None else n,
            item=in_flight.item,
            record=in_flight.record,
            counters=worker.page.row(thread),
            where=worker.place,
        )


def _state(
    worker: WorkerHandle, thread: int, *, dispatcher: Dispatcher | None, full: bool, allowed: int
) -> int:
    """Return the state as far as it is known: what a worker waits for inside is not."""
    if thread in worker.ended:
        return FINISHED
    if worker.exited:
        return DEAD
    if not worker.pid:
        return STARTING
    if full:
        return ROOM
    if dispatcher is None:
        begun = worker.progress[worker.task.producer(thread)][0]
        return IDLE if begun >= allowed else MAKING
    if dispatcher.has(worker.task.number, worker.in_flight(thread, dispatcher).key):
        return MAKING
    return ROOM if dispatcher.held else INPUT
