"""Which threads Python knows: their kernel's numbers and their names."""

from __future__ import annotations

import ctypes
import os
import threading

SCAN = 2048  # bytes of the C library's thread descriptor; the number is at 720 in glibc for x86-64


class Names:
    """Finds threads by `threading.get_ident()`."""

    def __init__(self) -> None:
        self._offset = self._find()

    def tid(self, ident: int) -> int:
        """The kernel's number of a thread that holds Python frames now; 0 if unknown."""
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        if thread is not None and thread.native_id:
            return int(thread.native_id)
        # from the thread's descriptor in memory, which is there as long as the thread has frames
        return ctypes.c_int.from_address(ident + self._offset).value if self._offset >= 0 else 0

    def name(self, ident: int) -> str:
        """As the script calls it; "" for a thread that Python did not start."""
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        return "" if thread is None or isinstance(thread, threading._DummyThread) else str(thread.name)

    @staticmethod
    def _find() -> int:
        """Where the C library keeps the number, as this thread's own descriptor shows; -1 if nowhere."""
        own, number = threading.get_ident(), threading.get_native_id()
        if os.uname().machine not in ("x86_64", "aarch64"):
            return -1
        # glibc's descriptor begins at the ident; musl's does too, and is shorter, so that no more is read than needed
        for offset in range(0, SCAN, 4):
            if ctypes.c_int.from_address(own + offset).value == number:
                return offset
        return -1
