"""Threads of Python: their kernel ids and their names."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from functools import cache

MOST_TIDS = 2**22  # kernel numbers are below that
SCAN = 2048  # bytes of the C library's thread descriptor; the number is at 720 in glibc for x86-64


class Names:
    """Finds threads by `threading.get_ident()`."""

    def tid(self, ident: int) -> int:
        """Return the kernel's number of a thread that has Python frames now; 0 if unknown."""
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        if thread is not None and thread.native_id:
            return int(thread.native_id)
        # from the thread's descriptor in memory, which exists as long as the thread has frames
        return ctypes.c_int.from_address(ident + _offset()).value if _offset() >= 0 else 0

    def name(self, ident: int) -> str:
        """Return the script's name of a thread; "" for one that Python did not start."""
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        return (
            "" if thread is None or isinstance(thread, threading._DummyThread) else str(thread.name)
        )


def kernel_number(pid: int, ident: int) -> int:
    """Return the kernel's number of a thread of that process, which py-spy calls `ident`: before
    Python 3.11 that is the C library's. `ident` itself if no more is known."""
    if ident < MOST_TIDS or _offset() < 0:
        return ident
    with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(ident + _offset())
        found = int.from_bytes(memory.read(4), "little")
        return found if os.path.exists(f"/proc/{pid}/task/{found}") else ident
    return ident


@cache
def _offset() -> int:
    """Return where the C library keeps the number, as this thread's own descriptor shows; -1 if
    unknown."""
    own, number = threading.get_ident(), threading.get_native_id()
    if os.uname().machine not in ("x86_64", "aarch64"):
        return -1
    # glibc's descriptor begins at the ident; musl's does too, and is shorter, so that no more is
    # read than needed
    for offset in range(0, SCAN, 4):
        if ctypes.c_int.from_address(own + offset).value == number:
            return offset
    return -1
