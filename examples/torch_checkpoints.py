"""Checkpoints of torch_ddp.py: a file for each rank, with the model and the place in its stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastfeed import StateError


def state_file(folder: Path, rank: int, world: int) -> Path:
    return folder / f"rank-{rank}-of-{world}.pt"


def save(folder: Path, rank: int, world: int, *, parts: dict[str, Any], epoch: int) -> None:
    """Write this rank's file: its model, which all have alike, and the place in its own stream."""
    folder.mkdir(parents=True, exist_ok=True)
    file = state_file(folder, rank, world)
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**states, "epoch": epoch}, new := file.with_suffix(".new"))
    new.replace(file)  # after a crash there is the old one or the new one
    dist.barrier()  # all ranks have the same epoch


def load(folder: Path, rank: int, world: int, *, parts: dict[str, Any]) -> int:
    """Restore this rank; return the epoch to go on with."""
    file = state_file(folder, rank, world)
    if not file.exists():
        raise StateError(
            f"{file} does not exist: resume with as many ranks as have saved. Any number may go on "
            'with the states of all ranks where the order is not promised, order="any"'
        )
    saved = torch.load(file)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    return int(saved["epoch"])
