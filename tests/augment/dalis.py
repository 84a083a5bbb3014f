"""Helpers that run DALI and OpenCV on single records and batches, without a feed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastfeed import augment as A
from fastfeed.augment.executor import Executor
from fastfeed.augment.packing import EXTRA_LEAVES, PackedBatch, record_structure, unpack
from fastfeed.augment.spec import Augment
from fastfeed.core.batch import Batch, infer
from fastfeed.core.collate import collate
from fastfeed.core.structure import leaves_of, rebuild, structure_of
from fastfeed.engine.dali_stage import DaliQueue
from fastfeed.options import FeedOptions

Image = np.ndarray[Any, Any]
ANY = A.Uniform(0, 1)
# The greatest difference of one pixel, and the mean over an image, in levels of 0 to 255: draws and
# geometry are the same, and the arithmetic differs. Each is for one operation; the sum bounds
# several, except at sharp edges: a pixel on the edge of a warped image is either image or `fill`.
EXACT, ROUNDED, WARPED, BLURRED, FLOATS = (0, 0), (1, 0.5), (3, 0.5), (2, 1), (1e-3, 1e-4)
EACH: list[tuple[Any, tuple[float, float]]] = [
    (A.Resize((50, 9)), ROUNDED),
    (A.Resize((90, 9), antialias=True), ROUNDED),
    (A.Resize(shorter=40), ROUNDED),
    (A.RandomResizedCrop((40, 30)), ROUNDED),
    (A.RandomResizedCrop(24, antialias=True), ROUNDED),
    (A.Crop(30, ANY, ANY, fill=7), EXACT),
    (A.Flip(0.5, 0.5), EXACT),
    (A.Affine(A.Uniform(-360, 360), fill=9), WARPED),
    (
        A.Affine(A.Uniform(-90, 90), (ANY, ANY), A.LogUniform(0.3, 3), A.Uniform(-40, 40), p=0.8),
        WARPED,
    ),
    (A.Brightness(A.Uniform(0, 2)), ROUNDED),
    (A.Contrast(A.Uniform(0, 2)), ROUNDED),
    (A.Saturation(A.Uniform(0, 2)), ROUNDED),
    (A.Hue(A.Uniform(-180, 180)), ROUNDED),
    (A.GaussianBlur(A.Uniform(0, 3), p=0.7), BLURRED),
    (A.Erase(p=0.9, fill=5), EXACT),
    (A.Normalize(120, 50.0), FLOATS),
    (A.Cast("float32"), EXACT),
    (A.Cast("float16"), EXACT),
    (A.Layout("CHW"), EXACT),
]


def packed_batch(
    spec: Augment, records: Sequence[Any], keys: Sequence[int]
) -> tuple[Batch, PackedBatch, Any]:
    """Return a batch as producers pack it, the view of the stage on it, and its spec."""
    packed_records = [
        executed(replace(spec, on="dali-cpu"), record, key, place=f"record {n}")
        for n, (record, key) in enumerate(zip(records, keys, strict=True))
    ]
    value, varied = collate(packed_records, None, place="the test's batch")
    found = infer(value, ragged=True, varied=varied)
    batch = found.check(value, "the test's batch")
    targets = spec.targets(record_structure(found.structure), len(found.leaves) - EXTRA_LEAVES)
    return batch, unpack(batch, targets), found


def by_dali(
    spec: Augment, records: Sequence[Any], keys: Sequence[int], **options: Any
) -> list[Image]:
    """Return the images and masks of a batch, each as an array."""
    _, packed, _ = packed_batch(spec, records, keys)
    spec = replace(spec, on="dali-cpu")
    return DaliQueue(spec, FeedOptions(augment=spec, **options)).alone(packed)


def executed(spec: Augment, record: Any, key: int, *, place: str = "") -> Any:
    """Return a record after the part of the producers, for `collate`."""
    executor = Executor(spec)
    return executor.execute(executor.prepare(record, key, place=place))


def by_opencv(spec: Augment, record: Any, key: int) -> Any:
    """Return a record after the executor of the producers."""
    batch, _ = collate([executed(spec, record, key)], None, place="the test's batch")
    structure = structure_of(batch)
    return rebuild(structure, [leaf[0] for leaf in leaves_of(structure, batch) or []])


def apart(one: Image, other: Image) -> tuple[float, float]:
    """Return the largest and the mean difference of two images."""
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    far = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return float(far.max()), float(far.mean())
