"""The content of a black box as a value."""

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

    @property
    def end_ns(self) -> int:
        """The time of the last record."""
        sample_times = (sample.time_ns for sample in self.samples[-1:])
        event_times = (event.time_ns for event in self.events[-1:])
        return max(self.header.ended_ns, self.header.started_ns, *sample_times, *event_times)

    def last(self, runner: int, seconds: float = SHOWN_S) -> list[RunnerSample]:
        """Return the samples of a runner in the last seconds."""
        return [
            s
            for s in self.samples
            if s.runner == runner and s.time_ns >= self.end_ns - seconds * 1e9
        ]

    @property
    def runners(self) -> list[int]:
        """The numbers of the runners in the last minute."""
        return sorted({s.runner for s in self.samples if s.time_ns >= self.end_ns - SHOWN_S * 1e9})


def read(path: Path | str | None = None) -> FlightRecord:
    """Return the flight record in a file, or in the newest one of a process that has ended.

    Raise OptionError if there is none, or for a file that is no black box, is truncated or has a
    newer version. `damaged` counts the records that were incomplete at the end of their writer.
    """
    file = newest() if path is None else Path(path)
    try:
        # a pipe without a writer is not waited for
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as opened:
            data = opened.read(layout.FILE_NBYTES + 1)
    except OSError as error:
        raise OptionError(f"{file} cannot be read: {error.strerror or error}") from error
    header, samples, events, table, damaged = layout.unpack(data, name=str(file))
    return FlightRecord(str(file), header, _ending(header), samples, events, table, damaged)


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


def _ending(header: BlackBoxHeader) -> str:
    if header.status == layout.PROCESS_STOPPED:
        return "cleanly"
    if header.status == layout.PROCESS_FAILED:
        return "with an error"
    is_alive = (
        header.boot == boot_id()
        and header.ticks
        and start_ticks(header.pid) == header.ticks
        and _process_state(header.pid) not in "ZX"
    )
    return "running" if is_alive else "killed"


def _process_state(pid: int) -> str:
    """Return the letter of a process state in /proc, X for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def clock(time_ns: int) -> str:
    """Return a time as local clock time."""
    return time.strftime("%H:%M:%S", time.localtime(time_ns / 1e9))


def name_of(command: str) -> str:
    """Return the script of a command line, without its folder."""
    words = [word for word in command.split() if not word.startswith("-")]
    return os.path.basename(words[0]) if words else "python"
