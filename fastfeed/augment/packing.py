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
from typing import Any, NamedTuple

import numpy as np

from fastfeed.augment.boxes import transform_boxes
from fastfeed.augment.image_records import RecordPlanner, collate_partly
from fastfeed.augment.images import encoded_of
from fastfeed.augment.operations import Decode
from fastfeed.augment.spec import Augment, Targets
from fastfeed.core.batch import Batch
from fastfeed.core.collate import ALIGN, Allocate, Blank, Fill
from fastfeed.core.structure import Structure, describe
from fastfeed.errors import SpecError

Array = np.ndarray[Any, Any]
PLACE_NBYTES = 128
EXTRA_LEAVES = 3  # of a packed record beside those of the record itself: shapes, plan, place
UINT8, OBJECT = np.dtype(np.uint8), np.dtype(object)


@dataclass(frozen=True, order=True)
class SampleKind:
    """The kind of the samples of one image or mask: uint8 pixels (height, width, channels), or
    files that become such pixels."""

    channels: int
    encoded: bool = False
    mask: bool = False


class PackedRecord(NamedTuple):
    """A packed record before it is part of a batch: images and masks (`image_leaves`) are uint8
    (bytes,), or `bytes`."""

    structure: Structure
    leaves: list[Any]
    image_leaves: tuple[int, ...]
    shapes: list[tuple[int, ...]]
    plan: list[list[float]]
    place: str


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
    """The Executor that packs records for DALI. It transforms boxes itself."""

    def __init__(self, spec: Augment, *, threads: bool = False) -> None:
        self._spec = spec
        self._threads = threads
        self._planner = RecordPlanner(spec)

    def prepare(self, record: Any, key: int, *, place: str) -> PackedRecord:
        """Return a packed record, whose name is `place`."""
        targets, leaves, _, sizes, plan = self._planner.plan(record, key)
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
        image_leaves, shapes = (*targets.images, *targets.masks), []
        for leaf, image in zip(image_leaves, images, strict=True):
            shape, leaves[leaf] = _as_bytes(image) if self._threads else _as_array(image)
            shapes.append(shape)
        return PackedRecord(targets.structure, leaves, image_leaves, shapes, plan, place)

    def execute(self, prepared: PackedRecord) -> PackedRecord:
        """Return it unchanged."""
        return prepared

    def collate(
        self,
        records: Sequence[PackedRecord],
        pad: Fill,
        *,
        place: str,
        allocate: Allocate,
        lengths: bool,
    ) -> Any:
        """Return one batch of packed records, written into what `allocate` returns, and for each
        leaf which axes varied. The shapes of images are known only after DALI has augmented them.

        Only bytes of images may vary without a `pad`, and their padding has no meaning.
        """
        first, rows = records[0], [one.leaves for one in records]
        for one in records:
            if one.structure != first.structure:
                raise SpecError(
                    f"a record of {place} has another structure: must be "
                    f"{describe(first.structure)}, got {describe(one.structure)}"
                )
        count, numbers = len(first.leaves), len(first.plan[0])
        reserved = {n: _file_blank([leaves[n] for leaves in rows]) for n in first.image_leaves}
        reserved[count] = ((len(first.shapes), 4), np.dtype(np.int32))
        reserved[count + 1] = ((len(first.plan), max(1, numbers)), np.dtype(np.float32))
        reserved[count + 2] = ((PLACE_NBYTES,), UINT8)
        batch, varied, arrays = collate_partly(
            rows, reserved, structure=first.structure, pad=pad, place=place, allocate=allocate
        )
        for n in first.image_leaves:
            out = arrays[n]
            for row, leaves in enumerate(rows):
                data = leaves[n]
                if out.ndim == 1:  # `bytes` objects, which are not copied
                    out[row] = data
                else:
                    out[row, : data.size] = data
            varied[n] = (True,) * (out.ndim - 1)
        shapes, plan, places = (arrays[count + n] for n in range(EXTRA_LEAVES))
        shapes[...] = [one.shapes for one in records]
        plan[...] = [one.plan for one in records] if numbers else 0
        names = b"".join(
            [one.place.encode()[:PLACE_NBYTES].ljust(PLACE_NBYTES, b"\0") for one in records]
        )
        places[...] = np.frombuffer(names, np.uint8).reshape(places.shape)
        return (batch, shapes, plan, places), [*varied, (False, False), (False, False), (False,)]


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


def _file_blank(files: Sequence[Any]) -> Blank:
    """Return the shape and dtype of a record's part of a leaf: bytes that are not copied, or a row
    that holds any of them, and that is aligned as the others are."""
    if type(files[0]) is bytes:
        return (), OBJECT
    return (-(-max(data.size for data in files) // ALIGN) * ALIGN,), UINT8


def _sample_view(row: Any, *shape: int) -> Array:
    nbytes, height, width, channels = shape
    data = np.frombuffer(row, np.uint8) if type(row) is bytes else row[:nbytes]
    return data.reshape(height, width, channels) if channels else data


def _as_bytes(image: Any) -> tuple[tuple[int, ...], bytes]:
    """Return a row of shapes, and `bytes`: those of the user if they are a whole file."""
    if type(image) is bytes:
        return (len(image), 0, 0, 0), image
    shape, data = _as_array(image)
    return shape, data.tobytes()


def _as_array(image: Any) -> tuple[tuple[int, ...], Array]:
    """Return a row of shapes, and the bytes as a uint8 array."""
    if not isinstance(image, np.ndarray):
        image = np.frombuffer(image, np.uint8)
    if image.ndim == 1:
        return (image.size, 0, 0, 0), image
    data = np.ascontiguousarray(image)
    channels = data.shape[2] if data.ndim == 3 else 1
    return (data.nbytes, *data.shape[:2], channels), data.reshape(-1)
