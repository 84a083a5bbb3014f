"""The loop of every producer: read, make a batch, hand it over, and account for each second."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from fastfeed.core.batch import Batch
from fastfeed.core.position import ALL_DONE, ONLY_STREAM
from fastfeed.core.worker import Worker
from fastfeed.errors import FeedError, ProducerFailed
from fastfeed.producers.builder import BatchBuilder, Outlet
from fastfeed.producers.reorder import END_OF_EPOCH, ProducedBatch
from fastfeed.ring.writer import Stopped
from fastfeed.source import EpochEnd, Item, Source

POLITE = 5  # niceness
CPU_EVERY_S = 0.001  # asking for CPU time is a system call


@dataclass
class _Turn:
    """One of a producer's streams, the number of its next item, and its draws when the producer
    left it."""

    worker: Worker
    items: Iterator[Item]
    number: int
    drawn: Any = None


class Producer:
    """One producer. `run` returns when its streams are produced, the feed was stopped, or it
    failed.

    It makes a stream for each of `workers`: one, or another number where a run is resumed that
    other producers began. `skip` epochs were produced already, and of the next one what each worker
    has passed.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        source: Source,
        maker: BatchBuilder,
        outlet: Outlet,
        epochs: range,
        skip: int = 0,
    ) -> None:
        self.row = outlet.row
        self._workers = [replace(worker, allocate=outlet.allocate) for worker in workers]
        self._source = source
        self._maker = maker
        self._outlet = outlet
        self._epochs = epochs
        self._skip = skip
        self._stream = ONLY_STREAM  # of the item in flight
        self._item = 0  # its number in the epoch
        # when the last item was complete, and how long it had waited until then
        self._since = self._waited = 0.0
        self._cpu = self._cpu_seen = 0.0

    def run(self) -> None:
        """Produce until the end. Never raises: a failure leaves like a batch."""
        outlet = self._outlet
        self._since, self._cpu = time.perf_counter(), time.thread_time()
        try:
            for position, epoch in enumerate(self._epochs):
                if position < self._skip:
                    continue
                if not outlet.admit(position):
                    return
                outlet.position = position
                workers = [
                    w if position == self._skip else replace(w, passed=0) for w in self._workers
                ]
                # streams that were delivered to their end are not even opened
                todo = [replace(w, epoch=epoch) for w in workers if w.passed < ALL_DONE]
                if not self._run_epoch(todo, position):
                    return
                outlet.end_epoch(position)
        except Stopped:
            return
        except FeedError as error:
            outlet.fail(error, getattr(error, "ticket", None) if outlet.ordered else None)
        except BaseException as error:  # any failure of the source itself
            outlet.fail(ProducerFailed(self._place(None), error), None)
        finally:
            self.row.cpu_s = time.thread_time() - self._cpu
            with contextlib.suppress(Stopped):
                outlet.end()

    @property
    def in_flight(self) -> tuple[int, int]:
        """The stream, -1 where there is only one, and the item in the epoch that are produced."""
        return -1 if self._source.ordered else self._stream, self._item

    def _run_epoch(self, workers: Sequence[Worker], position: int) -> bool:
        """Produce an item of each stream in turn, or the only stream at once."""
        turns = deque(_Turn(worker, self._source.open(worker), worker.passed) for worker in workers)
        try:
            while turns:
                turn, item = turns[0], None
                self._stream, self._item = turn.worker.index, turn.number
                self._maker.begin(turn.worker, turn.drawn)
                for item in islice(turn.items, 1 if len(turns) > 1 else None):
                    self._item = item.number
                    if not self._pass_on(item, position, worker=turn.worker):
                        return False
                    self._item += 1
                if item is None or len(turns) == 1:
                    turns.popleft()
                else:
                    turn.number, turn.drawn = self._item, self._maker.drawn()
                    turns.rotate(-1)
            return True
        finally:
            for turn in turns:
                turn.items.close()  # type: ignore[attr-defined]  # every source opens a generator

    def _pass_on(self, item: Item, position: int, *, worker: Worker) -> bool:
        ticket, payload, number = item
        outlet = self._outlet
        key = ticket if outlet.ordered and ticket is not None else position
        if payload is EpochEnd:  # without order every producer reports the end itself, in end_epoch
            return not outlet.ordered or outlet.put(END_OF_EPOCH, key, item=number, spec=None)
        place = self._place(ticket)
        try:
            batch = self._maker.make(payload, place, outlet=outlet, worker=worker, at=(key, number))
        except ProducerFailed as error:
            if not self._maker.skips:
                outlet.fail(error, ticket if outlet.ordered else None)
                return False
            self.row.errors += 1
            outlet.skip(error, ticket if outlet.ordered else None)
            batch = None
        except FeedError as error:
            outlet.fail(error, ticket if outlet.ordered else None)
            return False
        self._account(batch)
        stream = ONLY_STREAM if ticket is not None else worker.index
        return outlet.put(
            ProducedBatch(batch, stream, place, number), key, item=number, spec=self._maker.spec
        )

    def _account(self, batch: Batch | None) -> None:
        """Count all the time since the last item that was not spent waiting."""
        row, now = self.row, time.perf_counter()
        waited = row.wait_in_s + row.wait_out_s
        row.busy_s += now - self._since - (waited - self._waited)
        self._since, self._waited = now, waited
        if now - self._cpu_seen > CPU_EVERY_S:
            row.cpu_s, self._cpu_seen = time.thread_time() - self._cpu, now
        if batch is None:
            row.skipped += 1
            return
        row.batches += 1
        row.records += batch.rows
        row.nbytes += batch.nbytes

    def _place(self, ticket: int | None) -> str:
        if ticket is not None:
            return f"batch {ticket}"
        return f"batch {self._item} of producer {self._stream}"


def run_politely(producer: Producer) -> None:
    """Run a producer in a thread that gives way to those of the training. Linux has a niceness for
    each thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), POLITE)
    producer.run()
