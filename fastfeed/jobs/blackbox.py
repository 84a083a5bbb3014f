"""The black box: a file of JSON lines that shows the last minutes of a process after its death.

Each record is one line and one write, and the kernel has it then: it survives SIGKILL. A file that
has grown too large is replaced by one with its recent records, and a kill leaves one of the two.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import fastfeed
from fastfeed.core.shard_address import without_tokens
from fastfeed.core.unix import ON_LINUX, fcntl
from fastfeed.errors import OptionError
from fastfeed.jobs.runner_samples import ProducerSample, RunnerSample, by_name

SUFFIX = ".blackbox"
VARIABLE, DISABLED = "FASTFEED_BLACKBOX", ("0", "off", "no", "false")
MAX_TEXT_LENGTH, MAX_TABLE_ROWS = 512, 256
MAX_READ_NBYTES = 2**24  # of a file that is read
GROWTH_NBYTES = 2**18  # until a file is replaced by one with the kept records
MAX_ENDED_BOXES, MAX_ENDED_AGE_S = 10, 7 * 24 * 3600.0  # of processes that have ended
SHOWN_S = 60.0


class BlackBoxHeader(NamedTuple):
    """The process of a black box: the first line."""

    pid: int
    time_ns: int  # of the start of the file
    host: str
    version: str
    command: str


class BlackBoxEvent(NamedTuple):
    """An event of a runner or of the process."""

    time_ns: int
    runner: int  # -1 for an event of the process
    text: str


class ProducerTable(NamedTuple):
    """Every producer at one moment."""

    time_ns: int
    total: int  # including producers without a row
    rows: tuple[ProducerSample, ...]


class BlackBoxEnd(NamedTuple):
    """The end of a process that could record it."""

    time_ns: int
    failed: bool


Record: TypeAlias = BlackBoxHeader | RunnerSample | BlackBoxEvent | ProducerTable | BlackBoxEnd
KINDS = {kind.__name__: kind for kind in get_args(Record)}
FIELD_TYPES = {kind: get_type_hints(kind) for kind in (*KINDS.values(), ProducerSample)}
KEPT_RECORDS = {RunnerSample: 512, BlackBoxEvent: 128, ProducerTable: 1}


def line_of(record: Record) -> bytes:
    """Return a record as a line, without tokens."""
    values = by_name(record)
    if isinstance(record, ProducerTable):
        values["rows"] = list(map(by_name, record.rows))
    return without_tokens(json.dumps({type(record).__name__: values}, default=int)).encode() + b"\n"


def record_of(line: bytes) -> Record | None:
    """Return the record of a line, or None for one that is damaged: no whole JSON, or a field is
    missing or of another type."""
    try:
        ((name, values),) = json.loads(line.decode()).items()
        record: Record = _typed(KINDS[name], values)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return record


def _typed(kind: Any, value: Any) -> Any:
    """Return a value of JSON as one of this type, or raise an error."""
    if kind is str:
        return str.encode(value, errors="replace").decode()[:MAX_TEXT_LENGTH]
    if kind == float | None:
        return None if value is None else _typed(float, value)
    if kind in (int, float, bool):
        types = (float, int) if kind is float else (kind,)
        if type(value) not in types or not -1 <= value < 2**63:  # -1 for what is unknown
            raise ValueError
        return value
    if get_origin(kind) is dict:
        (_, of) = get_args(kind)
        return {_typed(str, name): _typed(of, one) for name, one in value.items()}
    if kind not in FIELD_TYPES:
        return tuple(_typed(ProducerSample, row) for row in value)
    return kind(**{name: _typed(FIELD_TYPES[kind][name], of) for name, of in value.items()})


class BlackBox:
    """The file of one process, in a folder, else in that of `box_folder`.

    Every method may raise OSError; the black box is then lost and must be given up.
    """

    def __init__(self, folder: Path | None = None) -> None:
        now_ns = time.time_ns()
        command = " ".join(getattr(sys, "orig_argv", sys.argv)[1:] or sys.argv)
        header = BlackBoxHeader(
            pid=os.getpid(),
            time_ns=now_ns,
            host=socket.gethostname(),
            version=fastfeed.__version__,
            command=command[:MAX_TEXT_LENGTH],
        )
        self._header = line_of(header)
        self._kept = {kind: deque[bytes](maxlen=count) for kind, count in KEPT_RECORDS.items()}
        self._max_nbytes = GROWTH_NBYTES
        started = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_ns / 1e9))
        name = f"{started}.{now_ns % 10**9:09d}-{os.getpid()}{SUFFIX}"
        folder = folder or box_folder()
        if folder.parts[:1] == ("~",):
            raise FileNotFoundError("this user has no home folder")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not given_folder():
            prune(time.time())
        self.path = folder / name
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self._nbytes = _write(self._fd, self._header)
        except BaseException:
            self.give_up()
            raise

    def event(self, runner: int, text: str) -> None:
        """Record an event."""
        self.write(BlackBoxEvent(time.time_ns(), runner, text[:MAX_TEXT_LENGTH]))

    def table(self, rows: list[ProducerSample]) -> None:
        """Record every producer, or as many as fit."""
        self.write(ProducerTable(time.time_ns(), len(rows), tuple(rows[:MAX_TABLE_ROWS])))

    def write(self, record: Record) -> None:
        """Record what a runner or this process is at."""
        if self._nbytes > self._max_nbytes:
            self._shorten()
        line = line_of(record)
        self._nbytes += _write(self._fd, line)
        if type(record) in self._kept:
            self._kept[type(record)].append(line)

    def close(self, failed: bool) -> None:
        """Close the file. It stays after a failure, or if the user gave its folder."""
        self.write(BlackBoxEnd(time.time_ns(), failed))
        leave = self.forget if failed or given_folder() else self.give_up
        leave()

    def give_up(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.forget()

    def forget(self) -> None:
        """Close the descriptor only, as in a forked copy of the process."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _shorten(self) -> None:
        """Replace the file by one with the kept records."""
        fd, path = tempfile.mkstemp(dir=self.path.parent, prefix=f"{self.path.name}.")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._nbytes = _write(fd, b"".join((self._header, *chain(*self._kept.values()))))
            os.replace(path, self.path)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        self.forget()
        self._fd, self._max_nbytes = fd, self._nbytes + GROWTH_NBYTES


