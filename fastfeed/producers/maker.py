"""What a producer makes of an item: fetched, transformed, collated, checked, each with the random draws of its own."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fastfeed.batch import Batch, BatchSpec, infer
from fastfeed.collate import Blank, collate, lengths_of
from fastfeed.errors import ProducerFailed, SpecError
from fastfeed.options import FeedOptions
from fastfeed.producers.sequence import Made
from fastfeed.ring.writer import Stopped
from fastfeed.source import Source
from fastfeed.stats import StageRow
from fastfeed.structure import leaves_of, paths_of, rebuild, structure_of
from fastfeed.worker import Worker, takes

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

    def begin(self, worker: Worker, drawn: Any = None) -> None:
        """A stream begins an epoch, or goes on in it behind what it had `drawn`: from here a callable draws."""
        if drawn is not None:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])
        elif self._reseed is not None:
            self._reseed((worker.seed, worker.epoch, self._rank * worker.count + worker.index))

    def drawn(self) -> Any:
        """Where the generators are that all code of a process shares; None where they belong to somebody else."""
        return None if self._reseed is None else (random.getstate(), np.random.get_state())

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

    def _records(self, payload: Any, place: str, *, outlet: Outlet, worker: Worker, at: tuple[int, int]) -> list[Any]:
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


def _is_empty(spec: BatchSpec, value: Any) -> bool:
    leaves = leaves_of(spec.structure, value)
    return bool(leaves) and all(hasattr(leaf, "__len__") and len(leaf) == 0 for leaf in leaves or [])
