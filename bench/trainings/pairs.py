"""Metric learning: pairs of drawings of the same character, decoded and varied, PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.trainings.training import SEED, Form, Progress, Training, data_folder
from fastfeed import FeedRunner
from fastfeed.samplers import Pairs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIDE, CLASSES, EPOCHS = 32, 64, 1000  # classes of a batch, if there are so many


def load(quick: bool) -> tuple[Any, str]:
    """Return the images of examples/metric_learning.py: Omniglot, or scikit-learn's digits."""
    sys.path.append(str(EXAMPLES))
    from metric_data import OMNIGLOT, load

    folder = data_folder()
    named = str(folder) if any((folder / name).is_file() for name in OMNIGLOT) else None
    images, _, said = load(named, side=SIDE, colour=False, held_out=None)
    return images, said.partition(":")[0]


def batch_of(labels: np.ndarray) -> int:
    """Return the images of a batch, two of each class."""
    return 2 * min(CLASSES, len(set(labels.tolist())))


class Varied:
    """The images as a Dataset of PyTorch, varied by numpy's global generator."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        draws = np.random.uniform(-1, 1, 5).tolist()
        pixels: np.ndarray = self.images.look(index).of(*self.images[index], draws, side=SIDE)
        return pixels


class PairBatches:
    """The indices of the batches of each epoch, for `batch_sampler=`."""

    def __init__(self, labels: np.ndarray) -> None:
        self.count, self.size, self.epoch = len(labels), batch_of(labels), 0
        self.pairs = Pairs(labels, self.size)

    def __len__(self) -> int:
        return self.count // self.size

    def __iter__(self) -> Iterator[list[int]]:
        drawn = self.pairs.indices(SEED, self.epoch, length=self.count)
        self.epoch += 1
        yield from drawn.reshape(-1, self.size).tolist()


def loader(images: Any, progress: Progress, *, workers: int) -> None:
    """Train on the batches of a DataLoader."""
    from torch.utils.data import DataLoader

    options = {"num_workers": workers, "persistent_workers": workers > 0}
    sampler = PairBatches(images.labels)
    made = progress.watch(DataLoader(Varied(images), batch_sampler=sampler, **options))
    train = training()
    for _ in range(EPOCHS):
        for batch in made:
            if progress.over(train(batch)):
                return


def fastfeed(images: Any, progress: Progress, **producers: Any) -> None:
    """Train on the batches of a FeedRunner with the sampler of pairs."""
    size = batch_of(images.labels)
    options = {"sampler": Pairs(images.labels, size), "batch_size": size, "seed": SEED}
    numbers = np.arange(len(images))
    with FeedRunner(numbers, batch_transform=images.render, **options, **producers) as runner:
        made = progress.watch(runner.torch())
        train = training()
        for _ in range(EPOCHS):
            for batch in made:
                if progress.over(train(batch)):
                    return


def training() -> Any:
    """Return the function that trains on a batch."""
    from bench.trainings.networks import embeddings

    return embeddings(SIDE)


TRAINING = Training(
    "metric learning with pairs of drawings, PyTorch",
    load,
    (
        Form("DataLoader, 0 workers", partial(loader, workers=0), uses=(Varied, PairBatches)),
        Form("DataLoader, 2 workers", partial(loader, workers=2), uses=(Varied, PairBatches)),
        Form("fastfeed, processes=1", partial(fastfeed, processes=1), "fixed"),
        Form('fastfeed, workers="auto"', partial(fastfeed, workers="auto"), "auto"),
    ),
    target=1.25,
    cap=1500,
    needs=("torch", "cv2"),
)
