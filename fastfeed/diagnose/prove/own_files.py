"""What a run may change: files and folders of its copy, of which those that are links to the user's
become copies first."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from fastfeed.core.unix import lock
from fastfeed.errors import StateError

FREE_SHARE = 0.5  # of the free disk that the copy of one file may take
CHUNK_NBYTES = 1 << 24
AT_FDCWD, EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
CACHES = "__pycache__"
PASSING = re.compile(r"/(\.|[^/]*cache)", re.IGNORECASE)  # hidden files and folders, and caches
LOCK_FILE = ".fastfeed-lock"
OWN_PLACE = (
    "give the runs their own place, with --prove-env NAME=VALUE ({run} in VALUE is the folder of "
    "the run)"
)


Maker = Callable[[str, str], None]  # of what is at one name, to a new one
Owner = Callable[[str, Maker], None]


class Bounds(NamedTuple):
    """Full names: the `folder` of a run; what is the user's and `kept` as it is, but for `free`
    folders in it. Elsewhere stays what is older than `since_s`, but in `passing` folders."""

    folder: str
    kept: Sequence[str]
    free: Sequence[str]
    since_s: float = 0.0
    passing: Sequence[str] = ()


class OwnFiles:
    """The files of one run, in any of its processes, or that of the proof, until `stop`."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._stopped = threading.Event()
        self._numbers = itertools.count()

    def stop(self) -> None:
        """Leave what is being copied."""
        self._stopped.set()

    def settle(
        self, path: str, *, inner: bool, leaves: bool = False, may_wait: bool = True
    ) -> bool:
        """Let the run change a path, which names it from the root on, or with `inner` what it leads
        to: make its own what is a link to the user's. With `leaves` it is removed, or gets another
        name. Return False if that would take long, unless it `may_wait`.

        Raise StateError for a path out of the copy that is the user's, and for a file that is too
        large for a copy.
        """
        try:
            self._settle(path, inner, leaves=leaves, own=self._own if may_wait else _later)
        except _Later:
            return False
        return True

    def _settle(self, path: str, inner: bool, *, leaves: bool, own: Owner) -> None:
        if not path:
            return
        parent, last = os.path.split(path.rstrip(os.sep))
        if last in ("", os.curdir, os.pardir):
            parent, last = path, ""
        real = os.path.join(self._walked(parent, own), last).rstrip(os.sep)
        if not _is_below(real, self._bounds.folder):
            names = {real, os.path.realpath(real) if inner else real}
            if any(self._is_kept(one, leaves=leaves) for one in names):
                raise StateError(
                    f"{path} leads to {real}, out of the copy of the run, and is not changed: name "
                    f"it from the working folder, or {OWN_PLACE}"
                )
        elif inner and os.path.islink(real):
            own(real, self._copied)

    def _walked(self, path: str, own: Owner) -> str:
        """Return the real name of a folder, as the kernel finds it. Links in the copy that lead out
        of it become folders."""
        found = os.sep
        for part in path.split(os.sep):
            step = os.path.join(found, part)
            if part == os.pardir:
                found = os.path.dirname(found)
            elif part in ("", os.curdir) or not os.path.islink(step):
                found = found if part in ("", os.curdir) else step
            elif self._leads_out(step) and os.path.isdir(step):
                own(step, self._linked)
                found = step
            else:
                found = os.path.realpath(step)
        return found

    def _leads_out(self, link: str) -> bool:
        folder = self._bounds.folder
        return _is_below(link, folder) and not _is_below(os.path.realpath(link), folder)

    def _is_kept(self, path: str, *, leaves: bool) -> bool:
        bounds = self._bounds
        if not any(path == one or _is_below(path, one) for one in bounds.kept):
            return self._is_older(path, leaves=leaves)
        free = any(_is_below(path, one) for one in bounds.free)
        return not free and CACHES not in path.split(os.sep)

    def _is_older(self, path: str, *, leaves: bool) -> bool:
        """Return True for a file elsewhere that no run of the proof has made, and that is not to be
        made again by whoever needs it; if it `leaves`, also for a folder or a link."""
        if PASSING.search(path) or any(_is_below(path, one) for one in self._bounds.passing):
            return False
        with suppress(OSError):
            found = os.lstat(path)
            if leaves and stat.S_ISDIR(found.st_mode):  # its own time is that of its last change
                names = os.listdir(path)
                return any(self._is_older(os.path.join(path, n), leaves=True) for n in names)
            holds = stat.S_ISREG(found.st_mode) and found.st_size > 0
            moves = leaves and stat.S_ISLNK(found.st_mode)
            return (holds or moves) and found.st_ctime < self._bounds.since_s
        return False

    def _own(self, link: str, make: Maker) -> None:
        """Replace a link by what `make` writes to a new name; others see one or the other."""
        with self._alone():
            if not self._leads_out(link):
                return  # another process has done it
            real = os.path.realpath(link)
            number = f"{os.getpid()}-{threading.get_ident()}-{next(self._numbers)}"
            aside = os.path.join(self._bounds.folder, f".fastfeed-{number}")
            make(real, aside)
            if os.path.isdir(aside):
                _exchange(aside, link)
                os.unlink(aside)  # the link
            elif os.path.exists(aside):
                os.replace(aside, link)
            else:  # the link leads to nothing
                os.unlink(link)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with open(os.path.join(self._bounds.folder, LOCK_FILE), "a") as file:
            lock(file)
            yield

    def _linked(self, real: str, aside: str) -> None:
        os.mkdir(aside)
        for one in os.listdir(real):
            os.symlink(os.path.join(real, one), os.path.join(aside, one))

    def _copied(self, real: str, aside: str) -> None:
        if not os.path.isfile(real):
            return
        nbytes, free = os.path.getsize(real), shutil.disk_usage(self._bounds.folder).free
        if nbytes > FREE_SHARE * free:
            raise StateError(
                f"{real} is opened for writing, and each run would need a copy of its "
                f"{nbytes:,} bytes ({free:,} are free): {OWN_PLACE}"
            )
        with open(real, "rb") as source, open(aside, "wb") as copy:
            while not self._stopped.is_set() and (data := source.read(CHUNK_NBYTES)):
                copy.write(data)
        shutil.copystat(real, aside)


class _Later(Exception):
    """It takes long."""


def _later(link: str, make: Maker) -> None:
    raise _Later


def _exchange(one: str, other: str) -> None:
    """Exchange two names, at once where the kernel can."""
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    known = hasattr(library, "renameat2")
    if known and not library.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], EXCHANGE):
        return
    spare = f"{one}.link"
    os.rename(other, spare)
    os.rename(one, other)
    os.rename(spare, one)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder + os.sep)
