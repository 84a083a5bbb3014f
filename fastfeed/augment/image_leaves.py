"""Leaves of records that should be images: their kind, header and size, without a decoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastfeed.augment.geometry import Decode
from fastfeed.augment.headers import Encoded, ImageHeader, read_header
from fastfeed.augment.spec import Augment
from fastfeed.augment.steps import Size
from fastfeed.errors import BadImage, SpecError

Image = np.ndarray[Any, Any]


def size_of(leaf: Any, spec: Augment, *, name: str) -> Size:
    """Return (height, width) of an image; that of a file is in its header. Raise BadImage, and
    SpecError for a leaf that is not an image."""
    decode = spec.decodes
    header = (
        pixels_of(leaf, name).shape
        if decode is None
        else header_of(encoded_of(leaf, name), decode, name=name)
    )
    return header[0], header[1]


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
    else:
        kind = f"a {type(leaf).__name__}"
        is_path = hasattr(leaf, "encode")
        hint = "; read the file in transform=, as in open(path, 'rb').read()" if is_path else ""
    raise SpecError(
        f"Decode: {name} is {kind}; must be a file's bytes, or a uint8 array of them{hint}"
    )


def pixels_of(leaf: Any, name: str) -> Image:
    """Return an array of pixels, without the axis of a single channel. Raise SpecError for any
    other leaf."""
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
            f"Augment: {name} is an array of shape {leaf.shape} and dtype {leaf.dtype}; must be an "
            "image of uint8 or uint16 and shape (height, width), or with 1 or 3 channels "
            f"behind{hint}"
        )
    return leaf[:, :, 0] if leaf.ndim == 3 and grey else leaf
