"""The loop that every producer runs: read, transform, collate, check, hand over; and account for each second."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from fastfeed.batch import Batch, BatchSpec, infer
from fastfeed.collate import Blank, collate, lengths_of
from fastfeed.errors import FeedError, ProducerFailed, SpecError
from fastfeed.options import FeedOptions
from fastfeed.position import DONE, ONLY
from fastfeed.producers.sequence import END_OF_EPOCH, Made
from fastfeed.ring.writer import Stopped
from fastfeed.source import EpochEnd, Item, Source
from fastfeed.stats import StageRow
from fastfeed.structure import leaves_of, paths_of, rebuild, structure_of
from fastfeed.worker import Worker, takes

POLITE = 5  # niceness
CPU_EVERY_S = 0.001  # asking for the time on a core is a system call
Skip = tuple[int, int]  # epochs, and items of the next one, that another producer has made already
PLAIN = (np.ndarray, list, tuple, range)  # to read these runs no code that draws
Reseed = Callable[[tuple[int, ...]], None]  # seeds the generators that all code of a process shares


class Outlet(Protocol):
    """Where one producer's batches go."""

    ordered: bool
    row: StageRow
    position: int  # of the epoch that is being made, among those of the feed

    @property
    def stopped(self) -> bool:
        """Whether nobody takes any more."""

    def admit(self, position: int) -> bool:
        """Waits until the epoch at `position` may be begun; False when none will be any more."""

    def allocate(self, blanks: Sequence[Blank]) -> Sequence[np.ndarray[Any, Any]]:
        """Arrays of these shapes and dtypes, to be filled and put."""

    def hold(self, key: int, item: int, *, record: int) -> None:
        """Takes note of what is being made: `record` of the `item`-th item, under ticket or epoch `key`."""

    def put(self, made: Made, key: int, *, item: int, spec: BatchSpec | None) -> bool:
        """Hands over a batch under its ticket or epoch; False when the feed was stopped and nobody wants it."""

    def end_epoch(self, epoch: int) -> None:
        """This producer has put everything that it has in this epoch."""

    def end(self) -> None:
        """This producer has ended."""

    def fail(self, error: BaseException, ticket: int | None) -> None:
        """The error that ends this producer."""

    def skip(self, error: BaseException, ticket: int | None) -> None:
        """An error that costs one record or batch only."""


class Maker:
    """Makes checked batches from payloads; the first one made, by whichever producer, fixes the spec for all."""

    def __init__(self, source: Source, options: FeedOptions, *, reseed: Reseed | None = None) -> None:
        self._source = source
        self._transform: Callable[..., Any] | None = options.transform
        self._tells_worker = options.transform is not None and takes(options.transform, "worker")
        self._reseed = reseed
        self._rank = (options.shard or (0, 1))[0]
        plain = not source.indexed or isinstance(getattr(source, "data", None), PLAIN)
        # Whether code of the user's runs for single items: seeding for each of them takes 10 us.
        self._draws = self._tells_worker or (reseed is not None and not (plain and options.transform is None))
        self._dtypes = options.dtypes
        self._pad = options.pad if options.padded else None
        self._ragged = options.padded
        self._lengths = options.lengths
        self.skips = options.on_error == "skip"
        self._lock = threading.Lock()
        self.spec: BatchSpec | None = None

    def begin(self, worker: Worker) -> None:
        """A producer begins an epoch: from here a callable draws."""
        if self._reseed is not None:
            self._reseed((worker.seed, worker.epoch, self._rank * worker.count + worker.index))

    def make(self, payload: Any, place: str, *, outlet: Outlet, worker: Worker, at: tuple[int, int]) -> Batch | None:
        """The batch, or None where it has no records; `at` is its ticket or epoch, and its number in it."""
        varied = None
        if self._source.records:
            records = self._records(payload, place, outlet=outlet, worker=worker, at=at)
            if not records:
                return None
            if self._lengths:
                records = [(record, lengths_of(record)) for record in records]
            value, varied = collate(records, self._pad, place=place, allocate=outlet.allocate)
        else:
            outlet.hold(*at, record=-1)
            if self._draws:
                worker = self._for_draws(worker, payload, number=at[1], position=0)
            value = self._item(payload, f"item {payload}" if self._source.indexed else place, worker=worker)
        spec = self.spec or self._infer(value, varied, place=place)
        try:
            batch = spec.check(value, place)
        except SpecError:
            if _is_empty(spec, value):
                return None
            raise
        return batch if batch.rows else None

    def _records(
        self, payload: Any, place: str, *, outlet: Outlet, worker: Worker, at: tuple[int, int]
    ) -> list[Any]:
        records = []
        for position, part in enumerate(payload):
            outlet.hold(*at, record=position)
            if self._draws:
                worker = self._for_draws(worker, part, number=at[1], position=position)
            try:
                records.append(self._item(part, f"record {self._name(part, position)} of {place}", worker=worker))
            except ProducerFailed as error:
                if not self.skips:
                    raise
                outlet.row.errors += 1
                outlet.skip(error, at[0] if outlet.ordered else None)
        return records

    def _for_draws(self, worker: Worker, part: Any, *, number: int, position: int) -> Worker:
        """The worker whose `rng` is this part's own; the process's own generators are seeded for it, too."""
        key = self._source.draw_key(part, number=number, position=position)
        if key is None:
            return worker
        if self._reseed is not None:
            self._reseed((worker.seed, worker.epoch, *key))
        return worker.at(key) if self._tells_worker else worker

    def _item(self, part: Any, place: str, *, worker: Worker) -> Any:
        try:
            item = self._source.fetch(part)
            if self._transform is None:
                return item
            return self._transform(item, worker=worker) if self._tells_worker else self._transform(item)
        except Stopped:
            raise
        except BaseException as error:  # whatever ends this producer must reach the consumer
            raise ProducerFailed(place, error) from error

    def _name(self, part: Any, position: int) -> str:
        return str(part if self._source.indexed else position)

    def _infer(self, value: Any, varied: Any, *, place: str) -> BatchSpec:
        with self._lock:
            if self.spec is None:
                dtypes = self._dtypes
                if self._lengths and isinstance(dtypes, (tuple, list, dict)):
                    structure = structure_of(value[1])
                    dtypes = (dtypes, rebuild(structure, [None] * len(paths_of(structure))))
                spec = infer(value, dtypes=dtypes, ragged=self._ragged, varied=varied, place=place)
                if not spec.rows:
                    return spec
                self.spec = spec
            return self.spec


