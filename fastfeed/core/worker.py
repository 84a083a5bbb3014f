"""Worker: what a producer learns about its share of the work, and memory for its batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
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
    """The share of the data that a producer makes: the `index`-th of `count`, in `epoch` (from 0).

    With `shard=(rank, world)` the producers of all ranks are counted: those of rank r come after
    those of rank r - 1. In a restored run of a callable they are the producers that the run began
    with, whichever threads make their shares now. `seed` is the run's root seed; `rng` is a numpy
    Generator that no other producer has.
    """

    index: int
    count: int
    seed: int
    epoch: int
    allocate: Allocate = field(default=aligned_arrays, repr=False, compare=False)
    # the value of `start`, for readers inside fastfeed
    passed: int = field(default=0, repr=False, compare=False)
    # the item that a transform works on
    item: tuple[int, ...] | None = field(default=None, repr=False, compare=False)
    # of the last `like`
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def rng(self) -> np.random.Generator:
        """The generator of this producer's random numbers. Seeded by (seed, epoch, index of the
        record) in a transform of a source that has one order, and else by (seed, epoch, index of
        the producer): runs with the same seed draw the same numbers, for any number of producers.
        """
        return np.random.default_rng((self.seed, self.epoch, *(self.item or (self.index,))))

    def at(self, item: tuple[int, ...]) -> Worker:
        """Return a Worker for one record of a transform; `replace` takes 4 us."""
        one = object.__new__(Worker)
        one.__dict__.update(self.__dict__, item=item)
        one.__dict__.pop("rng", None)
        return one

    @property
    def start(self) -> int:
        """Items of the share that were delivered before, in a run that this one resumes: begin with
        the next.

        If it is not read, the stream is fast-forwarded: those items are produced and skipped.
        """
        self._known["start"] = self.passed
        return self.passed

    @property
    def began_at_start(self) -> bool:
        """True if `start` was read."""
        return "start" in self._known

    def empty(self, like: Any) -> Any:
        """Return arrays to fill and to yield as the next batch, in the containers, shapes and
        dtypes of the batch `like`.

        In a worker process they lie in the shared memory that the trainer reads, so that nothing is
        copied; elsewhere they are ordinary arrays. Leaves of `like` need only `shape` and `dtype`.
        Each batch needs a call of its own; it waits while no memory is free. Raise StateError for a
        buffer that is yielded twice.
        """
        known = self._known.get("like")
        if known is None or known[0] is not like:
            structure = structure_of(like)
            blanks = list(
                map(_blank, leaves_of(structure, like) or (), paths_of(structure, "like"))
            )
            if not blanks:
                raise OptionError(
                    "worker.empty(like): must be a batch, that is at least one array; got an empty "
                    "one"
                )
            known = self._known["like"] = (like, structure, blanks)
        return rebuild(known[1], self.allocate(known[2]))


def _blank(leaf: Any, path: str) -> Blank:
    try:
        shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
    except (AttributeError, TypeError):
        raise OptionError(
            f"worker.empty(like): {path} is a {type(leaf).__name__}; must be an array"
        ) from None
    if dtype.kind in "OU":
        raise OptionError(
            f"worker.empty(like): {path} has dtype {dtype}; must be numbers, bools or bytes of one "
            "length"
        )
    return shape, dtype


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return True if the callable has a parameter `name`."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # built-in callables may have no signature
        return False


def takes_worker(function: Callable[..., Any]) -> bool:
    """Return True if the callable has a parameter `worker`. Raise OptionError if it needs any other
    argument."""
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
            f"the callable needs {', '.join(needed)}: needed one that is called with nothing, or "
            "with `worker`. Bind the rest: functools.partial(function, ...)"
        )
    return takes(function, "worker")
