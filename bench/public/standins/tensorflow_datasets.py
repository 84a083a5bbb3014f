"""Stand-in for tensorflow_datasets: digits and text from arrays in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import made
import numpy as np
import public_hooks
import tensorflow as tf

Split = SimpleNamespace(TRAIN="train", TEST="test", VALIDATION="validation")
FEATURES = {"image": SimpleNamespace(shape=(28, 28, 1)), "label": SimpleNamespace(num_classes=10)}


def _arrays(name: str, split: str) -> dict[str, Any]:
    if "shakespeare" in name:
        return {"text": np.array([made.prose(400_000 if split == "train" else 40_000)])}
    (x, y), (x_test, y_test) = made.images("mnist", public_hooks.SETTINGS)
    pixels, labels = (x, y) if split == "train" else (x_test, y_test)
    pixels = pixels[..., None]
    if "binarized" in name:
        return {"image": (pixels > 127).astype(np.uint8)}
    return {"image": pixels, "label": labels.astype(np.int64)}


class _Builder:
    def __init__(self, name: str) -> None:
        self.name = name
        sizes = {one: len(next(iter(_arrays(name, one).values()))) for one in ("train", "test")}
        splits = {one: SimpleNamespace(num_examples=size) for one, size in sizes.items()}
        self.info = SimpleNamespace(splits=splits, features=FEATURES)

    def download_and_prepare(self, **_: Any) -> None:
        """Nothing to do: the data are made."""

    def as_dataset(self, split: str = "train", as_supervised: bool = False, **_: Any) -> Any:
        arrays: Any = _arrays(self.name, split)
        if as_supervised:
            arrays = arrays["image"], arrays["label"]
        return tf.data.Dataset.from_tensor_slices(arrays)


def builder(name: str, **_: Any) -> _Builder:
    return _Builder(name)


def load(
    name: str, split: Any = None, batch_size: Any = None, with_info: bool = False, **given: Any
) -> Any:
    made_by = _Builder(name)
    found: Any
    if split is None:
        found = {one: _arrays(name, one) for one in ("train", "test")}
    else:
        found = made_by.as_dataset(split, **given)
    return (found, made_by.info) if with_info else found


def as_numpy(dataset: Any) -> Any:
    return dataset.as_numpy_iterator() if isinstance(dataset, tf.data.Dataset) else dataset
