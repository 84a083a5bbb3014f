"""Stand-in for an accelerator: a step or a forward pass that takes its time but no processor."""

from __future__ import annotations

import time
from typing import Any


def step(seconds: float) -> None:
    """Wait as a thread does for a device: without the interpreter's lock."""
    time.sleep(seconds)


def output(seconds: float, *shape: int) -> Any:
    """Return a tensor of zeros that a model might have made; a gradient ends at it."""
    import torch

    step(seconds)
    return torch.zeros(shape, requires_grad=True)
