"""The spec executed with OpenCV, record by record, in the producers that made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastfeed.augment.beside import beside
from fastfeed.augment.boxes import moved
from fastfeed.augment.geometry import Decode
from fastfeed.augment.headers import Encoded, ImageHeader, read_header
from fastfeed.augment.labels import mix, one_hot
from fastfeed.augment.opencv_steps import Image, chain
from fastfeed.augment.opencv_values import Values
from fastfeed.augment.spec import Augment, Targets
from fastfeed.augment.steps import Blend, Size
from fastfeed.augment.values import OneHot
from fastfeed.core.collate import (
    Allocate,
    Blank,
    Pad,
    collate,
    lengths_of,
)
from fastfeed.core.structure import (
    Structure,
    describe,
    leaves_of,
    paths_of,
    rebuild,
    structure_of,
)
from fastfeed.errors import BadImage, MissingExtra, SpecError

try:
    import cv2
except ImportError as error:
    raise MissingExtra("OpenCV", "opencv") from error

# Red first: libjpeg gives it so at no cost. Before OpenCV 4.11 a conversion afterwards was needed.
RGB = getattr(cv2, "IMREAD_COLOR_RGB", None)


class _ImageLeaves(NamedTuple):
    structure: Structure
    targets: Targets
    names: list[str]  # of the leaves


class Begun(NamedTuple):
    """A record before decoding: its leaves, in which images that are pixels already stay in place,
    and their plan."""

    known: _ImageLeaves
    leaves: list[Any]
    key: int
    sizes: list[Size]
    rows: list[list[float]]


class PendingRecord(NamedTuple):
    """A record whose images (`at`) are still pixels: their values are written where the batch lies,
    as `blanks` describe. `share` is what Mixup leaves of the record."""

    structure: Structure
    leaves: list[Any]
    at: tuple[int, ...]
    blanks: list[Blank]
    share: float


class OpenCV:
    """Augments records. `crowded`: other producers work in this process, so that OpenCV should not
    start threads of its own for single images, which can only be set for the whole process."""

    def __init__(self, spec: Augment, *, crowded: bool = False) -> None:
        if crowded:
            cv2.setNumThreads(0)
        self._spec = spec
        self._move = chain(spec.program)
        self._move_mask = chain(spec.program, mask=True)
        self._values = Values(spec)
        self._one_hot = next((op for op in spec.operations if isinstance(op, OneHot)), None)
        self._blend = next(
            (placed.start for placed in spec.program if isinstance(placed.step, Blend)), None
        )
        self._known: _ImageLeaves | None = None

    def begun(self, record: Any, key: int, *, place: str = "") -> Begun:
        """Return what is known without decoding; the same key gives the same draws. Raise BadImage
        for a file whose header is no image's, and SpecError for something that is no image."""
        known, leaves = self._leaves(record)
        sizes = [size_of(leaves[n], self._spec, name=known.names[n]) for n in known.targets.images]
        return Begun(known, leaves, key, sizes, self._spec.plan(key, sizes))

    def made(self, begun: Begun) -> PendingRecord:
        """Return the record with its masks, boxes and labels, and its images except their final
        values. Raise BadImage, and SpecError for what cannot be done."""
        (structure, targets, names), leaves, key, sizes, rows = begun
        images = [image_of(leaves[n], self._spec, name=names[n]) for n in targets.images]
        found = [(image.shape[0], image.shape[1]) for image in images]
        if found != sizes:  # EXIF at an unusual place
            sizes, rows = found, self._spec.plan(key, found)
        blanks = []
        for n, image, row in zip(targets.images, images, rows, strict=True):
            leaves[n] = _kept(self._move(image, row), image)
            blanks.append(self._values.blank(leaves[n]))
        for n in targets.masks:
            mask = self._move_mask(
                mask_of(leaves[n], self._spec, name=names[n], size=sizes[0]), rows[0]
            )
            leaves[n] = mask[:, :, None] if mask.ndim == 2 else mask
        for n in targets.boxes:
            leaves[n] = moved(leaves[n], self._spec, row=rows[0], size=sizes[0])
        if self._one_hot is not None and targets.labels is not None:
            leaves[targets.labels] = one_hot(leaves[targets.labels], self._one_hot)
        return PendingRecord(
            structure,
            leaves,
            targets.images,
            blanks,
            1.0 if self._blend is None else rows[0][self._blend],
        )

    def whole(self, made: PendingRecord) -> Any:
        """Return the record alone, with the values of its images."""
        leaves = list(made.leaves)
        for n in made.at:
            leaves[n] = self._values.of(leaves[n])
        return rebuild(made.structure, leaves)

    def collated(
        self,
        made: Sequence[PendingRecord],
        pad: Pad,
        *,
        place: str,
        allocate: Allocate,
        lengths: bool,
    ) -> Any:
        """Return one batch, in which Mixup has blended each record with the next one, and which
        axes varied.

        Values are written where the batch lies: copying them there took three times as long as
        computing them.
        """
        first = made[0]
        if not lengths and all(
            one.structure == first.structure and one.blanks == first.blanks for one in made
        ):
            batch, varied = self._in_place(made, pad, place=place, allocate=allocate)
        else:
            records = [self.whole(one) for one in made]
            if lengths:
                records = [(record, lengths_of(record)) for record in records]
            batch, varied = collate(records, pad, place=place, allocate=allocate)
        if self._blend is not None:
            self._mix(batch[0] if lengths else batch, [one.share for one in made])
        return batch, varied

    def _in_place(
        self, made: Sequence[PendingRecord], pad: Pad, *, place: str, allocate: Allocate
    ) -> Any:
        """Return a batch of images that are all alike."""
        first = made[0]
        own = dict(zip(first.at, first.blanks, strict=True))
        batch, varied, arrays = beside(
            [one.leaves for one in made],
            own,
            structure=first.structure,
            pad=pad,
            place=place,
            allocate=allocate,
        )
        for n, array in arrays.items():
            for out, one in zip(array, made, strict=True):
                self._values.write(one.leaves[n], out)
        return batch, varied

    def _mix(self, batch: Any, shares: Sequence[float]) -> None:
        known = self._known
        leaves = None if known is None else leaves_of(known.structure, batch)
        if known is None or leaves is None:
            return
        for n in known.targets.images:
            mix(leaves[n], shares, what="images")
        if known.targets.labels is not None:
            mix(leaves[known.targets.labels], shares, what="labels")

    def _leaves(self, record: Any) -> tuple[_ImageLeaves, list[Any]]:
        known = self._known
        leaves = None if known is None else leaves_of(known.structure, record)
        if known is None or leaves is None:
            structure = structure_of(record)
            leaves = leaves_of(structure, record) or []
            if not leaves:
                raise SpecError(
                    f"Augment: a record is {describe(structure)}: must have at least an image"
                )
            targets = self._spec.targets(structure, len(leaves))
            known = self._known = _ImageLeaves(structure, targets, paths_of(structure, "record"))
        return known, leaves


