"""The loop that every producer runs: read, transform, collate, check, hand over; and account for each second."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from fastfeed.batch import Batch, BatchSpec, infer
from fastfeed.collate import collate
from fastfeed.errors import FeedError, ProducerFailed, SpecError
from fastfeed.options import FeedOptions
from fastfeed.producers.handoff import END_OF_EPOCH, Handoff, Made
from fastfeed.source import EpochEnd, Item, Source, Worker
from fastfeed.stats import StageRow
from fastfeed.structure import leaves_of


class Maker:
    """Makes checked batches from payloads; the first one made, by whichever producer, fixes the spec for all."""

    def __init__(self, source: Source, options: FeedOptions) -> None:
        self._source = source
        self._transform = options.transform
        self._dtypes = options.dtypes
        self._pad = options.pad if options.padded else None
        self._ragged = options.padded
        self._lock = threading.Lock()
        self.spec: BatchSpec | None = None

    def make(self, payload: Any, place: str) -> Batch | None:
        """The batch, or None where it has no records."""
        varied = None
        if self._source.records:
            records = [self._item(part, f"record {self._name(part, i)} of {place}") for i, part in enumerate(payload)]
            value, varied = collate(records, self._pad, place=place)
        else:
            value = self._item(payload, f"item {payload}" if self._source.indexed else place)
        spec = self.spec or self._infer(value, varied, place=place)
        try:
            batch = spec.check(value, place)
        except SpecError:
            if _is_empty(spec, value):
                return None
            raise
        return batch if batch.rows else None

    def _item(self, part: Any, place: str) -> Any:
        try:
            item = self._source.fetch(part)
            return item if self._transform is None else self._transform(item)
        except BaseException as error:  # whatever ends this producer must reach the consumer
            raise ProducerFailed(place, error) from error

    def _name(self, part: Any, position: int) -> str:
        return str(part if self._source.indexed else position)

    def _infer(self, value: Any, varied: Any, *, place: str) -> BatchSpec:
        with self._lock:
            if self.spec is None:
                spec = infer(value, dtypes=self._dtypes, ragged=self._ragged, varied=varied, place=place)
                if not spec.rows:
                    return spec
                self.spec = spec
            return self.spec


class Producer:
    """One producer's whole life; `run` returns when its share is made, the feed was stopped, or it failed."""

    def __init__(self, worker: Worker, *, source: Source, maker: Maker, handoff: Handoff, epochs: range) -> None:
        self._ordered = handoff.ordered
        self.worker = worker
        self.row = StageRow()
        self._source = source
        self._maker = maker
        self._handoff = handoff
        self._epochs = epochs
        self._count = 0

    def run(self) -> None:
        """Never raises: a failure goes to the handoff."""
        try:
            for position, epoch in enumerate(self._epochs):
                worker = Worker(self.worker.index, self.worker.count, self.worker.seed, epoch)
                if not self._run_epoch(self._source.open(worker), position):
                    return
                self._handoff.end_epoch(position)
        except FeedError as error:
            self._handoff.fail(error, getattr(error, "ticket", None) if self._ordered else None)
        except BaseException as error:  # the source's own failure, whatever it is
            self._handoff.fail(ProducerFailed(self._place(None), error), None)
        finally:
            self._handoff.end()

    def _run_epoch(self, items: Iterator[Item], position: int) -> bool:
        try:
            while True:
                start, cpu = time.perf_counter(), time.thread_time()
                item = next(items, None)
                if item is None:
                    return True
                if not self._pass_on(item, position, start=start, cpu=cpu):
                    return False
        finally:
            items.close()  # type: ignore[attr-defined]  # every source opens a generator

    def _pass_on(self, item: Item, position: int, *, start: float, cpu: float) -> bool:
        ticket, payload = item
        key = ticket if self._ordered and ticket is not None else position
        if payload is EpochEnd:  # without order every producer says so itself, in end_epoch
            return self._handoff.put(END_OF_EPOCH, key, row=self.row) if self._ordered else True
        place = self._place(ticket)
        try:
            batch = self._maker.make(payload, place)
        except FeedError as error:
            self._handoff.fail(error, ticket if self._ordered else None)
            return False
        self._count += 1
        self._account(batch, start, cpu=cpu)
        if batch is None and not self._ordered:
            return not self._handoff.stopped
        return self._handoff.put(Made(batch, -1 if ticket is not None else self.worker.index, place), key, row=self.row)

    def _account(self, batch: Batch | None, start: float, *, cpu: float) -> None:
        row = self.row
        row.busy_s += time.perf_counter() - start
        row.cpu_s += time.thread_time() - cpu
        if batch is None:
            row.skipped += 1
            return
        row.batches += 1
        row.records += batch.rows
        row.nbytes += batch.nbytes

    def _place(self, ticket: int | None) -> str:
        if ticket is not None:
            return f"batch {ticket}"
        return f"batch {self._count} of producer {self.worker.index}"


def _is_empty(spec: BatchSpec, value: Any) -> bool:
    leaves = leaves_of(spec.structure, value)
    return bool(leaves) and all(hasattr(leaf, "__len__") and len(leaf) == 0 for leaf in leaves or [])
