"""Folders of the black boxes and sockets of these tests, and functions that wait for content."""

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
    """The folders of the black boxes and the sockets."""

    state: Path
    run: Path

    def left(self) -> list[str]:
        """Return the names of all files there."""
        return sorted(
            p.name for folder in (self.state, self.run) for p in folder.rglob("*") if not p.is_dir()
        )


def ones() -> Iterator[Any]:
    """Yield batches without end."""
    while True:
        yield np.ones((4, 3), np.float32)


def answer(**wanted: Any) -> dict[str, Any]:
    """Return the answer of this process once one of its runners has these values."""

    def found() -> dict[str, Any] | None:
        current = ask(os.getpid())
        runners = current["runners"] if current else []
        return current if any(runner | wanted == runner for runner in runners) else None

    answer: dict[str, Any] = until(found, f"an answer with {wanted}")
    return answer


def flight(samples: int = 1) -> FlightRecord:
    """Return the newest black box once it has so many samples."""

    def found() -> FlightRecord | None:
        try:
            current = read(boxes()[0])
        except (IndexError, OptionError):  # the header is not written yet
            return None
        return current if len(current.samples) >= samples and current.table else None

    complete: FlightRecord = until(found, f"a black box with {samples} samples")
    return complete


def live_threads() -> list[threading.Thread]:
    """Return the threads that observe runners."""
    return [t for t in threading.enumerate() if t.name == "fastfeed-live"]
