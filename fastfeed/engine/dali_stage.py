"""The stage behind everything else where DALI augments: packed batches in, augmented ones out, a
few in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastfeed.augment.labels import mix
from fastfeed.augment.packing import BESIDE, Packed, record_structure, unpacked
from fastfeed.augment.spec import Augment, Targets
from fastfeed.augment.steps import Blend, FixedWindow, Scale
from fastfeed.core.batch import Batch, BatchSpec, LeafSpec
from fastfeed.core.collate import aligned_arrays
from fastfeed.core.stats import StageRow
from fastfeed.engine.dali_queue import DaliQueue
from fastfeed.errors import BadImage, FeedError, FeedStopped, ProducerFailed, SpecError, StateError
from fastfeed.options import FeedOptions

AHEAD = 3  # batches in flight: one that is taken, and two that keep the workers busy while it is


Taken = tuple[Batch, Any]  # a packed batch, and what is to be told when it has come through
Take = Callable[[], "Taken | None"]


class Landed(NamedTuple):
    """A batch that has come through; `rows` packed records have gone into it, or were left out.
    `mark` came with it."""

    batch: Batch
    rows: int
    mark: Any


@dataclass(frozen=True)
class _AugmentedSpec:
    """What is known from the first batch on."""

    spec: BatchSpec
    targets: Targets


class Stage:
    """`next` gives the augmented batches of whatever is taken from its source, in their order.

    The memory of a packed batch is held until DALI has read it. Raises BadImage (as the cause of
    ProducerFailed) for an image that DALI cannot decode, by its record's name, unless
    on_error="skip" leaves it out and counts it.
    """

    def __init__(
        self,
        augment: Augment,
        options: FeedOptions,
        *,
        flights: DaliQueue | None = None,
        row: StageRow | None = None,
        elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        self._augment = augment
        self._options = options
        self._flights = DaliQueue(augment, options) if flights is None else flights
        self._landed: deque[Landed] = deque()
        self._known: _AugmentedSpec | None = None
        # the source has said that a run or an epoch is over, and nobody has heard yet
        self._over = False
        self._failure: FeedError | None = None  # of the source, behind what is in flight
        self._lost = 0  # rows of batches of which nothing was left
        # of it: `busy_s`, waited for DALI, and `errors`, records left out
        self.row = row or StageRow()
        self._elsewhere = elsewhere  # errors that count, too

    @property
    def spec(self) -> BatchSpec | None:
        """What the batches are, once one has come through or was `learn`ed from."""
        return None if self._known is None else self._known.spec

    @property
    def depth(self) -> int:
        """Batches in flight."""
        return len(self._flights) + len(self._landed)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to come without the source."""
        return not self.depth and not self._over and self._failure is None

    def learn(self, batch: Batch, spec: BatchSpec) -> BatchSpec:
        """The spec of the augmented batches, from a packed one (of `spec`) that stays to be taken."""
        if self._known is None:
            targets = self._targets(spec)
            packed = unpacked(batch, targets)
            for row in range(packed.rows):  # the first that is sound
                try:
                    leaves = self._flights.alone(packed.only([row]))
                except RuntimeError:
                    continue
                self._known = _AugmentedSpec(
                    self._spec_of(spec, self._whole(packed.only([row]), leaves, targets=targets)),
                    targets,
                )
                break
            else:
                self._refuse(packed, {0: "DALI cannot decode it"})
        assert self._known is not None  # or an error was raised
        return self._known.spec

    def next(
        self, take: Take, ready: Callable[[], bool], *, spec: Callable[[], BatchSpec]
    ) -> Landed | None:
        """The next batch, or None where the source has said that there is none now. Raises what
        `take` raises, behind the batches that came before it.

        `ready`: whether `take` would return at once; `spec`: of the packed batches, known when one
        was taken.
        """
        self._fill(take, ready, spec=spec)
        while not self._landed:
            if self._flights:
                self._land(spec())
            elif self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            elif self._over:
                self._over = False
                return None
            self._fill(take, ready, spec=spec)
        return self._landed.popleft()

    def _fill(
        self, take: Take, ready: Callable[[], bool], *, spec: Callable[[], BatchSpec]
    ) -> None:
        while not self._over and self._failure is None and len(self._flights) < AHEAD:
            early = bool(self._flights or self._landed)
            if early and not ready():
                return
            try:
                taken = take()
            except FeedError as error:
                if not early or isinstance(error, (FeedStopped, StateError)):
                    raise
                self._failure = error
                return
            if taken is None:
                self._over = True
                return
            batch, mark = taken
            self._flights.start(batch, unpacked(batch, self._targets(spec())), mark=mark)

    def _land(self, spec: BatchSpec) -> None:
        """The oldest flight comes down."""
        start = time.perf_counter()
        packed: Packed | None = self._flights.oldest.packed
        rows = self._flights.oldest.batch.rows
        try:
            leaves = self._flights.finish()
        except RuntimeError:
            packed, leaves = self._saved(self._flights.oldest.packed)
            self._flights.go_on()
        finally:
            self.row.busy_s += time.perf_counter() - start
        mark = self._flights.over()
        self._lost += rows
        if packed is not None:
            made = self._whole(packed, leaves, targets=self._targets(spec))
            if self._known is None:
                self._known = _AugmentedSpec(self._spec_of(spec, made), self._targets(spec))
            self._check(made)
            lost, self._lost = self._lost, 0
            self._landed.append(Landed(made, lost, mark))

    def _saved(self, packed: Packed) -> tuple[Packed | None, list[Any]]:
        """What is left of the oldest batch where DALI has failed, and its results. Raises where
        nothing may be left out, and where it is no record's fault."""
        try:
            return packed, self._flights.alone(packed)  # it was a later batch
        except RuntimeError as error:
            bad = self._flights.bad_rows()
            if not bad:
                raise ProducerFailed("DALI", error) from error
        self.row.errors += len(bad)
        if (
            self._options.on_error != "skip"
            or self.row.errors + self._elsewhere() > self._options.error_limit
        ):
            self._refuse(packed, bad)
        rows = [row for row in range(packed.rows) if row not in bad]
        # which promises that every batch is whole
        if not rows or self._options.last_batch == "drop":
            return None, []
        return packed.only(rows), self._flights.alone(packed.only(rows))

    def _refuse(self, packed: Packed, bad: dict[int, str]) -> None:
        row, reason = next(iter(bad.items()))
        error = BadImage(reason)
        raise ProducerFailed(packed.place(row) or f"record {row} of a batch", error) from error

    def _whole(self, packed: Packed, results: list[Any], *, targets: Targets) -> Batch:
        """A batch in the structure of the records."""
        leaves: list[Any] = list(packed.leaves)
        numbers = (*targets.images, *targets.masks)
        kept = [n for n in range(len(leaves)) if n not in numbers]
        # the slot is free again at once
        copies = aligned_arrays([(leaves[n].shape, leaves[n].dtype) for n in kept])
        for n, copy in zip(kept, copies, strict=True):
            copy[...] = leaves[n]
            leaves[n] = copy
        for n, result in zip(numbers, results, strict=True):
            leaves[n] = result
        blend = next(
            (placed for placed in self._augment.program if isinstance(placed.step, Blend)), None
        )
        if blend is not None and targets.labels is not None:
            mix(leaves[targets.labels], packed.plan[:, 0, blend.start].tolist(), what="labels")
        return Batch(tuple(leaves), packed.rows, sum(leaf.nbytes for leaf in leaves))

    def _spec_of(self, spec: BatchSpec, batch: Batch) -> BatchSpec:
        """The spec of augmented batches, of which this is one."""
        own = spec.leaves[: len(spec.leaves) - BESIDE]
        targets = self._targets(spec)
        numbers = (*targets.images, *targets.masks)
        static, found = self._static, []
        for n, (leaf, array) in enumerate(zip(own, batch.leaves, strict=True)):
            shape: Any = leaf.shape
            if n in numbers:
                shape = array.shape[1:]
                if not static and self._options.padded:
                    shape = tuple(None if size > 3 else size for size in shape)
            path = leaf.path.replace("batch[0]", "batch", 1)
            dtype = np.dtype(array.dtype)
            found.append(
                LeafSpec(path, leaf.dtype if n not in numbers else dtype, shape, dtype, cast=False)
            )
        ragged = self._options.padded or any(None in leaf.shape for leaf in found)
        return BatchSpec(record_structure(spec.structure), tuple(found), spec.rows, ragged)

    def _check(self, batch: Batch) -> None:
        """Every batch is as the first one was. Raises SpecError."""
        assert self._known is not None
        for leaf, array in zip(self._known.spec.leaves, batch.leaves, strict=True):
            shape = tuple(array.shape[1:])
            fits = len(shape) == len(leaf.shape) and all(
                have == want or want is None or self._options.padded
                for have, want in zip(shape, leaf.shape, strict=True)
            )
            if not fits:
                raise SpecError(
                    f"{leaf.path} has records of shape {shape}: needed {leaf.shape} as in the "
                    "first batch. Make one size with Resize, Crop or RandomResizedCrop, or say "
                    "pad=True (zeros) or pad=<number>"
                )

    @property
    def _static(self) -> bool:
        """Whether every image leaves with the same size."""
        last = None
        for placed in self._augment.program:
            if isinstance(placed.step, (FixedWindow, Scale)):
                last = placed.step
        return isinstance(last, FixedWindow) or (isinstance(last, Scale) and not last.shorter)

    def _targets(self, spec: BatchSpec) -> Targets:
        if self._known is not None:
            return self._known.targets
        return self._augment.targets(record_structure(spec.structure), len(spec.leaves) - BESIDE)
