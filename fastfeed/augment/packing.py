"""What producers send if DALI augments: bytes, shapes and plans instead of images, and the stage's
view of a batch.

A packed record is (record, shapes, plan, place): the record with each image and mask as its bytes
(a file's, or its pixels'), of shape (bytes,), or in producer threads as `bytes`, which are not
copied; `shapes` int32 (images + masks, 5), a row being bytes, height, width, channels (0: a file's
bytes) and the bytes of a channel; `plan` float32 (images, numbers); `place` uint8 (PLACE,), the
record's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastfeed.augment.beside import beside
from fastfeed.augment.boxes import moved
from fastfeed.augment.headers import read_header
from fastfeed.augment.labels import one_hot
from fastfeed.augment.spec import Augment, HandOver, Targets
from fastfeed.augment.values import OneHot
from fastfeed.core.batch import Batch
from fastfeed.core.collate import (
    ALIGN,
    Allocate,
    Blank,
    Pad,
    aligned_arrays,
)
from fastfeed.core.structure import (
    Structure,
    describe,
    leaves_of,
    paths_of,
    structure_of,
)
from fastfeed.errors import BadImage, SpecError

Array = np.ndarray[Any, Any]
DTYPES = {1: "uint8", 2: "uint16"}  # of pixels, by the bytes of a channel
PLACE = 128  # bytes
BESIDE = 3  # leaves beside the record's own
BYTE, OBJECT = np.dtype(np.uint8), np.dtype(object)


@dataclass(frozen=True, order=True)
class SampleKind:
    """What the samples of one image or mask are: pixels (height, width, channels), or files that
    become such pixels."""

    dtype: str
    channels: int
    encoded: bool = False
    mask: bool = False


class Sent(NamedTuple):
    """A packed record before it is part of a batch: images and masks (leaves `at`) are uint8
    (bytes,), or `bytes`."""

    structure: Structure
    leaves: list[Any]
    at: tuple[int, ...]
    shapes: list[tuple[int, ...]]
    plan: list[list[float]]
    place: str


@dataclass(frozen=True)
class Packed:
    """A batch as the stage needs it: `samples` of each image and mask are views of the batch's
    memory."""

    samples: tuple[tuple[Array, ...], ...]
    plan: Array  # (records, images, numbers)
    leaves: tuple[Array, ...]  # the record's own, in which images and masks are bytes
    places: Array

    @property
    def rows(self) -> int:
        """Number of records."""
        return len(self.plan)

    def only(self, rows: Sequence[int]) -> Packed:
        """Return some of the records."""
        at = list(rows)
        samples = tuple(tuple(column[row] for row in at) for column in self.samples)
        return Packed(
            samples, self.plan[at], tuple(leaf[at] for leaf in self.leaves), self.places[at]
        )

    def place(self, row: int) -> str:
        """Return the name of a record."""
        return bytes(self.places[row]).rstrip(b"\0").decode("utf-8", "replace")


class Packer:
    """Makes packed records. Operations before HandOver are executed here, by OpenCV; boxes and
    one-hot labels, too."""

    def __init__(self, spec: Augment, *, threads: bool = False) -> None:
        self._spec = spec
        self._threads = threads
        self._one_hot = next((op for op in spec.operations if isinstance(op, OneHot)), None)
        at = next(
            (n for n, placed in enumerate(spec.program) if isinstance(placed.step, HandOver)), None
        )
        self._before = None if at is None else spec.program[:at]
        self._known: tuple[Structure, Targets, list[str]] | None = None

    def record(self, record: Any, key: int, *, place: str) -> Sent:
        """Return a packed record. The same key gives the same plan. `place` is its name.

        Raise BadImage for a file whose header says that it cannot become pixels, SpecError for
        something that is no image.
        """
        structure, targets, names, leaves = self._leaves(record)
        spec = self._spec
        images, sizes = [], []
        for n in targets.images:
            image, size = self._image(leaves[n], names[n])
            images.append(image)
            sizes.append(size)
        plan = spec.plan(key, sizes)
        if self._before is not None:
            images = self._begun(images, plan)
        images += [
            self._mask(leaves[n], names[n], size=sizes[0], row=plan[0]) for n in targets.masks
        ]
        for n in targets.boxes:
            leaves[n] = moved(leaves[n], spec, row=plan[0], size=sizes[0])
        if self._one_hot is not None and targets.labels is not None:
            leaves[targets.labels] = one_hot(leaves[targets.labels], self._one_hot)
        at, shapes = (*targets.images, *targets.masks), []
        for leaf, image in zip(at, images, strict=True):
            shape, leaves[leaf] = _loose(image) if self._threads else _flat(image)
            shapes.append(shape)
        return Sent(structure, leaves, at, shapes, plan, place)

    def _leaves(self, record: Any) -> tuple[Structure, Targets, list[str], list[Any]]:
        known = self._known
        leaves = None if known is None else leaves_of(known[0], record)
        if known is None or leaves is None:
            structure = structure_of(record)
            leaves = leaves_of(structure, record) or []
            if not leaves:
                raise SpecError(
                    f"Augment: a record is {describe(structure)}: must have at least an image"
                )
            names = paths_of(structure, "record") if len(leaves) > 1 else ["record"]
            known = self._known = structure, self._spec.targets(structure, len(leaves)), names
        return (*known, leaves)

    def _image(self, leaf: Any, name: str) -> tuple[Any, tuple[int, int]]:
        """Return what is sent of an image that is not changed here, and its size after decoding."""
        decode = self._spec.decodes
        if self._before is not None:
            from fastfeed.augment.opencv import image_of, size_of

            size_of(leaf, self._spec, name=name)  # refuses a file by its header
            image = image_of(leaf, self._spec, name=name)
            return image, (image.shape[0], image.shape[1])
        if decode is None:
            return leaf, _checked(leaf, name).shape[:2]
        data = _file(leaf, name)
        try:
            header = read_header(data, max_pixels=decode.max_pixels)
        except BadImage as error:
            raise BadImage(error.reason, leaf=name) from None
        return data, (header.height, header.width)

    def _begun(self, images: list[Any], plan: list[list[float]]) -> list[Any]:
        from fastfeed.augment.opencv_steps import chain

        move = chain(self._before or ())
        return [move(image, row) for image, row in zip(images, plan, strict=True)]

    def _mask(self, leaf: Any, name: str, *, size: tuple[int, int], row: list[float]) -> Any:
        """Return its pixels: files of masks are decoded here."""
        from fastfeed.augment.opencv import mask_of
        from fastfeed.augment.opencv_steps import chain

        mask = mask_of(leaf, self._spec, name=name, size=size)
        return mask if self._before is None else chain(self._before, mask=True)(mask, row)


def collated(
    records: Sequence[Sent], pad: Pad, *, place: str, allocate: Allocate = aligned_arrays
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
    own: dict[int, Blank] = {}
    for n in first.at:
        own[n] = ((), OBJECT) if type(rows[0][n]) is bytes else ((_room(rows, n),), BYTE)
    count, numbers = len(first.leaves), len(first.plan[0])
    own[count] = ((len(first.shapes), 5), np.dtype(np.int32))
    own[count + 1] = ((len(first.plan), max(1, numbers)), np.dtype(np.float32))
    own[count + 2] = ((PLACE,), BYTE)
    batch, varied, arrays = beside(
        rows, own, structure=first.structure, pad=pad, place=place, allocate=allocate
    )
    for n in first.at:
        _send(rows, n, out=arrays[n])
        varied[n] = (True,) * (arrays[n].ndim - 1)
    shapes, plan, places = (arrays[count + n] for n in range(BESIDE))
    shapes[...] = [one.shapes for one in records]
    plan[...] = [one.plan for one in records] if numbers else 0
    names = b"".join([one.place.encode()[:PLACE].ljust(PLACE, b"\0") for one in records])
    places[...] = np.frombuffer(names, np.uint8).reshape(places.shape)
    return (batch, shapes, plan, places), [
        *varied,
        *((False,) * (arrays[count + n].ndim - 1) for n in range(BESIDE)),
    ]


def _send(rows: Sequence[Sequence[Any]], number: int, *, out: Array) -> None:
    """Copy the bytes of one leaf of all records; loose bytes stay where they are."""
    for row, leaves in enumerate(rows):
        data = leaves[number]
        if out.ndim == 1:
            out[row] = data
        else:
            out[row, : data.size] = data


def unpacked(batch: Batch, targets: Targets) -> Packed:
    """Return the stage's view of a batch of packed records."""
    own, (shapes, plan, places) = batch.leaves[:-BESIDE], batch.leaves[-BESIDE:]
    samples = []
    for number, leaf in enumerate((*targets.images, *targets.masks)):
        shape = shapes[:, number].tolist()
        samples.append(tuple(_sample(row, *s) for row, s in zip(own[leaf], shape, strict=True)))
    return Packed(tuple(samples), plan, own, places)


