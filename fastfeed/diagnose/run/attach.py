"""Diagnosis of a job that runs already, from outside: `fastfeed diagnose --pid PID`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

from fastfeed.diagnose.evidence_file import Recording
from fastfeed.diagnose.run.observe import Publisher
from fastfeed.diagnose.sample.job_sampler import JobSampler
from fastfeed.errors import OptionError
from fastfeed.probes import family, procfs
from fastfeed.probes.pyspy import watchers_of

ANOTHER_DIAGNOSIS = (
    "the job without another diagnosis: one of process {pid} runs, too, and what it costs the job "
    "is a part of what was seen"
)


def watch_job(pid: int, *, seconds: float, publisher: Publisher) -> None:
    """Watch a process and its children from outside for some seconds, and report.

    Raise OptionError if it cannot be watched.
    """
    _check(pid)
    name, others = _name_of(pid), watchers_of(pid)
    with contextlib.closing(JobSampler(pid)) as sampler:
        sampler.run(seconds)
        found = sampler.evidence()
    if others:
        found = replace(found, missing=(*found.missing, ANOTHER_DIAGNOSIS.format(pid=pid)))
    publisher.report(Recording(found, f"{name} (process {pid})"))


def _check(pid: int) -> None:
    """Raise OptionError for a process that cannot be watched."""
    if pid == os.getpid():
        raise OptionError(f"--pid {pid} is this very command: give the pid of the training")
    stat = procfs.stat_of(pid)
    if stat.state in ("", "Z"):
        raise OptionError(
            f"--pid {pid}: no such process runs; `ps x` and `fastfeed top` list those of yours"
        )
    owner = os.stat(f"/proc/{pid}").st_uid
    if os.geteuid() not in (0, owner):
        raise OptionError(
            f"--pid {pid} ({stat.name}) is a process of another user (uid {owner}): run fastfeed "
            "as that user, or as root"
        )
    if not family.process_of(pid).python:
        raise OptionError(
            f"--pid {pid} ({stat.name}) runs no Python: give the pid of the interpreter that "
            "trains, which may be one of its children"
        )


def _name_of(pid: int) -> str:
    """Return the name of the script that a process runs, else of its program."""
    words = family.process_of(pid).command.split()
    return os.path.basename(next((word for word in words if word.endswith(".py")), words[0]))
