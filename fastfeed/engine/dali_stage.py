"""The last stage, where DALI augments: packed batches in, augmented ones out, a few in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.augment.operations import Crop, Decode, RandomResizedCrop, Resize
from fastfeed.augment.packing import EXTRA_LEAVES, PackedBatch, SampleKind, record_structure, unpack
from fastfeed.augment.spec import Augment, Targets
from fastfeed.core.batch import Batch, BatchSpec, LeafSpec
from fastfeed.core.collate import aligned_arrays
from fastfeed.core.stats import StageRow, total
from fastfeed.engine.stage import Stage
from fastfeed.errors import BadImage, FeedError, FeedStopped, ProducerFailed, SpecError, StateError
from fastfeed.options import FeedOptions

if TYPE_CHECKING:
    from fastfeed.augment.dali import DaliPipe

AHEAD = 3  # batches in flight: one that is taken, and two that keep the workers busy meanwhile


@dataclass
class DaliBatch:
    """A batch in flight; it holds the memory that DALI reads."""

    batch: Batch
    packed: PackedBatch
    pipe: DaliPipe
    mark: Any


class DaliQueue:
    """A queue of batches in DALI, on a pipeline that is replaced if it dies. `make` makes one for
    images of these kinds, and a number of records."""

    def __init__(
        self,
        augment: Augment,
        options: FeedOptions,
        *,
        make: Callable[[Sequence[SampleKind], int], DaliPipe] | None = None,
    ) -> None:
        self._augment = augment
        self._options = options
        # None: DALI. A method of its own would keep it, and the pipeline, until garbage is
        # collected
        self._assemble = make
        self._waiting: deque[DaliBatch] = deque()
        self._kinds: tuple[SampleKind, ...] | None = None
        self._pipe: DaliPipe | None = None
        self._rows = 0  # the most records that the pipeline takes
        self._sound = True  # the batches in flight are in their pipelines, as far as is known

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> DaliBatch:
        """The batch that is finished next."""
        return self._waiting[0]

    def start(self, batch: Batch, packed: PackedBatch, *, mark: Any = None) -> None:
        """Begin to work on a batch. Raise SpecError if its images are of another kind than the
        first ones."""
        self._waiting.append(DaliBatch(batch, packed, self._pipe_for(packed), mark))
        self._begin(self._waiting[-1])

    def finish(self) -> list[Any]:
        """Return the results of the oldest batch, which stays until `over`. Raise RuntimeError if
        DALI has failed at any."""
        if not self._sound:
            self._restart()
        self._sound = False  # until `over`: an exception of a signal handler may come before
        return self.oldest.pipe.finish()

    def over(self, *, sound: bool) -> Any:
        """Remove the oldest batch, whose memory is needed no more; return its mark. Unless `sound`,
        those behind it begin again in a new pipeline."""
        self._sound = sound
        return self._waiting.popleft().mark

    def alone(self, packed: PackedBatch) -> list[Any]:
        """Return the results of some records, on a pipeline of their own. Raise RuntimeError if
        DALI fails at them."""
        pipe = self._new_pipe(packed, rows=packed.rows)
        pipe.start(packed)
        return pipe.finish()

    def bad_rows(self) -> dict[int, str]:
        """Return which records of the oldest batch DALI cannot process, and why. Neither the text
        nor the time of a failure shows which record it is: so one record after the other is tried
        alone, on a pipeline of its own."""
        packed, pipe = self.oldest.packed, None
        bad: dict[int, str] = {}
        for row in range(packed.rows):
            one = packed.only([row])
            try:
                pipe = pipe or self._new_pipe(one, rows=1)
                pipe.start(one)
                pipe.finish()
            except RuntimeError as error:
                bad[row], pipe = reason_of(error), None
        return bad

    def _begin(self, flight: DaliBatch) -> None:
        sound, self._sound = self._sound, False
        try:
            flight.pipe.start(flight.packed)
            self._sound = sound
        except RuntimeError:
            pass  # it died of an earlier batch, whose `finish` reports it: all begin again

    def _restart(self) -> None:
        """Move the batches in flight into a new pipeline."""
        self._pipe = None
        self._sound = True
        for flight in self._waiting:
            flight.pipe = self._pipe_for(flight.packed)
            self._begin(flight)

    def _pipe_for(self, packed: PackedBatch) -> DaliPipe:
        if self._pipe is None or packed.rows > self._rows:
            self._rows = max(self._rows, packed.rows)
            self._pipe = self._new_pipe(packed, rows=self._rows)
        else:
            self._kinds_of(packed)
        return self._pipe

    def _new_pipe(self, packed: PackedBatch, *, rows: int) -> DaliPipe:
        self._kinds = self._kinds_of(packed)
        return (self._assemble or self._dali)(self._kinds, rows)

    def _kinds_of(self, packed: PackedBatch) -> tuple[SampleKind, ...]:
        """Return the kinds of the samples. Raise SpecError if they are not all alike, and as
        before."""
        decode, images, found = self._augment.first(Decode), packed.plan.shape[1], []
        for number, samples in enumerate(packed.samples):
            mask = number >= images
            if decode is not None and not mask:
                found.append(SampleKind(decode.depth, encoded=True))
                continue
            kinds = {SampleKind(sample.shape[2], mask=mask) for sample in samples}
            if self._kinds is not None:
                kinds.add(self._kinds[number])
            if len(kinds) > 1:
                words = [f"{kind.channels} channels" for kind in sorted(kinds)]
                raise SpecError(
                    f"images of {' and '.join(words)} in one leaf: DALI takes one kind only; "
                    'convert them to one in transform=, or set Augment(on="producers")'
                )
            found.append(kinds.pop())
        return tuple(found)

    def _dali(self, kinds: Sequence[SampleKind], rows: int) -> DaliPipe:
        from fastfeed.augment.dali import DaliPipe

        pad = None
        if self._options.fill is not None:
            pad = 0.0 if self._options.fill is True else float(self._options.fill)
        device = "gpu" if self._augment.on == "dali-gpu" else "cpu"
        return DaliPipe(self._augment, kinds, rows=rows, device=device, pad=pad)


def reason_of(error: BaseException) -> str:
    """Return DALI's message without its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    at = next((n for n, line in enumerate(lines) if line.startswith("encountered")), -1)
    shown = [line for line in lines[at + 1 :] if not line.startswith("Current pipeline object")]
    reason = (shown or lines or [type(error).__name__])[0].rstrip(" :")
    return f"DALI cannot decode it or work on it ({reason})"


