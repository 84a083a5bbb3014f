"""The last stage, where DALI augments: packed batches in, augmented ones out, a few in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastfeed.augment.labels import mix
from fastfeed.augment.packing import EXTRA_LEAVES, PackedBatch, SampleKind, record_structure, unpack
from fastfeed.augment.spec import Augment, HandOver, Targets
from fastfeed.augment.steps import Blend, FixedWindow, Scale
from fastfeed.core.batch import Batch, BatchSpec, LeafSpec
from fastfeed.core.collate import aligned_arrays
from fastfeed.core.stats import StageRow
from fastfeed.engine.stage import Stage
from fastfeed.errors import BadImage, FeedError, FeedStopped, ProducerFailed, SpecError, StateError
from fastfeed.options import FeedOptions

AHEAD = 3  # batches in flight: one that is taken, and two that keep the workers busy meanwhile


class Pipe(Protocol):
    """A pipeline. After a RuntimeError of either method it is unusable."""

    def start(self, packed: PackedBatch) -> None:
        """Begin to work on a batch, which must not change until `finish` has returned its
        results."""

    def finish(self) -> list[Any]:
        """Return the results of the oldest batch: an array for each image and mask."""
        ...


@dataclass
class DaliBatch:
    """A batch in flight; it holds the memory that DALI reads."""

    batch: Batch
    packed: PackedBatch
    pipe: Pipe
    mark: Any


MakePipe = Callable[[Sequence[SampleKind], int], Pipe]


class DaliQueue:
    """A queue of batches in DALI, on a pipeline that is replaced if it dies. `make` makes one for
    images of these kinds, and a number of records."""

    def __init__(
        self, augment: Augment, options: FeedOptions, *, make: MakePipe | None = None
    ) -> None:
        self._augment = augment
        self._options = options
        # None: DALI. A method of its own would keep it, and the pipeline, until garbage is
        # collected
        self._assemble = make
        self._waiting: deque[DaliBatch] = deque()
        self._kinds: tuple[SampleKind, ...] | None = None
        self._pipe: Pipe | None = None
        self._rows = 0  # the most records that the pipeline takes
        self._sound = True  # the batches in flight are in their pipelines, as far as is known
        self._decodes = augment.decodes is not None and not augment.has(HandOver)

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

    def over(self) -> Any:
        """Remove the oldest batch, whose memory is needed no more; return its mark."""
        self._sound = True
        return self._waiting.popleft().mark

    def alone(self, packed: PackedBatch) -> list[Any]:
        """Return the results of some records, on a pipeline of their own. Raise RuntimeError if
        DALI fails at them."""
        pipe = self._new_pipe(packed, rows=packed.rows)
        pipe.start(packed)
        return pipe.finish()

    def go_on(self) -> None:
        """Move all batches but the oldest into a new pipeline."""
        self._restart(behind=1)

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
        except (
            RuntimeError
        ):  # it died of an earlier batch, whose `finish` reports it: all begin again
            pass

    def _restart(self, behind: int = 0) -> None:
        """Move batches in flight into a new pipeline, except the oldest `behind`."""
        self._pipe = None
        self._sound = True
        for flight in list(self._waiting)[behind:]:
            flight.pipe = self._pipe_for(flight.packed)
            self._begin(flight)

    def _pipe_for(self, packed: PackedBatch) -> Pipe:
        if self._pipe is None or packed.rows > self._rows:
            self._rows = max(self._rows, packed.rows)
            self._pipe = self._new_pipe(packed, rows=self._rows)
        else:
            self._kinds_of(packed)
        return self._pipe

    def _new_pipe(self, packed: PackedBatch, *, rows: int) -> Pipe:
        self._kinds = self._kinds_of(packed)
        return (self._assemble or self._dali)(self._kinds, rows)

    def _kinds_of(self, packed: PackedBatch) -> tuple[SampleKind, ...]:
        """Return the kinds of the samples. Raise SpecError if they are not all alike, and as
        before."""
        decode, images, found = self._augment.decodes, packed.plan.shape[1], []
        for number, samples in enumerate(packed.samples):
            mask = number >= images
            if self._decodes and decode is not None and not mask:
                found.append(SampleKind("uint8", decode.depth, encoded=True))
                continue
            kinds = {
                SampleKind(sample.dtype.name, sample.shape[2], mask=mask) for sample in samples
            }
            if self._kinds is not None:
                kinds.add(self._kinds[number])
            if len(kinds) > 1:
                raise SpecError(
                    f"images of {_words(kinds)} in one leaf: DALI takes one kind only; convert "
                    'them to one in transform=, or set Augment(on="producers")'
                )
            found.append(kinds.pop())
        return tuple(found)

    def _dali(self, kinds: Sequence[SampleKind], rows: int) -> Pipe:
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


def _words(kinds: Iterable[SampleKind]) -> str:
    return " and ".join(f"{kind.dtype} with {kind.channels} channels" for kind in sorted(kinds))


class Landed(NamedTuple):
    """A batch that DALI has finished. `rows` packed records went into it, or were left out. `mark`
    came with it."""

    batch: Batch
    rows: int
    mark: Any


class DaliStage(Stage):
    """Augments packed batches with DALI, a few in flight, and returns them in order.

    The memory of a packed batch is held until DALI has read it. Raise BadImage (as the cause of
    ProducerFailed) for an image that DALI cannot decode, with the name of its record, unless
    on_error="skip" leaves it out and counts it.
    """

    def __init__(
        self,
        options: FeedOptions,
        *,
        queue: DaliQueue | None = None,
        row: StageRow | None = None,
        elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        assert options.augment is not None  # options.packed says so
        self._augment: Augment = options.augment
        self._options = options
        self._flights = DaliQueue(self._augment, options) if queue is None else queue
        self._landed: deque[Landed] = deque()
        self._packed_spec: BatchSpec | None = None
        self._targets: Targets | None = None
        self.spec: BatchSpec | None = None  # of the augmented batches, once one has landed
        # what follows the batches in flight: the end of a run or an epoch, or a failure of the
        # stage before
        self._over = False
        self._failure: FeedError | None = None
        self._lost = 0  # rows of batches of which nothing was left
        # `busy_s` is time waited for DALI, and `errors` counts records left out
        self.row = row or StageRow()
        self._elsewhere = elsewhere  # errors of the producers, which count for error_limit, too
        # of the batch that was popped last: the packed records that went into it or were left out
        # before it, and its mark
        self.rows = 0
        self.mark: Any = None

    @property
    def depth(self) -> int:
        """Batches in flight."""
        return len(self._flights) + len(self._landed)

    @property
    def empty(self) -> bool:
        """True if nothing is in flight, no end and no failure."""
        return not self.depth and not self._over and self._failure is None

    def expect(self, spec: BatchSpec) -> None:
        """Learn the spec of the packed batches, before the first `take_in`."""
        if self._packed_spec is None:
            self._packed_spec = spec
            leaves = len(spec.leaves) - EXTRA_LEAVES
            self._targets = self._augment.targets(record_structure(spec.structure), leaves)

    def learn(self, batch: Batch) -> None:
        """Learn the spec of the augmented batches from a packed one, which is taken in later.

        Raise ProducerFailed where DALI can decode none of its records.
        """
        if self.spec is not None:
            return
        packed = unpack(batch, self._known_targets)
        for row in range(packed.rows):  # the first that is sound
            try:
                leaves = self._flights.alone(packed.only([row]))
            except RuntimeError:
                continue
            self.spec = self._spec_of(self._whole(packed.only([row]), leaves))
            return
        self._refuse(packed, {0: "DALI cannot decode it"})

    def wants(self, at_hand: bool) -> bool:
        """Return True if DALI has room for another batch. While batches are in flight, take in only
        input that is `at_hand`; else wait until the oldest has landed."""
        while True:
            early = bool(self._flights or self._landed)
            room = len(self._flights) < AHEAD and not self._over and self._failure is None
            if room and (at_hand or not early):
                return True
            if self._landed or not self._flights:
                return False
            self._land()

    def take_in(self, batch: Batch | None, origin: Any) -> None:
        """Start DALI on a packed batch; `origin` is its mark."""
        if batch is not None:
            self._flights.start(batch, unpack(batch, self._known_targets), mark=origin)

    def end_epoch(self, *, last: bool = True) -> None:
        """Let `pop` return None after what is in flight."""
        self._over = True

    def flush(self) -> None:
        """Do nothing: the end of a run arrives by `end_epoch`."""

    def defer(self, error: FeedError) -> bool:
        """Let `pop` raise a failure of the stage before after what is in flight. Return False if
        nothing is, and for errors that concern the consumer."""
        if not (self._flights or self._landed) or isinstance(error, (FeedStopped, StateError)):
            return False
        self._failure = error
        return True

    def pop(self) -> Batch | None:
        """Return the next augmented batch, or None where a run or an epoch ends. Raise what was
        deferred."""
        if self._landed:
            landed = self._landed.popleft()
            self.rows, self.mark = landed.rows, landed.mark
            return landed.batch
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._over = False
        return None

    def state(self, state: dict[str, Any], pack: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the mark of the batch that was popped last, while others are in flight; else the
        state of the stages before. `pack` makes text of the origins of a shuffle's pool."""
        found = state if self.mark is None or self.empty else self.mark
        pool = found["pool"]
        if pool is not None:
            pool = {**pool, "origins": [pack(origins) for origins in pool["origins"]]}
        counts = {name: state[name] for name in ("batches", "records")}
        return {**found, "pool": pool, **counts}

    def _land(self) -> None:
        """Wait for the oldest batch in flight."""
        start = time.perf_counter()
        packed: PackedBatch | None = self._flights.oldest.packed
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
            made = self._whole(packed, leaves)
            if self.spec is None:
                self.spec = self._spec_of(made)
            self._check(made, self.spec)
            lost, self._lost = self._lost, 0
            self._landed.append(Landed(made, lost, mark))

    def _saved(self, packed: PackedBatch) -> tuple[PackedBatch | None, list[Any]]:
        """Return what is left of the oldest batch after a failure of DALI, and its results. Raise
        if nothing may be left out, or no record is the cause."""
        try:
            return packed, self._flights.alone(packed)  # it was a later batch
        except RuntimeError as error:
            bad = self._flights.bad_rows()
            if not bad:
                raise ProducerFailed("DALI", error) from error
        self.row.errors += len(bad)
        if (
            not self._options.skips
            or self.row.errors + self._elsewhere() > self._options.error_limit
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
        targets = self._known_targets
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

    def _spec_of(self, batch: Batch) -> BatchSpec:
        """Return the spec of augmented batches, of which this is one."""
        spec, targets = self._packed_spec, self._known_targets
        assert spec is not None  # `expect` was called
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
        last = None
        for placed in self._augment.program:
            if isinstance(placed.step, (FixedWindow, Scale)):
                last = placed.step
        return isinstance(last, FixedWindow) or (isinstance(last, Scale) and not last.shorter)

    @property
    def _known_targets(self) -> Targets:
        assert self._targets is not None  # `expect` was called
        return self._targets


def drive(
    stage: DaliStage, take: Callable[[], tuple[Batch, Any] | None], *, at_hand: Callable[[], bool]
) -> Batch | None:
    """Return the next batch of `stage`, which takes in what `take` returns: a packed batch and its
    mark, or None where a run ends. Raise what `take` raises, behind the batches before it."""
    while stage.wants(at_hand()):
        try:
            taken = take()
        except FeedError as error:
            if not stage.defer(error):
                raise
        else:
            if taken is None:
                stage.end_epoch()
            else:
                stage.take_in(*taken)
    return stage.pop()
