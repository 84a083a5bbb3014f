"""Batches that DALI works on, started and finished in order, on a pipeline that is replaced if it
dies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastfeed.augment.packing import PackedBatch, SampleKind
from fastfeed.augment.spec import Augment, HandOver
from fastfeed.core.batch import Batch
from fastfeed.errors import SpecError
from fastfeed.options import FeedOptions


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
    """A queue of batches in DALI. `make` makes a pipeline for images of these kinds, and a number
    of records."""

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
                    'them to one in transform=, or set augment_on="producers"'
                )
            found.append(kinds.pop())
        return tuple(found)

    def _dali(self, kinds: Sequence[SampleKind], rows: int) -> Pipe:
        from fastfeed.augment.dali import DaliPipe

        pad = None
        if self._options.padded:
            pad = 0.0 if self._options.pad is True else float(self._options.pad or 0)
        device = "gpu" if self._options.augment_on == "dali-gpu" else "cpu"
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
