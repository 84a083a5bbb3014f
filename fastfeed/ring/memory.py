"""The only file that maps memory. Nothing here has a name in the file system, so nothing is left
behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import socket
import weakref
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

from fastfeed.core.collate import ALIGN
from fastfeed.core.unix import fcntl

PAGE = mmap.PAGESIZE
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23  # Linux 5.14; Python has no names for them
MSG_CMSG_CLOEXEC = 0x40000000  # see recvmsg(2); Python has no name for it
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 0x2, 0x4


@cache
def _libc() -> Any:
    """Return the C library: every mmap.mmap keeps a descriptor of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    place, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = place, size, number, number, number, ctypes.c_long
    libc.mmap.restype = place
    libc.munmap.argtypes, libc.madvise.argtypes = (place, size), (place, size, number)
    return libc


class Segment:
    """`nbytes` of memory behind a file descriptor, mapped into this process. It lives as long as a
    process maps it, and the mapping as long as a view of `map`, such as an array of the user's."""

    def __init__(self, fd: int, nbytes: int, *, writable: bool = True) -> None:
        self.fd = fd
        self.nbytes = nbytes
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._address = _libc().mmap(None, nbytes, protection, mmap.MAP_SHARED, fd, 0)
        if self._address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, f"mapping {nbytes} bytes: {os.strerror(number)}")
        whole = (ctypes.c_ubyte * nbytes).from_address(self._address)
        weakref.finalize(whole, _libc().munmap, self._address, nbytes).atexit = False
        memory = memoryview(whole).cast("B")  # every view of it keeps the whole alive
        self.map = memory if writable else memory.toreadonly()

    @classmethod
    def create(cls, nbytes: int, name: str) -> Segment:
        """Create zeroed memory, whose pages are allocated when they are first touched. The size is
        sealed: reading a mapping of truncated memory would kill the reader."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
            return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def received(cls, fds: Sequence[int], nbytes: int, **options: bool) -> Segment:
        """Map memory that another process has sent, and close its descriptor. Raise OSError if
        that was lost: the kernel drops what this process may not open."""
        if not fds:
            raise OSError(
                errno.EMFILE, "no descriptor is left for memory that was sent (ulimit -n)"
            )
        try:
            segment = cls(fds[0], nbytes, **options)
        finally:
            os.close(fds[0])
        segment.fd = -1
        return segment

    def populate(self, offset: int, nbytes: int, *, write: bool) -> None:
        """Allocate the pages now, in one call: page faults one by one cost about ten times as
        much."""
        how = MADV_POPULATE_WRITE if write else MADV_POPULATE_READ
        _libc().madvise(self._address + offset, nbytes, how)  # older kernels do nothing

    def close_fd(self) -> None:
        """Close the descriptor; the mapping stays until its last view is gone."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def receive(source: socket.socket, nbytes: int, *, fds: int) -> tuple[bytes, list[int]]:
    """Receive a message and its descriptors, marked close-on-exec; none of them if the kernel had
    to drop one. `socket.recv_fds` ignores that flag, and programs started later would inherit the
    descriptors."""
    numbers = array("i")
    data, extra, flags, _ = source.recvmsg(
        nbytes, socket.CMSG_SPACE(fds * numbers.itemsize), MSG_CMSG_CLOEXEC
    )
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(content[: len(content) // numbers.itemsize * numbers.itemsize])
    if flags & socket.MSG_CTRUNC:
        for fd in numbers:
            os.close(fd)
        return data, []
    return data, list(numbers)


def aligned(nbytes: int) -> int:
    """Return the next multiple of 64."""
    return -(-nbytes // ALIGN) * ALIGN


class Descriptor:
    """File descriptor that is closed with its last reference. Until then its number cannot be
    reused for another file."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)


CLOSED = Descriptor(-1)  # stands in for a closed descriptor


def notify(event: Descriptor) -> None:
    """Make a poll of this eventfd return, unless it was closed."""
    if event is not CLOSED:
        os.eventfd_write(event.fd, 1)
