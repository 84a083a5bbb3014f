"""Transforms of PIL images and tensors, one by one as in torchvision."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from PIL import Image


class Compose:
    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for one in self.transforms:
            image = one(image)
        return image


class ToTensor:
    def __call__(self, image: Any) -> Any:
        if isinstance(image, np.ndarray):
            image = image[:, :, None] if image.ndim == 2 else image
            found = torch.from_numpy(image.transpose((2, 0, 1))).contiguous()
        else:
            found = torch.from_numpy(np.array(image, copy=True))
            found = found.view(image.size[1], image.size[0], len(image.getbands()))
            found = found.permute((2, 0, 1)).contiguous()
        return found.to(torch.get_default_dtype()).div(255) if found.dtype == torch.uint8 else found


class PILToTensor:
    def __call__(self, image: Any) -> Any:
        return torch.from_numpy(np.array(image, copy=True))[None]


class ToPILImage:
    def __init__(self, mode: Any = None) -> None:
        self.mode = mode

    def __call__(self, image: Any) -> Any:
        if torch.is_tensor(image):
            image = image.mul(255).byte() if image.is_floating_point() else image
            image = np.transpose(image.cpu().numpy(), (1, 2, 0))
        return Image.fromarray(image[:, :, 0] if image.shape[-1] == 1 else image)


class Normalize:
    def __init__(self, mean: Any, std: Any, inplace: bool = False) -> None:
        self.mean, self.std = mean, std

    def __call__(self, image: Any) -> Any:
        image = image.clone()
        mean = torch.as_tensor(self.mean, dtype=image.dtype).view(-1, 1, 1)
        std = torch.as_tensor(self.std, dtype=image.dtype).view(-1, 1, 1)
        return image.sub_(mean).div_(std)


class Resize:
    def __init__(self, size: Any, interpolation: Any = Image.BILINEAR, **_: Any) -> None:
        self.size, self.interpolation = size, interpolation

    def __call__(self, image: Any) -> Any:
        if isinstance(self.size, int):
            width, height = image.size
            scale = self.size / min(width, height)
            size = (max(1, round(width * scale)), max(1, round(height * scale)))
        else:
            size = (self.size[1], self.size[0])
        return image.resize(size, self.interpolation)


Scale = Resize


class CenterCrop:
    def __init__(self, size: Any) -> None:
        self.size = (size, size) if isinstance(size, int) else tuple(size)

    def __call__(self, image: Any) -> Any:
        left, top = (image.size[0] - self.size[1]) // 2, (image.size[1] - self.size[0]) // 2
        return image.crop((left, top, left + self.size[1], top + self.size[0]))


class RandomCrop:
    def __init__(self, size: Any, padding: Any = None, **_: Any) -> None:
        self.size, self.padding = size if isinstance(size, int) else size[0], padding

    def __call__(self, image: Any) -> Any:
        if self.padding:
            wide = Image.new(image.mode, tuple(n + 2 * self.padding for n in image.size))
            wide.paste(image, (self.padding, self.padding))
            image = wide
        left = random.randint(0, image.size[0] - self.size)
        top = random.randint(0, image.size[1] - self.size)
        return image.crop((left, top, left + self.size, top + self.size))


class Pad:
    def __init__(self, padding: int, **_: Any) -> None:
        self.padding = padding

    def __call__(self, image: Any) -> Any:
        wide = Image.new(image.mode, tuple(n + 2 * self.padding for n in image.size))
        wide.paste(image, (self.padding, self.padding))
        return wide


class RandomHorizontalFlip:
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        return image.transpose(Image.FLIP_LEFT_RIGHT) if random.random() < self.p else image


class RandomResizedCrop:
    def __init__(
        self, size: Any, scale: Any = (0.08, 1.0), ratio: Any = (3 / 4, 4 / 3), **_: Any
    ) -> None:
        self.size = (size, size) if isinstance(size, int) else size
        self.scale, self.ratio = scale, ratio

    def __call__(self, image: Any) -> Any:
        area = image.size[0] * image.size[1] * random.uniform(*self.scale)
        aspect = math.exp(random.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
        width = min(image.size[0], max(1, round(math.sqrt(area * aspect))))
        height = min(image.size[1], max(1, round(math.sqrt(area / aspect))))
        left = random.randint(0, image.size[0] - width)
        top = random.randint(0, image.size[1] - height)
        cut = image.crop((left, top, left + width, top + height))
        return cut.resize(self.size, Image.BILINEAR)


RandomSizedCrop = RandomResizedCrop


class RandomRotation:
    def __init__(self, degrees: float, **_: Any) -> None:
        self.degrees = degrees

    def __call__(self, image: Any) -> Any:
        return image.rotate(random.uniform(-self.degrees, self.degrees))


class Grayscale:
    def __init__(self, num_output_channels: int = 1) -> None:
        self.channels = num_output_channels

    def __call__(self, image: Any) -> Any:
        return image.convert("L")


class Lambda:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, image: Any) -> Any:
        return self.function(image)


class InterpolationMode:
    BILINEAR, BICUBIC, NEAREST = Image.BILINEAR, Image.BICUBIC, Image.NEAREST
