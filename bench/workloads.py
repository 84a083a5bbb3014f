"""Work for producers: batch number `index`, made anew or filled into arrays that lie there already.

Every batch carries its number in its first and in its last element, so that a consumer sees a batch
that was lost, given twice, or overwritten while it was read.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

Batch = tuple[np.ndarray, ...]


@dataclass
class Work:
    """`shape` and `dtype` describe a whole batch; `hold_mb` is data that the source refers to."""

    shape: tuple[int, ...]
    dtype: str = "uint8"
    hold_mb: int = 0

    # a number here: batches carry index % period, being the same few arrays over and over
    period = 0
    labelled = False

    def __post_init__(self) -> None:
        self.held = np.ones(self.hold_mb << 17, np.float64) if self.hold_mb else None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def like(self) -> Batch:
        """Arrays of a batch's shapes and dtypes, untouched."""
        images = np.empty(self.shape, self.dtype)
        return (images, np.empty(self.shape[0], np.int64)) if self.labelled else (images,)

    def batch(self, index: int) -> Batch:
        """Batch `index` in fresh arrays."""
        out = self.like()
        self.fill(index, out)
        return out

    def fill(self, index: int, out: Batch) -> None:
        """Batch `index` in place."""
        self.make(index, out)
        stamp(out, index)

    def make(self, index: int, out: Batch) -> None:
        raise NotImplementedError

    def stream(self, first: int, step: int) -> Iterator[Batch]:
        """Yield one worker's share: batches first, first + step, ..."""
        index = first
        while True:
            yield self.batch(index)
            index += step

    @cached_property
    def _held_sum(self) -> float:
        """Reads one element of every page of the data that the source refers to: once in each
        process."""
        return float(self.held[::512].sum()) if self.held is not None else 0.0


@dataclass
class Ready(Work):
    """The data are there: a few prepared arrays, never changed, so that a library may also keep a
    reference."""

    @property
    def period(self) -> int:  # odd, so that each of 2, 4 or 8 workers gives all of them
        return 3 if self.nbytes > 1 << 20 else 61

    @cached_property
    def _ready(self) -> list[Batch]:
        made = [
            tuple(np.full_like(a, 1 + i % 250) for a in self.like()) for i in range(self.period)
        ]
        for i, batch in enumerate(made):
            stamp(batch, i)
        return made

    def batch(self, index: int) -> Batch:
        _ = self._held_sum
        return self._ready[index % self.period]

    def fill(self, index: int, out: Batch) -> None:
        for target, source in zip(out, self.batch(index), strict=True):
            np.copyto(target, source)


@dataclass
class OnePass(Work):
    """The data are made by one pass over prepared ones: read once, written once."""

    @cached_property
    def _base(self) -> np.ndarray:
        return np.random.default_rng(0).integers(0, 255, self.shape, np.uint8)

    def make(self, index: int, out: Batch) -> None:
        np.bitwise_xor(self._base, np.uint8(index & 255), out=out[0])


@dataclass
class Sleep(Work):
    """Waits: a disk, a network, a simulator."""

    seconds: float = 0.01

    def make(self, index: int, out: Batch) -> None:
        time.sleep(self.seconds)
        out[0].fill(1)


@dataclass
class Python(Work):
    """A fixed number of rounds of Python bytecode, so that the work is the same however often it is
    interrupted."""

    rounds: int = 100_000

    def make(self, index: int, out: Batch) -> None:
        burn(self.rounds)
        out[0].fill(1)


