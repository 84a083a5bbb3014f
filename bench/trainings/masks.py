"""Pictures and masks of what is to be found in them, in PyTorch Lightning."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.trainings import photographs
from bench.trainings.made_masks import made_masks
from bench.trainings.training import SEED, Form, Progress, Training
from fastfeed import FeedRunner

SIDE, SHOWN, BATCH, EPOCHS = 320, 128, 16, 1000  # pixels of a stored and of a trained picture


@dataclass(frozen=True)
class Masked:
    """Encoded pictures and masks; a record is a random part of both, turned and mirrored."""

    pictures: list[bytes]
    masks: list[bytes]

    def __len__(self) -> int:
        return len(self.pictures)

    def varied(self, number: int, rng: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return a picture (3, SHOWN, SHOWN) and its mask (SHOWN, SHOWN), both float32, 0 to 1."""
        import cv2

        angle, zoom, down, right, flip = rng.random(5)
        picture, mask = (
            cv2.imdecode(np.frombuffer(encoded[number], np.uint8), flag)
            for encoded, flag in (
                (self.pictures, cv2.IMREAD_COLOR),
                (self.masks, cv2.IMREAD_GRAYSCALE),
            )
        )
        turn = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), 360 * angle, 0.4 + 0.4 * zoom)
        turn[:, 2] += (SHOWN - SIDE) / 2 + SHOWN * (np.array([right, down]) - 0.5) / 2
        found, there = (
            cv2.warpAffine(part, turn, (SHOWN, SHOWN), flags=how, borderMode=cv2.BORDER_REFLECT)
            for part, how in ((picture, cv2.INTER_LINEAR), (mask, cv2.INTER_NEAREST))
        )
        if flip < 0.5:
            found, there = cv2.flip(found, 1), cv2.flip(there, 1)
        pixels = np.ascontiguousarray(found.transpose(2, 0, 1), dtype=np.float32)
        return pixels / 255, there.astype(np.float32) / 255


def load(quick: bool) -> tuple[Masked, str]:
    """Return made masks on photographs."""
    data, origin = photographs.load(quick)
    count = 2 * BATCH if quick else 480
    return Masked(*made_masks(data.files, count, side=SIDE)), f"{count} made masks on {origin}"


class MaskedSet:
    """The pictures as a Dataset of PyTorch, varied by numpy's global generator."""

    def __init__(self, data: Masked) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.data.varied(index, np.random)


def loader(data: Masked, progress: Progress, *, workers: int) -> None:
    """Fit on the batches of a DataLoader."""
    import torch
    from torch.utils.data import DataLoader

    options = {"num_workers": workers, "persistent_workers": workers > 0, "drop_last": True}
    draws = torch.Generator().manual_seed(SEED)
    made = DataLoader(MaskedSet(data), BATCH, shuffle=True, generator=draws, **options)
    fit(made, progress)


def fastfeed(data: Masked, progress: Progress, **producers: Any) -> None:
    """Fit on the batches of a FeedRunner."""

    def varied(number: int, worker: Any) -> Any:
        return data.varied(number, worker.rng)

    options = {"batch_size": BATCH, "last_batch": "drop", "shuffle": True, "seed": SEED}
    with FeedRunner(range(len(data)), transform=varied, **options, **producers) as runner:
        fit(runner.torch(), progress)


def fit(made: Any, progress: Progress) -> None:
    """Train by Lightning; without it, by a loop."""
    from bench.trainings.networks import mask_loss, segmentation, trained

    model = segmentation()
    if importlib.util.find_spec("lightning"):
        from bench.trainings.lightning_fit import fit_until

        fit_until(model, made, progress)
        return
    train = trained(model, lambda pictures, masks: mask_loss(model(pictures), masks))
    made = progress.watch(made)
    for _ in range(EPOCHS):
        for pictures, masks in made:
            if progress.over(train(pictures, masks)):
                return


TRAINING = Training(
    "segmentation with masks, PyTorch Lightning",
    load,
    (
        Form("DataLoader, 0 workers", partial(loader, workers=0), uses=(MaskedSet,)),
        Form("DataLoader, 2 workers", partial(loader, workers=2), uses=(MaskedSet,)),
        Form("fastfeed, threads=2", partial(fastfeed, threads=2), "fixed"),
        Form('fastfeed, workers="auto"', partial(fastfeed, workers="auto"), "auto"),
    ),
    target=0.15,
    cap=800,
    needs=("torch", "cv2"),
    prefers="lightning",
)