def _kept(part: Image, whole: Image) -> Image:
    """Return a part of an image without the rest, which would stay in memory until its batch is
    made."""
    return part.copy() if part.base is whole and whole.nbytes > 2 * part.nbytes else part


def image_of(leaf: Any, spec: Augment, *, name: str) -> Image:
    """Return pixels: (height, width, 3), or (height, width) for grey, of uint8 or uint16. `size_of`
    was called before."""
    decode = spec.decodes
    return (
        _pixels(leaf, name)
        if decode is None
        else _decoded(encoded_of(leaf, name), decode, name=name)
    )


def size_of(leaf: Any, spec: Augment, *, name: str) -> Size:
    """Return (height, width) of `image_of`; of a file from its header. Raise BadImage, and
    SpecError for something that is no image."""
    decode = spec.decodes
    header = (
        _pixels(leaf, name).shape
        if decode is None
        else header_of(encoded_of(leaf, name), decode, name=name)
    )
    return header[0], header[1]


def mask_of(leaf: Any, spec: Augment, *, name: str, size: tuple[int, int]) -> Image:
    """Return the pixels of a mask, as large as its image; of files, in grey."""
    decode = spec.decodes
    if decode is None or (isinstance(leaf, np.ndarray) and leaf.ndim > 1):
        mask = _pixels(leaf, name)
    else:
        data, gray = encoded_of(leaf, name), Decode("gray", decode.max_pixels)
        header = header_of(data, gray, name=name)
        mask = _decoded(data, gray, name=name)
        if header.channels != 1 or header.bits > 8:
            raise BadImage(
                "a mask must be a grey image of 8 bits, which keeps its numbers: this is a "
                f"{header.format} of "
                f"{'a palette' if header.palette else f'{header.channels} channels'} and "
                f"{header.bits} bits",
                leaf=name,
            )
    if mask.shape[:2] != size:
        raise SpecError(
            f"Augment(masks=...): {name} is {mask.shape[:2]} and its image {size}: needed the same "
            "size"
        )
    return mask


