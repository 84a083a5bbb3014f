"""A spec executed with OpenCV, record by record, in the producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastfeed.augment.boxes import transform_boxes
from fastfeed.augment.geometry import Decode
from fastfeed.augment.headers import Encoded
from fastfeed.augment.image_leaves import Image, encoded_of, header_of, pixels_of, size_of
from fastfeed.augment.labels import mix, one_hot
from fastfeed.augment.leaf_finder import LeafFinder, RecordLayout
from fastfeed.augment.opencv_steps import chain
from fastfeed.augment.opencv_values import FinalValues
from fastfeed.augment.partial_collate import collate_partly
from fastfeed.augment.spec import Augment
from fastfeed.augment.steps import Blend, Size
from fastfeed.augment.values import OneHot
from fastfeed.core.collate import Allocate, Blank, Pad, collate, lengths_of
from fastfeed.core.structure import Structure, leaves_of, rebuild
from fastfeed.errors import BadImage, SpecError, required

with required("OpenCV", "opencv"):
    import cv2

# libjpeg decodes to red, green, blue at no cost. OpenCV before 4.11 needs a conversion afterwards.
READ_RGB = getattr(cv2, "IMREAD_COLOR_RGB", None)


class PreparedRecord(NamedTuple):
    """A record before decoding, and its plan. Images that are pixels already are unchanged."""

    layout: RecordLayout
    leaves: list[Any]
    key: int
    sizes: list[Size]
    rows: list[list[float]]


class PendingRecord(NamedTuple):
    """A record whose `images` (numbers of leaves) are still pixels.

    Their values are written into the memory of the batch, as `blanks` describe. `share` is the part
    of the record that Mixup keeps.
    """

    structure: Structure
    leaves: list[Any]
    images: tuple[int, ...]
    blanks: list[Blank]
    share: float


class OpenCV:
    """Augments records.

    `crowded`: other producers work in this process, so OpenCV should not start threads for single
    images. That can only be set for the whole process.
    """

    def __init__(self, spec: Augment, *, crowded: bool = False) -> None:
        if crowded:
            cv2.setNumThreads(0)
        self._spec = spec
        self._transform = chain(spec.program)
        self._transform_mask = chain(spec.program, mask=True)
        self._values = FinalValues(spec)
        self._one_hot = next((op for op in spec.operations if isinstance(op, OneHot)), None)
        self._blend = next(
            (placed.start for placed in spec.program if isinstance(placed.step, Blend)), None
        )
        self._finder = LeafFinder(spec)

    def prepare(self, record: Any, key: int, *, place: str = "") -> PreparedRecord:
        """Return what is known without decoding; the same key gives the same draws. Raise BadImage
        for a file whose header is not that of an image, SpecError for any other leaf."""
        layout, leaves = self._finder.find(record)
        sizes = [
            size_of(leaves[n], self._spec, name=layout.names[n]) for n in layout.targets.images
        ]
        return PreparedRecord(layout, leaves, key, sizes, self._spec.plan(key, sizes))

    def execute(self, prepared: PreparedRecord) -> PendingRecord:
        """Return the record with its masks, boxes and labels, and its images except their final
        values. Raise BadImage, and SpecError for what cannot be done."""
        (structure, targets, names), leaves, key, sizes, rows = prepared
        images = [image_of(leaves[n], self._spec, name=names[n]) for n in targets.images]
        decoded_sizes = [(image.shape[0], image.shape[1]) for image in images]
        if decoded_sizes != sizes:  # EXIF at an unusual place
            sizes, rows = decoded_sizes, self._spec.plan(key, decoded_sizes)
        blanks = []
        for n, image, row in zip(targets.images, images, rows, strict=True):
            leaves[n] = _detached(self._transform(image, row), image)
            blanks.append(self._values.blank(leaves[n]))
        for n in targets.masks:
            mask = self._transform_mask(
                mask_of(leaves[n], self._spec, name=names[n], size=sizes[0]), rows[0]
            )
            leaves[n] = mask[:, :, None] if mask.ndim == 2 else mask
        for n in targets.boxes:
            leaves[n] = transform_boxes(leaves[n], self._spec, row=rows[0], size=sizes[0])
        if self._one_hot is not None and targets.labels is not None:
            leaves[targets.labels] = one_hot(leaves[targets.labels], self._one_hot)
        share = 1.0 if self._blend is None else rows[0][self._blend]
        return PendingRecord(structure, leaves, targets.images, blanks, share)

    def complete(self, pending: PendingRecord) -> Any:
        """Return a single record, with the values of its images."""
        leaves = list(pending.leaves)
        for n in pending.images:
            leaves[n] = self._values.values(leaves[n])
        return rebuild(pending.structure, leaves)

    def collate(
        self,
        pending: Sequence[PendingRecord],
        pad: Pad,
        *,
        place: str,
        allocate: Allocate,
        lengths: bool,
    ) -> Any:
        """Return one batch, in which Mixup has blended each record with the next one, and which
        axes varied.

        Values are written into the memory of the batch: a copy afterwards took three times as long
        as computing them.
        """
        first = pending[0]
        if not lengths and all(
            one.structure == first.structure and one.blanks == first.blanks for one in pending
        ):
            batch, varied = self._collate_in_place(pending, pad, place=place, allocate=allocate)
        else:
            records = [self.complete(one) for one in pending]
            if lengths:
                records = [(record, lengths_of(record)) for record in records]
            batch, varied = collate(records, pad, place=place, allocate=allocate)
        if self._blend is not None:
            self._mix(batch[0] if lengths else batch, [one.share for one in pending])
        return batch, varied

    def _collate_in_place(
        self, pending: Sequence[PendingRecord], pad: Pad, *, place: str, allocate: Allocate
    ) -> Any:
        """Return a batch of images that all have the same shape and dtype."""
        first = pending[0]
        batch, varied, arrays = collate_partly(
            [one.leaves for one in pending],
            dict(zip(first.images, first.blanks, strict=True)),
            structure=first.structure,
            pad=pad,
            place=place,
            allocate=allocate,
        )
        for n, array in arrays.items():
            for out, one in zip(array, pending, strict=True):
                self._values.write(one.leaves[n], out)
        return batch, varied

    def _mix(self, batch: Any, shares: Sequence[float]) -> None:
        layout = self._finder.layout
        leaves = None if layout is None else leaves_of(layout.structure, batch)
        if layout is None or leaves is None:
            return
        for n in layout.targets.images:
            mix(leaves[n], shares, what="images")
        if layout.targets.labels is not None:
            mix(leaves[layout.targets.labels], shares, what="labels")


def _detached(part: Image, whole: Image) -> Image:
    """Return part of an image, as a copy if it would keep a much larger image in memory until the
    batch is made."""
    return part.copy() if part.base is whole and whole.nbytes > 2 * part.nbytes else part


def image_of(leaf: Any, spec: Augment, *, name: str) -> Image:
    """Return pixels: (height, width, 3), or (height, width) for grey, of uint8 or uint16. `size_of`
    was called before."""
    decode = spec.decodes
    return (
        pixels_of(leaf, name)
        if decode is None
        else _decoded(encoded_of(leaf, name), decode, name=name)
    )


def mask_of(leaf: Any, spec: Augment, *, name: str, size: tuple[int, int]) -> Image:
    """Return the pixels of a mask, as large as its image; of files, in grey."""
    decode = spec.decodes
    if decode is None or (isinstance(leaf, np.ndarray) and leaf.ndim > 1):
        mask = pixels_of(leaf, name)
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
            f"Augment(masks=...): {name} is {mask.shape[:2]} and its image {size}: must have the "
            "same size"
        )
    return mask


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
        if READ_RGB is not None:
            return cv2.imdecode(data, READ_RGB)
        image = cv2.imdecode(data, cv2.IMREAD_COLOR)
        return None if image is None else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    except cv2.error:  # including its own limits of sides and pixels
        return None
