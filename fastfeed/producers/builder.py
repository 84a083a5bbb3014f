"""Builder of batches: fetches, transforms, collates and checks an item, with reproducible random
draws."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.core.batch import Batch, BatchSpec, infer
from fastfeed.core.collate import Blank, aligned_arrays, collate, lengths_of
from fastfeed.core.stage_clock import AUGMENT, COLLATE, FILTER, READ, TRANSFORM, StageClock
from fastfeed.core.stats import StageRow
from fastfeed.core.structure import (
    describe,
    leaves_of,
    paths_of,
    rebuild,
    structure_of,
)
from fastfeed.core.worker import UserFunction, Worker
from fastfeed.errors import BadImage, OptionError, ProducerFailed, SpecError
from fastfeed.options import FeedOptions
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.ring.writer import Stopped
from fastfeed.source import FILTERED, Arrays, ItemReader, RecordWatch, is_watched

if TYPE_CHECKING:
    from fastfeed.augment.executor import Executor
    from fastfeed.producers.generators import Generators

LOG = logging.getLogger("fastfeed")
ADOPTED = (
    "seed= seeds %d random generators that a worker has made and keeps, from %s on. Batches before "
    "may have drawn the same numbers in every worker: make them with the source, or draw from "
    "worker.rng"
)
PLAIN_TYPES = (
    np.ndarray,
    list,
    tuple,
    range,
    Arrays,
)  # reading these runs no code that draws random numbers
# Records that are fetched in a row before the first of them is decoded. A decoder evicts the
# caches: each fetch and each draw behind it would cost several times as much, 4 % of the time of
# small photographs.
FETCH_GROUP = 8


class Outlet:
    """Destination of one producer's batches, and what it is told. Every method may raise
    Stopped."""

    def __init__(self, *, ordered: bool, admit: Callable[[int], bool]) -> None:
        self.ordered = ordered
        self.row = StageRow()
        self.clock = StageClock(self.row)
        self.position = 0  # of the current epoch among those of the feed
        self._admit = admit

    def admit(self, position: int) -> bool:
        """Wait until the epoch at `position` may begin; it is the current one from then on. Return
        False if no other epoch will begin."""
        self.position = position
        return self._admit(position)

    def begin(self, ticket: int) -> None:
        """Note that this producer's next batch has this ticket."""

    def compare(self, stream: int, item: int, *, digest: int) -> None:
        """Send the digest of a stream's first item, before its first batch."""

    def allocate(self, blanks: Sequence[Blank]) -> Sequence[np.ndarray[Any, Any]]:
        """Return arrays of these shapes and dtypes, to be filled and put."""
        return aligned_arrays(blanks)

    def mark(self, key: int, item: int, *, record: int) -> None:
        """Note what is in progress: `record` of the item number `item`, under ticket or epoch
        `key`."""

    def look(self, batch: Batch, place: str) -> None:
        """Look at a batch that the source has made. Raise SpecError for one that changes others."""

    def put(self, made: ProducedBatch, key: int, *, item: int, spec: BatchSpec | None) -> bool:
        """Put a batch under its ticket or epoch. Return False if no other is wanted."""
        raise NotImplementedError

    def end_epoch(self, epoch: int) -> None:
        """Note that this producer has put its whole epoch."""
        raise NotImplementedError

    def end(self) -> None:
        """Note that this producer has ended."""
        raise NotImplementedError

    def fail(self, error: BaseException, ticket: int | None) -> None:
        """Report the error that ends this producer."""
        raise NotImplementedError

    def skip(self, error: BaseException, ticket: int | None) -> None:
        """Report an error that costs one record or batch only."""
        raise NotImplementedError


