"""Packed records, which producers send if DALI augments: bytes, shapes and plans of images; and the
batches of them that the stage reads.

A packed record is (record, shapes, plan, place):

- the record, with each image and mask as the bytes of its file or pixels, of shape (bytes,); in
  producer threads as `bytes`, which are not copied;
- `shapes`, int32 (images + masks, 5): the number of bytes, height, width, channels (0: the bytes of
  a file) and the bytes of a channel;
- `plan`, float32 (images, numbers);
- `place`, uint8 (PLACE_NBYTES,): the name of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastfeed.augment.boxes import transform_boxes
from fastfeed.augment.image_leaves import encoded_of, size_of
from fastfeed.augment.labels import one_hot
from fastfeed.augment.leaf_finder import LeafFinder
from fastfeed.augment.partial_collate import collate_partly
from fastfeed.augment.spec import Augment, HandOver, Targets
from fastfeed.augment.values import OneHot
from fastfeed.core.batch import Batch
from fastfeed.core.collate import ALIGN, Allocate, Blank, Pad, aligned_arrays
from fastfeed.core.structure import Structure, describe
from fastfeed.errors import SpecError

Array = np.ndarray[Any, Any]
PIXEL_DTYPES = {1: "uint8", 2: "uint16"}  # of pixels, by the bytes of a channel
PLACE_NBYTES = 128
EXTRA_LEAVES = 3  # of a packed record beside those of the record itself: shapes, plan, place
UINT8, OBJECT = np.dtype(np.uint8), np.dtype(object)


@dataclass(frozen=True, order=True)
class SampleKind:
    """The kind of the samples of one image or mask: pixels (height, width, channels), or files
    that become such pixels."""

    dtype: str
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
    """The Executor that packs records for DALI. OpenCV executes the operations before HandOver,
    boxes and one-hot labels."""

    def __init__(self, spec: Augment, *, threads: bool = False) -> None:
        self._spec = spec
        self._threads = threads
        self._one_hot = next((op for op in spec.operations if isinstance(op, OneHot)), None)
        end = next(
            (n for n, placed in enumerate(spec.program) if isinstance(placed.step, HandOver)), None
        )
        self._producer_steps = None if end is None else spec.program[:end]
        self._finder = LeafFinder(spec)

    def prepare(self, record: Any, key: int, *, place: str) -> PackedRecord:
        """Return a packed record. The same key gives the same plan. `place` is its name.

        Raise BadImage for a file whose header says that it cannot become pixels, SpecError for
        something that is no image.
        """
        (structure, targets, names), leaves = self._finder.find(record)
        spec = self._spec
        images, sizes = [], []
        for n in targets.images:
            image, size = self._image(leaves[n], names[n])
            images.append(image)
            sizes.append(size)
        plan = spec.plan(key, sizes)
        if self._producer_steps is not None:
            images = self._transformed(images, plan)
        images += [
            self._mask(leaves[n], names[n], size=sizes[0], row=plan[0]) for n in targets.masks
        ]
        for n in targets.boxes:
            leaves[n] = transform_boxes(leaves[n], spec, row=plan[0], size=sizes[0])
        if self._one_hot is not None and targets.labels is not None:
            leaves[targets.labels] = one_hot(leaves[targets.labels], self._one_hot)
        image_leaves, shapes = (*targets.images, *targets.masks), []
        for leaf, image in zip(image_leaves, images, strict=True):
            shape, leaves[leaf] = _as_bytes(image) if self._threads else _as_array(image)
            shapes.append(shape)
        return PackedRecord(structure, leaves, image_leaves, shapes, plan, place)

    def execute(self, prepared: PackedRecord) -> PackedRecord:
        """Return it unchanged."""
        return prepared

    def collate(
        self,
        results: Sequence[PackedRecord],
        pad: Pad,
        *,
        place: str,
        allocate: Allocate,
        lengths: bool,
    ) -> Any:
        """Collate packed records. Their shapes are known only after DALI has augmented them."""
        return collate_packed(results, pad, place=place, allocate=allocate)

    def _image(self, leaf: Any, name: str) -> tuple[Any, tuple[int, int]]:
        """Return an image as it is sent, and its size after decoding."""
        size = size_of(leaf, self._spec, name=name)  # also refuses a file by its header
        if self._producer_steps is not None:
            from fastfeed.augment.opencv import image_of

            image = image_of(leaf, self._spec, name=name)
            return image, (image.shape[0], image.shape[1])
        return leaf if self._spec.decodes is None else encoded_of(leaf, name), size

    def _transformed(self, images: list[Any], plan: list[list[float]]) -> list[Any]:
        """Return images after the operations before HandOver."""
        from fastfeed.augment.opencv_steps import chain

        transform = chain(self._producer_steps or ())
        return [transform(image, row) for image, row in zip(images, plan, strict=True)]

    def _mask(self, leaf: Any, name: str, *, size: tuple[int, int], row: list[float]) -> Any:
        """Return the pixels of a mask, after the operations before HandOver."""
        from fastfeed.augment.opencv import mask_of
        from fastfeed.augment.opencv_steps import chain

        mask = mask_of(leaf, self._spec, name=name, size=size)
        return (
            mask
            if self._producer_steps is None
            else chain(self._producer_steps, mask=True)(mask, row)
        )


def collate_packed(
    records: Sequence[PackedRecord], pad: Pad, *, place: str, allocate: Allocate = aligned_arrays
) -> Any:
    """Return one batch of packed records, written into what `allocate` returns, and for each leaf
    which axes varied.

    Only bytes of images may vary without a `pad`, and their padding has no meaning. Raise SpecError
    as `collate` does.
    """
    first, rows = records[0], [one.leaves for one in records]
    for one in records:
        if one.structure != first.structure:
            raise SpecError(
                f"a record of {place} has another structure: must be {describe(first.structure)}, "
                f"got {describe(one.structure)}"
            )
    reserved: dict[int, Blank] = {}
    for n in first.image_leaves:
        reserved[n] = (
            ((), OBJECT) if type(rows[0][n]) is bytes else ((_slot_nbytes(rows, n),), UINT8)
        )
    count, numbers = len(first.leaves), len(first.plan[0])
    reserved[count] = ((len(first.shapes), 5), np.dtype(np.int32))
    reserved[count + 1] = ((len(first.plan), max(1, numbers)), np.dtype(np.float32))
    reserved[count + 2] = ((PLACE_NBYTES,), UINT8)
    batch, varied, arrays = collate_partly(
        rows, reserved, structure=first.structure, pad=pad, place=place, allocate=allocate
    )
    for n in first.image_leaves:
        _write_bytes(rows, n, out=arrays[n])
        varied[n] = (True,) * (arrays[n].ndim - 1)
    shapes, plan, places = (arrays[count + n] for n in range(EXTRA_LEAVES))
    shapes[...] = [one.shapes for one in records]
    plan[...] = [one.plan for one in records] if numbers else 0
    names = b"".join(
        [one.place.encode()[:PLACE_NBYTES].ljust(PLACE_NBYTES, b"\0") for one in records]
    )
    places[...] = np.frombuffer(names, np.uint8).reshape(places.shape)
    return (batch, shapes, plan, places), [
        *varied,
        *((False,) * (arrays[count + n].ndim - 1) for n in range(EXTRA_LEAVES)),
    ]


def _write_bytes(rows: Sequence[Sequence[Any]], number: int, *, out: Array) -> None:
    """Copy the bytes of one leaf of all records; `bytes` objects are not copied."""
    for row, leaves in enumerate(rows):
        data = leaves[number]
        if out.ndim == 1:
            out[row] = data
        else:
            out[row, : data.size] = data


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
    nbytes, height, width, channels, size = shape
    data = np.frombuffer(row, np.uint8) if type(row) is bytes else row[:nbytes]
    return data.view(PIXEL_DTYPES[size]).reshape(height, width, channels) if channels else data


def _slot_nbytes(rows: Sequence[Sequence[Any]], number: int) -> int:
    """Return the bytes for the largest image, rounded up so that every row is aligned."""
    most: int = max(leaves[number].size for leaves in rows)
    return -(-most // ALIGN) * ALIGN


def _as_bytes(image: Any) -> tuple[tuple[int, ...], bytes]:
    """Return a row of shapes, and `bytes`: those of the user if they are a whole file."""
    if type(image) is bytes:
        return (len(image), 0, 0, 0, 1), image
    shape, data = _as_array(image)
    return shape, data.tobytes()


def _as_array(image: Any) -> tuple[tuple[int, ...], Array]:
    """Return a row of shapes, and the bytes as a uint8 array."""
    if not isinstance(image, np.ndarray):
        image = np.frombuffer(image, np.uint8)
    if image.ndim == 1:
        return (image.size, 0, 0, 0, 1), image
    data = np.ascontiguousarray(image)
    channels = data.shape[2] if data.ndim == 3 else 1
    return (data.nbytes, *data.shape[:2], channels, data.itemsize), data.reshape(-1).view(np.uint8)