@dataclass
class Photos(Work):
    """JPEG files: decoded, a random part of them resized, half of them flipped. `shape` is (batch,
    side, side, 3)."""

    folder: str = ""

    labelled = True

    @cached_property
    def _files(self) -> list[str]:
        import cv2

        cv2.setNumThreads(0)  # in every process: the workers are what is measured
        return sorted(str(p) for p in Path(self.folder).glob("*.jpg"))

    def make(self, index: int, out: Batch) -> None:
        rng = np.random.default_rng(index)
        picks = rng.integers(0, len(self._files), self.shape[0])
        for i, pick in enumerate(picks):
            self.record(int(pick), rng, out[0][i])
        out[1][:] = picks

    def record(self, pick: int, rng: np.random.Generator, out: np.ndarray) -> None:
        """Decode one photograph into `out`, cropped as in ImageNet training.

        The crop covers 8 to 100 % of the area, with an aspect ratio from 3:4 to 4:3.
        """
        import cv2

        image = cv2.imread(self._files[pick], cv2.IMREAD_COLOR)
        height, width = image.shape[:2]
        area, ratio = (
            height * width * rng.uniform(0.08, 1.0),
            np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3))),
        )
        w, h = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
        top, left = int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1))
        part = image[top : top + h, left : left + w]
        if rng.random() < 0.5:
            part = cv2.flip(part, 1)
        cv2.resize(part, out.shape[1::-1], dst=out)


@dataclass
class Faulty(Work):
    """5 ms a batch; in number `at` the worker "raises" or is "killed", and the file `mark` gets the
    time of that."""

    fault: str = ""
    at: int = 0
    mark: str = ""

    def make(self, index: int, out: Batch) -> None:
        time.sleep(0.005)
        if index == self.at and self.fault in ("raises", "killed"):
            Path(self.mark).write_text(str(time.time()))
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError(f"record {index} is broken")


KINDS = {kind.__name__: kind for kind in (Ready, OnePass, Sleep, Python, Photos, Faulty)}


def to_json(work: Work) -> dict[str, Any]:
    return {"kind": type(work).__name__, **asdict(work)}


def from_json(given: dict[str, Any]) -> Work:
    rest = {key: value for key, value in given.items() if key != "kind"}
    return KINDS[given["kind"]](**rest | {"shape": tuple(given["shape"])})


def burn(rounds: int) -> int:
    total = 0
    for i in range(rounds):
        total += i & 3
    return total


def rounds_for(seconds: float) -> int:
    """Return the rounds of `burn` that take `seconds` here, from the fastest of many warm runs."""

    def once() -> float:
        start = time.perf_counter()
        burn(20_000)
        return time.perf_counter() - start

    return round(20_000 * seconds / min(once() for _ in range(200)))


def stamp(out: Batch, index: int) -> None:
    """Writes the number into the first and the last element; three bytes of it first where an
    element is one byte."""
    for leaf in out:
        flat = leaf.reshape(-1)
        if leaf.itemsize == 1:
            flat[0], flat[1], flat[2] = index & 255, index >> 8 & 255, index >> 16 & 255
            flat[-1] = index & 255
        else:
            flat[0] = flat[-1] = index


def read_stamp(batch: Any) -> int:
    """The number of a batch, from reading both ends of every leaf; RuntimeError if they do not
    belong together."""
    index = -1
    for leaf in batch:
        if leaf.itemsize == 1:
            number = leaf.item(0) | leaf.item(1) << 8 | leaf.item(2) << 16
            torn = number & 255 != leaf.item(-1)
        else:
            number = int(leaf.item(0))
            torn = number != leaf.item(-1)
        if torn or (index >= 0 and number != index):
            raise RuntimeError(
                f"torn batch: {number} at the start, {leaf.item(-1)} at the end, {index} before"
            )
        index = number
    return index


def check_order(seen: list[int], workers: int, *, ordered: bool, period: int) -> None:
    """RuntimeError where batches were lost or came twice; `seen` are the numbers from the very
    first batch on."""
    if ordered:
        wrong = [i for i, n in enumerate(seen) if n != (i % period if period else i)]
    elif period:  # each worker goes through all numbers, so each comes about as often as another
        counts = np.bincount(seen, minlength=period)
        wrong = [int(n) for n in counts if counts.max() - counts.min() > workers]
    else:
        shares = [[n for n in seen if n % workers == w] for w in range(workers)]
        right = [list(range(w, w + workers * len(own), workers)) for w, own in enumerate(shares)]
        wrong = [w for w in range(workers) if shares[w] != right[w] or not shares[w]]
    if wrong:
        raise RuntimeError(
            f"batches lost or repeated: {len(wrong)} mistakes among {len(seen)}, the first: "
            f"{wrong[0]}"
        )
