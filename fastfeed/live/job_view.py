"""A running job at one moment, as the screen of `fastfeed top` shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastfeed.live.threads_of_job import Spied


@dataclass(frozen=True)
class ProcessUse:
    """One process of the job: its share of a core (1.0 is one; None at first) and its memory in
    bytes."""

    pid: int
    what: str
    cpu: float | None
    rss: int


@dataclass
class JobView:
    """A job at one moment. `runners`: as in the socket's JSON, with the rates of the last seconds
    in "now"; `threads`: instead of them if there is no socket; `missing`: what could not be
    observed, in sentences."""

    pid: int
    command: str
    up_s: float
    processes: list[ProcessUse]
    runners: list[dict[str, Any]] = field(default_factory=list)
    threads: list[Spied] = field(default_factory=list)
    gpus: list[Any] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
