"""Source of records by index: an epoch is a plan of batches that the producers take in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from dis import get_instructions
from functools import cached_property
from typing import Any

from fastfeed.core.order import Order, Recipe, order_of
from fastfeed.core.position import FROM_THE_START, StreamStart
from fastfeed.core.worker import Worker
from fastfeed.errors import OptionError
from fastfeed.options import FeedOptions
from fastfeed.samplers import FIXED_SAMPLERS
from fastfeed.source.base import EpochEnd, Item, ItemReader, TicketedSource
from fastfeed.source.epoch_ends import EpochEnds, epoch_ends_of
from fastfeed.source.mix import Mix

Claim = Callable[[int], "int | None"]


class IndexedSource(TicketedSource):
    """Reads an object with a length and records by index."""

    repeatable = True

    def __init__(
        self,
        data: Any,
        options: FeedOptions,
        *,
        start: StreamStart | None = None,
        ends: EpochEnds | None = None,
    ) -> None:
        super().__init__(options, start=start, single_records=True)
        self._data = data
        self._length = len(data)
        self._sampler = options.sampler
        self._recipe = Recipe(options.shuffle is True, options.sampler, options.own_shard)
        repeats = getattr(self._sampler, "repeats", getattr(self._sampler, "replacement", False))
        repeats = repeats or options.remainder == "pad" or isinstance(data, Mix)
        self.reader = ItemReader(True, self._chunk, data, repeats=repeats, shard=self._shard)
        self._order: Order | None = None
        self._numbers: Iterator[int] = iter(())
        self._claim: Claim | None = None
        self._batches = 0  # of an epoch, where they are claimed
        self.ends = epoch_ends_of(data, options, before=ends)
        if not self._length:
            raise OptionError(
                "the source is empty: it must have at least one record, its len() is 0"
            )
        self._refuse_unfillable(options)
        if self._recipe.group_size > 1:
            _refuse_broken_groups(options, size=self._recipe.group_size)

    @cached_property
    def epoch_items(self) -> int | None:
        """The records or batches of an epoch if all epochs have as many, else None: the length of a
        sampler may vary."""
        known = type(self._sampler) in (type(None), list, tuple, range, *FIXED_SAMPLERS)
        known = known or hasattr(self._sampler, "dtype")
        return self.order_in(0, 0).length if known else None

    def job(self, options: FeedOptions) -> dict[str, Any]:
        """Return what the ranks of a job must agree on, to share out the items of each epoch. Raise
        OptionError if epochs may differ in length."""
        items, size = self.epoch_items, max(1, self._chunk)
        if items is None:
            raise OptionError(
                f"sampler {type(self._sampler).__name__} may give epochs of different lengths, "
                "which ranks cannot share out: pass a list of indices, or shard=(rank, world)"
            )
        self._batches = items // size if options.last_batch == "drop" else -(-items // size)
        shuffled, sampler = self._recipe.shuffled, type(self._sampler).__name__
        names = {"batches": self._batches, "records": items, "batch_size": options.batch_size}
        return {**names, "shuffle": shuffled, "sampler": sampler}

    def claim_from(self, claim: Claim) -> None:
        """Let `claim` number the items, instead of all of them in turn: for an epoch it returns
        epoch * items of an epoch + the item's number in it, or None at the end."""
        self._claim = claim

    def _next(self, worker: Worker) -> Item | None:
        if worker.epoch > self._epoch:
            self._begin(worker)
        if self._ended or worker.epoch < self._epoch or self._order is None:
            return None
        indices: Any
        number, indices = self._following(worker, self._order)
        if not indices:
            indices, self._ended = EpochEnd, True
        elif not self._chunk:
            indices = indices[0]
        self._ticket += 1
        if self.ends is not None:
            self.ends.taken()
        return Item(self._ticket - 1, indices, number)

    def _following(self, worker: Worker, order: Order) -> tuple[int, list[int]]:
        """Return the number of the next item, and its indices: none after the last one."""
        size = max(1, self._chunk)
        if self._claim is None:
            number = place = next(self._numbers)
        else:
            claimed = self._claim(worker.epoch)
            if claimed is None:
                return 0, []
            number, (epoch, place) = claimed, divmod(claimed, self._batches)
            if epoch != worker.epoch:  # of a rank that has left
                order = self.order_in(epoch, worker.seed)
        return number, order.indices(place * size, (place + 1) * size)

    def _begin(self, worker: Worker) -> None:
        start = self._start if self._epoch < 0 else FROM_THE_START
        if self.ends is not None:
            self.ends.end_before(worker.epoch)
        if len(self._data) != self._length:
            raise OptionError(
                f"the source's length changed from {self._length} to {len(self._data)} between "
                "epochs: it must stay the same"
            )
        self._order = self.order_in(worker.epoch, worker.seed, rest=start.rest)
        self._numbers = start.numbers()
        self._epoch = worker.epoch
        self._ended = False

    @property
    def group_size(self) -> int:
        """The number of consecutive records that no division among ranks separates."""
        return int(self._recipe.group_size)

    def order_in(
        self,
        epoch: int,
        seed: int,
        *,
        rest: Sequence[Sequence[int]] | None = None,
        divided: bool = True,
    ) -> Order:
        """Return the order of an epoch, or of the `rest` of it; unless `divided`, for all ranks
        together. Raise OptionError if it cannot be divided among the ranks."""
        base, recipe = None, self._recipe
        if isinstance(self._data, Mix):
            base = self._data.order(seed, epoch, shuffled=recipe.shuffled)
        if not divided:
            recipe = replace(recipe, shard=None)
        return order_of(self._length, seed=seed, epoch=epoch, recipe=recipe, base=base, rest=rest)

    def _refuse_unfillable(self, options: FeedOptions) -> None:
        """Raise OptionError for an impossible order, or a first batch that can never be filled."""
        sampler = self._sampler
        draws = callable(getattr(sampler, "indices", None)) or hasattr(sampler, "dtype")
        own = type(sampler).__module__.startswith(("builtins", "torch"))
        if hasattr(sampler, "__iter__") and not (draws or own):
            return  # one of the user's may count how often it is iterated over
        length = self.order_in(0, 0).length
        if self._chunk and options.last_batch == "drop" and self._chunk > length:
            shard = options.own_shard
            whole = "source" if shard is None else f"shard {shard.place} of the source"
            raise OptionError(
                f"batch_size={self._chunk} can never be filled: the {whole} has {length} records "
                'and last_batch="drop"; lower batch_size or say last_batch="keep"'
            )


def is_indexable(given: Any) -> bool:
    """Return True for an object with len() and [index]. A method whose code only raises is none:
    torch's IterableDataset has such a __getitem__."""
    methods: list[Any] = [getattr(type(given), name, None) for name in ("__len__", "__getitem__")]
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    ends = [any("RETURN" in i.opname for i in get_instructions(code)) for code in codes]
    return None not in methods and all(ends)


def _refuse_broken_groups(options: FeedOptions, *, size: int) -> None:
    """Raise OptionError for options that would separate the records of a sampler's groups."""
    name = type(options.sampler).__name__
    if options.batch_size != size or options.records is False:
        raise OptionError(
            f"the sampler {name} makes batches of {size} records, and the runner has batch_size="
            f"{options.batch_size}: must be the same; ranks of shard= have as many each"
        )
    for option, separates in (
        ("filter=", options.filter is not None),
        ('on_error="skip"', options.skips),
        (f"shuffle={options.shuffle!r}", bool(options.shuffle)),
    ):
        if separates:
            raise OptionError(
                f"{option} would separate records that {name} keeps together, such as the two of a "
                f"pair: leave it out. Leave unreadable or unwanted records out of the source and "
                "the sampler's labels instead"
            )
