"""The black box: a file of fixed size, written while a runner runs, which shows the last minutes
after its process died.

It is written by pwrite and not through a mapping: that is as safe from SIGKILL (the kernel has the
data), never causes a SIGBUS if the file is cut off or its disk vanishes, and releases the
interpreter lock while it waits for a slow disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fastfeed.live import record_layout as layout
from fastfeed.live.folders import state_folders, usable
from fastfeed.live.record_layout import (
    BlackBoxEvent,
    BlackBoxHeader,
    ProducerRow,
    RunnerSample,
    Table,
)

SUFFIX = ".blackbox"
KEPT = 10  # files of processes that have ended
KEPT_S = 7 * 24 * 3600.0


class BlackBox:
    """The file of one process. Every method may raise OSError: then there is no black box any
    more."""

    def __init__(self, given: str = "", *, version: str = "") -> None:
        now_ns = time.time_ns()
        self._given = bool(given)
        self._numbers = [0, 0, 0]
        self.path, self._fd = _open(Path(given)) if given else _open(_fresh(now_ns))
        self._file = os.fstat(self._fd)
        try:
            os.ftruncate(self._fd, 0)
            os.posix_fallocate(self._fd, 0, layout.NBYTES)  # a full disk is noticed now
            ticks, boot = began(os.getpid()), boot_id()
            texts = (boot, socket.gethostname(), version, _command())
            self._header = BlackBoxHeader(os.getpid(), layout.RUNS, now_ns, 0, ticks, *texts)
            self._write(layout.pack_header(self._header), 0)
        except BaseException:
            self.give_up()
            raise

    def sample(self, sample: RunnerSample) -> None:
        """Record one runner at one moment."""
        number = self._next(0)
        self._write(layout.pack_sample(number, sample), layout.sample_at(number))

    def event(self, runner: int, text: str) -> None:
        """Record an event."""
        number = self._next(1)
        self._write(
            layout.pack_event(number, BlackBoxEvent(time.time_ns(), runner, text)),
            layout.event_at(number),
        )

    def table(self, rows: Sequence[ProducerRow]) -> None:
        """Record every producer; the earlier table stays until this one is complete."""
        number = self._next(2)
        table = Table(time.time_ns(), len(rows), tuple(rows))
        self._write(layout.pack_table(number, table), layout.table_at(number))

    def close(self, failed: bool) -> None:
        """Close the file. It stays if something failed, or if its path was given."""
        header = self._header._replace(
            status=layout.FAILED if failed else layout.STOPPED, ended_ns=time.time_ns()
        )
        try:
            self._write(layout.pack_header(header), 0)
            if not (failed or self._given):
                self._remove()
        finally:
            self._close()

    def give_up(self) -> None:
        """Remove the file: there is no black box."""
        with contextlib.suppress(OSError):
            self._remove()
        self._close()

    def forget(self) -> None:
        """Close the descriptor in a forked copy of the process: the file belongs to the other
        one."""
        self._close()

    def _remove(self) -> None:
        if os.path.samestat(self._file, os.lstat(self.path)):  # else another file was put there
            self.path.unlink()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _next(self, ring: int) -> int:
        self._numbers[ring] += 1
        return self._numbers[ring]

    def _write(self, data: bytes, offset: int) -> None:
        if os.pwrite(self._fd, data, offset) != len(data):
            raise OSError(f"{self.path}: the disk is full")


def boxes() -> list[Path]:
    """Return every black box in the default folders, the newest first."""
    found: dict[Path, float] = {}
    for folder in state_folders():
        with contextlib.suppress(OSError):
            for path in folder.glob("*" + SUFFIX):
                with contextlib.suppress(OSError):
                    found[path] = path.stat().st_mtime
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
    except OSError:  # a file system without locks: not known, and so spared
        return True
    finally:
        os.close(fd)
    return False


def began(pid: int) -> int:
    """Return when a process began, in clock ticks since boot, which identifies it together with the
    pid; 0 if unknown."""
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
    """Remove black boxes of processes that have ended, except the newest ones and recent ones."""
    ended = [path for path in boxes() if not in_use(path)]
    for n, path in enumerate(ended):
        with contextlib.suppress(OSError):
            if n >= KEPT or now_s - path.stat().st_mtime > KEPT_S:
                path.unlink()


def _fresh(now_ns: int) -> Path:
    folder = usable(state_folders())
    prune(now_ns / 1e9)
    started = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_ns / 1e9))
    name = f"{started}-{os.getpid()}"
    # taken by an earlier one of this process in the same second, which was kept
    taken = folder / (name + SUFFIX)
    return taken if not taken.exists() else folder / f"{name}-{now_ns % 10**9}{SUFFIX}"


def _open(path: Path) -> tuple[Path, int]:
    """Return the file, locked for as long as this process lives; if another process has it, one
    beside it."""
    for candidate in (path, path.with_name(f"{path.name}.{os.getpid()}")):
        fd = os.open(
            candidate, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
        )
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or (
                found.st_size and os.pread(fd, 8, 0) != layout.MAGIC
            ):
                raise FileExistsError(f"{candidate} exists and is no black box: it is not touched")
            os.fchmod(fd, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return candidate, fd
        except BlockingIOError:
            os.close(fd)
        except BaseException:
            os.close(fd)
            raise
    raise FileExistsError(f"{path} is another process's")


def _command() -> str:
    return " ".join(getattr(sys, "orig_argv", sys.argv)[1:] or sys.argv)
