"""The last steps of an image, in as few passes over its pixels as possible: Normalize, Cast and
Layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastfeed.augment.image_leaves import Image
from fastfeed.augment.spec import Augment
from fastfeed.augment.values import Layout, Normalize
from fastfeed.core.collate import Blank
from fastfeed.errors import SpecError, required

with required("OpenCV", "opencv"):
    import cv2

Plane = np.ndarray[Any, np.dtype[np.float32]]
FLOAT32 = np.dtype(np.float32)


class FinalValues:
    """Computes the final values of images (height, width) or (height, width, 3). The results have
    a channel axis."""

    def __init__(self, spec: Augment) -> None:
        self._normalize = next((op for op in spec.operations if isinstance(op, Normalize)), None)
        self._channels_first = any(
            isinstance(op, Layout) and op.order == "CHW" for op in spec.operations
        )
        self._dtype = None if spec.dtype is None else np.dtype(spec.dtype)
        self._checked_channels = 0  # a number of channels that fits Normalize
        # the length of a row of pixels, and the mean and factor of each of its values
        self._row_constants: tuple[int, Plane, Plane] | None = None

    def blank(self, image: Image) -> Blank:
        """Return the shape and dtype of the result. Raise SpecError if Normalize has another number
        of channels."""
        channels = 1 if image.ndim == 2 else image.shape[2]
        if self._normalize is not None and channels != self._checked_channels:
            _check(self._normalize, channels)
            self._checked_channels = channels
        shape = (
            (channels, *image.shape[:2]) if self._channels_first else (*image.shape[:2], channels)
        )
        return shape, self._dtype or (image.dtype if self._normalize is None else FLOAT32)

    def values(self, image: Image) -> Image:
        """Return the result, a new array unless the values stay as they are."""
        shape, dtype = self.blank(image)
        if self._normalize is None and dtype == image.dtype:
            return self._laid_out(image)
        out = np.empty(shape, dtype)
        self.write(image, out)
        return out

    def write(self, image: Image, out: Image) -> None:
        """Write the result into `out`, which has the shape and dtype that `blank` returned."""
        if self._normalize is None:
            values = self._laid_out(image)
        elif out.dtype == FLOAT32:
            return self._normalized(image, self._normalize, out=out)
        else:
            values = np.empty(out.shape, FLOAT32)
            self._normalized(image, self._normalize, out=values)
        out[...] = values if values.dtype == out.dtype else _converted(values, out.dtype)

    def _laid_out(self, image: Image) -> Image:
        if image.ndim == 2:
            image = image[:, :, None]
        return image.transpose(2, 0, 1) if self._channels_first else image

    def _normalized(self, image: Image, op: Normalize, *, out: Plane) -> None:
        """Normalize with a mean for each value of a row of pixels: numpy's inner loop over three
        channels takes ten times as long."""
        high, channels = image.shape[0], 1 if image.ndim == 2 else image.shape[2]
        if self._channels_first:
            for plane, part, mean, factor in zip(
                out, cv2.split(image), *_by_channel(op, channels), strict=True
            ):
                np.subtract(part, mean, out=plane, dtype=np.float32)
                plane *= factor
            return
        wide, constants = image.shape[1], self._row_constants
        if constants is None or constants[0] != wide * channels:
            means, factors = (np.tile(v, wide) for v in _by_channel(op, channels))
            constants = self._row_constants = (wide * channels, means, factors)
        flat = out.reshape(high, -1)
        np.subtract(image.reshape(high, -1), constants[1], out=flat, dtype=np.float32)
        flat *= constants[2]


def _check(op: Normalize, channels: int) -> None:
    for name, values in (("mean", op.mean), ("std", op.std)):
        if len(values) not in (1, channels):  # type: ignore[arg-type]  # tuples since they were checked
            raise SpecError(
                f"Normalize({name}={values}): the image has {channels} "
                f"channel{'s' if channels > 1 else ''}: must be one number, or one for each channel"
            )


def _by_channel(op: Normalize, channels: int) -> tuple[Plane, Plane]:
    """Return the means and the factors."""
    mean, std = (np.broadcast_to(np.array(v, np.float64), channels) for v in (op.mean, op.std))
    return mean.astype(np.float32), (1 / std).astype(np.float32)


def _converted(values: Image, dtype: np.dtype[Any]) -> Image:
    if dtype.kind == "f":
        return values.astype(dtype)
    most = np.iinfo(dtype).max
    if values.dtype.kind == "f":
        values = np.rint(values)
    elif np.iinfo(values.dtype).max <= most:
        return values.astype(dtype)
    return np.clip(values, 0, most).astype(dtype)
