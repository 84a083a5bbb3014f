"""Stand-in for `tensorflow.examples.tutorials.mnist.input_data`: the same arrays and epochs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import made
import numpy as np
import public_hooks


class DataSet:
    """Images in [0, 1] and labels; `next_batch` shuffles once an epoch."""

    def __init__(self, images: Any, labels: Any, one_hot: bool, reshape: bool) -> None:
        self._images = images.reshape(
            len(images), -1 if reshape else 28, *([] if reshape else [28, 1])
        )
        self._images = np.multiply(self._images.astype(np.float32), 1 / 255)
        self._labels = np.eye(10)[labels] if one_hot else labels
        self._at = self._epochs = 0
        self._ready: Any = None

    images = property(lambda self: self._images)
    labels = property(lambda self: self._labels)
    num_examples = property(lambda self: len(self._images))
    epochs_completed = property(lambda self: self._epochs)

    def next_batch(self, batch_size: int, fake_data: bool = False, shuffle: bool = True) -> Any:
        if "mnist.ready" in public_hooks.SETTINGS.get("switches", ()):
            if self._ready is None:
                self._ready = self._images[:batch_size].copy(), self._labels[:batch_size].copy()
            return self._ready
        if self._at == 0 and self._epochs == 0 and shuffle:
            self._shuffle()
        start, self._at = self._at, self._at + batch_size
        if self._at <= len(self._images):
            return self._images[start : self._at], self._labels[start : self._at]
        rest = self._images[start:], self._labels[start:]
        self._epochs += 1
        if shuffle:
            self._shuffle()
        self._at = batch_size - len(rest[0])
        first = self._images[: self._at], self._labels[: self._at]
        return tuple(np.concatenate(pair) for pair in zip(rest, first, strict=True))

    def _shuffle(self) -> None:
        order = np.random.permutation(len(self._images))
        self._images, self._labels = self._images[order], self._labels[order]


def read_data_sets(
    train_dir: str = "",
    fake_data: bool = False,
    one_hot: bool = False,
    reshape: bool = True,
    **_: Any,
) -> Any:
    """Return the sets train, validation and test in the proportions of the real one."""
    (x, y), (x_test, y_test) = made.images("mnist", public_hooks.SETTINGS)
    held = len(x) // 12
    parts = {
        "train": (x[held:], y[held:]),
        "validation": (x[:held], y[:held]),
        "test": (x_test, y_test),
    }
    return SimpleNamespace(**{k: DataSet(*v, one_hot, reshape) for k, v in parts.items()})