@dataclass(frozen=True)
class FlightRecord:
    """A process that had runners, as its black box shows it.

    `ending` is "cleanly", "with an error", "killed" or "running". "killed" is every end that the
    process could not record. `damaged` counts the lines that cannot be read.
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
    """
    file = newest() if path is None else Path(path)
    running = in_use(file)  # before the reading, which then sees every recorded end
    try:
        with _open_to_read(file) as opened:
            first, *lines = (opened.read(MAX_READ_NBYTES) or b"").split(b"\n")
    except OSError as error:
        raise OptionError(f"{file} cannot be read: {error.strerror or error}") from error
    header = record_of(first)
    if not isinstance(header, BlackBoxHeader):
        raise OptionError(f"{file} is no black box of this version, or its header is damaged")
    records = [record_of(line) for line in lines[:-1]]  # the last one may just be in writing
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
            f"regular end. With {VARIABLE}=DIR all of them stay there"
        )
    return next((path for path in found if not in_use(path)), found[0])


def boxes(pattern: str = "*" + SUFFIX) -> list[Path]:
    """Return every black box of this user in the folder, the newest first."""
    seen = [(path, own_stat(path)) for path in box_folder().glob(pattern)]
    found = {path: known.st_mtime for path, known in seen if known is not None}
    return sorted(found, key=lambda p: found[p], reverse=True)


def own_stat(path: Path) -> os.stat_result | None:
    """Return the status of a file of this user, None for a link and anything else."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        return found if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else None
    return None


def in_use(path: Path) -> bool:
    """Return True if a living process writes this file, or if that cannot be known."""
    try:
        with _open_to_read(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def is_enabled() -> bool:
    """Return True unless black boxes are disabled."""
    return ON_LINUX and os.environ.get(VARIABLE, "").lower() not in DISABLED


def given_folder() -> str:
    """Return the folder in which the user keeps all black boxes, "" for the default one."""
    given = os.environ.get(VARIABLE, "")
    return "" if given.lower() in ("1", *DISABLED) else given


def box_folder() -> Path:
    """Return the folder of black boxes: the one that the user gave, or that of this user's state.

    It begins with "~" if this user has no home.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    state = state if state.startswith("/") else "~/.local/state"
    return Path(os.path.expanduser(given_folder() or f"{state}/fastfeed"))


def prune(now_s: float) -> None:
    """Remove black boxes of processes that have ended if they are old, or too many."""
    for n, path in enumerate(path for path in boxes(f"*{SUFFIX}*") if not in_use(path)):
        with contextlib.suppress(OSError):
            if n >= MAX_ENDED_BOXES or now_s - path.lstat().st_mtime > MAX_ENDED_AGE_S:
                path.unlink()


def _open_to_read(path: Path) -> BinaryIO:
    """Open a file, without a wait for the writer of a pipe."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _write(fd: int, lines: bytes) -> int:
    if os.write(fd, lines) != len(lines):
        raise OSError("the disk is full")
    return len(lines)
