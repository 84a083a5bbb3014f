"""The black box: a file of fixed size that shows the last minutes of a process after its death.

It is written by pwrite and not through a mapping. That is equally safe from SIGKILL, because the
kernel has the data. It never causes a SIGBUS if the file is truncated or its disk vanishes, and it
releases the GIL during a write to a slow disk.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fastfeed.core.unix import fcntl
from fastfeed.live import record_layout as layout
from fastfeed.live.folders import first_usable, own_entries, state_folders
from fastfeed.live.record_layout import (
    EVENT_RING,
    SAMPLE_RING,
    TABLE_RING,
    BlackBoxEvent,
    BlackBoxHeader,
    ProducerRow,
    ProducerTable,
    RecordRing,
    RunnerSample,
)

SUFFIX = ".blackbox"
MAX_ENDED_BOXES = 10  # files of processes that have ended
MAX_ENDED_AGE_S = 7 * 24 * 3600.0


class BlackBox:
    """The file of one process.

    Every method may raise OSError; the black box is then lost and must be given up.
    """

    def __init__(self, given: str = "", *, version: str = "") -> None:
        now_ns = time.time_ns()
        self._given = bool(given)
        self._written = {SAMPLE_RING: 0, EVENT_RING: 0, TABLE_RING: 0}
        self.path, self._fd = _open(Path(given)) if given else _open(_new_path(now_ns))
        self._file = os.fstat(self._fd)
        try:
            os.ftruncate(self._fd, 0)
            os.posix_fallocate(self._fd, 0, layout.FILE_NBYTES)  # a full disk is noticed now
            self._header = BlackBoxHeader(
                pid=os.getpid(),
                status=layout.PROCESS_RUNNING,
                started_ns=now_ns,
                ended_ns=0,
                ticks=start_ticks(os.getpid()),
                boot=boot_id(),
                host=socket.gethostname(),
                version=version,
                command=" ".join(getattr(sys, "orig_argv", sys.argv)[1:] or sys.argv),
            )
            self._write(layout.pack_header(self._header), 0)
        except BaseException:
            self.give_up()
            raise

    def sample(self, sample: RunnerSample) -> None:
        """Record one runner at one moment."""
        self._append(SAMPLE_RING, lambda number: layout.pack_sample(number, sample))

    def event(self, runner: int, text: str) -> None:
        """Record an event."""
        event = BlackBoxEvent(time.time_ns(), runner, text)
        self._append(EVENT_RING, lambda number: layout.pack_event(number, event))

    def table(self, rows: Sequence[ProducerRow]) -> None:
        """Record every producer; the earlier table stays until this one is complete."""
        table = ProducerTable(time.time_ns(), len(rows), tuple(rows))
        self._append(TABLE_RING, lambda number: layout.pack_table(number, table))

    def close(self, failed: bool) -> None:
        """Close the file. It stays after a failure, or if its path was given."""
        status = layout.PROCESS_FAILED if failed else layout.PROCESS_STOPPED
        header = self._header._replace(status=status, ended_ns=time.time_ns())
        try:
            self._write(layout.pack_header(header), 0)
            if not (failed or self._given):
                self._remove()
        finally:
            self.forget()

    def give_up(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._remove()
        self.forget()

    def forget(self) -> None:
        """Close the descriptor only, as in a forked copy of the process."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _remove(self) -> None:
        if os.path.samestat(self._file, os.lstat(self.path)):  # else another file replaced it
            self.path.unlink()

    def _append(self, ring: RecordRing, pack: Callable[[int], bytes]) -> None:
        """Write the next record of a ring; `pack` receives its number."""
        self._written[ring] += 1
        number = self._written[ring]
        self._write(pack(number), ring.offset_of(number))

    def _write(self, data: bytes, offset: int) -> None:
        if os.pwrite(self._fd, data, offset) != len(data):
            raise OSError(f"{self.path}: the disk is full")


def boxes() -> list[Path]:
    """Return every black box in the default folders, the newest first."""
    found: dict[Path, float] = {}
    for path in own_entries(state_folders(), "*" + SUFFIX, kind=stat.S_ISREG):
        with contextlib.suppress(OSError):
            found[path] = path.lstat().st_mtime
    return sorted(found, key=lambda p: found[p], reverse=True)


def in_use(path: Path) -> bool:
    """Return True if a living process writes this file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks: assume use, and keep the file
        return True
    finally:
        os.close(fd)
    return False


def start_ticks(pid: int) -> int:
    """Return the start of a process in clock ticks since boot, or 0 if unknown.

    Pid and start together identify a process.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def boot_id() -> str:
    """Return the identity of this boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def prune(now_s: float) -> None:
    """Remove black boxes of processes that have ended if they are old, or too many."""
    ended = [path for path in boxes() if not in_use(path)]
    for n, path in enumerate(ended):
        with contextlib.suppress(OSError):
            if n >= MAX_ENDED_BOXES or now_s - path.lstat().st_mtime > MAX_ENDED_AGE_S:
                path.unlink()


def _new_path(now_ns: int) -> Path:
    """Return an unused path in the default folder, and remove old black boxes there."""
    folder = first_usable(state_folders())
    prune(now_ns / 1e9)
    started = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_ns / 1e9))
    name = f"{started}-{os.getpid()}"
    path = folder / (name + SUFFIX)
    # An earlier black box of this process may exist from the same second.
    return path if not path.exists() else folder / f"{name}-{now_ns % 10**9}{SUFFIX}"


def _open(path: Path) -> tuple[Path, int]:
    """Open and lock a file for the life of this process, and return its path and descriptor.

    If another process has the file, use one beside it.
    """
    for candidate in (path, path.with_name(f"{path.name}.{os.getpid()}")):
        fd = os.open(
            candidate, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
        )
        try:
            found = os.fstat(fd)
            own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if not own or (found.st_size and os.pread(fd, 8, 0) != layout.MAGIC):
                raise FileExistsError(
                    f"{candidate} exists and is no black box of this user: it is not touched"
                )
            os.fchmod(fd, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return candidate, fd
        except BlockingIOError:
            os.close(fd)
        except BaseException:
            os.close(fd)
            raise
    raise FileExistsError(f"{path} is another process's")
