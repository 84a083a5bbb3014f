"""One spec of image operations, executed by OpenCV in the producers, or by DALI on the CPU or the
GPU. Imports only core and errors.

    from fastfeed import augment as A

    standard = A.Augment(
        [A.Decode(), A.RandomResizedCrop(224), A.Flip(), A.Normalize(127.5, 127.5)]
    )
    FeedRunner(photos, batch_size=64, augment=standard)
"""

from fastfeed.augment.geometry import Affine, Crop, Decode, Flip, RandomResizedCrop, Resize, Rotate
from fastfeed.augment.parameters import Choice, LogUniform, Normal, Uniform
from fastfeed.augment.spec import Augment, HandOver
from fastfeed.augment.values import (
    Brightness,
    Cast,
    Contrast,
    Erase,
    GaussianBlur,
    Hue,
    Mixup,
    Normalize,
    OneHot,
    Saturation,
)
from fastfeed.augment.values import Layout as Layout
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
    "HandOver",
    "Hue",
    "Layout",
    "LogUniform",
    "Mixup",
    "Normal",
    "Normalize",
    "OneHot",
    "RandomResizedCrop",
    "Resize",
    "Rotate",
    "Saturation",
    "Uniform",
]
