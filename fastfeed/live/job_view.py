"""A running job at one moment, as the screen of `fastfeed top` shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastfeed.live.threads_of_job import SampledThread


@dataclass(frozen=True)
class ProcessUse:
    """One process of the job."""

    pid: int
    what: str
    cpu: float | None  # in cores; None at first
    rss: int  # in bytes


@dataclass
class JobView:
    """A job at one moment.

    `runners` is as in the socket's JSON, with the rates of the last seconds in "now". Without a
    socket, `threads` replaces it. `missing` lists in sentences what could not be observed.
    """

    pid: int
    command: str
    up_s: float
    processes: list[ProcessUse]
    runners: list[dict[str, Any]] = field(default_factory=list)
    threads: list[SampledThread] = field(default_factory=list)
    gpus: list[Any] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
