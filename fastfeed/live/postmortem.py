"""The content of a black box: `read` makes a value of the file, `render` shows it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from fastfeed.errors import OptionError
from fastfeed.live import record_layout as layout
from fastfeed.live.blackbox import boot_id, boxes, in_use, start_ticks
from fastfeed.live.record_layout import (
    BlackBoxEvent,
    BlackBoxHeader,
    ProducerTable,
    RunnerSample,
)

LAST_S = 60.0
ENDINGS = ("cleanly", "with an error", "killed", "running")


@dataclass(frozen=True)
class FlightRecord:
    """A process that had runners, as its black box shows it. `ending`: one of ENDINGS; "killed" is
    every end that the process could not record: SIGKILL, the kernel's out-of-memory killer,
    os._exit, a crash of native code."""

    path: str
    header: BlackBoxHeader
    ending: str
    samples: tuple[RunnerSample, ...]
    events: tuple[BlackBoxEvent, ...]
    table: ProducerTable | None
    damaged: int

    @property
    def end_ns(self) -> int:
        """The last moment of which anything is known."""
        times = [s.time_ns for s in self.samples[-1:]] + [e.time_ns for e in self.events[-1:]]
        return max([self.header.ended_ns, self.header.started_ns, *times])

    def last(self, runner: int, seconds: float = LAST_S) -> list[RunnerSample]:
        """Return the samples of a runner in the last seconds."""
        return [
            s
            for s in self.samples
            if s.runner == runner and s.time_ns >= self.end_ns - seconds * 1e9
        ]

    @property
    def runners(self) -> list[int]:
        """The numbers of the runners in the last minute."""
        return sorted({s.runner for s in self.samples if s.time_ns >= self.end_ns - LAST_S * 1e9})


def read(path: Path | str | None = None) -> FlightRecord:
    """Return the flight record in a file, or in the newest one of a process that has ended.

    Raise OptionError if there is none, or for a file that is no black box, was cut off or is of a
    newer version. A record that was torn by the end of its writer is left out, and counted in
    `damaged`.
    """
    file = newest() if path is None else Path(path)
    try:
        with file.open("rb") as opened:
            data = opened.read(layout.FILE_NBYTES + 1)
    except OSError as error:
        raise OptionError(f"{file} cannot be read: {error.strerror or error}") from error
    header, samples, events, table, damaged = layout.unpack(data, name=str(file))
    return FlightRecord(str(file), header, _ending(header), samples, events, table, damaged)


def newest() -> Path:
    """Return the newest black box of a process that has ended, else of one that runs. Raise
    OptionError if there is none."""
    found = boxes()
    for path in [p for p in found if not in_use(p)] + found:
        return path
    raise OptionError(
        "there is no black box: a runner writes one from its start, and removes it after a regular "
        "end. FASTFEED_BLACKBOX=PATH always keeps one"
    )


def _ending(header: BlackBoxHeader) -> str:
    if header.status == layout.PROCESS_STOPPED:
        return "cleanly"
    if header.status == layout.PROCESS_FAILED:
        return "with an error"
    here = header.boot == boot_id()
    alive = (
        here
        and header.ticks
        and start_ticks(header.pid) == header.ticks
        and _state(header.pid) not in "ZX"
    )
    return "running" if alive else "killed"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def clock(time_ns: int) -> str:
    """Return a moment as local clock time."""
    return time.strftime("%H:%M:%S", time.localtime(time_ns / 1e9))


def name_of(command: str) -> str:
    """Return the script of a command line, without its folder."""
    words = [word for word in command.split() if not word.startswith("-")]
    return os.path.basename(words[0]) if words else "python"
