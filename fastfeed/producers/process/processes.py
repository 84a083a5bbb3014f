"""Producers as worker processes, for Python code, which threads cannot run in parallel: the
trainer's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from fastfeed.core.batch import BatchSpec
from fastfeed.core.stats import SlotCounts, StageRow
from fastfeed.core.status import ProducerStatus, WorkerStatus
from fastfeed.errors import FeedError, ProducerError, SpecError
from fastfeed.options import FeedOptions
from fastfeed.producers.epoch_gate import EpochGate, EpochPlan
from fastfeed.producers.process.dispatch import Dispatcher, read
from fastfeed.producers.process.handle import WorkerChannels, WorkerHandle
from fastfeed.producers.process.shared_workers import SharedWorkers
from fastfeed.producers.process.ship import Shipment, pack
from fastfeed.producers.process.token_receiver import StopEvent, TokenReceiver
from fastfeed.producers.process.workers import WorkerGroup
from fastfeed.producers.reorder import ProducedBatch, Timeout
from fastfeed.producers.reorder import ReorderBuffer as Order
from fastfeed.producers.threads import stack_of
from fastfeed.ring.token import BATCH, END, EPOCH, FAILED, HOLE, SKIPPED, Token
from fastfeed.source import Source

Ready = tuple[WorkerHandle, Token]  # a token, and the worker that sent it


class ProcessProducers:
    """Worker processes, each with a ring of its own; all their tokens come by one pipe, in the
    order of events. `workers` are the processes: the feed that `leads` starts and ends them, and
    they make the batches of the others, too."""

    def __init__(
        self,
        source: Source,
        options: FeedOptions,
        *,
        course: EpochPlan,
        workers: SharedWorkers,
        leads: bool = True,
    ) -> None:
        self._source = source
        self._options = options
        self._lock = threading.Lock()
        ordered = source.ordered and options.order == "kept"
        streams = 1 if source.ordered else options.producers
        self._order = Order[Ready](streams, ordered=ordered, error_limit=options.error_limit)
        self._crew = WorkerGroup(source, options, course=course)
        self._gate = EpochGate(course.allowed)
        self.copied = 0  # batches that were delivered as copies
        self._stopped = False
        self.spec: BatchSpec | None = None
        self._mailbox = TokenReceiver()
        self._stop = StopEvent()
        self._shipment: Shipment | None = None
        self._leads = leads
        self._workers = workers
        workers.add(self)
        self._dispatcher: Dispatcher | None = None
        if source.ordered:
            deals = read(source, course, gate=self._gate)
            self._dispatcher = Dispatcher(
                deals, self._order, lock=self._lock, wake=self._mailbox.wake
            )

    def start(self) -> None:
        """Start the workers, if this feed leads. Raise OptionError, which names what cannot be sent
        to them."""
        if self._leads:
            self._workers.start()

    def prepare(self) -> Sequence[WorkerHandle]:
        """Pack the source; return a handle for each process."""
        self._shipment = pack((self._source.shipped, self._options.shipped()), what="the source")
        ends = WorkerChannels(self._mailbox.entrance, self._stop.seen, self._shipment)
        lanes = [self._crew.hire(n, ends, owner=self) for n in range(self._options.processes)]
        if self._dispatcher is not None:
            for lane in lanes:
                self._dispatcher.attach(lane.task.lane, lane.work)
            self._dispatcher.start()
        return lanes

    def close(self) -> None:
        """Close the packed source: no other worker will unpack it."""
        if self._shipment is not None:
            self._shipment.close()

    def allow(self, epochs: int, *, asked: int) -> None:
        """Allow `epochs` epochs in all, of which the consumer waits for `asked`."""
        self._gate.allow(epochs)
        with self._lock:
            self._order.ask(asked)
            self._crew.allow(epochs)
        if self._dispatcher is not None:
            self._dispatcher.ring()

    def take(self, timeout_s: float) -> ProducedBatch | None:
        """Return the next batch or end of epoch; None at the end. Raise the failure, or Timeout
        after `timeout_s`."""
        deadline, order = 0.0, self._order
        self._mailbox.refuse_copies()
        while True:
            with self._lock:
                if self._stopped:
                    return None
                if len(self._crew.gone) >= self._crew.hoard:
                    self._crew.give_back()
                if not order.ready or order.failure is not None:
                    self._crew.give_back()
                    self._drain()
                if order.settled():
                    made = self._hand_out(order.pop())
                    if self._dispatcher is not None:
                        self._dispatcher.taken()
                    return made
            now = time.perf_counter()
            deadline = deadline or now + timeout_s
            if now >= deadline and order.failure is None:
                raise Timeout
            self._mailbox.wait(order.patience_s(deadline - now), self._look)

    @property
    def ready(self) -> bool:
        """True if `take` would return a batch without waiting."""
        with self._lock:
            if not self._order.ready:
                self._drain()
            return any(
                not isinstance(one, ProducedBatch) and one[1][0] != HOLE
                for one in self._order.ready
            )

    def stop(self) -> None:
        """Stop the feed; the workers end if it leads. A forked copy of the trainer does nothing."""
        if self._mailbox.is_copy:
            return
        self._stopped = True
        # it holds the consumer's frames, and the shared workers hold this object
        self._order.failure = None
        self._stop.say()
        if self._leads:
            self._workers.stop()
        if self._dispatcher is not None:
            self._dispatcher.stop()
        self._mailbox.wake()

    def join(self, timeout_s: float) -> bool:
        """Wait for the workers, which must have been stopped; return True if all have ended in
        time."""
        if self._mailbox.is_copy:
            return True
        deadline = time.perf_counter() + timeout_s
        # Workers that others use go on when this feed has come to its end.
        mine = self._leads and (self._stopped or not self._workers.shared)
        ended = not mine or self._workers.supervisor.join(timeout_s)
        if self._dispatcher is not None and (mine or self._stopped):
            ended = self._dispatcher.join(max(0.0, deadline - time.perf_counter())) and ended
        if ended and self._stopped and self._lock.acquire(timeout=0.1):
            self._order.clear()
            self._lock.release()
            if mine:
                self._workers.release()
        return ended

    def release(self) -> None:
        """Close all descriptors, each when no call uses it any more."""
        self._mailbox.close()
        self._stop.close()
        self._crew.release()
        if self._dispatcher is not None:
            self._dispatcher.release()

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that look after the workers."""
        own = [] if self._dispatcher is None else [self._dispatcher.thread]
        return [self._workers.supervisor.thread, *own]

    @property
    def stopped(self) -> bool:
        """True if `stop` was called."""
        return self._stopped

    @property
    def depth(self) -> tuple[int, int]:
        """Batches that are ready, and the bytes of their slots."""
        return self._crew.depth()

    @property
    def aside(self) -> tuple[str, ...]:
        """The samples that killed their worker repeatedly."""
        return tuple(self._crew.aside)

    def rows(self) -> tuple[StageRow, ...]:
        """Return the counters of each producer."""
        return self._crew.rows()

    def audit(self) -> SlotCounts:
        """Return how many slots are in each state."""
        self.tick()
        return self._crew.audit()

    def status(self) -> tuple[list[ProducerStatus], list[WorkerStatus]]:
        """Return what each producer is doing, and each worker process."""
        return self._crew.status(self._dispatcher)

    def stacks(self) -> str:
        """Return what every worker is doing, which thread reads the source here, and who holds the
        slots."""
        reading = self._dispatcher is not None and self._dispatcher.reading
        own = (
            [f"in the trainer, {stack_of(self._dispatcher.thread)}"]
            if reading and self._dispatcher
            else []
        )
        return "\n".join([*own, self._crew.stacks()])

    def _hand_out(self, ready: Ready | ProducedBatch | None) -> ProducedBatch | None:
        if ready is None or isinstance(ready, ProducedBatch):
            return ready
        made, copied = ready[0].made(ready[1], dealt=self._dispatcher is not None)
        self.copied += copied
        return made

    def tick(self) -> None:
        """Return slots that the consumer has released, in case its next call is late."""
        if self._crew.gone and not self._mailbox.is_copy and self._lock.acquire(blocking=False):
            try:
                self._crew.give_back()
            finally:
                self._lock.release()

    def _look(self) -> bool:  # returns True if a batch has come
        with self._lock:
            self._drain()
            return bool(self._order.ready)

    def _drain(self) -> None:
        """Read every token that has come. Under the lock, as everything below."""
        more = not self._stopped
        unread = self._mailbox.unread
        while more:
            more = self._mailbox.fetch()
            while unread:
                self._take_in(unread[0])
                unread.popleft()

    def _take_in(self, token: Token) -> None:
        kind, thread, slot, key, _, _, _, number = token
        lane = self._crew.lanes.get(number)
        if lane is None:
            return
        if kind in (BATCH, HOLE):
            if kind == BATCH and not (lane.agreed and lane.reader.knows(slot)):
                if not lane.learn_of(slot):
                    return
                self._agree(lane)
                ready = self._crew.limit(max(1, lane.reader.slot_nbytes))
                if self._dispatcher is not None:
                    self._dispatcher.ready_limit = ready
            if not lane.odd:
                self._insert(token, lane)
        elif kind == EPOCH and self._dispatcher is None:
            lane.end_epoch(thread, key)
            self._order.end_epoch(key)
        elif kind == END and thread not in lane.ended:
            lane.ended.add(thread)
            if self._dispatcher is None:
                self._order.end()
        elif kind == FAILED:
            lane.failed = True
            self._order.fail(*lane.error(b"E"), epoch=key)
        elif kind == SKIPPED:
            self._order.skip(*lane.error(b"K"), epoch=key)

    def _insert(self, token: Token, lane: WorkerHandle) -> None:
        _, stream, _, key, item, _, _, number = token
        lane.delivered += 1
        if self._dispatcher is None:
            lane.progress[stream] = (key, item + 1)
            self._order.insert((lane, token), key)
            return
        if self._dispatcher.has(number, key):
            position = self._dispatcher.deal(number, key).position
            self._order.insert((lane, token), key if self._order.ordered else position)
            self._dispatcher.received(number, key)

    def _agree(self, lane: WorkerHandle) -> None:
        """Check that all workers make the same batches; the first one sets the spec."""
        self.spec = self.spec or lane.spec
        difference = lane.agree(self.spec)
        if difference:
            self._order.fail(
                SpecError(f"worker process {lane.task.index} makes other batches: {difference}"),
                None,
            )

    def failed(self, error: Exception) -> None:
        """Note that workers cannot be started."""
        with self._lock:
            failure = (
                error
                if isinstance(error, FeedError)
                else ProducerError(f"no worker could be started: {error}")
            )
            self._order.fail(failure, None)
        self._mailbox.wake()

    def busy(self, lane: WorkerHandle) -> bool:
        """Return True if a worker makes something for this feed."""
        return not self._stopped and self._crew.busy(lane, self._dispatcher)

    def exited(self, lane: WorkerHandle, status: int, *, beside: bool) -> WorkerHandle | None:
        """Note that a worker has ended; return the one to start in its place."""
        if self._stopped:  # a signal handler that calls stop() may hold the lock
            lane.exited = True
            lane.close()
            return None
        with self._lock:
            self._drain()
            lane.exited = True
            lane.close()
            well = lane.failed or len(lane.ended) == lane.task.threads
            heir, dealer = None, self._dispatcher
            if not well:
                heir = self._crew.succeed(
                    lane, status, order=self._order, dispatcher=dealer, beside=beside
                )
            if heir is None and dealer is not None:
                dealer.detach(lane.task.lane)
        self._mailbox.wake()
        return heir
