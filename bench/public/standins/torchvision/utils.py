"""Grids of images in files."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image


def make_grid(
    images: Any, nrow: int = 8, padding: int = 2, normalize: bool = False, **_: Any
) -> Any:
    images = torch.stack(list(images)) if isinstance(images, (list, tuple)) else images
    images = images[None] if images.ndim == 3 else images
    images = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
    if normalize:
        low, high = images.min(), images.max()
        images = (images - low) / (high - low + 1e-5)
    columns = min(nrow, len(images))
    rows = -(-len(images) // columns)
    height, width = images.shape[2] + padding, images.shape[3] + padding
    grid = images.new_zeros((3, height * rows + padding, width * columns + padding))
    for i, image in enumerate(images):
        top, left = (i // columns) * height + padding, (i % columns) * width + padding
        grid[:, top : top + image.shape[1], left : left + image.shape[2]].copy_(image)
    return grid


def save_image(images: Any, path: Any, nrow: int = 8, normalize: bool = False, **_: Any) -> None:
    grid = make_grid(
        images.detach() if torch.is_tensor(images) else images, nrow, normalize=normalize
    )
    pixels = grid.mul(255).add_(0.5).clamp_(0, 255).permute(1, 2, 0).to("cpu", torch.uint8).numpy()
    Image.fromarray(pixels).save(path)
