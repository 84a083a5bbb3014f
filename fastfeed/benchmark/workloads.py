"""Work of a producer for one batch: a known cost, photographs, or the user's own iterator.

Every source travels to worker processes, so it is a function over plain data. What each process
needs for itself, such as OpenCV without threads of its own, is made where it is used.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fastfeed import augment
from fastfeed.augment import Augment
from fastfeed.augment.executor import Executor
from fastfeed.augment.spec import EXECUTORS
from fastfeed.benchmark import digits
from fastfeed.core.collate import collate
from fastfeed.core.worker import Worker, takes_worker
from fastfeed.errors import MissingExtra, OptionError

WORKLOAD_KINDS = "sleep:50ms, python:10ms, opencv:10ms, photos:DIR or package.module:callable"
AUGMENT_KINDS = "standard or package.module:spec"
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
CROP_SIDE = 224
SUFFIXES = (".jpg", ".jpeg", ".png")
PICTURE = np.random.default_rng(0).random((256, 256), np.float32)  # something to blur
BY_PRODUCERS = "fastfeed"  # the kind of feed whose producers make whole batches


@dataclass(frozen=True)
class NamedSource:
    """A named workload: `source` is the iterator of one producer, `data` a sentence about its
    data.

    `feeds` are the kinds of feeds to measure, each with a source and options of FeedRunner; empty
    for a single one of `source`.
    """

    name: str
    source: Callable[..., Iterator[Any]]
    data: str
    feeds: Mapping[str, tuple[Any, Mapping[str, Any]]] = field(default_factory=dict)


def workload_from(
    text: str, *, batch_size: int, data: str | None = None, real: bool = True
) -> NamedSource:
    """Return the workload that `text` names. Raise OptionError with the possible names.

    Without `real`, and without `data`, images are made up: no package is needed to read them.
    """
    kind, colon, rest = text.partition(":")
    if text.endswith(".py"):
        raise OptionError(
            f"--workload {text!r} is a script: `fastfeed diagnose -- {text}` measures a whole "
            f"training. To measure its iterator alone, name it: --workload {Path(text).stem}:NAME"
        )
    if not colon or not rest:
        raise OptionError(f"--workload {text!r}: must be {WORKLOAD_KINDS}")
    if data is not None and kind not in COSTS:
        raise OptionError(
            f"--data names the MNIST of {', '.join(COSTS)} workloads, and {text!r} has data of its "
            "own: leave it out"
        )
    if kind == "photos":
        return _photos(text, spec_from("standard"), batch_size=batch_size)
    if kind in COSTS:
        cost_s = seconds_from(rest, text)
        if kind == "opencv":
            _opencv()  # refused here if it is missing, not in a producer
        found = digits.load(data) if real or data is not None else digits.made_up()
        # named with its unit
        name = f"{text}ms" if rest.isdigit() else text
        return _digits(name, partial(COSTS[kind], cost_s), batch_size=batch_size, found=found)
    found = _named(text, f"--workload {text!r}", kinds=WORKLOAD_KINDS)
    if not callable(found):
        raise OptionError(
            f"--workload {text!r} is a {type(found).__name__}: must be a callable that returns "
            "batches"
        )
    return NamedSource(text, found, "the batches of your own iterator")


def augmented(text: str, operations: str, *, executors: str, batch_size: int) -> NamedSource:
    """Return the photographs of photos:DIR with a kind of feed for each of the executors in
    "producers,dali-cpu"."""
    spec, names = spec_from(operations), tuple(dict.fromkeys(executors.split(",")))
    if not text.startswith("photos:") or text == "photos:":
        raise OptionError(
            f"--augment works on encoded images: needed --workload photos:DIR, got {text!r}"
        )
    if not set(names) <= set(EXECUTORS):
        raise OptionError(
            f"--augment-on {executors!r}: must be some of {', '.join(EXECUTORS)}, with commas "
            "between them"
        )
    found = _photos(text, spec, batch_size=batch_size, executors=names)
    return replace(found, name=f"{text}, {operations}")


def spec_from(text: str) -> Augment:
    """Return the operations that `text` names: "standard", or package.module:attribute."""
    if text == "standard":
        crop = augment.RandomResizedCrop(CROP_SIDE)
        return Augment([augment.Decode(), crop, augment.Flip()])
    found = _named(text, f"--augment {text!r}", kinds=AUGMENT_KINDS)
    if not isinstance(found, Augment):
        raise OptionError(f"--augment {text!r}: must be {AUGMENT_KINDS} of an Augment")
    return found


def open_stream(
    source: Callable[..., Iterator[Any]], index: int = 0, *, count: int = 1
) -> Iterator[Any]:
    """Return the stream of one of `count` producers, without a runner."""
    return iter(source(worker=Worker(index, count, 0, 0)) if takes_worker(source) else source())


def seconds_from(text: str, option: str) -> float:
    """Return seconds from 50ms, 0.05s, 300us, 54min or 2h.

    A whole number without a unit is milliseconds.
    """
    if text.isdigit():
        return int(text) * 1e-3
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|h)", text)
    if match is None:
        raise OptionError(f"{option!r}: {text!r} is no time; write 50ms, 0.05s or 300us")
    return float(match[1]) * SECONDS[match[2]]


def _digits(
    name: str, cost: Callable[[], None], *, batch_size: int, found: digits.Digits
) -> NamedSource:
    images, labels = found.x_train, found.y_train  # the test set need not travel

    def batches(worker: Worker) -> Iterator[Any]:
        rng = worker.rng
        while True:
            rows = rng.integers(0, len(images), batch_size)
            cost()
            yield images[rows], labels[rows]

    return NamedSource(name, batches, found.origin)


def _burn_python(seconds: float) -> None:
    """Run bytecode that holds the interpreter lock for `seconds` of this thread's CPU time; waits
    for it come on top."""
    end = time.thread_time() + seconds
    total = 0
    while time.thread_time() < end:
        for i in range(200):
            total += i


def _burn_opencv(seconds: float) -> None:
    """Run native code without the interpreter lock for `seconds` of this thread's CPU time."""
    cv2, end = _opencv(), time.thread_time() + seconds
    while time.thread_time() < end:
        cv2.GaussianBlur(PICTURE, (15, 15), 3.0)