class BatchBuilder:
    """Builder of checked batches. The first batch, of any producer, fixes the spec for all."""

    def __init__(
        self, reader: ItemReader, options: FeedOptions, *, generators: Generators | None = None
    ) -> None:
        self._reader, self._records = reader, reader.records
        self._filter, self._own_collate = options.filter, options.collate
        self._transform = UserFunction(options.transform) if options.transform else None
        self._batch_transform = (
            UserFunction(options.batch_transform) if options.batch_transform else None
        )
        self._takes_worker = self._transform is not None and self._transform.takes_worker
        self._generators = generators
        self._place = options.place
        self._rank, _ = options.place
        self._keeps_records = bool(self._transform) and type(reader.data) in (list, tuple)
        plain = not reader.indexed or isinstance(reader.data, PLAIN_TYPES)
        # Single items run code of the user's. Seeding for each item takes 10 us.
        draws = any((options.transform, options.filter, options.collate))
        self._seeds_items = self._takes_worker or (generators is not None and (draws or not plain))
        self._numbers = count()  # of batches
        self._executor: Executor | None = None
        # Imported on demand: it takes a quarter as long as all other imports.
        if options.augment is not None:
            from fastfeed.augment.executor import Executor
            from fastfeed.augment.parameters import key_of

            self._key_of = key_of
            # True if producers compete with the training or with each other for cores.
            crowded = options.workers > 0 or options.threads > 1 or bool(options.tuned)
            threads = options.workers == 0
            self._executor = Executor(options.augment, crowded=crowded, threads=threads)
        alone = (options.transform, options.filter, options.collate, options.augment)
        # True if the work on a record has more stages than reading.
        self._has_stages = any((options.transform, options.filter, options.augment))
        # True if the arrays of a batch may be those of the source, or of a function.
        own = options.collate, options.batch_transform
        self._keeps_memory = not self._records or any(own)
        self._gathers = not any(alone) and not options.lengths and not options.padded
        self._dtypes = None if options.packed else options.dtypes
        self._pad = options.fill
        self._ragged = options.padded or options.packed
        self._lengths = options.lengths and not options.packed
        # True if the feed cuts batches to size: a batch that lacks a record is filled up later.
        self._cuts = options.batch_size is not None
        self.skips = options.skips
        self._lock = threading.Lock()
        self.spec: BatchSpec | None = None

    def begin(self, worker: Worker, states: Any = None) -> None:
        """Begin an epoch of a stream, or continue it from the generator `states`. The
        callable draws from here on."""
        if states is not None:
            assert self._generators is not None
            self._generators.restore(states)
        elif self._generators is not None:
            key = (worker.seed, worker.epoch, self._rank * worker.count + worker.index)
            self._generators.seed(key)

    def generator_states(self) -> Any:
        """Return the states of the process's generators, or None if this builder does not seed
        them."""
        return None if self._generators is None else self._generators.states()

    def build(
        self, payload: Any, place: str, *, outlet: Outlet, worker: Worker, at: tuple[int, int]
    ) -> Batch | None:
        """Return the batch, or None if it has no records. `at` is the item's ticket or epoch, and
        its number in the epoch."""
        varied, watch = None, self._watch(place)
        if self._records:
            # What a batch_transform returns has memory of its own.
            allocate = outlet.allocate if self._batch_transform is None else aligned_arrays
            value = self._reader.gather(payload, allocate) if self._gathers else None
            if value is None:
                build = partial(self._build_records, outlet=outlet, worker=worker, at=at)
                records = build(payload, place, watch=watch)
                if not records:
                    return None
                value, varied = self._collate(records, place, outlet=outlet, lengths=self._lengths)
        else:
            outlet.mark(*at, record=-1)
            own = self._seeded_worker(worker, payload, number=at[1], position=0)
            name = f"item {payload}" if self._reader.indexed else place
            read = self._reading(outlet.clock)
            value = _called(name, read, self._reader.fetch, payload, worker=own)
            if value is FILTERED:
                return None
            if self._executor is not None:
                outlet.clock.enter(AUGMENT)
                key = self._draw_key(worker, payload, number=at[1], position=None)
                records = self._augment_rows(value, name, key=key, outlet=outlet, at=at)
                if not records:
                    return None
                value, varied = self._collate(records, place, outlet=outlet, lengths=False)
        if self._batch_transform is not None:
            outlet.clock.enter(TRANSFORM)
            value, varied = self._transformed(value, place, worker=worker, number=at[1]), None
        outlet.clock.enter(COLLATE)
        spec = self.spec or self._infer(value, varied, place=place)
        try:
            batch = spec.check(value, place)
        except SpecError:
            if _is_empty(spec, value):
                return None
            raise
        if not batch.rows:
            return None
        if self._keeps_memory:
            outlet.look(batch, place)
        return batch

    def _watch(self, place: str) -> RecordWatch | None:
        """Return what watches the records of a batch, if they are watched. Seed from here on the
        generators that the user's code has made since the process began, and keeps."""
        if not is_watched(next(self._numbers)):
            return None
        seeded = self._generators if self._seeds_items and self._reader.keyed else None
        if seeded is not None and (adopted := seeded.adopt()):
            LOG.warning(ADOPTED, adopted, place)
        return RecordWatch()

    def _build_records(
        self,
        payload: Any,
        place: str,
        *,
        outlet: Outlet,
        worker: Worker,
        at: tuple[int, int],
        watch: RecordWatch | None,
    ) -> list[Any]:
        records: list[Any] = []
        parts, executor = enumerate(payload), self._executor
        ready = self._fetch_all(payload, worker, number=at[1])
        read = self._reading(outlet.clock)
        while group := list(islice(parts, FETCH_GROUP)):
            fetched = []
            for position, part in group:
                outlet.mark(*at, record=position)
                own = (
                    self._seeded_worker(worker, part, number=at[1], position=position)
                    if self._seeds_items
                    else worker
                )
                try:
                    number = part if self._reader.indexed else position
                    name = f"record {number} of {place}"
                    fetch = self._reader.fetch if ready is None else ready.__getitem__
                    key = part if ready is None else position
                    if watch is not None and self._keeps_records:
                        watch.hold(self._reader.data[part])
                    item = _called(name, read, fetch, key, worker=own)
                    if item is FILTERED:
                        continue
                    if watch is not None:
                        watch.add(item, name)
                    if executor is not None:
                        outlet.clock.enter(AUGMENT)
                        key = self._key_of(
                            self._draw_key(worker, part, number=at[1], position=position)
                        )
                        item = _call_for(name, executor.prepare, item, key, place=name)
                    fetched.append((position, name, item))
                except ProducerFailed as error:
                    self._skip(error, outlet, ticket=at[0])
            records += self._finish(fetched, outlet=outlet, at=at)
        if watch is not None:
            watch.compare(f"a record of {place}")
        return records

    def _finish(
        self, fetched: list[tuple[int, str, Any]], *, outlet: Outlet, at: tuple[int, int]
    ) -> list[Any]:
        """Return the finished records of those that were fetched and begun."""
        if self._executor is None:
            return [item for _, _, item in fetched]
        outlet.clock.enter(AUGMENT)
        records = []
        for position, name, begun in fetched:
            outlet.mark(*at, record=position)
            try:
                records.append(_call_for(name, self._executor.execute, begun))
            except ProducerFailed as error:
                self._skip(error, outlet, ticket=at[0])
        return records

    def _augment_rows(
        self, batch: Any, name: str, *, key: tuple[int, ...], outlet: Outlet, at: tuple[int, int]
    ) -> list[Any]:
        """Return the augmented records of an item that is a whole batch."""
        records: list[Any] = []
        executor: Any = self._executor
        for row, record in enumerate(_records_of(batch, name)):
            outlet.mark(*at, record=row)
            try:
                one = f"record {row} of {name}"
                begun = _call_for(
                    one, executor.prepare, record, self._key_of((*key, row)), place=one
                )
                records.append(_call_for(one, executor.execute, begun))
            except ProducerFailed as error:
                if not self._cuts:  # the feed could not deliver a batch of another size
                    raise
                self._skip(error, outlet, ticket=at[0])
        return records

    def _collate(
        self, records: list[Any], place: str, *, outlet: Outlet, lengths: bool
    ) -> tuple[Any, Any]:
        outlet.clock.enter(COLLATE)
        if self._own_collate is not None:
            return _called(place, self._own_collate, records), None
        if lengths:
            records = [(record, lengths_of(record)) for record in records]
        # What a batch_transform returns has memory of its own.
        allocate = outlet.allocate if self._batch_transform is None else aligned_arrays
        mixed = self._dtypes is not None
        return collate(records, self._pad, place=place, allocate=allocate, mixed=mixed)

    def _skip(self, error: ProducerFailed, outlet: Outlet, *, ticket: int) -> None:
        """Go on without a record, or raise the error unless on_error="skip"."""
        if not self.skips:
            raise error
        outlet.row.errors += 1
        outlet.skip(error, ticket if outlet.ordered else None)

    def _draw_key(
        self, worker: Worker, part: Any, *, number: int, position: int | None
    ) -> tuple[int, ...]:
        """Return the key of the random draws for a part of an item. It does not depend on the
        producer if the source has one order. `position` is None for an item that is a whole batch.
        """
        own = self._reader.draw_key(part, number=number, position=position or 0)
        if own is None:
            own = (
                self._rank * worker.count + worker.index,
                number,
                *(() if position is None else (position,)),
            )
        return (worker.seed, worker.epoch, *own)

    def _seeded_worker(self, worker: Worker, part: Any, *, number: int, position: int) -> Worker:
        """Return a worker whose `rng` belongs to this part; seed the process's own generators for
        it, too. It is the same one where nothing draws."""
        if not self._seeds_items:
            return worker
        key = self._reader.draw_key(part, number=number, position=position)
        if key is None:
            return worker.of_functions(*self._place)
        if self._generators is not None:
            self._generators.seed((worker.seed, worker.epoch, *key))
        return worker.for_item(key) if self._takes_worker else worker

    def _fetch_all(self, payload: Any, worker: Worker, *, number: int) -> Any:
        """Return all items of a payload, or None where they come one by one."""
        if self._generators is not None and self._seeds_items:
            self._seeded_worker(worker, payload[0], number=number, position=0)
        return self._reader.fetch_all(payload)

    def _reading(self, clock: StageClock) -> Callable[..., Any]:
        """Return the function that reads an item of the present batch."""
        timed = clock.timing and self._has_stages
        return partial(self._timed_read, clock=clock) if timed else self._read

    def _read(self, fetch: Callable[[Any], Any], part: Any, *, worker: Worker) -> Any:
        """Return the item, or FILTERED."""
        item = fetch(part)
        if self._filter is not None and not self._filter(item):
            return FILTERED
        return item if self._transform is None else self._transform(_own(item), worker)

    def _timed_read(
        self, fetch: Callable[[Any], Any], part: Any, *, worker: Worker, clock: StageClock
    ) -> Any:
        """Do the same, and time each stage."""
        clock.enter(READ)
        item = fetch(part)
        if self._filter is not None:
            clock.enter(FILTER)
            if not self._filter(item):
                return FILTERED
        if self._transform is None:
            return item
        clock.enter(TRANSFORM)
        return self._transform(_own(item), worker)

    def _transformed(self, batch: Any, place: str, *, worker: Worker, number: int) -> Any:
        """Return what batch_transform makes of a batch. In a source of one order its draws depend
        on the number of the batch; no record has a key of that length."""
        if self._reader.draw_key(0, number=number, position=0) is not None:
            key = (self._rank, number, 0)
            if self._generators is not None:
                self._generators.seed((worker.seed, worker.epoch, *key))
            worker = worker.for_item(key)
        else:
            worker = worker.of_functions(*self._place)
        return _called(place, self._batch_transform, batch, worker)

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
                if self._executor is not None:
                    spec = replace(spec, image=self._executor.image)
                self.spec = spec
            return self.spec