def header_of(data: Encoded, decode: Decode, *, name: str) -> ImageHeader:
    """Return the header of a file. Raise BadImage."""
    try:
        return read_header(data, max_pixels=decode.max_pixels)
    except BadImage as error:
        raise BadImage(error.reason, leaf=name) from None


def encoded_of(leaf: Any, name: str) -> Encoded:
    """Return the bytes of a file. Raise SpecError if the record has something else."""
    if isinstance(leaf, (bytes, bytearray, memoryview)):
        return leaf
    if isinstance(leaf, np.ndarray) and leaf.ndim == 1 and leaf.dtype == np.uint8:
        return np.ascontiguousarray(leaf)
    if isinstance(leaf, np.ndarray):
        kind = f"an array of shape {leaf.shape} and dtype {leaf.dtype}"
        hint = (
            ": leave Decode() out where images are decoded already" if leaf.ndim in (2, 3) else ""
        )
        raise SpecError(
            f"Decode: {name} is {kind}; must be a file's bytes, or a uint8 array of them{hint}"
        )
    hint = (
        "; read the file in transform=, as in open(path, 'rb').read()"
        if hasattr(leaf, "encode")
        else ""
    )
    raise SpecError(
        f"Decode: {name} is a {type(leaf).__name__}; must be a file's bytes, or a uint8 array of "
        f"them{hint}"
    )


def _decoded(data: Encoded, decode: Decode, *, name: str) -> Image:
    """Return the image in a file whose header is valid. Raise BadImage."""
    image = _read(np.frombuffer(data, np.uint8), decode)
    if image is None:
        high, wide, channels, bits, kind, *_ = header_of(data, decode, name=name)
        raise BadImage(
            f"damaged {kind}: OpenCV finds no {high} x {wide} x {channels} pixels of {bits} bits "
            "in it",
            leaf=name,
        )
    return image


def _read(data: np.ndarray[Any, np.dtype[np.uint8]], decode: Decode) -> Image | None:
    try:
        if decode.channels == "gray":
            return cv2.imdecode(data, cv2.IMREAD_GRAYSCALE)
        if RGB is not None:
            return cv2.imdecode(data, RGB)
        image = cv2.imdecode(data, cv2.IMREAD_COLOR)
        return None if image is None else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    except cv2.error:  # including its own limits of sides and pixels
        return None


def _pixels(leaf: Any, name: str) -> Image:
    if not isinstance(leaf, np.ndarray):
        hint = (
            ": put Decode() first for files"
            if isinstance(leaf, (bytes, bytearray, memoryview))
            else ""
        )
        raise SpecError(
            f"Augment: {name} is a {type(leaf).__name__}; must be an image, as a numpy array{hint}"
        )
    grey = leaf.ndim == 2 or (leaf.ndim == 3 and leaf.shape[2] == 1)
    right = grey or (leaf.ndim == 3 and leaf.shape[2] == 3)
    if not right or leaf.dtype.name not in ("uint8", "uint16") or not leaf.size:
        hint = ": put Decode() first for files" if leaf.ndim == 1 and leaf.dtype == np.uint8 else ""
        raise SpecError(
            f"Augment: {name} is an array of shape {leaf.shape} and dtype {leaf.dtype}; needed an "
            "image of uint8 or uint16 and shape (height, width), or with 1 or 3 channels "
            f"behind{hint}"
        )
    return leaf[:, :, 0] if leaf.ndim == 3 and grey else leaf
