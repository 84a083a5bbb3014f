"""Worker: describes a producer's share of the work, and allocates memory for its batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fastfeed.core.collate import Allocate, Blank, aligned_arrays
from fastfeed.core.structure import (
    leaves_of,
    paths_of,
    rebuild,
    structure_of,
)
from fastfeed.errors import OptionError


@dataclass(frozen=True)
class Worker:
    """A producer's share of the data: number `index` of `count`, in epoch `epoch` (0 first).

    With `shard=(rank, world)` the producers of all ranks are counted: rank r's come after those of
    rank r - 1. In a resumed run of a callable they are the producers that the run began with, even
    if other producers make their shares now. `seed` is the root seed of the run; `rng` is a numpy
    Generator of this producer alone.
    """

    index: int
    count: int
    seed: int
    epoch: int
    allocate: Allocate = field(default=aligned_arrays, repr=False, compare=False)
    # the value of `start`; reading it does not count as a use of `start`
    passed: int = field(default=0, repr=False, compare=False)
    # the draw key of the record that a transform works on
    item: tuple[int, ...] | None = field(default=None, repr=False, compare=False)
    # what `start` and `empty` remember
    _memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def rng(self) -> np.random.Generator:
        """A numpy Generator that draws the same numbers in every run with the same seed.

        In a transform of a source that has one order it is seeded by (seed, epoch, index of the
        record), and therefore independent of the number of producers. In a callable it is seeded by
        (seed, epoch, index of the producer); functions of what that yields draw other numbers.
        """
        return np.random.default_rng((self.seed, self.epoch, *(self.item or (self.index,))))

    def for_item(self, item: tuple[int, ...]) -> Worker:
        """Return the same worker for one record of a transform; `replace` takes 4 us."""
        one = object.__new__(Worker)
        one.__dict__.update(self.__dict__, item=item)
        one.__dict__.pop("rng", None)
        return one

    def of_functions(self, rank: int, world: int) -> Worker:
        """Return the worker that functions get for what a callable's stream yields, `rank` of
        `world` counted. Its draws are its own, and not those of the callable."""
        known: Worker | None = self._memo.get("functions")
        if known is None:
            place = rank * self.count + self.index
            known = replace(self, index=place, count=world * self.count, item=(place, 1))
            self._memo["functions"] = known
        return known

    @property
    def start(self) -> int:
        """The number of items of this share that were delivered before a resumed run.

        Begin with the next item. If the callable does not read `start`, its stream is
        fast-forwarded: its items are produced and skipped.
        """
        self._memo["start"] = self.passed
        return self.passed

    @property
    def start_was_read(self) -> bool:
        """True if `start` was read."""
        return "start" in self._memo

    def empty(self, like: Any) -> Any:
        """Return arrays to fill and to yield as the next batch, like the batch `like`.

        They have its containers, shapes and dtypes; the leaves of `like` need only `shape` and
        `dtype`. In a worker process they lie in the shared memory that the trainer reads, so that
        no copy is needed; elsewhere they are ordinary arrays. Call it once for each batch. It waits
        while no memory is free. Raise OptionError if `like` has no arrays, and StateError if a
        buffer is yielded twice.
        """
        memo = self._memo.get("like")
        if memo is None or memo[0] is not like:
            structure = structure_of(like)
            blanks = list(
                map(_blank, leaves_of(structure, like) or (), paths_of(structure, "like"))
            )
            if not blanks:
                raise OptionError(
                    "worker.empty(like): like must be a batch of at least one array, got an empty "
                    "one"
                )
            memo = self._memo["like"] = (like, structure, blanks)
        return rebuild(memo[1], self.allocate(memo[2]))


def _blank(leaf: Any, path: str) -> Blank:
    try:
        shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
    except (AttributeError, TypeError):
        raise OptionError(
            f"worker.empty(like): {path} must be an array, got {type(leaf).__name__}"
        ) from None
    if dtype.kind in "OU":
        raise OptionError(
            f"worker.empty(like): {path} must hold numbers, bools or bytes of one length, got "
            f"dtype {dtype}"
        )
    return shape, dtype


def batches_ahead(producers: int) -> int:
    """Return the number of batches that so many producers make ahead, if memory allows it."""
    return max(16, 4 * producers)


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Return True if the callable has a parameter `name`."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # built-in callables may have no signature
        return False


class UserFunction:
    """A function of the user's, which is passed the worker if it takes one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.takes_worker = has_parameter(function, "worker")

    def __call__(self, value: Any, worker: Worker) -> Any:
        """Return what the function makes of a value."""
        return self._function(value, worker=worker) if self.takes_worker else self._function(value)


def takes_worker(function: Callable[..., Any]) -> bool:
    """Return True if the callable has a parameter `worker`.

    Raise OptionError if it requires any other argument.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name != "worker"
    ]
    if needed:
        raise OptionError(
            "the callable must work without arguments, or with `worker` alone; it requires "
            f"{', '.join(needed)}. Bind the rest: functools.partial(function, ...)"
        )
    return has_parameter(function, "worker")
