"""Runners and black boxes of these tests, and functions that wait for content."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType

from fastfeed import OptionError
from fastfeed.jobs.blackbox import FlightRecord, boxes, read
from fastfeed.jobs.drawing import Terminal
from fastfeed.jobs.runner_samples import ProducerSample, RunnerSample
from tests.helpers.dying import until


def ones() -> Iterator[Any]:
    """Yield batches without end."""
    while True:
        yield np.ones((4, 3), np.float32)


def left(folder: Path) -> list[str]:
    """Return the names of all files in a folder, which may not exist."""
    return sorted(path.name for path in folder.glob("*"))


def flight(samples: int = 1, **wanted: Any) -> FlightRecord:
    """Return the newest black box once it has so many samples, and a newest sample of a runner has
    these values."""

    def found() -> FlightRecord | None:
        try:
            current = read(boxes()[0])
        except (IndexError, OptionError):  # the header is not written yet
            return None
        newest = [samples[-1]._asdict() for samples in current.last_minute.values()]
        ready = len(current.samples) >= samples and current.table is not None
        return current if ready and any(one | wanted == one for one in newest) else None

    complete: FlightRecord = until(found, f"a black box with {samples} samples and {wanted}")
    return complete


def observing() -> list[threading.Thread]:
    """Return the threads that observe runners."""
    return [t for t in threading.enumerate() if t.name == "fastfeed-jobs"]


def drawn(renderable: RenderableType, width: int = 150) -> str:
    """Return what a terminal without colours shows."""
    out = io.StringIO()
    Terminal(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


def sample(second: float, **changes: Any) -> RunnerSample:
    """Return a sample of a runner that takes 20 batches a second and waits half of the time."""
    at = RunnerSample(
        time_ns=1_700_000_000 * 10**9 + int(second * 1e9),
        runner=0,
        state="runs",
        error="",
        options="processes=2",
        batches=int(20 * second),
        records=int(640 * second),
        nbytes=int(20e6 * second),
        wait_s=second / 2,
        elapsed_s=second,
        depth=3,
        depth_nbytes=3 * 2**20,
        free=6,
        filling=1,
        ready=3,
        lent=2,
        rss=1_500_000_000,
        errors=0,
        copied=0,
        making=2,
        blocked=1,
        waits={"read": 0.4, "collate": 0.1},
        decisions={"kept": 2, "given up": 1, "proposed": 0},
        steps_per_second=20.0,
        bytes_per_second=20e6,
        starvation=0.5,
        wait_ms=25.0,
    )
    return at._replace(**changes)


def producer(number: int, **changes: Any) -> ProducerSample:
    """Return a thread at work."""
    row = ProducerSample(
        runner=0,
        producer=number,
        place="thread 4250",
        pid=4242,
        state="making",
        hand=f"item {number}",
        where="decode data.py:41",
        batches=600,
        rss=0,
        busy=0.5,
        stages={"read": 0.4, "collate": 0.1},
    )
    return row._replace(**changes)
