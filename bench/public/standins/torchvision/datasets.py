"""Data sets in memory, whose records are PIL images as in torchvision; folders of files."""

from __future__ import annotations

import os
from typing import Any

import made
import public_hooks
import torch
from PIL import Image


class _Made(torch.utils.data.Dataset):  # type: ignore[type-arg]
    kind = "mnist"

    def __init__(
        self, root: Any = None, train: bool = True, transform: Any = None,
        target_transform: Any = None, download: bool = False, split: str | None = None,
    ) -> None:  # fmt: skip
        train = train if split is None else split == "train"
        pixels, labels = made.images(self.kind, public_hooks.SETTINGS)[0 if train else 1]
        self.train, self.transform, self.target_transform = train, transform, target_transform
        self.data = torch.from_numpy(pixels) if self.kind == "mnist" else pixels
        self.targets = torch.from_numpy(labels).long() if self.kind == "mnist" else labels.tolist()
        self.classes = [str(i) for i in range(10)]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        image, target = self.data[index], int(self.targets[index])
        image = Image.fromarray(image.numpy() if self.kind == "mnist" else image)
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    @property
    def train_data(self) -> Any:
        return self.data

    test_data = train_data

    @property
    def train_labels(self) -> Any:
        return self.targets

    test_labels = train_labels


class MNIST(_Made):
    """Digits."""


class FashionMNIST(_Made):
    """Clothes, of the same shape."""


class CIFAR10(_Made):
    """Small photographs."""

    kind = "cifar"


class CIFAR100(CIFAR10):
    """Small photographs."""


class FakeData(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random images, made on request as in torchvision."""

    def __init__(
        self, size: int = 1000, image_size: Any = (3, 224, 224), num_classes: int = 10,
        transform: Any = None, target_transform: Any = None, random_offset: int = 0,
    ) -> None:  # fmt: skip
        self.size, self.image_size, self.classes = size, image_size, num_classes
        self.transform, self.offset = transform, random_offset

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        state = torch.get_rng_state()
        torch.manual_seed(index + self.offset)
        image = torch.randn(*self.image_size)
        target = int(torch.randint(0, self.classes, size=(1,))[0])
        torch.set_rng_state(state)
        from torchvision.transforms import ToPILImage

        picture = ToPILImage()(image)
        return (self.transform(picture) if self.transform else picture), target


class ImageFolder(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Files, in one folder a class."""

    def __init__(self, root: str, transform: Any = None, **_: Any) -> None:
        self.classes = sorted(e.name for e in os.scandir(root) if e.is_dir())
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
        self.transform = transform
        self.samples = [
            (os.path.join(root, name, file), i)
            for i, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]
        self.imgs = self.samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        return (self.transform(image) if self.transform else image), target
