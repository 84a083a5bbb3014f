"""Producers as worker processes: for Python code, which threads cannot run in parallel. The trainer's end."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from fastfeed import stats
from fastfeed.batch import BatchSpec
from fastfeed.errors import FeedError, ProducerError, SpecError
from fastfeed.machine import oom_kills
from fastfeed.options import FeedOptions
from fastfeed.producers.dispatch import Dispatcher, read
from fastfeed.producers.failure import Death
from fastfeed.producers.lane import Lane
from fastfeed.producers.sequence import LOG, Made, Timeout
from fastfeed.producers.sequence import Sequence as Order
from fastfeed.producers.ship import pack
from fastfeed.producers.strikes import Strikes, describe, without
from fastfeed.producers.supervisor import Supervisor
from fastfeed.producers.worker import Task
from fastfeed.ring.board import Hand
from fastfeed.ring.memory import Descriptor
from fastfeed.ring.reader import copied
from fastfeed.ring.token import BATCH, END, EPOCH, FAILED, FORMAT, HOLE, READ_NBYTES, SKIPPED, Token
from fastfeed.source import Source
from fastfeed.stats import NO_SLOTS, Audit, StageRow

POLL_MS = 200
BUFFERED = 16  # batches in flight over all workers, at least


class ProcessProducers:
    """Worker processes, each with a ring of its own; all their tokens come by one pipe, in the order of events."""

    def __init__(self, source: Source, options: FeedOptions, *, seed: int, epochs: range) -> None:
        self._source = source
        self._options = options
        self._seed = seed
        self._epochs = epochs
        self._pid = os.getpid()
        self._lock = threading.Lock()
        ordered = source.ordered and options.order == "kept"
        streams = 1 if source.ordered else options.producers
        self._order = Order(streams, ordered=ordered, error_limit=options.error_limit)
        self._lanes: dict[int, Lane] = {}
        self._next_lane = 0
        self._before = [StageRow() for _ in range(options.producers)]  # what workers did that have died
        self._strikes = Strikes()
        self._aside: list[str] = []
        self._copied = 0
        self._stopped = False
        self._oom_kills = oom_kills() or 0
        self.spec: BatchSpec | None = None
        self._tokens, tokens = map(Descriptor, os.pipe2(os.O_CLOEXEC))
        os.set_blocking(self._tokens.fd, False)
        self._bell = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._poll = select.poll()
        self._poll.register(self._tokens.fd, select.POLLIN)
        self._poll.register(self._bell.fd, select.POLLIN)
        self._supervisor = Supervisor(tokens, exited=self._exited, failed=self._failed)
        self._dispatcher: Dispatcher | None = None
        if source.ordered:
            deals = read(source, seed=seed, epochs=epochs)
            self._dispatcher = Dispatcher(deals, self._order, lock=self._lock, wake=self._wake)

    def start(self) -> None:
        """Packs the source and has the workers started; OptionError names what cannot be sent to them."""
        shipment = pack((self._source.shipped, self._options), what="the source")
        self._nbytes = shipment.nbytes
        nothing = ((0, 0),) * self._options.threads
        lanes = [self._new_lane(index, nothing) for index in range(self._options.processes)]
        self._supervisor.start(lanes, shipment)
        if self._dispatcher is not None:
            self._dispatcher.start()

    def take(self, timeout_s: float) -> Made | None:
        """The next batch or end of epoch; None at the end. Raises the failure, or Timeout after `timeout_s`."""
        deadline = 0.0
        order = self._order
        while True:
            with self._lock:
                if not order.ready or order.failure is not None:
                    self._drain()
                if self._stopped:
                    return None
                if order.settled():
                    return self._hand_out(order.ready.popleft()) if order.ready else None
            now = time.perf_counter()
            deadline = deadline or now + timeout_s
            if now >= deadline and order.failure is None:
                raise Timeout
            self._wait(order.patience_s(deadline - now))

    def stop(self) -> None:
        """Nobody takes any more; the workers end. A forked copy of the trainer has no say in this."""
        if os.getpid() != self._pid:
            return
        self._stopped = True
        self._supervisor.stop()
        if self._dispatcher is not None:
            self._dispatcher.stop()
        self._wake()

    def join(self, timeout_s: float) -> bool:
        """Waits for the workers, which must have been told to end; whether all have, within the limit."""
        if os.getpid() != self._pid:
            return True
        deadline = time.perf_counter() + timeout_s
        ended = self._supervisor.join(timeout_s)
        if self._dispatcher is not None:
            ended = self._dispatcher.join(max(0.0, deadline - time.perf_counter())) and ended
        if ended and self._stopped and self._lock.acquire(timeout=0.1):
            self._order.clear()
            self._lock.release()
        return ended

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    @property
    def depth(self) -> tuple[int, int]:
        """Batches that are ready, and the bytes of their slots."""
        ready = [(lane.reader.audit().ready, lane.reader.slot_nbytes) for lane in list(self._lanes.values())]
        return sum(n for n, _ in ready), sum(n * nbytes for n, nbytes in ready)

    @property
    def copied(self) -> int:
        """Batches that were handed out as copies."""
        return self._copied

    @property
    def aside(self) -> tuple[str, ...]:
        """The samples that killed their worker again and again."""
        return tuple(self._aside)

    def rows(self) -> tuple[StageRow, ...]:
        """What each producer has done."""
        threads = self._options.threads
        rows = list(self._before)
        for lane in list(self._lanes.values()):
            for thread in range(threads):
                producer = lane.task.index * threads + thread
                rows[producer] = stats.total((rows[producer], lane.board.row(thread)))
        return tuple(rows)

    def audit(self) -> Audit:
        """Where every slot is."""
        return sum((lane.reader.audit() for lane in list(self._lanes.values())), NO_SLOTS)

    def stacks(self) -> str:
        """What every worker is doing, and who holds the slots."""
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.ask_for_stacks()
        return "\n".join([*(lane.stacks() for lane in lanes), f"{self.audit()}"])

    def _hand_out(self, made: Made) -> Made:
        batch = made.batch
        if batch is None or batch.lease is None or batch.lease.hand_out():
            return made
        self._copied += 1
        return made._replace(batch=copied(batch))

    def _wait(self, seconds: float) -> None:
        for fd, _ in self._poll.poll(min(max(seconds, 0.0) * 1000 + 1, POLL_MS)):
            if fd == self._bell.fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)

    def _wake(self) -> None:
        os.eventfd_write(self._bell.fd, 1)

    def _drain(self) -> None:
        """Takes in every token that has come. Under the lock, as all that follows."""
        while True:
            try:
                data = os.read(self._tokens.fd, READ_NBYTES)
            except BlockingIOError:
                return
            for fields in FORMAT.iter_unpack(data):
                self._take_in(Token._make(fields))
            if len(data) < READ_NBYTES:
                return

    def _take_in(self, token: Token) -> None:
        lane = self._lanes[token.lane]
        kind = token.kind
        if kind == BATCH:
            batch = lane.open(token)
            if lane.spec is not self.spec:
                self._agree(lane)
            self._insert(Made(batch, *self._origin(lane, token)), lane, token=token)
        elif kind == HOLE:
            self._insert(Made(None, *self._origin(lane, token)), lane, token=token)
        elif kind == EPOCH and self._dispatcher is None:
            lane.progress[token.thread] = (token.key + 1, 0)
            self._order.end_epoch(token.key)
        elif kind == END and token.thread not in lane.ended:
            lane.ended.add(token.thread)
            if self._dispatcher is None:
                self._order.end()
        elif kind == FAILED:
            lane.failed = True
            self._order.fail(*lane.error())
        elif kind == SKIPPED:
            self._order.skip(*lane.error())

    def _origin(self, lane: Lane, token: Token) -> tuple[int, str]:
        if self._dispatcher is not None:
            return -1, f"batch {token.key}"
        producer = lane.task.index * lane.task.threads + token.thread
        return producer, f"batch {token.item} of producer {producer}"

    def _insert(self, made: Made, lane: Lane, *, token: Token) -> None:
        lane.delivered += 1
        key = token.key
        if self._dispatcher is None:
            lane.progress[token.thread] = (key, token.item + 1)
            self._order.insert(made, key)
            return
        position = self._dispatcher.deal(lane.task.lane, key).position
        self._order.insert(made, key if self._order.ordered else position)
        self._dispatcher.received(lane.task.lane, key)

    def _agree(self, lane: Lane) -> None:
        """All workers must make the same batches; the first one says which."""
        if self.spec is None:
            self.spec = lane.spec
        elif lane.spec is not None:
            difference = self.spec.difference(lane.spec)
            if difference:
                self._order.fail(SpecError(f"worker process {lane.task.index} makes other batches: {difference}"), None)
            lane.spec = self.spec

    def _new_lane(self, index: int, skip: tuple[tuple[int, int], ...]) -> Lane:
        options = self._options
        processes, threads = options.processes, options.threads
        task = Task(
            lane=self._next_lane,
            index=index,
            count=options.producers,
            threads=threads,
            seed=self._seed,
            first_epoch=self._epochs.start,
            epochs=len(self._epochs),
            skip=skip,
            dispatched=self._dispatcher is not None,
            budget=options.memory_nbytes // processes,
            wanted=max(BUFFERED, 4 * options.producers) // processes + threads + 1,
            nbytes=self._nbytes,
        )
        self._next_lane += 1
        lane = self._lanes[task.lane] = Lane(task)
        if self._dispatcher is not None:
            self._dispatcher.attach(task.lane, lane.work)
        return lane

    def _failed(self, error: Exception) -> None:
        """Workers cannot be started."""
        with self._lock:
            failure = error if isinstance(error, FeedError) else ProducerError(f"no worker could be started: {error}")
            self._order.fail(failure, None)
        self._wake()

    def _exited(self, lane: Lane, status: int) -> Lane | None:
        """A worker has ended; the one to start in its place."""
        with self._lock:
            self._drain()
            lane.exited = True
            lane.close()
            well = lane.failed or (status == 0 and len(lane.ended) == lane.task.threads)
            heir = None if well or self._stopped else self._bury(lane, status)
            if heir is None and self._dispatcher is not None:
                self._dispatcher.detach(lane.task.lane)
        self._wake()
        return heir

    def _bury(self, lane: Lane, status: int) -> Lane | None:
        """The end of a worker that should not have ended; its successor where there is to be one."""
        hands = lane.in_hand()
        oom_now = oom_kills() or 0
        named = [self._name(lane, hand) for hand in hands]
        death = Death(lane.task.index, lane.pid, status, oom_now > self._oom_kills, named)
        self._oom_kills = oom_now
        hopeless = self._strikes.hopeless(lane.task.index, fruitful=lane.delivered > 0)
        if self._options.on_worker_death == "raise" or hopeless:
            self._order.fail(death.error(), None)
            return None
        LOG.warning("%s A new worker takes its place.", str(death.error()).split("\n")[0])
        del self._lanes[lane.task.lane]
        for thread in range(lane.task.threads):
            producer = lane.task.index * lane.task.threads + thread
            self._before[producer] = stats.total((self._before[producer], lane.board.row(thread)))
        heir = self._new_lane(lane.task.index, tuple(lane.progress))
        heir.ended = set(lane.ended)
        if self._dispatcher is not None:
            self._bequeath(lane, heir, guilty=self._strikes.blame(hands, accidental=death.accidental))
        return heir

    def _name(self, lane: Lane, hand: Hand) -> str:
        """What a hand holds, in words."""
        if self._dispatcher is None:
            return f"batch {hand.item}"
        deal = self._dispatcher.deal(lane.task.lane, hand.key)
        return describe(hand, None if deal is None else deal.payload, indexed=self._source.indexed)

    def _bequeath(self, lane: Lane, heir: Lane, *, guilty: list[Hand]) -> None:
        """The successor begins with what the dead worker had, without what has killed too often."""
        assert self._dispatcher is not None
        deals = []
        for deal in self._dispatcher.detach(lane.task.lane):
            killers = [h for h in guilty if h.key == deal.ticket]
            for hand in killers:
                self._aside.append(describe(hand, deal.payload, indexed=self._source.indexed))
                LOG.warning("set aside, for its worker died each time: %s", self._aside[-1])
            payload = without(deal.payload, [h.record for h in killers])
            if payload is None:
                key = deal.ticket if self._order.ordered else deal.position
                self._order.insert(Made(None, -1, ""), key)
                self._dispatcher.give_up(deal)
            else:
                deals.append(deal._replace(payload=payload))
        self._dispatcher.bequeath(deals, heir.task.lane)
