"""Spectrograms of made sounds, computed by numpy while PyTorch trains on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.trainings.training import DATA_SEED, SEED, Form, Progress, Training
from fastfeed import FeedRunner

RATE, FRAME, HOP, BANDS = 16_000, 400, 160, 40
CLASSES, BATCH, EPOCHS = 12, 64, 1000


def mel_filters() -> np.ndarray:
    """Return triangular filters (BANDS, FRAME // 2 + 1), whose centres are equally far apart on the
    mel scale."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (50, RATE / 2))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    hertz = np.fft.rfftfreq(FRAME, 1 / RATE)
    rising = (hertz - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - hertz) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


FILTERS, WINDOW = mel_filters(), np.hanning(FRAME).astype(np.float32)


@dataclass(frozen=True)
class Sounds:
    """Seconds of sound (n, RATE) int16 and their classes; a record is a spectrogram and a class."""

    waves: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        wave = self.waves[index].astype(np.float32) / 2**15
        frames = np.lib.stride_tricks.sliding_window_view(wave, FRAME)[::HOP] * WINDOW
        power = np.abs(np.fft.rfft(frames)).astype(np.float32) ** 2
        return np.log(power @ FILTERS.T + 1e-6), self.labels[index]


def load(quick: bool) -> tuple[Sounds, str]:
    """Return sounds whose class is the pattern of two tones that follow each other, in noise."""
    rng = np.random.default_rng(DATA_SEED)
    count = 2 * BATCH * 4 if quick else 3200
    labels = rng.integers(0, CLASSES, count)
    waves = np.empty((count, RATE), np.int16)
    seconds = np.arange(RATE) / RATE
    for wave, label in zip(waves, labels, strict=True):
        first, second = 300.0 * 1.4 ** np.array(divmod(int(label), 4))
        pitch, turn = rng.uniform(0.9, 1.1), rng.uniform(0.2, 0.8)
        hertz = np.where(seconds < turn, first, second) * pitch
        tone = np.sin(2 * np.pi * np.cumsum(hertz) / RATE)
        wave[:] = 3000 * (0.3 * tone + rng.normal(size=RATE))
    return Sounds(waves, labels), f"{count} made sounds of a second"


def loader(data: Sounds, progress: Progress, *, workers: int) -> None:
    """Train on the batches of a DataLoader."""
    import torch
    from torch.utils.data import DataLoader

    options = {"num_workers": workers, "persistent_workers": workers > 0, "drop_last": True}
    draws = torch.Generator().manual_seed(SEED)
    made = progress.watch(DataLoader(data, BATCH, shuffle=True, generator=draws, **options))
    train = training()
    for _ in range(EPOCHS):
        for features, labels in made:
            if progress.over(train(features, labels)):
                return


def fastfeed(data: Sounds, progress: Progress, **producers: Any) -> None:
    """Train on the batches of a FeedRunner."""
    options = {"batch_size": BATCH, "last_batch": "drop", "shuffle": True, "seed": SEED}
    with FeedRunner(data, **options, **producers) as runner:
        made = progress.watch(runner.torch())
        train = training()
        for _ in range(EPOCHS):
            for features, labels in made:
                if progress.over(train(features, labels)):
                    return


def training() -> Any:
    """Return the function that trains on a batch."""
    from bench.trainings.networks import sounds

    return sounds(CLASSES)


TRAINING = Training(
    "spectrograms of sounds, PyTorch",
    load,
    (
        Form("DataLoader, 0 workers", partial(loader, workers=0)),
        Form("DataLoader, 2 workers", partial(loader, workers=2)),
        Form("fastfeed, processes=2", partial(fastfeed, processes=2), "fixed"),
        Form('fastfeed, workers="auto"', partial(fastfeed, workers="auto"), "auto"),
    ),
    target=0.05,
    cap=1000,
    needs=("torch",),
)
