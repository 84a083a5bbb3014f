"""The worker processes of one feed: their handles, what each has done, and what replaces one that
has died."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, NamedTuple

from fastfeed.core import stats
from fastfeed.core.machine import oom_kills
from fastfeed.core.position import ONLY_STREAM
from fastfeed.core.stats import NO_SLOTS, SlotCounts, StageRow
from fastfeed.core.status import ProducerStatus, WorkerStatus
from fastfeed.options import FeedOptions
from fastfeed.producers.epoch_gate import EpochPlan
from fastfeed.producers.failure import Death
from fastfeed.producers.process.dispatch import Dispatcher
from fastfeed.producers.process.failure_counter import FailureCounter, describe, without
from fastfeed.producers.process.handle import WorkerChannels, WorkerHandle
from fastfeed.producers.process.inbox import ALLOWED
from fastfeed.producers.process.main import WorkerTask
from fastfeed.producers.process.worker_status import producers_of
from fastfeed.producers.reorder import LOG, ProducedBatch, ReorderBuffer
from fastfeed.ring.layout import MOST_SLOTS, SMALL_NBYTES
from fastfeed.ring.reader import Hold
from fastfeed.ring.status_page import NOTHING
from fastfeed.source import Source

BUFFERED = 16  # batches in flight over all workers, at least
# slots of a worker, if memory= has room for them, for batches that wait for a straggler
EARLY = 128
Skips = tuple[tuple[int, int], ...]


class LostItem(NamedTuple):
    """What a producer had of a stream when its process died; see ring.status_page.InFlight."""

    stream: int
    key: int
    item: int
    record: int


class WorkerGroup:
    """The workers of a feed. Methods are called under the feed's lock, except those that only
    read."""

    def __init__(self, source: Source, options: FeedOptions, *, course: EpochPlan) -> None:
        self._indexed = source.indexed
        self._dispatched = source.ordered
        self._reorders = source.ordered and options.order == "kept"
        self._options = options
        self._course = course
        self._allowed = course.allowed
        self.lanes: dict[int, WorkerHandle] = {}
        self.gone: deque[Hold] = deque()  # slots without references
        self.hoard = 1  # as many as are worth a message
        self.aside: list[str] = []  # samples that killed their worker repeatedly
        self._hired = 0
        # counters of workers that have died
        self._before = [StageRow() for _ in range(options.producers)]
        self._strikes = FailureCounter()
        self._oom_kills = oom_kills() or 0

    def hire(
        self, index: int, ends: WorkerChannels, *, owner: Any = None, skip: Skips | None = None
    ) -> WorkerHandle:
        """Return the handle of the `index`-th worker, or of its successor, which skips what was
        delivered."""
        options = self._options
        processes, threads = options.processes, options.threads
        skip = skip or self._passed()
        task = WorkerTask(
            lane=self._hired,
            index=index,
            count=len(self._course.passed) or options.producers,
            producers=options.producers,
            threads=threads,
            seed=self._course.seed,
            first_epoch=self._course.epochs.start,
            epochs=len(self._course.epochs),
            skip=skip,
            dispatched=self._dispatched,
            rank=(options.shard or (0, 1))[0],
            allowed=self._allowed,
            budget=options.memory_nbytes // processes,
            wanted=self.ready_limit() // processes + threads + 1 + (EARLY if self._reorders else 0),
            nbytes=ends.shipment.nbytes,
        )
        self._hired += 1
        lane = self.lanes[task.lane] = WorkerHandle(task, self.gone, ends=ends, owner=owner)
        return lane

    def _passed(self) -> Skips:
        passed = self._course.passed
        return tuple(
            (0, items) for items in (*passed, *(0,) * (self._options.producers - len(passed)))
        )

    def allow(self, epochs: int) -> None:
        """Allow `epochs` epochs in all; where the trainer sends the items, workers need not
        know."""
        if epochs <= self._allowed:
            return
        self._allowed = epochs
        if not self._dispatched:
            for lane in self.lanes.values():
                with contextlib.suppress(OSError):  # it has ended
                    lane.work.send(ALLOWED.pack(self._allowed))

    def ready_limit(self, slot_nbytes: int = SMALL_NBYTES) -> int:
        """Return how many batches may wait for the consumer: more if they are small, which costs
        fewer wake-ups."""
        small = self._options.processes * min(MOST_SLOTS, SMALL_NBYTES // slot_nbytes)
        return max(BUFFERED, 4 * self._options.producers, small)

    def limit(self, slot_nbytes: int) -> int:
        """Return how many batches may wait for the consumer, now that the size of a slot is
        known."""
        ready = self.ready_limit(slot_nbytes)
        self.hoard = max(1, min(ready, self.audit().all) // 16)
        return ready

    def give_back(self) -> None:
        """Return slots that the consumer has released to their workers."""
        holds = tuple(self.gone)
        for reader in dict.fromkeys(h.reader for h in holds):
            reader.take_back(h for h in holds if h.reader is reader)
        for _ in holds:  # only now: an exception of a signal handler must not lose them
            self.gone.popleft()

    def status(
        self, dispatcher: Dispatcher | None
    ) -> tuple[list[ProducerStatus], list[WorkerStatus]]:
        """Return what each producer is doing, and each worker process."""
        lanes = list(self.lanes.values())
        producers = [p for w in lanes for p in producers_of(w, dispatcher, allowed=self._allowed)]
        workers = [WorkerStatus(w.task.lane, w.task.index, w.pid, w.pidfd, w.exited) for w in lanes]
        return producers, workers

    def busy(self, lane: WorkerHandle, dispatcher: Dispatcher | None) -> bool:
        """Return True if a worker makes something for this feed now, as far as is known."""
        if dispatcher is not None:
            return bool(_hands(lane, dispatcher))
        working = [lane.task.producer(t) for t in range(lane.task.threads) if t not in lane.ended]
        return any(lane.progress[producer][0] < self._allowed for producer in working)

    def succeed(
        self,
        lane: WorkerHandle,
        status: int,
        *,
        order: ReorderBuffer[Any],
        dispatcher: Dispatcher | None,
        beside: bool,
    ) -> WorkerHandle | None:
        """Handle the end of a worker that should not have ended: fail the feed, or return its
        successor."""
        hands = _hands(lane, dispatcher)
        death = self._death(
            lane, status, named=[self._name(lane, hand, dispatcher=dispatcher) for hand in hands]
        )
        guilty = []
        if dispatcher is not None:  # nothing of a callable can be left out
            samples = [(h.key, h.record) for h in hands]
            guilty = self._strikes.blame(samples, accidental=death.accidental, beside=beside)
        fruitful = lane.delivered > 0 or bool(guilty)
        hopeless = self._strikes.hopeless(
            lane.task.index, fruitful=fruitful, accidental=death.accidental
        )
        if self._options.on_worker_death == "raise" or hopeless:
            order.fail(death.error(), None)
            return None
        LOG.warning("%s A new worker takes its place.", str(death.error()).split("\n")[0])
        self._forget(lane)
        heir = self.hire(lane.task.index, lane.ends, owner=lane.owner, skip=tuple(lane.progress))
        heir.ended = set(lane.ended)
        if dispatcher is None:
            _say_fast_forward(lane)
            return heir
        kept = []
        for deal in dispatcher.detach(lane.task.lane):
            records = [record for ticket, record in guilty if ticket == deal.ticket]
            self._set_aside(deal.ticket, records, payload=deal.payload)
            payload = without(deal.payload, records)
            if payload is None:
                order.insert(
                    ProducedBatch(None, ONLY_STREAM, "", deal.number),
                    deal.ticket if order.ordered else deal.position,
                )
                dispatcher.give_up(deal)
            else:
                suspect = any(hand.key == deal.ticket for hand in hands)
                kept.append(deal._replace(payload=payload, suspect=suspect))
        dispatcher.attach(heir.task.lane, heir.work, inherits=kept)
        return heir

    def release(self) -> None:
        """Close everything: the feed was stopped, and every worker has ended."""
        for lane in self.lanes.values():
            lane.release()

    def rows(self) -> tuple[StageRow, ...]:
        """Return the counters of each producer."""
        rows = list(self._before)
        for lane in list(self.lanes.values()):
            for thread in range(lane.task.threads):
                producer = lane.task.producer(thread)
                rows[producer] = stats.total((rows[producer], lane.board.row(thread)))
        return tuple(rows)

    def audit(self) -> SlotCounts:
        """Return how many slots are in each state."""
        return sum((lane.reader.audit() for lane in list(self.lanes.values())), NO_SLOTS)

    def depth(self) -> tuple[int, int]:
        """Batches that are ready, and the bytes of their slots."""
        ready = [
            (lane.reader.audit().ready, lane.reader.slot_nbytes)
            for lane in list(self.lanes.values())
        ]
        return sum(n for n, _ in ready), sum(n * nbytes for n, nbytes in ready)

    def stacks(self) -> str:
        """Return what every worker is doing, and who holds the slots."""
        lanes = list(self.lanes.values())
        for lane in lanes:
            lane.ask_for_stacks()
        return "\n".join([*(lane.stacks() for lane in lanes), str(self.audit())])

    def _death(self, lane: WorkerHandle, status: int, *, named: list[str]) -> Death:
        before, self._oom_kills = self._oom_kills, oom_kills() or 0
        return Death(lane.task.index, lane.pid, status, self._oom_kills > before, named)

    def _name(self, lane: WorkerHandle, hand: LostItem, *, dispatcher: Dispatcher | None) -> str:
        """Return in words what was in flight."""
        if dispatcher is None:
            return f"batch {hand.item} of producer {hand.stream}"
        payload = dispatcher.deal(lane.task.lane, hand.key).payload
        return describe(hand.key, hand.record, payload=payload, indexed=self._indexed)

    def _set_aside(self, ticket: int, records: list[int], *, payload: Any) -> None:
        for record in records:
            self.aside.append(describe(ticket, record, payload=payload, indexed=self._indexed))
            LOG.warning("set aside, for its worker died each time: %s", self.aside[-1])

    def _forget(self, lane: WorkerHandle) -> None:
        del self.lanes[lane.task.lane]
        for thread in range(lane.task.threads):
            producer = lane.task.producer(thread)
            self._before[producer] = stats.total((self._before[producer], lane.board.row(thread)))


def _hands(lane: WorkerHandle, dispatcher: Dispatcher | None) -> list[LostItem]:
    return [
        hand
        for thread in range(lane.task.threads)
        for hand in _in_hand(lane, thread, dispatcher=dispatcher)
    ]


def _in_hand(lane: WorkerHandle, thread: int, *, dispatcher: Dispatcher | None) -> list[LostItem]:
    """Return what a producer was making: nothing, or one thing. The entry is never cleared, only
    replaced; and it does not show what a callable does before it yields: that may be the next item
    of any of its streams."""
    if dispatcher is not None:
        hand = lane.board.hand(thread)
        return [LostItem(ONLY_STREAM, *hand)] if dispatcher.has(lane.task.lane, hand.key) else []
    streams = () if thread in lane.ended else lane.task.streams(thread)
    return [LostItem(stream, *lane.progress[stream], NOTHING) for stream in streams]


def _say_fast_forward(lane: WorkerHandle) -> None:
    streams = (
        stream for thread in range(lane.task.threads) for stream in lane.task.streams(thread)
    )
    items = sum(lane.progress[stream][1] for stream in streams)
    if items:
        LOG.warning(
            "the new worker runs the callable again and skips the %d batches that were delivered",
            items,
        )
