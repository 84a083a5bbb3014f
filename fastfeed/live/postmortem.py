"""The content of a black box as a value."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from fastfeed.errors import OptionError
from fastfeed.live.blackbox import boxes, in_use, open_to_read
from fastfeed.live.record_lines import (
    BlackBoxEnd,
    BlackBoxEvent,
    BlackBoxHeader,
    ProducerTable,
    RunnerSample,
    record_of,
)

MAX_READ_NBYTES = 2**24  # of a file that is read
SHOWN_S = 60.0


@dataclass(frozen=True)
class FlightRecord:
    """A process that had runners, as its black box shows it.

    `ending` is "cleanly", "with an error", "killed" or "running". "killed" is every end that the
    process could not record: SIGKILL, the kernel's out-of-memory killer, os._exit, or a crash of
    native code.
    """

    path: str
    header: BlackBoxHeader
    ending: str
    samples: tuple[RunnerSample, ...]
    events: tuple[BlackBoxEvent, ...]
    table: ProducerTable | None
    damaged: int
    end_ns: int  # the time of the last record

    @property
    def last_minute(self) -> dict[int, list[RunnerSample]]:
        """The samples of each runner in the last minute."""
        recent = [s for s in self.samples if s.time_ns >= self.end_ns - SHOWN_S * 1e9]
        runners = sorted({s.runner for s in recent})
        return {n: [s for s in recent if s.runner == n] for n in runners}


def read(path: Path | str | None = None) -> FlightRecord:
    """Return the flight record in a file, or in the newest one of a process that has ended.

    Raise OptionError if there is none, or for a file that is no black box of this version.
    `damaged` counts the lines that cannot be read; the last one may just be in writing.
    """
    file = newest() if path is None else Path(path)
    running = in_use(file)  # before the reading, which then sees every recorded end
    try:
        with open_to_read(file) as opened:
            first, *lines = (opened.read(MAX_READ_NBYTES) or b"").split(b"\n")
    except OSError as error:
        raise OptionError(f"{file} cannot be read: {error.strerror or error}") from error
    header = record_of(first)
    if not isinstance(header, BlackBoxHeader):
        raise OptionError(f"{file} is no black box of this version, or its header is damaged")
    records = [record_of(line) for line in lines[:-1]]
    tables = [r for r in records if isinstance(r, ProducerTable)]
    ends = [r for r in records if isinstance(r, BlackBoxEnd)]
    ending = "with an error" if ends and ends[-1].failed else "cleanly"
    return FlightRecord(
        path=str(file),
        header=header,
        ending=ending if ends else "running" if running else "killed",
        samples=tuple(r for r in records if isinstance(r, RunnerSample)),
        events=tuple(r for r in records if isinstance(r, BlackBoxEvent)),
        table=tables[-1] if tables else None,
        damaged=records.count(None),
        end_ns=max(r.time_ns for r in (header, *records) if r is not None),
    )


def newest() -> Path:
    """Return the newest black box of a process that has ended, else of one that runs.

    Raise OptionError if there is none.
    """
    found = boxes()
    if not found:
        raise OptionError(
            "there is no black box: a runner writes one from its start, and removes it after a "
            "regular end. FASTFEED_BLACKBOX=PATH always keeps one"
        )
    return next((path for path in found if not in_use(path)), found[0])


def clock(time_ns: int) -> str:
    """Return a time as local clock time."""
    return time.strftime("%H:%M:%S", time.localtime(time_ns / 1e9))


def name_of(command: str) -> str:
    """Return the script of a command line, without its folder."""
    words = [word for word in command.split() if not word.startswith("-")]
    return os.path.basename(words[0]) if words else "python"
