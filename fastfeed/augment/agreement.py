"""The allowed differences of pixels between OpenCV and DALI, which have the same draws and geometry
and another arithmetic."""

from __future__ import annotations

from typing import NamedTuple


class Levels(NamedTuple):
    """Levels of uint8, 0 to 255: for any one pixel, and in the mean over an image."""

    maximum: float
    mean: float


EXACT = Levels(0, 0)
# By operation and, where it matters, interpolation. Each is for one operation; the sum bounds
# several, except at sharp edges: a pixel on the edge of a warped image is either image or `fill`.
AGREEMENT = {
    "Decode": EXACT,  # both have libjpeg-turbo; 16-bit PNGs are rounded differently
    "Decode 16 bits": Levels(1, 0.5),
    "Resize nearest": EXACT,  # on a GPU the rounding may decide between two neighbours
    "Resize linear": Levels(1, 0.5),
    "Resize cubic": Levels(1, 0.5),
    "RandomResizedCrop": Levels(1, 0.5),
    "Crop": EXACT,
    "Flip": EXACT,
    "Rotate": Levels(3, 0.5),
    "Affine": Levels(3, 0.5),
    "Brightness": Levels(1, 0.5),
    "Contrast": Levels(1, 0.5),
    "Saturation": Levels(1, 0.5),
    "Hue": Levels(1, 0.5),
    "GaussianBlur": Levels(2, 1),
    "Erase": EXACT,
    "Normalize": Levels(1e-3, 1e-4),
    "Cast": Levels(1, 0.5),
    "Layout": EXACT,
    "Mixup": Levels(1e-3, 1e-4),
}
# factor for uint16, with 65,536 levels: the weights of OpenCV have fewer digits
SIXTEEN_BIT_FACTOR = 64.0
