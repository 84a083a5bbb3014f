"""What is done to an image last, in as few passes over its pixels as there can be: Normalize, Cast and Layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastfeed.augment.spec import Augment
from fastfeed.augment.values import Layout, Normalize
from fastfeed.errors import MissingExtra, SpecError

try:
    import cv2
except ImportError as error:
    raise MissingExtra("OpenCV", "opencv") from error

Image = np.ndarray[Any, Any]
Plane = np.ndarray[Any, np.dtype[np.float32]]


class Values:
    """The end of a spec, for images (height, width) or (height, width, 3); they leave with their channels."""

    def __init__(self, spec: Augment) -> None:
        self._normalize = next((op for op in spec.operations if isinstance(op, Normalize)), None)
        self._first = any(isinstance(op, Layout) and op.order == "CHW" for op in spec.operations)
        self._dtype = None if spec.dtype is None else np.dtype(spec.dtype)
        self._rows: tuple[int, Plane, Plane] | None = None

    def __call__(self, image: Image) -> Image:
        """Raises SpecError where Normalize has another number of channels."""
        if image.ndim == 2:
            image = image[:, :, None]
        if self._normalize is not None:
            made: Image = self._normalized(image, self._normalize)
        else:
            made = image.transpose(2, 0, 1) if self._first else image
        if self._dtype is None or made.dtype == self._dtype:
            return made
        return _cast(made, self._dtype)

    def _normalized(self, image: Image, op: Normalize) -> Plane:
        """A mean for each value of a row of pixels: numpy's inner loop over three channels takes ten times as long."""
        high, wide, channels = image.shape
        for name, values in (("mean", op.mean), ("std", op.std)):
            if len(values) not in (1, channels):  # type: ignore[arg-type]  # tuples since they were checked
                raise SpecError(
                    f"Normalize({name}={values}): the image has {channels} channel{'s' if channels > 1 else ''}: "
                    "needed one number, or one for each channel"
                )
        if self._first:
            out = np.empty((channels, high, wide), np.float32)
            for plane, part, mean, factor in zip(out, cv2.split(image), *_by_channel(op, channels), strict=True):
                np.subtract(part, mean, out=plane, dtype=np.float32)
                plane *= factor
            return out
        rows = self._rows
        if rows is None or rows[0] != wide * channels:
            rows = self._rows = (wide * channels, *(np.tile(v, wide) for v in _by_channel(op, channels)))
        made = np.subtract(image.reshape(high, -1), rows[1], dtype=np.float32)
        made *= rows[2]
        return made.reshape(high, wide, channels)


def _by_channel(op: Normalize, channels: int) -> tuple[Plane, Plane]:
    """Means, and what to multiply with."""
    mean, std = (np.broadcast_to(np.array(v, np.float64), channels) for v in (op.mean, op.std))
    return mean.astype(np.float32), (1 / std).astype(np.float32)


def _cast(values: Image, dtype: np.dtype[Any]) -> Image:
    if dtype.kind == "f":
        return values.astype(dtype)
    most = np.iinfo(dtype).max
    if values.dtype.kind == "f":
        values = np.rint(values)
    elif np.iinfo(values.dtype).max <= most:
        return values.astype(dtype)
    return np.clip(values, 0, most).astype(dtype)