def record_structure(structure: Structure) -> Structure:
    """Return the structure of the records that were packed."""
    return None if structure is None else structure.children[0]


def _sample(row: Any, *shape: int) -> Array:
    nbytes, height, width, channels, size = shape
    data = np.frombuffer(row, np.uint8) if type(row) is bytes else row[:nbytes]
    return data.view(DTYPES[size]).reshape(height, width, channels) if channels else data


def _room(rows: Sequence[Sequence[Any]], number: int) -> int:
    """Return bytes for the largest, so that every row begins where pixels of any dtype may."""
    most: int = max(leaves[number].size for leaves in rows)
    return -(-most // ALIGN) * ALIGN


def _loose(image: Any) -> tuple[tuple[int, ...], bytes]:
    """Return a row of shapes, and `bytes`: the user's own if they are a whole file."""
    if type(image) is bytes:
        return (len(image), 0, 0, 0, 1), image
    shape, data = _flat(image)
    return shape, data.tobytes()


def _flat(image: Any) -> tuple[tuple[int, ...], Array]:
    """Return a row of shapes, and the bytes."""
    if not isinstance(image, np.ndarray):
        image = np.frombuffer(image, np.uint8)
    if image.ndim == 1:
        return (image.size, 0, 0, 0, 1), image
    data = np.ascontiguousarray(image)
    channels = data.shape[2] if data.ndim == 3 else 1
    return (data.nbytes, *data.shape[:2], channels, data.itemsize), data.reshape(-1).view(np.uint8)


def _checked(leaf: Any, name: str) -> Array:
    """Return pixels that can be sent."""
    right = isinstance(leaf, np.ndarray) and leaf.size and leaf.dtype.name in DTYPES.values()
    if not right or not (leaf.ndim == 2 or (leaf.ndim == 3 and leaf.shape[2] in (1, 3))):
        kind = type(leaf).__name__
        have = (
            f"an array of shape {leaf.shape} and dtype {leaf.dtype}"
            if isinstance(leaf, np.ndarray)
            else f"a {kind}"
        )
        raise SpecError(
            f"Augment: {name} is {have}; must be an image of uint8 or uint16 and shape (height, "
            "width), or with 1 or 3 channels behind: put Decode() first for files"
        )
    found: Array = leaf
    return found


def _file(leaf: Any, name: str) -> Any:
    if isinstance(leaf, (bytes, bytearray, memoryview)):
        return leaf
    if isinstance(leaf, np.ndarray) and leaf.ndim == 1 and leaf.dtype == np.uint8:
        return np.ascontiguousarray(leaf)
    kind = (
        f"an array of shape {leaf.shape} and dtype {leaf.dtype}"
        if isinstance(leaf, np.ndarray)
        else None
    )
    raise SpecError(
        f"Decode: {name} is {kind or f'a {type(leaf).__name__}'}; must be a file's bytes, or a "
        "uint8 array of them"
    )