class Producer:
    """One producer's whole life; `run` returns when its share is made, the feed was stopped, or it failed."""

    def __init__(
        self, worker: Worker, *, source: Source, maker: Maker, outlet: Outlet, epochs: range, skip: Skip = (0, 0)
    ) -> None:
        self.row = outlet.row
        self.worker = replace(worker, allocate=outlet.allocate)
        self._source = source
        self._maker = maker
        self._outlet = outlet
        self._epochs = epochs
        self._skip = skip
        self._item = 0  # the number, in its epoch, of the item in hand
        self._since = self._waited = 0.0  # when the last item was made, and how long had been waited until then
        self._cpu = self._cpu_seen = 0.0

    def run(self) -> None:
        """Never raises: a failure goes out like a batch."""
        outlet = self._outlet
        self._since, self._cpu = time.perf_counter(), time.thread_time()
        try:
            for position, epoch in enumerate(self._epochs):
                if position < self._skip[0]:
                    continue
                if not outlet.admit(position):
                    return
                outlet.position = position
                passed = self._skip[1] if position == self._skip[0] else 0
                worker = replace(self.worker, epoch=epoch, passed=passed)
                self._maker.begin(worker)
                # What was had to the end is not even opened.
                if passed < DONE and not self._run_epoch(self._source.open(worker), position, worker=worker):
                    return
                outlet.end_epoch(position)
        except Stopped:
            return
        except FeedError as error:
            outlet.fail(error, getattr(error, "ticket", None) if outlet.ordered else None)
        except BaseException as error:  # the source's own failure, whatever it is
            outlet.fail(ProducerFailed(self._place(None), error), None)
        finally:
            self.row.cpu_s = time.thread_time() - self._cpu
            with contextlib.suppress(Stopped):
                outlet.end()

    def _run_epoch(self, items: Iterator[Item], position: int, *, worker: Worker) -> bool:
        self._item = worker.passed
        try:
            for item in items:
                self._item = item.number
                if not self._pass_on(item, position, worker=worker):
                    return False
                self._item += 1
            return True
        finally:
            items.close()  # type: ignore[attr-defined]  # every source opens a generator

    def _pass_on(self, item: Item, position: int, *, worker: Worker) -> bool:
        ticket, payload, number = item
        outlet = self._outlet
        key = ticket if outlet.ordered and ticket is not None else position
        if payload is EpochEnd:  # without order every producer says so itself, in end_epoch
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
        stream = ONLY if ticket is not None else self.worker.index
        return outlet.put(Made(batch, stream, place, number), key, item=number, spec=self._maker.spec)

    def _account(self, batch: Batch | None) -> None:
        """All the time since the last item that was not spent in waiting for somebody else."""
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
        return f"batch {self._item} of producer {self.worker.index}"


def run_politely(producer: Producer) -> None:
    """Runs a producer in a thread that gives way to those of the training. Linux knows niceness for each thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), POLITE)
    producer.run()


def _is_empty(spec: BatchSpec, value: Any) -> bool:
    leaves = leaves_of(spec.structure, value)
    return bool(leaves) and all(hasattr(leaf, "__len__") and len(leaf) == 0 for leaf in leaves or [])
