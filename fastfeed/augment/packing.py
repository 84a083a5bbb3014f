"""Packed records, which producers send if DALI augments: bytes, shapes and plans of images; and the
batches of them that the stage reads.

A packed record is (record, shapes, plan, place):

- the record, with each image and mask as the bytes of its file or pixels, of shape (bytes,); in
  producer threads as `bytes`, which are not copied;
- `shapes`, int32 (images + masks, 4): the number of bytes, height, width, channels (0: the bytes of
  a file);
- `plan`, float32 (images, numbers);
- `place`, uint8 (PLACE_NBYTES,): the name of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfeed.augment.boxes import transform_boxes
from fastfeed.augment.image_records import PlannedRecord
from fastfeed.augment.images import encoded_of
from fastfeed.augment.operations import Decode
from fastfeed.augment.spec import Augment, Targets
from fastfeed.core.batch import Batch
from fastfeed.core.collate import ALIGN, LateLeaf
from fastfeed.core.structure import Structure, rebuild

Array = np.ndarray[Any, Any]
PLACE_NBYTES = 128
EXTRA_LEAVES = 3  # of a packed record beside those of the record itself: shapes, plan, place


@dataclass(frozen=True, order=True)
class SampleKind:
    """The kind of the samples of one image or mask: uint8 pixels (height, width, channels), or
    files that become such pixels."""

    channels: int
    encoded: bool = False
    mask: bool = False


@dataclass(frozen=True)
class PackedBatch:
    """A batch of packed records: `samples` of each image and mask are views of its memory."""

    samples: tuple[tuple[Array, ...], ...]
    plan: Array  # (records, images, numbers)
    leaves: tuple[Array, ...]  # the record's own, in which images and masks are bytes
    places: Array

    @property
    def rows(self) -> int:
        """Number of records."""
        return len(self.plan)

    def only(self, rows: Sequence[int]) -> PackedBatch:
        """Return some of the records."""
        at = list(rows)
        samples = tuple(tuple(column[row] for row in at) for column in self.samples)
        return PackedBatch(
            samples, self.plan[at], tuple(leaf[at] for leaf in self.leaves), self.places[at]
        )

    def place(self, row: int) -> str:
        """Return the name of a record."""
        return bytes(self.places[row]).rstrip(b"\0").decode("utf-8", "replace")


class Packer:
    """Packs records for DALI. It transforms boxes itself."""

    def __init__(self, spec: Augment, *, threads: bool = False) -> None:
        self._spec = spec
        self._threads = threads

    def execute(self, planned: PlannedRecord) -> Any:
        """Return a packed record."""
        targets, leaves, _, sizes, plan, place = planned
        spec, names = self._spec, targets.names
        images = [leaves[n] for n in targets.images]
        if spec.first(Decode) is not None:
            images = [encoded_of(leaves[n], names[n]) for n in targets.images]
        if targets.masks:
            from fastfeed.augment.opencv import mask_of

            images += [
                mask_of(leaves[n], spec, name=names[n], size=sizes[0]) for n in targets.masks
            ]
        for n in targets.boxes:
            leaves[n] = transform_boxes(leaves[n], spec, row=plan[0], size=sizes[0])
        shapes = []
        for leaf, image in zip((*targets.images, *targets.masks), images, strict=True):
            shape, leaves[leaf] = _as_bytes(image) if self._threads else _as_array(image)
            shapes.append(shape)
        return (
            rebuild(targets.structure, leaves),
            np.array(shapes, np.int32),
            np.array(plan if plan[0] else [[0]] * len(plan), np.float32),
            np.frombuffer(place.encode()[:PLACE_NBYTES].ljust(PLACE_NBYTES, b"\0"), np.uint8),
        )


class ByteLeaf(LateLeaf):
    """Bytes, in a row that is aligned as the others of its batch are."""

    ragged = True
    dtype = np.dtype(np.uint8)

    def __init__(self, data: Array) -> None:
        self._data = data
        self.shape = (-(-data.size // ALIGN) * ALIGN,)

    def write(self, out: Array) -> None:
        """Write the bytes."""
        out[: self._data.size] = self._data


def unpack(batch: Batch, targets: Targets) -> PackedBatch:
    """Return a PackedBatch with views of a batch of packed records."""
    leaves, (shapes, plan, places) = batch.leaves[:-EXTRA_LEAVES], batch.leaves[-EXTRA_LEAVES:]
    samples = []
    for number, leaf in enumerate((*targets.images, *targets.masks)):
        shape = shapes[:, number].tolist()
        samples.append(
            tuple(_sample_view(row, *s) for row, s in zip(leaves[leaf], shape, strict=True))
        )
    return PackedBatch(tuple(samples), plan, leaves, places)


def record_structure(structure: Structure) -> Structure:
    """Return the structure of the records that were packed."""
    return None if structure is None else structure.children[0]


def _sample_view(row: Any, *shape: int) -> Array:
    nbytes, height, width, channels = shape
    data = np.frombuffer(row, np.uint8) if type(row) is bytes else row[:nbytes]
    return data.reshape(height, width, channels) if channels else data


def _as_bytes(image: Any) -> tuple[tuple[int, ...], bytes]:
    """Return a row of shapes, and `bytes`: those of the user if they are a whole file."""
    if type(image) is bytes:
        return (len(image), 0, 0, 0), image
    shape, data = _flat(image)
    return shape, data.tobytes()


def _as_array(image: Any) -> tuple[tuple[int, ...], ByteLeaf]:
    shape, data = _flat(image)
    return shape, ByteLeaf(data)


def _flat(image: Any) -> tuple[tuple[int, ...], Array]:
    """Return a row of shapes, and the bytes as a uint8 array."""
    if not isinstance(image, np.ndarray):
        image = np.frombuffer(image, np.uint8)
    if image.ndim == 1:
        return (image.size, 0, 0, 0), image
    data = np.ascontiguousarray(image)
    channels = data.shape[2] if data.ndim == 3 else 1
    return (data.nbytes, *data.shape[:2], channels), data.reshape(-1)
