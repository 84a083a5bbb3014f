"""One spec of image operations, executed by OpenCV in the producers, or by DALI on the CPU or the
GPU. Imports only core and errors.

    from fastfeed import augment as A

    standard = A.Augment(
        [A.Decode(), A.RandomResizedCrop(224), A.Flip(), A.Normalize(127.5, 127.5)]
    )
    FeedRunner(photos, batch_size=64, augment=standard)
"""

from fastfeed.augment.operations import (
    Affine,
    Brightness,
    Cast,
    Contrast,
    Crop,
    Decode,
    Erase,
    Flip,
    GaussianBlur,
    Hue,
    Layout,
    Normalize,
    RandomResizedCrop,
    Resize,
    Saturation,
)
from fastfeed.augment.parameters import Choice, LogUniform, Uniform
from fastfeed.augment.spec import Augment
from fastfeed.errors import BadImage

__all__ = [
    "Affine",
    "Augment",
    "BadImage",
    "Brightness",
    "Cast",
    "Choice",
    "Contrast",
    "Crop",
    "Decode",
    "Erase",
    "Flip",
    "GaussianBlur",
    "Hue",
    "Layout",
    "LogUniform",
    "Normalize",
    "RandomResizedCrop",
    "Resize",
    "Saturation",
    "Uniform",
]
