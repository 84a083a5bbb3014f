"""A spec executed with OpenCV, record by record, in the producers.

Grey images have two axes, as in OpenCV; colours are red, green, blue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from fastfeed.augment.boxes import transform_boxes
from fastfeed.augment.image_records import PlannedRecord
from fastfeed.augment.images import Encoded, Image, encoded_of, header_of, pixels_of
from fastfeed.augment.operations import (
    IDENTITY_MATRIX,
    IDENTITY_WARP,
    MAX_LEVEL,
    Affine,
    Cast,
    Colour,
    Crop,
    Decode,
    Erase,
    Flip,
    GaussianBlur,
    Layout,
    Normalize,
    RandomResizedCrop,
    Resize,
    Size,
)
from fastfeed.augment.spec import Augment, Program
from fastfeed.core.collate import Blank, LateLeaf
from fastfeed.core.structure import rebuild
from fastfeed.errors import BadImage, SpecError, required

with required("OpenCV", "opencv"):
    import cv2

Row: TypeAlias = Sequence[float]
# libjpeg decodes to red, green, blue at no cost. OpenCV before 4.11 needs a conversion afterwards.
READ_RGB = getattr(cv2, "IMREAD_COLOR_RGB", None)
FLOAT32 = np.dtype(np.float32)


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

    def execute(self, planned: PlannedRecord) -> Any:
        """Return the record with its masks and boxes, and images as FinalImage."""
        targets, leaves, key, sizes, rows, _ = planned
        names = targets.names
        images = [self._image(leaves[n], names[n]) for n in targets.images]
        decoded_sizes = [(image.shape[0], image.shape[1]) for image in images]
        if decoded_sizes != sizes:  # OpenCV reads another orientation out of a file
            sizes, rows = decoded_sizes, self._spec.plan(key, decoded_sizes)
        for n, image, row in zip(targets.images, images, rows, strict=True):
            leaves[n] = FinalImage(_detached(self._transform(image, row), image), self._values)
        for n in targets.masks:
            mask = mask_of(leaves[n], self._spec, name=names[n], size=sizes[0])
            mask = self._transform_mask(mask, rows[0])
            leaves[n] = mask[:, :, None] if mask.ndim == 2 else mask
        for n in targets.boxes:
            leaves[n] = transform_boxes(leaves[n], self._spec, row=rows[0], size=sizes[0])
        return rebuild(targets.structure, leaves)

    def _image(self, leaf: Any, name: str) -> Image:
        decode = self._spec.first(Decode)
        if decode is None:
            return pixels_of(leaf, name)
        return _decoded(encoded_of(leaf, name), decode, name=name)


class FinalValues:
    """Computes the final values of images (height, width) or (height, width, 3): Normalize, Cast
    and Layout, in as few passes over the pixels as possible. The results have a channel axis."""

    def __init__(self, spec: Augment) -> None:
        self._normalize = spec.first(Normalize)
        layout, cast = spec.first(Layout), spec.first(Cast)
        self._channels_first = layout is not None and layout.order == "CHW"
        unscaled = np.dtype(np.uint8) if self._normalize is None else FLOAT32
        self._dtype = unscaled if cast is None else np.dtype(cast.dtype)
        # the length of a row of pixels, and the mean and factor of each of its values
        self._row_constants: tuple[int, Image, Image] | None = None

    def blank(self, image: Image) -> Blank:
        """Return the shape and dtype of the result. Raise SpecError if Normalize has another number
        of channels."""
        size, channels = image.shape[:2], 1 if image.ndim == 2 else image.shape[2]
        if self._normalize is not None and channels == 1:
            _constants(self._normalize, channels)
        return (channels, *size) if self._channels_first else (*size, channels), self._dtype

    def write(self, image: Image, out: Image) -> None:
        """Write the result into `out`, which is as `blank` returned."""
        if self._normalize is None:
            image = image[:, :, None] if image.ndim == 2 else image
            out[...] = image.transpose(2, 0, 1) if self._channels_first else image
        elif out.dtype == FLOAT32:
            self._write_normalized(image, self._normalize, out=out)
        else:
            values = np.empty(out.shape, FLOAT32)
            self._write_normalized(image, self._normalize, out=values)
            out[...] = values

    def _write_normalized(self, image: Image, op: Normalize, *, out: Image) -> None:
        """Normalize with a mean for each value of a row of pixels: numpy's inner loop over three
        channels takes ten times as long."""
        high, channels = image.shape[0], 1 if image.ndim == 2 else image.shape[2]
        if self._channels_first:
            means, factors = _constants(op, channels)
            for plane, part, mean, factor in zip(
                out, cv2.split(image), means, factors, strict=True
            ):
                np.subtract(part, mean, out=plane, dtype=np.float32)
                plane *= factor
            return
        wide, constants = image.shape[1], self._row_constants
        if constants is None or constants[0] != wide * channels:
            means, factors = (np.tile(v, wide) for v in _constants(op, channels))
            constants = self._row_constants = (wide * channels, means, factors)
        flat = out.reshape(high, -1)
        np.subtract(image.reshape(high, -1), constants[1], out=flat, dtype=np.float32)
        flat *= constants[2]


class FinalImage(LateLeaf):
    """An image before its final values, which may take four times as many bytes."""

    def __init__(self, pixels: Image, values: FinalValues) -> None:
        self.pixels, self._values = pixels, values
        self.shape, self.dtype = values.blank(pixels)

    def write(self, out: Image) -> None:
        """Write the values."""
        self._values.write(self.pixels, out)


@cache
def _constants(op: Normalize, channels: int) -> tuple[Image, Image]:
    """Return a mean and a factor for each channel."""
    mean, std = op.of_channels(channels)
    return np.array(mean, np.float32), (1 / np.array(std)).astype(np.float32)


def mask_of(leaf: Any, spec: Augment, *, name: str, size: Size) -> Image:
    """Return the pixels of a mask, as large as its image; of files, in grey."""
    decode = spec.first(Decode)
    if decode is None or (isinstance(leaf, np.ndarray) and leaf.ndim > 1):
        mask = pixels_of(leaf, name)
    else:
        data, gray = encoded_of(leaf, name), Decode("gray", decode.max_pixels)
        header = header_of(data, gray, name=name)
        if header.channels != 1 or header.bits != 8 or header.format != "PNG":
            raise BadImage(
                "a mask must be a grey PNG of 8 bits, which keeps its numbers: this is a "
                f"{header.format} of {header.channels} channels (or a palette) and "
                f"{header.bits} bits",
                leaf=name,
            )
        mask = _decoded(data, gray, name=name)
    if mask.shape[:2] != size:
        raise SpecError(
            f"Augment(masks=...): {name} is {mask.shape[:2]} and its image {size}: must have the "
            "same size"
        )
    return mask


def chain(program: Program, *, mask: bool = False) -> Callable[[Image, Row], Image]:
    """Return one function for the operations of `program`, in order. Its errors name the operation.

    A mask is moved and not changed: pixels are picked, never blended, and those from outside are 0.
    """
    functions = MOVE_FUNCTIONS if mask else {**MOVE_FUNCTIONS, **CHANGE_FUNCTIONS}
    steps = [(op, numbers, functions[type(op)]) for op, numbers in program if type(op) in functions]

    def run(image: Image, row: Row) -> Image:
        try:
            for op, numbers, do in steps:
                image = do(image, row[numbers], op=op, mask=mask)
        except cv2.error as error:
            raise SpecError(
                f"{type(op).__name__}: OpenCV cannot do this to an image of shape {image.shape}: "
                f"{str(error).strip()}"
            ) from None
        return image

    return run


def _random_window(image: Image, row: Row, *, op: RandomResizedCrop, mask: bool) -> Image:
    y, x, height, width = map(int, row)
    # a view, so that the resize reads only the window
    return _resized(
        image[y : y + height, x : x + width], op.size, antialias=op.antialias, mask=mask
    )


def _resize(image: Image, row: Row, *, op: Resize, mask: bool) -> Image:
    return _resized(image, (int(row[0]), int(row[1])), antialias=op.antialias, mask=mask)


def _crop(image: Image, row: Row, *, op: Crop, mask: bool) -> Image:
    y, x, height, width = map(int, row)
    part = image[max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)]
    down, along = height - part.shape[0], width - part.shape[1]
    if not down and not along:
        return part
    top, left, fill = max(0, -y), max(0, -x), 0 if mask else round(op.fill)
    return cv2.copyMakeBorder(
        part, top, down - top, left, along - left, cv2.BORDER_CONSTANT, value=(fill,) * 3
    )


def _flip(image: Image, row: Row, *, op: Flip, mask: bool) -> Image:
    horizontal, vertical = row
    if not horizontal and not vertical:
        return image
    return cv2.flip(image, -1 if horizontal and vertical else int(bool(horizontal)))


def _affine(image: Image, row: Row, *, op: Affine, mask: bool) -> Image:
    if tuple(row) == IDENTITY_WARP:
        return image
    a, b, c, d, e, f = row
    # from corners to centres of pixels: the (0, 0) of OpenCV is a centre
    matrix = np.array(((a, b, c + (a + b - 1) / 2), (d, e, f + (d + e - 1) / 2)))
    flags = (cv2.INTER_NEAREST if mask else cv2.INTER_LINEAR) | cv2.WARP_INVERSE_MAP
    fill = 0 if mask else round(op.fill)
    size = (image.shape[1], image.shape[0])
    return cv2.warpAffine(image, matrix, size, flags=flags, borderValue=(fill,) * 3)


def _colour(image: Image, row: Row, *, op: Colour, mask: bool) -> Image:
    if tuple(row) == IDENTITY_MATRIX:
        return image
    matrix = np.array(row).reshape(3, 4)
    matrix[:, 3] *= MAX_LEVEL
    if image.ndim == 2:  # as three equal channels
        matrix = np.array(((matrix[0, :3].sum(), matrix[0, 3]),))
    return cv2.transform(image, matrix).reshape(image.shape)


def _blur(image: Image, row: Row, *, op: GaussianBlur, mask: bool) -> Image:
    sigma, window = row[0], int(row[1])
    return image if window <= 1 else cv2.GaussianBlur(image, (window, window), sigma)


def _erase(image: Image, row: Row, *, op: Erase, mask: bool) -> Image:
    y, x, height, width = map(int, row)
    if not height:
        return image
    image = image.copy()  # it may be a view, or belong to the user
    image[y : y + height, x : x + width] = round(op.fill)
    return image


MOVE_FUNCTIONS: dict[type, Callable[..., Image]] = {
    RandomResizedCrop: _random_window,
    Resize: _resize,
    Crop: _crop,
    Flip: _flip,
    Affine: _affine,
}
CHANGE_FUNCTIONS: dict[type, Callable[..., Image]] = {
    Colour: _colour,
    GaussianBlur: _blur,
    Erase: _erase,
}


def _resized(image: Image, size: Any, *, antialias: bool, mask: bool) -> Image:
    high, wide = image.shape[:2]
    if (high, wide) == size:
        return image
    if mask:
        # The pixel that contains the new one's centre. OpenCV's INTER_NEAREST picks by the upper
        # left corner, and its INTER_NEAREST_EXACT the neighbour if the centre lies on an edge.
        rows, columns = (
            (2 * np.arange(new) + 1) * old // (2 * new)
            for old, new in zip((high, wide), size, strict=True)
        )
        picked: Image = image.take(rows, 0).take(columns, 1)
        return picked
    if antialias and (size[0] < high or size[1] < wide):
        return filtered(image, size)
    return cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)


def filtered(image: Image, size: Size) -> Image:
    """Return the resized image by a triangular filter that widens as much as the image shrinks, as
    DALI's and Pillow's; OpenCV has only a box (INTER_AREA). Beyond the image its border is
    repeated."""
    high, wide = image.shape[:2]
    work = _summed(image.reshape(high, -1).astype(np.float32), size[0])
    # Transposed: gathering whole rows is several times as fast as gathering columns.
    turned = work.reshape(size[0], wide, -1).swapaxes(0, 1)
    turned = _summed(np.ascontiguousarray(turned).reshape(wide, -1), size[1])
    work = turned.reshape(size[1], size[0], -1).swapaxes(0, 1)
    result: Image = np.rint(work.reshape(*size, *image.shape[2:])).astype(np.uint8)
    return result


def _summed(rows: Image, new: int) -> Image:
    """Return `new` rows, each a weighted sum of `rows`."""
    old = len(rows)
    if new == old:
        return rows
    reach = max(1.0, old / new)
    centre = (np.arange(new) + 0.5) * (old / new) - 0.5
    first = np.ceil(centre - reach).astype(np.intp)
    taps = first[:, None] + np.arange(math.floor(2 * reach) + 1)
    weights = np.maximum(0.0, 1 - np.abs(taps - centre[:, None]) / reach)
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    taps = np.clip(taps, 0, old - 1)
    out: Image = rows[taps[:, 0]]
    out *= weights[:, :1]
    part = np.empty_like(out)
    for tap in range(1, taps.shape[1]):
        np.take(rows, taps[:, tap], axis=0, out=part, mode="clip")
        part *= weights[:, tap : tap + 1]
        out += part
    return out


def _detached(part: Image, whole: Image) -> Image:
    """Return part of an image, as a copy if it would keep a much larger image in memory until the
    batch is made."""
    return part.copy() if part.base is whole and whole.nbytes > 2 * part.nbytes else part


def _decoded(data: Encoded, decode: Decode, *, name: str) -> Image:
    """Return the image in a file whose header is valid. Raise BadImage."""
    gray = decode.channels == "gray"
    mode = cv2.IMREAD_GRAYSCALE if gray else READ_RGB or cv2.IMREAD_COLOR
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), mode)
    except cv2.error:  # including its own limits of sides and pixels
        image = None
    if image is None:
        high, wide, channels, bits, kind = header_of(data, decode, name=name)
        raise BadImage(
            f"damaged {kind}: OpenCV finds no {high} x {wide} x {channels} pixels of {bits} bits "
            "in it",
            leaf=name,
        )
    return image if gray or READ_RGB else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
