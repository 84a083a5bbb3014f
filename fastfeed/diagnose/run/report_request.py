"""Request for a report, and why it is made now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fastfeed.diagnose.evidence import DeadProducer, Intervention
from fastfeed.diagnose.evidence_file import Recording
from fastfeed.steps.timeline import Loop, Timeline


class ReportReason(Enum):
    """Reason why a report is made now."""

    TIME = "time"  # the time is over
    END = "end"  # the script has ended
    CRASH = "crash"  # by an exception
    EXIT = "exit"  # it calls os._exit
    DEAD = "dead"  # the feed is dead; the process is ended right after the report
    BLOCKED = "blocked"  # the feed delivers nothing, but may go on
    STEPLESS = "no steps"  # the time is over without a loop; the request is repeated
    UNSEEN = "unseen"  # the extra time, too: a report must be made
    CHILDREN = "children"  # of child processes that train


@dataclass(frozen=True)
class ReportRequest:
    """Input of a report.

    `died`: producers that have ended or are blocked. `missing`: what could not be measured.
    `final`: there is no other report. `children`: observations of child processes that train.
    """

    script: str
    reason: ReportReason
    loop: Loop | None
    timeline: Timeline
    start_s: float  # of the measured time, by time.perf_counter
    end_s: float
    warmup_s: float
    begin_s: float  # start of the script
    died: tuple[DeadProducer, ...] = ()
    missing: tuple[str, ...] = ()
    waiting_now_s: float = 0.0
    rank: int | None = None  # RANK of torchrun, if there are several
    final: bool = True
    children: tuple[Recording, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    dosed_cpu_s: float = 0.0  # CPU seconds that interventions have taken in other processes
