"""Batches that DALI works on: started in their order and finished in it, on a pipeline that is made
anew if it dies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastfeed.augment.packing import Packed, SampleKind
from fastfeed.augment.spec import Augment, HandOver
from fastfeed.core.batch import Batch
from fastfeed.errors import SpecError
from fastfeed.options import FeedOptions


class Pipe(Protocol):
    """A pipeline. RuntimeError of either method: it is of no more use."""

    def start(self, packed: Packed) -> None:
        """Begins to work on a batch, which must stay as it is until `finish` has returned its
        results."""

    def finish(self) -> list[Any]:
        """The results of the oldest batch: an array for each image and mask."""
        ...


@dataclass
class DaliBatch:
    """A batch on its way; it holds the memory that DALI reads."""

    batch: Batch
    packed: Packed
    pipe: Pipe
    mark: Any


MakePipe = Callable[[Sequence[SampleKind], int], Pipe]


class DaliQueue:
    """A queue of batches in DALI. `make` makes a pipeline for images of these kinds, and so many
    records."""

    def __init__(
        self, augment: Augment, options: FeedOptions, *, make: MakePipe | None = None
    ) -> None:
        self._augment = augment
        self._options = options
        # None: DALI. A method of its own would keep it, and the pipeline, until garbage is
        # collected
        self._make = make
        self._waiting: deque[DaliBatch] = deque()
        self._kinds: tuple[SampleKind, ...] | None = None
        self._pipe: Pipe | None = None
        self._rows = 0  # the most that the pipeline takes
        self._sound = True  # whether the flights are in their pipelines, as far as anybody knows
        self._decodes = augment.decodes is not None and not augment.has(HandOver)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> DaliBatch:
        """The one that comes down next."""
        return self._waiting[0]

    def start(self, batch: Batch, packed: Packed, *, mark: Any = None) -> None:
        """Begins to work on a batch. Raises SpecError where its images are of another kind than the
        first ones."""
        self._waiting.append(DaliBatch(batch, packed, self._pipe_for(packed), mark))
        self._begin(self._waiting[-1])

    def finish(self) -> list[Any]:
        """The results of the oldest, which stays until it is `over`. RuntimeError where DALI has
        failed at any."""
        if not self._sound:
            self._restart()
        self._sound = False  # until it is over: an exception of a signal handler may come before
        return self.oldest.pipe.finish()

    def over(self) -> Any:
        """The oldest flight has come down, and its memory is needed no more; its mark."""
        self._sound = True
        return self._waiting.popleft().mark

    def alone(self, packed: Packed) -> list[Any]:
        """The results of some records, on a pipeline of their own. RuntimeError where DALI cannot
        do with them."""
        pipe = self._new_pipe(packed, rows=packed.rows)
        pipe.start(packed)
        return pipe.finish()

    def go_on(self) -> None:
        """All but the oldest go into a new pipeline."""
        self._restart(behind=1)

    def bad_rows(self) -> dict[int, str]:
        """Which records of the oldest DALI cannot do with, and why. Whose fault a failure was is
        not to be learned from its text, nor from when it comes: so one record after the other is
        tried by itself, on a pipeline of its own."""
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
        ):  # it has died of an earlier batch, which is the one to tell: all begin again
            pass

    def _restart(self, behind: int = 0) -> None:
        """What was in flight goes into a new pipeline, but the oldest `behind`."""
        self._pipe = None
        self._sound = True
        for flight in list(self._waiting)[behind:]:
            flight.pipe = self._pipe_for(flight.packed)
            self._begin(flight)

    def _pipe_for(self, packed: Packed) -> Pipe:
        if self._pipe is None or packed.rows > self._rows:
            self._rows = max(self._rows, packed.rows)
            self._pipe = self._new_pipe(packed, rows=self._rows)
        else:
            self._kinds_of(packed)
        return self._pipe

    def _new_pipe(self, packed: Packed, *, rows: int) -> Pipe:
        self._kinds = self._kinds_of(packed)
        return (self._make or self._dali)(self._kinds, rows)

    def _kinds_of(self, packed: Packed) -> tuple[SampleKind, ...]:
        """What the samples are. Raises SpecError where they are not all alike, and as they always
        were."""
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
                    f"images of {_words(kinds)} in one leaf: DALI takes one kind only; make them alike in transform=, "
                    'or say augment_on="producers"'
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
    """What DALI says, without its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    at = next((n for n, line in enumerate(lines) if line.startswith("encountered")), -1)
    told = [line for line in lines[at + 1 :] if not line.startswith("Current pipeline object")]
    return f"DALI cannot decode it or work on it ({(told or lines or [type(error).__name__])[0].rstrip(' :')})"


def _words(kinds: Iterable[SampleKind]) -> str:
    return " and ".join(f"{kind.dtype} with {kind.channels} channels" for kind in sorted(kinds))
