"""The file of a cache: one row for each record, in columns for the arrays of a record.

    header (JSON) | a state for each record | a checksum for each record | columns

The rows are mapped by every process, and written only once. The state of a row is written after the
row. A loss of power may keep any page of the file and lose any other: a state is trusted only if it
was written since the run began, and all other rows are checked against their checksums. Without a
folder the file is memory without a name, which ends with the last process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastfeed.core.collate import ALIGN
from fastfeed.core.machine import free_memory_nbytes
from fastfeed.core.unix import lock, reserve
from fastfeed.errors import OptionError

Array = np.ndarray[Any, Any]
VERSION = 1
HEADER_NBYTES = 1 << 14
FILE_NAME = "records.fastfeed"
# States of a record; a positive one is the number of the run that wrote or checked it last.
ABSENT, FILTERED_OUT = 0, -1
FILTERED_SUM = zlib.crc32(b"filtered out")  # in place of the checksum of a row
LAST_RUN = 1 << 30
DIGEST_FROM = HEADER_NBYTES // 4  # characters of a description; longer ones are hashed
LOOK_AHEAD = 1 << 13  # states that one batch looks at, beside its own
STATE_NBYTES, CHECKSUM_NBYTES = 4, 4
MEMORY_SHARE, DISK_SHARE = 0.25, 0.9  # of what is free, for a cache without a bound
OWN_FILES = "/proc/"  # descriptors, of memory without a name


class CacheFile:
    """Rows of records of one shape; `path` is reopened in every process.

    `nbytes` bounds its size: records behind it have no row. Raise OptionError for a file that
    cannot be written, or was made for other records.
    """

    def __init__(self, path: str, length: int, *, nbytes: int, run: int = 0) -> None:
        self.path, self.length, self._nbytes = path, length, nbytes
        self.columns: list[Array] = []
        self._keeps = not path.startswith(OWN_FILES)
        self.full = False  # no space on the disk
        self.capacity = 0  # rows; none before `learn`
        try:
            self._map()
        except OSError as error:
            raise OptionError(
                f"cache={path!r} cannot be written ({error.strerror}): choose another folder, or "
                'cache="ram"'
            ) from error
        self._known = 0  # records before this one were written or checked in this run
        self.run = run or self._new_run()

    def _map(self) -> None:
        table_nbytes = (STATE_NBYTES + CHECKSUM_NBYTES) * self.length
        self._rows_at = HEADER_NBYTES + -(-table_nbytes // ALIGN) * ALIGN
        with open(self.path, "r+b") as file:
            lock(file)
            if os.fstat(file.fileno()).st_size < self._rows_at:
                self._reserve(file.fileno(), self._rows_at)
        head: Array
        if self.full:
            head = np.zeros(self._rows_at, np.uint8)
        else:
            head = np.memmap(self.path, np.uint8, "r+", shape=(self._rows_at,))
        table: Array = head[HEADER_NBYTES : HEADER_NBYTES + table_nbytes].view(np.ndarray)
        self.states = table[: STATE_NBYTES * self.length].view(np.int32)
        self._sums = table[STATE_NBYTES * self.length :].view(np.uint32)
        self._runs: Array = head[HEADER_NBYTES - ALIGN :][:ALIGN].view(np.ndarray).view(np.int32)

    def _new_run(self) -> int:
        """Return a number above those of all runs before. Rows of other runs are checked when they
        are first read, also those of a run whose number was lost with the power."""
        with open(self.path, "r+b") as file:
            lock(file)
            before = int(self._runs[0])
            run = before + 1 if 0 <= before < LAST_RUN else 1
            self.states[self.states >= run] = run - 1
            self._runs[0] = run
            return run

    @property
    def damaged(self) -> int:
        """Damaged records that were found since the file was made, by any process."""
        return int(self._runs[1])

    def learn(self, leaves: Sequence[Array], text: str) -> None:
        """Lay the columns out for records like this one, which `text` describes.

        Raise OptionError if the file was made for others.
        """
        given: dict[str, Any] = {
            "fastfeed cache": VERSION,
            "records": self.length,
            "record": _brief(text),
            "leaves": _brief([[array.dtype.str, list(array.shape)] for array in leaves]),
        }
        if self.full:
            return
        row_nbytes = sum(array.nbytes for array in leaves)
        with open(self.path, "r+b") as file:
            lock(file)
            held = file.read(HEADER_NBYTES - ALIGN).rstrip(b"\0")
            if not held:
                room = max(0, self._nbytes - self._rows_at - ALIGN * len(leaves))
                given["rows"] = min(self.length, room // max(1, row_nbytes))
            else:
                given["rows"] = self._agreed(held, given)
            end = self._rows_at + sum(_column_nbytes(a, given["rows"]) for a in leaves)
            cut_off = os.fstat(file.fileno()).st_size < end
            if (cut_off or not held) and not self._reserve(file.fileno(), end):
                return
            if not held:
                file.seek(0)
                file.write(json.dumps(given).encode())
                file.flush()
        self.capacity = given["rows"]
        self._lay_out(leaves)

    def _agreed(self, held: bytes, given: dict[str, Any]) -> int:
        """Return the rows of a file that has a header; raise OptionError if it is for others."""
        found: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(held)
        found = found if isinstance(found, dict) else {}
        differing = [name for name in given if found.get(name) != given[name]]
        rows = found.get("rows")
        if type(rows) is not int or not 0 <= rows <= self.length:
            differing.append("rows")
            given["rows"] = f"a number from 0 to {self.length}"
        if differing:
            name = differing[0]
            raise OptionError(
                f"cache={self.path!r} was made for others: its {name} is {found.get(name)!r}, and "
                f"here it is {given[name]!r}. Delete it, or choose another folder"
            )
        return int(rows)

    def _reserve(self, file: int, end: int) -> bool:
        """Reserve disk space up to `end`; return False if there is not enough."""
        before = os.fstat(file).st_size
        try:
            if self._keeps:
                reserve(file, end)
            else:
                os.ftruncate(file, end)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            os.ftruncate(file, before)
            self.full = True
            return False
        return True

    def _lay_out(self, leaves: Sequence[Array]) -> None:
        if not self.capacity:
            return
        columns: list[Array] = []
        at = self._rows_at
        for array in leaves:
            shape = (self.capacity, *array.shape)
            if array.nbytes:
                mapped = np.memmap(self.path, array.dtype, "r+", at, shape)
                columns.append(mapped.view(np.ndarray))
            else:  # which cannot be mapped
                columns.append(np.empty(shape, array.dtype))
            at += _column_nbytes(array, self.capacity)
        self.columns = columns

    def put(self, index: int, leaves: Sequence[Array]) -> None:
        """Write a record, if it has a row."""
        if index >= self.capacity or not self.columns:
            return
        for column, array in zip(self.columns, leaves, strict=True):
            column[index] = array
        if self._keeps:
            self._sums[index] = self._checksum(index)
        self.states[index] = self.run

    def leave_out(self, index: int) -> None:
        """Write that the filter refused a record."""
        self._sums[index] = FILTERED_SUM
        self.states[index] = FILTERED_OUT

    def is_damaged(self, index: int) -> bool:
        """Return True, and count it, if a row from an earlier run is not what was written."""
        if self._checked(index):
            return False
        self.states[index] = ABSENT
        self._runs[1] += 1
        return True

    def _checked(self, index: int) -> bool:
        state = self.states[index]
        if state == FILTERED_OUT:
            return bool(self._sums[index] == FILTERED_SUM)
        if state < self.run:  # of neither this run, nor one that began later
            if self._sums[index] != self._checksum(index):
                return False
            self.states[index] = self.run
        return True

    def _checksum(self, index: int) -> int:
        total = 0
        for column in self.columns:
            total = zlib.crc32(column[index].tobytes(), total)
        return total

    def holds(self, rows: Array) -> bool:
        """Return True if all of these records are there and no earlier run's row is damaged."""
        if self.complete:
            return True
        if not self.columns or rows.max() >= self.capacity:
            return False
        states = self.states.take(rows)
        if states.min() <= ABSENT:
            return False
        return all(map(self._checked, rows[states < self.run].tolist()))

    @property
    def complete(self) -> bool:
        """True if every record was written or checked in this run, which never ends.

        Looks at some states more with each call, in the order of the file, so that all of them are
        looked at once, and not for each batch.
        """
        known, states = self._known, self.states
        if known == self.length:
            return True
        if self.capacity < self.length or states[known] < self.run:
            return False
        ahead = states[known : known + LOOK_AHEAD] < self.run
        self._known = known + (int(ahead.argmax()) if ahead.any() else len(ahead))
        return self._known == self.length

    def release(self) -> None:
        """Give all maps of the file back, but keep the number of damaged records."""
        self._known = self.capacity = 0
        self.columns.clear()  # also in the frames of a traceback
        self.states, self._sums = np.zeros(0, np.int32), np.zeros(0, np.uint32)
        self._runs = self._runs.copy()


