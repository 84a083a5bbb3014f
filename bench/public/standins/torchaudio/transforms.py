"""Transforms of waves."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class MelSpectrogram(nn.Module):
    def __init__(
        self, sample_rate: int = 16000, n_fft: int = 400, hop_length: int = 200, n_mels: int = 128
    ) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop_length
        self.register_buffer("window", torch.hann_window(n_fft))
        top = 2595 * math.log10(1 + sample_rate / 2 / 700)
        points = 700 * (10 ** (torch.linspace(0, top, n_mels + 2) / 2595) - 1)
        bins = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1)
        slopes = points[None] - bins[:, None]
        width = points[1:] - points[:-1]
        up, down = -slopes[:, :-2] / width[:-1], slopes[:, 2:] / width[1:]
        self.register_buffer("bank", torch.clamp(torch.minimum(up, down), min=0))

    def forward(self, wave: Any) -> Any:
        found = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        return torch.matmul(found.abs().pow(2).transpose(-1, -2), self.bank).transpose(-1, -2)


class Resample(nn.Module):
    """Windowed sinc filter; the kernel is made for every instance, as in torchaudio."""

    def __init__(self, orig_freq: int, new_freq: int) -> None:
        super().__init__()
        shared = math.gcd(orig_freq, new_freq)
        self.old, self.new = orig_freq // shared, new_freq // shared
        base = min(self.old, self.new) * 0.99
        self.width = math.ceil(6 * self.old / base)
        t = torch.arange(0, -self.new, -1)[:, None, None] / self.new
        t = (t + torch.arange(-self.width, self.width + self.old)[None, None] / self.old) * base
        t = t.clamp(-6, 6)
        window = torch.cos(t * math.pi / 12) ** 2
        kernel = torch.where(t == 0, torch.ones_like(t), torch.sin(t * math.pi) / (t * math.pi))
        self.kernel = kernel * window * base / self.old

    def forward(self, wave: Any) -> Any:
        count, length = wave.shape
        padded = nn.functional.pad(wave, (self.width, self.width + self.old))
        found = nn.functional.conv1d(padded[:, None], self.kernel, stride=self.old)
        return found.transpose(1, 2).reshape(count, -1)[
            :, : math.ceil(self.new * length / self.old)
        ]
