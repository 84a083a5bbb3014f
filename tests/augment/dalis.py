"""Helpers that run DALI and OpenCV on single records and batches, without a feed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastfeed.augment.opencv import OpenCV
from fastfeed.augment.packing import EXTRA_LEAVES, PackedBatch, Packer, record_structure, unpack
from fastfeed.augment.spec import Augment
from fastfeed.core.batch import Batch, infer
from fastfeed.core.collate import aligned_arrays
from fastfeed.engine.dali_stage import DaliQueue
from fastfeed.options import FeedOptions

Image = np.ndarray[Any, Any]


def packed_batch(
    spec: Augment, records: Sequence[Any], keys: Sequence[int]
) -> tuple[Batch, PackedBatch, Any]:
    """Return a batch as producers pack it, the view of the stage on it, and its spec."""
    packer = Packer(spec)
    packed_records = [
        packer.prepare(record, key, place=f"record {n}")
        for n, (record, key) in enumerate(zip(records, keys, strict=True))
    ]
    value, varied = packer.collate(
        packed_records, None, place="the test's batch", allocate=aligned_arrays, lengths=False
    )
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


def by_opencv(spec: Augment, record: Any, key: int) -> Any:
    """Return a record after the executor of the producers."""
    executor = OpenCV(spec)
    return executor.complete(executor.execute(executor.prepare(record, key)))


def apart(one: Image, other: Image) -> tuple[float, float]:
    """Return the largest and the mean difference of two images."""
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    far = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return float(far.max()), float(far.mean())
