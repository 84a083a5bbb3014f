"""The only file that maps memory. Nothing here has a name in the file system, so nothing can be left behind."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
ALIGN = 64  # TensorFlow takes arrays that begin at such an address without a copy
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23  # Linux 5.14; Python has no names for them
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 0x2, 0x4


class Segment:
    """`nbytes` of memory behind a file descriptor, mapped into this process; it lives as long as anyone maps it."""

    def __init__(self, fd: int, nbytes: int, *, writable: bool = True) -> None:
        self.fd = fd
        self.nbytes = nbytes
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.map = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=protection)

    @classmethod
    def create(cls, nbytes: int, name: str) -> Segment:
        """Fresh memory of zeros; pages are taken when they are first touched. The size can never change again:
        a mapping of memory that was cut off would kill whoever reads it."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
            return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    def populate(self, offset: int, nbytes: int, *, write: bool) -> None:
        """Takes the pages now and at once: a fault for each of them costs about ten times as much."""
        with contextlib.suppress(OSError):  # older kernels fault them in one by one
            self.map.madvise(MADV_POPULATE_WRITE if write else MADV_POPULATE_READ, offset, nbytes)

    def close_fd(self) -> None:
        """Lets the descriptor go; the mapping stays until nobody has a view of it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def aligned(nbytes: int) -> int:
    """The next multiple of 64."""
    return -(-nbytes // ALIGN) * ALIGN


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of this process's own memory that begins at a multiple of 64: numpy alone promises 16."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes].view(dtype).reshape(shape) if nbytes else np.empty(shape, dtype)
