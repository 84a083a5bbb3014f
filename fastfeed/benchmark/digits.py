"""Handwritten digits for examples and benchmarks.

MNIST from a path that the user names, from `$FASTFEED_DATA` or from Keras's cache; else
scikit-learn's small digits, enlarged to the same 28 x 28 pixels. `Digits.origin` says which.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastfeed.errors import MissingExtra, OptionError

FILE = "mnist.npz"
DIGIT_SIDE = 28
ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test")
# of scikit-learn's 1797 digits, the last ones: by other writers than the first ones
TEST_RECORDS = 297
MADE_UP_RECORDS = 2000
FETCH = 'python -c "from keras.datasets import mnist; mnist.load_data()"'
# of numpy, for a damaged file, one without these arrays, and a single array
READ_ERRORS = (OSError, ValueError, EOFError, LookupError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Digits:
    """Images (n, 28, 28) uint8 of white on black, labels (n,) int64 from 0 to 9, and their
    origin."""

    x_train: npt.NDArray[np.uint8]
    y_train: npt.NDArray[np.int64]
    x_test: npt.NDArray[np.uint8]
    y_test: npt.NDArray[np.int64]
    origin: str


def load(path: str | Path | None = None) -> Digits:
    """Return the digits at `path`, a file or a folder with mnist.npz in it; without `path` the best
    that this machine has.

    Raise OptionError if a file does not hold MNIST, MissingExtra if there is none and scikit-learn
    is not installed.
    """
    if path is not None:
        return _read(_named(Path(path).expanduser()))
    places = _usual_places()
    found = next((place for place in places if place.is_file()), None)
    return _enlarged(places) if found is None else _read(found)


def made_up() -> Digits:
    """Return noise in the shape of MNIST, for consumers that do not look at it."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (MADE_UP_RECORDS, DIGIT_SIDE, DIGIT_SIDE), np.uint8)
    labels = rng.integers(0, 10, MADE_UP_RECORDS)
    origin = f"made-up images of {DIGIT_SIDE} x {DIGIT_SIDE} pixels: the consumer ignores them."
    return Digits(images, labels, images[:0], labels[:0], origin)


def _named(path: Path) -> Path:
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise OptionError(
            f"a file with MNIST was needed (Keras's {FILE}), and {file} does not exist; name the "
            "file or its folder as path=, or no path to use what this machine has"
        )
    return file


def _usual_places() -> list[Path]:
    named = os.environ.get("FASTFEED_DATA")
    keras = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    return [
        *([Path(named).expanduser() / FILE] if named else []),
        keras.expanduser() / "datasets" / FILE,
    ]


def _read(file: Path) -> Digits:
    try:
        with file.open("rb") as opened:  # np.load leaves a broken file open that it opened itself
            content: Any = np.load(opened)
            x_train, y_train, x_test, y_test = (content[name] for name in ARRAY_NAMES)
    except READ_ERRORS as error:
        raise _unfit(file, f"it cannot be read as an .npz file with them ({error})") from error
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if (
            y.ndim != 1
            or y.dtype.kind not in "iu"
            or x.shape != (len(y), DIGIT_SIDE, DIGIT_SIDE)
            or x.dtype != np.uint8
        ):
            raise _unfit(file, f"x_{part} is {x.dtype} {x.shape} and y_{part} {y.dtype} {y.shape}")
    origin = f"MNIST from {file}: {len(x_train)} digits to train on, {len(x_test)} to test with."
    return Digits(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64), origin)


def _unfit(file: Path, there: str) -> OptionError:
    return OptionError(
        f"{file} was taken for MNIST, with {', '.join(ARRAY_NAMES)} of shapes "
        f"(n, {DIGIT_SIDE}, {DIGIT_SIDE}) uint8 and (n,), but {there}; name another file as path=, "
        "or remove this one"
    )


def _enlarged(places: list[Path]) -> Digits:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra("scikit-learn", "examples") from error
    x, y = load_digits(return_X_y=True)
    images, labels = enlarge(x.reshape(-1, 8, 8), full=16), y.astype(np.int64)
    train, test = slice(None, -TEST_RECORDS), slice(-TEST_RECORDS, None)
    origin = (
        f"scikit-learn's small digits, enlarged from 8 x 8 to {DIGIT_SIDE} x {DIGIT_SIDE} pixels, "
        f"{len(labels[train])} to train on and {len(labels[test])} to test with, because there is "
        f"no MNIST at {' or '.join(map(str, places))}; fetch it with {FETCH}."
    )
    return Digits(images[train], labels[train], images[test], labels[test], origin)


def enlarge(images: npt.NDArray[Any], full: float) -> npt.NDArray[np.uint8]:
    """Return `images` (n, h, w) with values from 0 to `full` as (n, 28, 28) uint8 from 0 to 255,
    bilinearly interpolated."""
    rows, columns = _weights(images.shape[1]), _weights(images.shape[2])
    pixels = rows @ (images * (255 / full)) @ columns.T
    return np.asarray(np.rint(pixels), dtype=np.uint8)


def _weights(size: int) -> npt.NDArray[np.float64]:
    """Return (28, size): the share of each source pixel in each target pixel; centres as in
    half-pixel bilinear resizing."""
    centres = np.clip((np.arange(DIGIT_SIDE) + 0.5) * size / DIGIT_SIDE - 0.5, 0, size - 1)
    shares: npt.NDArray[np.float64] = np.clip(1 - np.abs(centres[:, None] - np.arange(size)), 0, 1)
    return shares
