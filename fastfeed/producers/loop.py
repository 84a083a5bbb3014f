"""Loop that every producer runs: read, build a batch, put it, and account for each second."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from fastfeed.core.batch import Batch
from fastfeed.core.position import ALL_DONE, ONLY_STREAM
from fastfeed.core.stage_clock import READ
from fastfeed.core.worker import Worker
from fastfeed.errors import FeedError, FeedStopped, ProducerFailed
from fastfeed.producers.builder import BatchBuilder, Outlet
from fastfeed.producers.reorder import END_OF_EPOCH, ProducedBatch
from fastfeed.ring.writer import Stopped
from fastfeed.source import EpochEnd, Item, Source

NICENESS = 5  # niceness
CPU_INTERVAL_S = 0.001  # reading the CPU time is a system call


@dataclass
class _OpenStream:
    """Open stream of a producer: its next item's number, and the generator states from when it was
    left."""

    worker: Worker
    items: Iterator[Item]
    number: int
    states: Any = None


class Producer:
    """One producer. `run` returns when its streams are done, the feed is stopped, or it has failed.

    It produces one stream for each of `workers`: usually one, or another number if it resumes a run
    that other producers began. It skips `skip` epochs, and in the next one what each worker has
    passed.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        source: Source,
        builder: BatchBuilder,
        outlet: Outlet,
        epochs: range,
        skip: int = 0,
    ) -> None:
        self.row, self._clock = outlet.row, outlet.clock
        self._workers = [replace(worker, allocate=outlet.allocate) for worker in workers]
        self._source = source
        self._builder = builder
        self._outlet = outlet
        self._epochs = epochs
        self._skip = skip
        self._stream = ONLY_STREAM  # of the current item
        self._item = 0  # its number in its epoch
        self._cpu = self._cpu_read_at = 0.0

    def run(self) -> None:
        """Run all epochs. A failure goes through the outlet like a batch; raise only if the outlet
        cannot take it. Whoever runs the producer must then make that seen."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Run as `run` does, and yield after each item and each epoch."""
        outlet = self._outlet
        self._clock.skip()
        self._cpu = time.thread_time()
        try:
            yield from self._run_epochs()
            self._end()
        except Stopped:
            return
        except BaseException as error:
            # Only an end that the source has come to, or a failure that was reported, is an end.
            with contextlib.suppress(Stopped):
                # FeedStopped: of another runner, which the source reads
                if not isinstance(error, FeedError) or isinstance(error, FeedStopped):
                    error = ProducerFailed(self._place(None), error)
                outlet.fail(error, getattr(error, "ticket", None) if outlet.ordered else None)
                self._end()

    def _end(self) -> None:
        self._clock.settle()
        self.row.cpu_s = time.thread_time() - self._cpu
        self._outlet.end()

    @property
    def in_flight(self) -> tuple[int, int]:
        """The stream, -1 where there is only one, and the item in the epoch that are produced."""
        return -1 if self._source.ordered else self._stream, self._item

    def _run_epochs(self) -> Iterator[None]:
        for position, epoch in enumerate(self._epochs):
            if position < self._skip:
                continue
            self._clock.settle()
            if not self._outlet.admit(position):
                return
            self._clock.skip()  # the wait for the next pass
            workers = [w if position == self._skip else replace(w, passed=0) for w in self._workers]
            # A stream that was delivered to its end is not even opened.
            todo = [replace(w, epoch=epoch) for w in workers if w.passed < ALL_DONE]
            if not (yield from self._run_epoch(todo, position)):
                return
            self._outlet.end_epoch(position)
            yield

    def _run_epoch(self, workers: Sequence[Worker], position: int) -> Generator[None, None, bool]:
        """Produce one item of each stream in turn, or the only stream at once. Return False to
        end."""
        streams = deque(
            _OpenStream(worker, self._source.open(worker), worker.passed) for worker in workers
        )
        try:
            while streams:
                stream, item = streams[0], None
                self._stream, self._item = stream.worker.index, stream.number
                self._builder.begin(stream.worker, stream.states)
                for item in islice(stream.items, 1 if len(streams) > 1 else None):
                    self._item = item.number
                    if not self._deliver(item, position, worker=stream.worker):
                        return False
                    self._item += 1
                    yield
                if item is None or len(streams) == 1:
                    streams.popleft()
                else:
                    stream.number = self._item
                    stream.states = self._builder.generator_states()
                    streams.rotate(-1)
            return True
        finally:
            for stream in streams:
                stream.items.close()  # type: ignore[attr-defined]  # every source opens a generator

    def _deliver(self, item: Item, position: int, *, worker: Worker) -> bool:
        ticket, payload, number = item
        outlet = self._outlet
        key = ticket if outlet.ordered and ticket is not None else position
        if payload is EpochEnd:  # without order, every producer reports it in end_epoch
            return not outlet.ordered or outlet.put(END_OF_EPOCH, key, item=number, spec=None)
        place = self._place(ticket)
        try:
            batch = self._builder.build(
                payload, place, outlet=outlet, worker=worker, at=(key, number)
            )
        except ProducerFailed as error:
            if not self._builder.skips:
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
        produced = ProducedBatch(batch, stream, place, number)
        goes_on = outlet.put(produced, key, item=number, spec=self._builder.spec)
        self._clock.enter(READ)
        return goes_on

    def _account(self, batch: Batch | None) -> None:
        """Count a batch, which is handed over now."""
        row, now = self.row, self._clock.hand_over()
        if now - self._cpu_read_at > CPU_INTERVAL_S:
            row.cpu_s, self._cpu_read_at = time.thread_time() - self._cpu, now
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


def run_with_low_priority(producer: Producer) -> None:
    """Run a producer in a thread with lower priority than the training's. On Linux, niceness is per
    thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    producer.run()
