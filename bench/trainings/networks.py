"""The networks of PyTorch, each as a function that trains on a batch and returns its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.trainings.training import SEED

Train = Callable[..., float]


def convolutions(channels: int, *filters: int) -> list[nn.Module]:
    """Return convolutions, each with a normalisation and a pooling that halves both sides."""
    layers: list[nn.Module] = []
    for before, after in zip((channels, *filters), filters, strict=False):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return layers


def sounds(classes: int) -> Train:
    """Return the training of a classifier of spectrograms (n, frames, bands)."""
    torch.manual_seed(SEED)
    # the bands stay apart, and so do the two halves of the time
    layers = [*convolutions(1, 16, 32, 32), nn.AdaptiveAvgPool2d((2, 5)), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(320, classes))

    def loss_of(features: Any, labels: Any) -> Any:
        return functional.cross_entropy(model(features[:, None]), labels)

    return trained(model, loss_of)


def embeddings(side: int) -> Train:
    """Return the training of embeddings of pairs of images (n, side, side, 1), by the N-pair loss:
    each anchor is classified among the positives of its batch."""
    torch.manual_seed(SEED)
    flat = 64 * (side // 8) ** 2
    model = nn.Sequential(*convolutions(1, 16, 32, 64), nn.Flatten(), nn.Linear(flat, 64))

    def loss_of(images: Any) -> Any:
        found = model(images.permute(0, 3, 1, 2).float() / 127.5 - 1)
        found = functional.normalize(found, dim=1)
        scores = 10 * found[0::2] @ found[1::2].T
        return functional.cross_entropy(scores, torch.arange(len(scores)))

    return trained(model, loss_of)


def segmentation() -> nn.Module:
    """Return a network from images (n, 3, height, width) to scores (n, height, width) of pixels."""
    torch.manual_seed(SEED)
    widen = nn.Upsample(scale_factor=4, mode="bilinear")
    layers = [*convolutions(3, 16, 32), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(32, 1, 1), widen, nn.Flatten(1, 2))


def mask_loss(scores: Any, masks: Any) -> Any:
    """Return the loss of scores of pixels."""
    return functional.binary_cross_entropy_with_logits(scores, masks)


def trained(model: nn.Module, loss_of: Callable[..., Any]) -> Train:
    """Return a function that trains a model on one batch by Adam."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def train(*batch: Any) -> float:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return train
