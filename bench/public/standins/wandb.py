"""Stand-in for wandb: makes what would be sent, and forgets it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing is sent."""


def init(**_: Any) -> Any:
    return SimpleNamespace(config=SimpleNamespace(update=_nothing), log=_nothing)


def log(*_: Any, **__: Any) -> None:
    """Nothing is sent."""


class Histogram:
    def __init__(self, sequence: Any, num_bins: int = 64) -> None:
        self.histogram, self.bins = np.histogram(np.asarray(sequence).ravel(), bins=num_bins)


class Image:
    def __init__(self, data: Any) -> None:
        pixels = np.asarray(data, dtype=np.float32)
        low, high = pixels.min(), pixels.max()
        self.pixels = ((pixels - low) / (high - low + 1e-9) * 255).astype(np.uint8)
