"""Work of a producer for one batch: a known cost, photographs, or the user's own iterator.

Every source travels to worker processes, so it is a function over plain data. What each process
needs for itself, such as OpenCV without threads of its own, is made where it is used.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fastfeed.benchmark import digits
from fastfeed.core.worker import Worker, takes_worker
from fastfeed.errors import MissingExtra, OptionError

WORKLOAD_KINDS = "sleep:50ms, python:10ms, opencv:10ms, photos:DIR or package.module:callable"
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
PHOTO_SIDE = 224
PICTURE = np.random.default_rng(0).random((256, 256), np.float32)  # something to blur


@dataclass(frozen=True)
class NamedSource:
    """A named source for FeedRunner, and a sentence about its data."""

    name: str
    source: Callable[..., Iterator[Any]]
    data: str


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
        return _photos(Path(rest).expanduser(), batch_size, name=text)
    if kind in COSTS:
        cost_s = seconds_from(rest, text)
        if kind == "opencv":
            _opencv()  # refused here if it is missing, not in a producer
        found = digits.load(data) if real or data is not None else digits.made_up()
        # named with its unit
        name = f"{text}ms" if rest.isdigit() else text
        return _digits(name, partial(COSTS[kind], cost_s), batch_size=batch_size, found=found)
    return NamedSource(text, _users_own(kind, rest, text=text), "the batches of your own iterator")


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


def _photos(folder: Path, batch_size: int, *, name: str) -> NamedSource:
    files = sorted(p for p in folder.glob("**/*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not files:
        raise OptionError(
            f"--workload {name!r}: must be a folder with .jpg or .png files, {folder} holds none"
        )
    _opencv()
    labels = {folder_name: i % 10 for i, folder_name in enumerate(sorted({p.stem for p in files}))}

    def batches(worker: Worker) -> Iterator[Any]:
        cv2, rng = _opencv(), worker.rng
        while True:
            chosen = [files[i] for i in rng.integers(0, len(files), batch_size)]
            images = [
                _augment(cv2, cv2.imread(str(path), cv2.IMREAD_COLOR), path=path, rng=rng)
                for path in chosen
            ]
            yield np.stack(images), np.array([labels[path.stem] for path in chosen])

    return NamedSource(name, batches, f"{len(files)} photographs of {folder}")


def _augment(cv2: Any, image: Any, *, path: Path, rng: np.random.Generator) -> Any:
    """Return a random crop of 224 x 224 x 3, uint8, flipped half of the time; small photographs are
    enlarged first."""
    if image is None:
        raise OptionError(f"{path} is no image that OpenCV can decode: remove it from the folder")
    height, width = image.shape[:2]
    if min(height, width) < PHOTO_SIDE:
        scale = PHOTO_SIDE / min(height, width)
        size = max(PHOTO_SIDE, round(width * scale)), max(PHOTO_SIDE, round(height * scale))
        image = cv2.resize(image, size)
        height, width = image.shape[:2]
    top, left = rng.integers(0, height - PHOTO_SIDE + 1), rng.integers(0, width - PHOTO_SIDE + 1)
    crop = image[top : top + PHOTO_SIDE, left : left + PHOTO_SIDE]
    return cv2.flip(crop, 1) if rng.random() < 0.5 else crop


def _users_own(module_name: str, attribute: str, *, text: str) -> Callable[..., Iterator[Any]]:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the module is found in the working directory
    try:
        found = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"--workload {text!r}: {error}; must be {WORKLOAD_KINDS}") from error
    if not callable(found):
        raise OptionError(
            f"--workload {text!r} is a {type(found).__name__}: must be a callable that returns "
            "batches"
        )
    return found