def new_cache_file(
    place: str | os.PathLike[str], *, nbytes: int | None
) -> tuple[str, Callable[[], None], int]:
    """Return the path, a function to call at the end, and the greatest size of a cache in memory
    ("ram") or in a folder.

    Raise OptionError if the folder cannot be made.
    """
    if place == "ram":
        size = nbytes or int(MEMORY_SHARE * free_memory_nbytes())
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("fastfeed-cache", os.MFD_CLOEXEC)
            return f"/proc/{os.getpid()}/fd/{file}", partial(os.close, file), size
        temporary = tempfile.mkdtemp(prefix="fastfeed-cache-")
        remove = partial(shutil.rmtree, temporary, ignore_errors=True)
        return new_cache_file(temporary, nbytes=size)[0], remove, size
    folder = Path(place).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE_NAME).touch()
    except OSError as error:
        raise OptionError(
            f"cache={str(folder)!r} cannot be written ({error.strerror}): choose another folder, "
            'or cache="ram"'
        ) from error
    free = shutil.disk_usage(folder).free
    return str(folder / FILE_NAME), _nothing, nbytes or int(DISK_SHARE * free)


def _column_nbytes(array: Array, rows: int) -> int:
    return -(-math.prod((rows, array.nbytes)) // ALIGN) * ALIGN


def _brief(found: Any) -> Any:
    """Return a description for the header, or its digest if the header had no room for it."""
    text = json.dumps(found)
    long = len(text) > DIGEST_FROM
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()}" if long else found


def _nothing() -> None:
    """Leave the file of a folder to the next run."""
