"""The black box: a file of JSON lines that shows the last minutes of a process after its death.

Each record is one write, and the kernel has it then: it survives SIGKILL. A file that has grown too
large is replaced by one with its recent records, and a kill leaves one of the two.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import tempfile
import time
from collections import deque
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from fastfeed.core.unix import fcntl
from fastfeed.live.folders import first_usable, own_entries, state_folders
from fastfeed.live.record_lines import (
    MAGIC,
    MAX_TABLE_ROWS,
    MAX_TEXT_LENGTH,
    BlackBoxEnd,
    BlackBoxEvent,
    BlackBoxHeader,
    ProducerRow,
    ProducerTable,
    RunnerSample,
    line_of,
)

SUFFIX = ".blackbox"
GROWTH_NBYTES = 2**18  # until a file is replaced by one with the kept records
KEPT_RECORDS = {RunnerSample: 1024, BlackBoxEvent: 128, ProducerTable: 1}
MAX_ENDED_BOXES, MAX_ENDED_AGE_S = 10, 7 * 24 * 3600.0  # of processes that have ended


class BlackBox:
    """The file of one process.

    Every method may raise OSError; the black box is then lost and must be given up.
    """

    def __init__(self, given: str = "", *, version: str = "") -> None:
        now_ns = time.time_ns()
        command = " ".join(getattr(sys, "orig_argv", sys.argv)[1:] or sys.argv)
        header = (os.getpid(), now_ns, socket.gethostname(), version, command[:MAX_TEXT_LENGTH])
        self._header = line_of(BlackBoxHeader(*header))
        self._kept = {kind: deque[bytes](maxlen=count) for kind, count in KEPT_RECORDS.items()}
        self._given = bool(given)
        self._max_nbytes = GROWTH_NBYTES
        self.path, self._fd = _open(Path(given) if given else _new_path(now_ns))
        try:
            os.ftruncate(self._fd, 0)
            self._nbytes = _write(self._fd, self._header)
        except BaseException:
            self.give_up()
            raise

    def event(self, runner: int, text: str) -> None:
        """Record an event."""
        self.write(BlackBoxEvent(time.time_ns(), runner, text[:MAX_TEXT_LENGTH]))

    def table(self, rows: list[ProducerRow]) -> None:
        """Record every producer, or as many as fit."""
        self.write(ProducerTable(time.time_ns(), len(rows), tuple(rows[:MAX_TABLE_ROWS])))

    def write(self, record: RunnerSample | BlackBoxEvent | ProducerTable | BlackBoxEnd) -> None:
        """Record what a runner or this process is at."""
        if self._nbytes > self._max_nbytes:
            self._shorten()
        line = line_of(record)
        self._nbytes += _write(self._fd, line)
        if not isinstance(record, BlackBoxEnd):
            self._kept[type(record)].append(line)

    def close(self, failed: bool) -> None:
        """Close the file. It stays after a failure, or if its path was given."""
        self.write(BlackBoxEnd(time.time_ns(), failed))
        leave = self.forget if failed or self._given else self.give_up
        leave()

    def give_up(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            if _is_at(self.path, self._fd):
                self.path.unlink()
        self.forget()

    def forget(self) -> None:
        """Close the descriptor only, as in a forked copy of the process."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _shorten(self) -> None:
        """Replace the file by one with the kept records."""
        if not _is_at(self.path, self._fd):
            raise FileExistsError(f"{self.path} is another file now")
        fd, path = tempfile.mkstemp(dir=self.path.parent, prefix=f"{self.path.name}.")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._nbytes = _write(fd, b"".join((self._header, *chain(*self._kept.values()))))
            os.replace(path, self.path)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        self.forget()
        self._fd, self._max_nbytes = fd, self._nbytes + GROWTH_NBYTES


def boxes(pattern: str = "*" + SUFFIX) -> list[Path]:
    """Return every black box in the default folders, the newest first."""
    found: dict[Path, float] = {}
    for path in own_entries(state_folders(), pattern, kind=stat.S_ISREG):
        with contextlib.suppress(OSError):
            found[path] = path.lstat().st_mtime
    return sorted(found, key=lambda p: found[p], reverse=True)


def in_use(path: Path) -> bool:
    """Return True if a living process writes this file, or if that cannot be known."""
    try:
        with open_to_read(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def open_to_read(path: Path) -> BinaryIO:
    """Open a file, without a wait for the writer of a pipe."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def prune(now_s: float) -> None:
    """Remove black boxes of processes that have ended if they are old, or too many."""
    for n, path in enumerate(path for path in boxes(f"*{SUFFIX}*") if not in_use(path)):
        with contextlib.suppress(OSError):
            if n >= MAX_ENDED_BOXES or now_s - path.lstat().st_mtime > MAX_ENDED_AGE_S:
                path.unlink()


def _new_path(now_ns: int) -> Path:
    """Return an unused path in the default folder, and remove old black boxes there."""
    folder = first_usable(state_folders())
    prune(now_ns / 1e9)
    started = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_ns / 1e9))
    return folder / f"{started}.{now_ns % 10**9:09d}-{os.getpid()}{SUFFIX}"


def _open(path: Path) -> tuple[Path, int]:
    """Open and lock a file for the life of this process, and return its path and descriptor.

    If another process has the file, use one beside it.
    """
    for candidate in (path, path.with_name(f"{path.name}.{os.getpid()}")):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(candidate, flags, 0o600)
        try:
            found = os.fstat(fd)
            own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if not own or (found.st_size and os.pread(fd, len(MAGIC), 0) != MAGIC):
                raise FileExistsError(
                    f"{candidate} exists and is no black box of this user: it is not touched"
                )
            os.fchmod(fd, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(candidate, fd):  # its process just replaced it
                raise BlockingIOError
            return candidate, fd
        except BaseException as error:
            os.close(fd)
            if not isinstance(error, BlockingIOError):
                raise
    raise FileExistsError(f"{path} is another process's")


def _is_at(path: Path, fd: int) -> bool:
    """Return True unless another file has replaced this one."""
    return os.path.samestat(os.fstat(fd), os.lstat(path))


def _write(fd: int, lines: bytes) -> int:
    if os.write(fd, lines) != len(lines):
        raise OSError("the disk is full")
    return len(lines)