COSTS: dict[str, Callable[[float], None]] = {
    "sleep": time.sleep,
    "python": _burn_python,
    "opencv": _burn_opencv,
}


@cache
def _opencv() -> Any:
    """Return OpenCV without threads of its own: the benchmark's threads are what is measured."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra("OpenCV", "opencv") from error
    cv2.setNumThreads(0)
    return cv2


class Photographs:
    """(file's bytes as uint8, label) by index, each file `times`: at least as many as a batch has
    records, so that all batches are whole. Labels are made up."""

    def __init__(self, folder: Path, times: int) -> None:
        files = sorted(p for p in folder.glob("**/*") if p.suffix.lower() in SUFFIXES)
        if not files:
            raise OptionError(
                f"--workload photos:{folder}: must be a folder with .jpg or .png files, it holds "
                "none"
            )
        self._files = files * times

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], np.int64]:
        return np.fromfile(self._files[index], np.uint8), np.int64(index % 10)


def _photos(
    text: str, spec: Augment, *, batch_size: int, executors: Sequence[str] = ()
) -> NamedSource:
    records = Photographs(Path(text.partition(":")[2]).expanduser(), batch_size)
    _opencv()

    def batches(worker: Worker) -> Iterator[Any]:
        executor, rng = Executor(spec, crowded=True), worker.rng
        while True:
            begun = [
                executor.prepare(records[i], key)
                for i, key in rng.integers(0, len(records), (batch_size, 2)).tolist()
            ]
            made = [executor.execute(record) for record in begun]
            yield collate(made, None, place="a batch", allocate=worker.allocate)[0]

    feeds = {
        name: (records, {"augment": replace(spec, on=name), "shuffle": True, "seed": 0})
        for name in executors
    }
    steps = ", ".join(type(operation).__name__ for operation in spec.operations)
    data = f"{len(records) // batch_size} photographs: {steps}"
    return NamedSource(text, batches, data, feeds)


def _named(text: str, option: str, *, kinds: str) -> Any:
    """Return the object package.module:attribute."""
    module, _, attribute = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the module is found in the working directory
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(f"{option}: {error}; must be {kinds}") from error
    return found
