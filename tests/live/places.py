"""Where the tests of this folder have their black boxes and sockets, and how they wait for what is
in there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastfeed import OptionError
from fastfeed.live.blackbox import boxes
from fastfeed.live.postmortem import FlightRecord, read
from fastfeed.live.socket import ask
from tests.helpers.dying import until


@dataclass(frozen=True)
class Folders:
    """Where the black boxes and the sockets are."""

    state: Path
    run: Path

    def left(self) -> list[str]:
        """The names of everything that is there."""
        return sorted(
            p.name for folder in (self.state, self.run) for p in folder.rglob("*") if not p.is_dir()
        )


def ones() -> Iterator[Any]:
    """Batches without end."""
    while True:
        yield np.ones((4, 3), np.float32)


def answer(**wanted: Any) -> dict[str, Any]:
    """What this process answers at its socket, once there is a runner that is as `wanted`."""

    def found() -> dict[str, Any] | None:
        told = ask(os.getpid())
        runners = told["runners"] if told else []
        return (
            told
            if any(all(r[name] == value for name, value in wanted.items()) for r in runners)
            else None
        )

    answer: dict[str, Any] = until(found, f"an answer with {wanted}")
    return answer


def flight(samples: int = 1) -> FlightRecord:
    """The newest black box, once there are so many samples in it."""

    def found() -> FlightRecord | None:
        try:
            told = read(boxes()[0])
        except (IndexError, OptionError):  # its first line is not written yet
            return None
        return told if len(told.samples) >= samples and told.table else None

    told: FlightRecord = until(found, f"a black box with {samples} samples")
    return told


def live_threads() -> list[threading.Thread]:
    """The threads that look at runners."""
    return [t for t in threading.enumerate() if t.name == "fastfeed-live"]
