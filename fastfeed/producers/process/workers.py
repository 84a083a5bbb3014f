"""Worker processes of one feed: what each has to do, what it does, and the successors of those that
died."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

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
from fastfeed.producers.process.data_changes import DataChanges
from fastfeed.producers.process.dispatch import Dispatcher, read
from fastfeed.producers.process.handle import WorkerChannels, WorkerHandle
from fastfeed.producers.process.main import WorkerTask
from fastfeed.producers.process.work_socket import WorkItem
from fastfeed.producers.reorder import LOG, ProducedBatch, ReorderBuffer
from fastfeed.producers.threads import stack_of
from fastfeed.ring.layout import MAX_SMALL_SLOTS, SMALL_NBYTES, MemoryShare
from fastfeed.ring.reader import SlotRef
from fastfeed.ring.status_page import NO_ITEM
from fastfeed.ring.token import Token
from fastfeed.ring.writer import NO_NEED
from fastfeed.source import IndexedSource, Source, StreamComparison

MIN_IN_FLIGHT = 16  # batches in flight over all workers, at least
# Slots of a worker, if memory= has room for them, for batches that wait for a straggler's.
REORDER_SLOTS = 128
Skips = tuple[tuple[int, int], ...]
Ready = tuple[WorkerHandle, Token]  # a token, and the worker that sent it
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
    """Worker processes of one feed. Every method is called under the lock, except for those that
    only read."""

    def __init__(
        self,
        source: Source,
        options: FeedOptions,
        *,
        plan: EpochPlan,
        wake: Callable[[], None],
    ) -> None:
        ordered = source.ordered and options.window is not None
        self._source = source
        self._options = options
        self._plan = plan
        self._allowed = plan.allowed  # epochs that may begin
        self._lock = threading.Lock()
        self._comparison = StreamComparison()
        self._reorder = ReorderBuffer[Ready](
            1 if source.ordered else options.parallel,
            ordered=ordered,
            window=options.window or 0,
            gaps=plan.gaps,
            error_limit=options.error_limit,
            suspects=self._comparison.suspects,
        )
        self._dispatcher: Dispatcher | None = None
        self._changes: DataChanges | None = None
        if isinstance(source, IndexedSource) and source.ends is not None:
            self._changes = DataChanges(source.reader.data)
            source.ends.call = self._changes.call
        if source.ordered:
            self._dispatcher = Dispatcher(
                read(source, plan, allowed=self._may_begin),
                self._reorder,
                lock=self._lock,
                wake=wake,
                prefetch=options.prefetch,
                changes=self._changes,
            )
        self._handles: dict[int, WorkerHandle] = {}
        self._released: deque[SlotRef] = deque()  # slots without views, to be returned
        self._min_release = 1  # number of them that is worth a message
        self._aside: list[str] = []
        self._added = 0
        # By index: the first of a worker's producers, and True for a remote one.
        self._places: list[tuple[int, bool]] = []
        self._vacant: list[int] = []  # indices of workers that have left
        # By producer: counters of workers that have died or left.
        self._past_rows: list[StageRow] = []
        self._failures = FailureCounter()
        self._oom_kills = oom_kills() or 0

    def _may_begin(self) -> int:
        """Return how many epochs may begin. Where the data set changes between two of them, the
        records of the one must be back."""
        assert self._dispatcher is not None
        waits = self._changes is not None and self._dispatcher.at_work
        return 0 if waits else self._allowed

    def _add_workers(self, channels: WorkerChannels) -> list[WorkerHandle]:
        """Retire the workers that the options have no place for. Return new ones, local ones
        first."""
        added = []
        for remote, wanted in (
            (False, self._options.processes),
            (True, self._options.remote_producers),
        ):
            at_work = [w for w in self._handles.values() if self._stays(w, remote)]
            for handle in at_work[wanted:]:
                assert self._dispatcher is not None
                self._dispatcher.retire(handle.task.number)
            vacant = [index for index in self._vacant if self._places[index][1] == remote]
            for _ in range(wanted - len(at_work)):
                added.append(vacant.pop() if vacant else self._new_place(remote))
        self._vacant = [index for index in self._vacant if index not in added]
        handles = [self._add(index, channels) for index in added]
        if self._dispatcher is not None:
            for handle in handles:
                self._dispatcher.attach(handle.task.number, handle.work)
        return handles

    def _stays(self, worker: WorkerHandle, remote: bool) -> bool:
        """Return True for a worker of this kind that is to go on."""
        over = worker.exited or len(worker.ended) == worker.task.threads
        leaves = self._dispatcher is not None and self._dispatcher.is_retired(worker.task.number)
        return worker.task.remote == remote and not over and not leaves

    def _new_place(self, remote: bool) -> int:
        self._places.append((len(self._past_rows), remote))
        threads = 1 if remote else self._options.threads
        self._past_rows += [StageRow() for _ in range(threads)]
        return len(self._places) - 1

    def _add(
        self, index: int, channels: WorkerChannels, *, skip: Skips | None = None
    ) -> WorkerHandle:
        """Create the `index`-th worker, or its successor, which skips what was delivered."""
        options, dispatched = self._options, self._dispatcher is not None
        passed = self._plan.passed
        first, remote = self._places[index]
        producers = len(self._past_rows)
        skip = skip or tuple((0, items) for items in (*passed, *(0,) * (producers - len(passed))))
        reorders = dispatched and options.window is not None
        share = share_of_worker(options, remote=remote, dispatched=dispatched, reorders=reorders)
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
            dispatched=dispatched,
            rank=options.place[0],
            allowed=NO_NEED if dispatched else self._allowed,
            budget=share.budget,
            wanted=share.wanted,
            capped=share.capped,
            nbytes=channels.shipment.nbytes,
        )
        self._added += 1
        handle = WorkerHandle(task, self._released, channels=channels, owner=self)
        self._handles[task.number] = handle
        return handle

    def _adapt_to(self, slot_nbytes: int) -> None:
        """Adapt how many batches may wait for the consumer to the size of a slot."""
        ready = ready_limit(self._options, slot_nbytes)
        self._min_release = max(1, min(ready, self._slots().all) // 16)
        if self._dispatcher is not None:
            self._dispatcher.limit(ready)

    def _give_back(self) -> None:
        """Give slots that the consumer has released back to their workers."""
        refs = tuple(self._released)
        for reader in dict.fromkeys(ref.reader for ref in refs):
            reader.return_slots(ref for ref in refs if ref.reader is reader)
        for _ in refs:  # only now: an exception of a signal handler must not lose them
            self._released.popleft()

    def _succeed(self, handle: WorkerHandle, status: int, *, beside: bool) -> WorkerHandle | None:
        """Handle the unexpected end of a worker: fail the feed, or return the successor."""
        dispatcher = self._dispatcher
        current = self._in_flight(handle)
        named = [name for _, name in current]
        kills_before, self._oom_kills = self._oom_kills, oom_kills() or 0
        out_of_memory = self._oom_kills > kills_before
        death = WorkerDeath(
            handle.task.index, handle.pid, status, out_of_memory, named, handle.lost
        )
        blamed = []
        began = bool(handle.pid) or not handle.task.remote
        if dispatcher is not None and began:  # items of a callable cannot be left out
            records = [record for record, _ in current]
            blamed = self._failures.count_death(records, accidental=death.accidental, beside=beside)
        fruitful = handle.delivered > 0 or bool(blamed)
        hopeless = self._failures.is_hopeless(
            handle.task.index, fruitful=fruitful, accidental=death.accidental
        )
        if self._options.on_worker_death == "raise" or hopeless:
            self._reorder.fail(death.error(), None)
            return None
        LOG.warning("%s A new worker takes its place.", str(death.error()).split("\n")[0])
        self._forget(handle)
        successor = self._add(handle.task.index, handle.channels, skip=tuple(handle.progress))
        successor.follow(handle)
        if dispatcher is None:
            _warn_of_fast_forward(handle)
            return successor
        tickets = {ticket for (ticket, _), _ in current}
        kept = [
            item._replace(payload=payload, suspect=item.ticket in tickets)
            for item in dispatcher.detach(handle.task.number)
            if (payload := self._leave_out(item, blamed, dispatcher=dispatcher)) is not None
        ]
        dispatcher.attach(successor.task.number, successor.work, inherits=kept)
        dispatcher.follow(successor.task.number, handle.task.number)
        return successor

    def _leave_out(self, item: WorkItem, blamed: list[RecordKey], *, dispatcher: Dispatcher) -> Any:
        """Return the payload of an item without the blamed records; None if nothing is left."""
        left_out = [record for ticket, record in blamed if ticket == item.ticket]
        for record in left_out:
            self._aside.append(self._describe(item, record))
            LOG.warning("set aside because its worker died each time: %s", self._aside[-1])
        payload = without(item.payload, left_out)
        if payload is None:
            self._reorder.insert(
                ProducedBatch(None, ONLY_STREAM, "", item.number),
                item.ticket if self._reorder.ordered else item.position,
                epoch=item.position,
            )
            dispatcher.give_up(item)
        return payload

    def _describe(self, item: WorkItem, record: int) -> str:
        return describe(
            item.ticket, record, payload=item.payload, indexed=self._source.reader.indexed
        )

    def _leave(self, handle: WorkerHandle) -> None:
        """Forget a worker that was retired and has ended; another may take its place."""
        self._vacant.append(handle.task.index)
        self._forget(handle)

    def _forget(self, handle: WorkerHandle) -> None:
        """Keep only the counters of a worker."""
        del self._handles[handle.task.number]
        _add_rows(self._past_rows, handle)

    def _is_busy(self, handle: WorkerHandle) -> bool:
        """Return True if a worker works for this feed now, as far as is known."""
        if self._dispatcher is not None:
            return bool(self._in_flight(handle))
        return any(
            handle.progress[handle.task.producer(thread)][0] < self._allowed
            for thread in set(range(handle.task.threads)) - handle.ended
        )

    def _in_flight(self, handle: WorkerHandle) -> list[tuple[RecordKey, str]]:
        """Return what the producers of a worker were working on, and its description. An entry in
        the status page is never cleared, only replaced. For a callable, which works before it
        yields, it may be the next item of any of the producer's streams."""
        threads, number = range(handle.task.threads), handle.task.number
        if self._dispatcher is not None:
            found = [handle.in_flight(thread, self._dispatcher) for thread in threads]
            return [
                ((key, record), self._describe(self._dispatcher.item_of(number, key), record))
                for key, _, record in found
                if self._dispatcher.has(number, key)
            ]
        return [
            (handle.progress[stream], f"batch {handle.progress[stream][1]} of producer {stream}")
            for thread in set(threads) - handle.ended
            for stream in handle.task.streams(thread)
        ]

    @property
    def aside(self) -> tuple[str, ...]:
        """Descriptions of the records that repeatedly killed their worker."""
        return tuple(self._aside)

    @property
    def depth(self) -> tuple[int, int]:
        """Number of ready batches, and the bytes of their slots."""
        count = total = 0
        for handle in list(self._handles.values()):
            ready, (borrowed, nbytes) = handle.reader.audit().ready, handle.borrowed.depth
            count += ready + borrowed
            total += ready * handle.reader.slot_nbytes + nbytes
        return count, total

    @property
    def read_s(self) -> float:
        """Seconds in which the trainer read the source for its workers."""
        return self._dispatcher.read_s if self._dispatcher is not None else 0.0

    def rows(self) -> tuple[StageRow, ...]:
        """Return the counters of each producer."""
        rows = list(self._past_rows)
        for handle in list(self._handles.values()):
            _add_rows(rows, handle)
        return tuple(rows)

    def _slots(self) -> SlotCounts:
        """Return the number of slots in each state."""
        return sum((handle.reader.audit() for handle in list(self._handles.values())), NO_SLOTS)

    def status(self) -> tuple[list[ProducerStatus], list[WorkerStatus]]:
        """Return what each producer is doing, and each worker process, without a request to it."""
        handles = list(self._handles.values())
        producers = [
            self._status_of(worker, thread)
            for worker in handles
            for thread in range(worker.task.threads)
        ]
        return producers, [
            WorkerStatus(w.task.number, w.task.index, w.pid or None, w.exited, w.place)
            for w in handles
        ]

    def _status_of(self, worker: WorkerHandle, thread: int) -> ProducerStatus:
        in_flight = worker.in_flight(thread, self._dispatcher)
        return ProducerStatus(
            kind=REMOTE if worker.task.remote else PROCESS,
            state=self._state_of(worker, thread),
            worker=worker.task.index,
            pid=worker.pid,
            tid=0,
            stream=-1 if self._dispatcher is not None else worker.task.producer(thread),
            item=in_flight.item,
            record=in_flight.record,
            counters=worker.page.row(thread),
            where=worker.place,
            number=worker.task.producer(thread),
        )

    def _state_of(self, worker: WorkerHandle, thread: int) -> int:
        """Return the state as far as it is known: what a worker waits for inside is not."""
        slots, dispatcher = worker.reader.audit(), self._dispatcher
        if thread in worker.ended:
            return FINISHED
        if worker.exited:
            return DEAD
        if not worker.pid:
            return STARTING
        if slots.all and not slots.free and not slots.filling:
            return ROOM
        if dispatcher is None:
            begun = worker.progress[worker.task.producer(thread)][0]
            return IDLE if begun >= self._allowed else MAKING
        if dispatcher.has(worker.task.number, worker.in_flight(thread, dispatcher).key):
            return MAKING
        return ROOM if dispatcher.held else INPUT

    def stacks(self) -> str:
        """Describe what every worker is doing, where the source is read, and which state the slots
        are in."""
        lines, handles = [], list(self._handles.values())
        if self._dispatcher is not None and self._dispatcher.reading:
            lines.append(f"in the trainer, {stack_of(self._dispatcher.thread)}")
        for handle in handles:
            handle.request_stacks()
        return "\n".join([*lines, *(handle.stacks() for handle in handles), str(self._slots())])


def _add_rows(rows: list[StageRow], handle: WorkerHandle) -> None:
    for thread in range(handle.task.threads):
        producer = handle.task.producer(thread)
        rows[producer] = stats.total((rows[producer], handle.page.row(thread)))


def _warn_of_fast_forward(handle: WorkerHandle) -> None:
    threads = range(handle.task.threads)
    streams = (stream for thread in threads for stream in handle.task.streams(thread))
    items = sum(handle.progress[stream][1] for stream in streams)
    if items:
        LOG.warning(
            "the new worker runs the callable again and skips the %d batches that were delivered",
            items,
        )
