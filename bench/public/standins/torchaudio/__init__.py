"""Stand-in for torchaudio: WAV files, resampling and mel spectrograms with torch."""

from __future__ import annotations

import wave
from typing import Any

import numpy as np
import torch

from torchaudio import transforms

__all__ = ["load", "transforms"]


def load(path: str) -> Any:
    """Return (float32 of channels x samples, sample rate)."""
    with wave.open(path, "rb") as file:
        channels, rate = file.getnchannels(), file.getframerate()
        raw = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return torch.from_numpy(raw.reshape(-1, channels).T.astype(np.float32) / 32768), rate