def _own(record: Any) -> Any:
    """Return a record whose parts a transform may replace: the source may hold a dict or a list,
    which it would get again in the next epoch."""
    return record.copy() if type(record) in (dict, list) else record


def _called(place: str, function: Any, *given: Any, **named: Any) -> Any:
    """Call code of the user's; name the place of its error."""
    try:
        return function(*given, **named)
    except (Stopped, OptionError):  # what a cache refuses
        raise
    except BaseException as error:  # everything that ends this producer must reach the consumer
        raise ProducerFailed(place, error) from error


def _call_for(name: str, do: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call `do`; name the record in a BadImage (an error of that record) and in a SpecError (an
    error of the feed)."""
    try:
        return do(*given, **named)
    except BadImage as error:  # its traceback says nothing about the image
        raise ProducerFailed(name, error.with_traceback(None)) from error
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from error


def _records_of(batch: Any, name: str) -> Iterator[Any]:
    """Yield the rows of a batch, in its structure. Raise SpecError unless all leaves have the same
    number of rows."""
    structure = structure_of(batch)
    leaves = leaves_of(structure, batch) or []
    counts = {len(leaf) if hasattr(leaf, "__len__") and np.ndim(leaf) else None for leaf in leaves}
    if len(counts) != 1 or None in counts:
        raise SpecError(
            f"{name} is {describe(structure)} with {sorted(map(str, counts))} records: augment= "
            "needs arrays with one leading dimension, the number of records. Set records=True if "
            "the source yields single records"
        )
    for row in range(counts.pop() or 0):
        yield rebuild(structure, [leaf[row] for leaf in leaves])


def _is_empty(spec: BatchSpec, value: Any) -> bool:
    leaves = leaves_of(spec.structure, value)
    return bool(leaves) and all(
        hasattr(leaf, "__len__") and len(leaf) == 0 for leaf in leaves or []
    )