class DaliStage(Stage):
    """Augments packed batches with DALI, a few in flight, and returns them in order.

    The memory of a packed batch is held until DALI has read it. Raise BadImage (as the cause of
    ProducerFailed) for an image that DALI cannot decode, with the name of its record, unless
    on_error="skip" leaves it out and counts it.
    """

    def __init__(
        self,
        options: FeedOptions,
        producers: Callable[[], Iterable[StageRow]],
        *,
        row: StageRow,
        queue: DaliQueue | None = None,
    ) -> None:
        assert options.augment is not None  # options.packed says so
        self._augment: Augment = options.augment
        self._options = options
        self._flights = DaliQueue(self._augment, options) if queue is None else queue
        # finished, with the records left out before it and the state of the stage before
        self._landed: tuple[Batch, int, Any] | None = None
        self._spec: BatchSpec | None = None  # of the augmented batches
        # what follows the batches in flight: the end of a run or an epoch, or a failure of the
        # stage before
        self._over = False
        self._failure: FeedError | None = None
        self._left_out = 0  # rows of batches of which nothing was left
        # `augment_s` is time waited for DALI, and `errors` counts records left out
        self._row = row
        self._producers = producers  # their errors count for error_limit, too
        self._mark: Any = None  # state of the stage before at the batch that was taken last

    def take(self) -> Batch | None:
        """Return the next augmented batch, or None where a run or an epoch ends. A failure of the
        stage before is raised after the batches in flight, an end by the user at once."""
        if self._mark is None:
            self._mark = self._before.mark()
        while True:
            early = bool(self._flights) or self._landed is not None
            room = len(self._flights) < AHEAD and not self._over and self._failure is None
            # while there are other batches nothing is waited for
            if room and (not early or self._before.ready):
                self._take_in()
            elif self._landed is None and self._flights:
                self._land()
            else:
                break
        if self._landed is not None:
            batch, self.lost, self._mark = self._landed
            self._landed = None
            return batch
        failure, self._over, self._failure = self._failure, False, None
        if failure is not None:
            raise failure
        return None

    def learn(self, batch: Batch) -> None:
        """Learn the spec of the augmented batches from a packed one.

        Raise ProducerFailed where DALI can decode none of its records.
        """
        if self._spec is not None:
            return
        packed = unpack(batch, self._targets)
        for row in range(packed.rows):  # the first that is sound
            one = packed.only([row])
            try:
                leaves = self._flights.alone(one)
            except RuntimeError:
                continue
            self._spec = self._spec_of(self._whole(one, leaves))
            return
        self._refuse(packed, {0: "DALI cannot decode it"})

    @property
    def spec(self) -> BatchSpec:
        """The spec of the augmented batches, once one has landed."""
        assert self._spec is not None
        return self._spec

    @property
    def ready(self) -> bool:
        """True if the stage before is ready."""
        return self._before.ready

    @property
    def depth(self) -> int:
        """Batches in flight."""
        return len(self._flights) + (self._landed is not None)

    @property
    def ended(self) -> bool:
        """True if nothing is in flight, no end and no failure."""
        return not self.depth and not self._over and self._failure is None

    def state(self) -> dict[str, Any]:
        """Return the state of the stages before when they gave the batch that was taken last."""
        state = self._before.state()
        if self._mark is None or self.ended:
            return state
        return {**self._mark, "batches": state["batches"], "records": state["records"]}

    def _take_in(self) -> None:
        """Start DALI on the next packed batch."""
        try:
            batch = self._before.take()
        except FeedError as error:
            if not self.depth or isinstance(error, (FeedStopped, StateError)):
                raise
            self._failure = error
            return
        if batch is None:
            self._over = True
        else:
            packed = unpack(batch, self._targets)
            self._flights.start(batch, packed, mark=self._before.mark())

    def _land(self) -> None:
        """Wait for the oldest batch in flight, of which nothing may be left."""
        start = time.perf_counter()
        packed: PackedBatch | None = self._flights.oldest.packed
        rows, sound = self._flights.oldest.batch.rows, True
        try:
            leaves = self._flights.finish()
        except RuntimeError:
            sound = False
            packed, leaves = self._saved(self._flights.oldest.packed)
        finally:
            self._row.augment_s += time.perf_counter() - start
        mark = self._flights.over(sound=sound)
        self._left_out += rows
        if packed is not None:
            made = self._whole(packed, leaves)
            if self._spec is None:
                self._spec = self._spec_of(made)
            self._check(made, self._spec)
            lost, self._left_out = self._left_out - packed.rows, 0
            self._landed = made, lost, mark

    def _saved(self, packed: PackedBatch) -> tuple[PackedBatch | None, list[Any]]:
        """Return what is left of the oldest batch after a failure of DALI, and its results. Raise
        if nothing may be left out, or no record is the cause."""
        try:
            return packed, self._flights.alone(packed)  # it was a later batch
        except RuntimeError as error:
            bad = self._flights.bad_rows()
            if not bad:
                raise ProducerFailed("DALI", error) from error
        self._row.errors += len(bad)
        if (
            not self._options.skips
            or self._row.errors + total(self._producers()).errors > self._options.error_limit
        ):
            self._refuse(packed, bad)
        rows = [row for row in range(packed.rows) if row not in bad]
        # "drop" promises that every batch is whole
        if not rows or self._options.last_batch == "drop":
            return None, []
        return packed.only(rows), self._flights.alone(packed.only(rows))

    def _refuse(self, packed: PackedBatch, bad: dict[int, str]) -> None:
        row, reason = next(iter(bad.items()))
        error = BadImage(reason)
        raise ProducerFailed(packed.place(row) or f"record {row} of a batch", error) from error

    def _whole(self, packed: PackedBatch, results: list[Any]) -> Batch:
        """Return a batch in the structure of the records."""
        targets = self._targets
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
        return Batch(tuple(leaves), packed.rows, sum(leaf.nbytes for leaf in leaves))

    def _spec_of(self, batch: Batch) -> BatchSpec:
        """Return the spec of augmented batches, of which this is one."""
        spec, targets = self._before.spec, self._targets
        own = spec.leaves[: len(spec.leaves) - EXTRA_LEAVES]
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

    def _check(self, batch: Batch, spec: BatchSpec) -> None:
        """Raise SpecError for a batch that is not as the first one was."""
        for leaf, array in zip(spec.leaves, batch.leaves, strict=True):
            shape = tuple(array.shape[1:])
            fits = len(shape) == len(leaf.shape) and all(
                have == want or want is None or self._options.padded
                for have, want in zip(shape, leaf.shape, strict=True)
            )
            if not fits:
                raise SpecError(
                    f"{leaf.path} has records of shape {shape}: must be {leaf.shape} as in the "
                    "first batch. Make one size with Resize, Crop or RandomResizedCrop, or say "
                    "pad=True (zeros) or pad=<number>"
                )

    @property
    def _static(self) -> bool:
        """True if every image leaves with the same size."""
        sizers = [
            op
            for op in self._augment.operations
            if isinstance(op, (Resize, RandomResizedCrop, Crop))
        ]
        return bool(sizers) and sizers[-1].size is not None

    @cached_property
    def _targets(self) -> Targets:
        spec = self._before.spec  # of the packed batches
        leaves = len(spec.leaves) - EXTRA_LEAVES
        return self._augment.targets(record_structure(spec.structure), leaves)
