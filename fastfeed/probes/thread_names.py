"""Threads of Python: their kernel ids and their names."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from functools import cache

MAX_TID = 2**22  # of Linux
# Bytes of the C library's thread descriptor. glibc for x86-64 has the kernel's number at 720.
DESCRIPTOR_NBYTES = 2048


class ThreadNames:
    """Finds threads by `threading.get_ident()`."""

    def tid(self, ident: int) -> int:
        """Return the kernel's number of a thread that has Python frames now; 0 if unknown."""
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        if thread is not None and thread.native_id:
            return int(thread.native_id)
        # The thread's descriptor exists in memory as long as the thread has frames.
        return ctypes.c_int.from_address(ident + _offset()).value if _offset() >= 0 else 0

    def name(self, ident: int) -> str:
        """Return the name of a thread, or "" if Python did not start it."""
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        return (
            "" if thread is None or isinstance(thread, threading._DummyThread) else str(thread.name)
        )


def kernel_number(pid: int, ident: int) -> int:
    """Return the kernel's number of a thread of a process that py-spy calls `ident`.

    Before Python 3.11, `ident` is the number of the C library. Return `ident` itself if the number
    is unknown.
    """
    if ident < MAX_TID or _offset() < 0:
        return ident
    with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(ident + _offset())
        found = int.from_bytes(memory.read(4), "little")
        return found if os.path.exists(f"/proc/{pid}/task/{found}") else ident
    return ident


@cache
def _offset() -> int:
    """Return the offset of the kernel's number in a thread descriptor of the C library, else -1.

    This thread's own descriptor shows it.
    """
    own, number = threading.get_ident(), threading.get_native_id()
    if os.uname().machine not in ("x86_64", "aarch64"):
        return -1
    # The descriptor begins at the ident. The one of musl is shorter than that of glibc: read only
    # as much as needed.
    for offset in range(0, DESCRIPTOR_NBYTES, 4):
        if ctypes.c_int.from_address(own + offset).value == number:
            return offset
    return -1
