"""Calls that the main thread makes between two instructions, on behalf of another thread."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
# they must live until they were called; the interpreter queues 32
_waiting: deque[Any] = deque(maxlen=64)


def in_main(call: Callable[[FrameType], None]) -> None:
    """Have the main thread call `call(frame)` soon; `frame.f_back` is the interrupted frame."""

    def pending(_: Any) -> int:
        call(sys._getframe())
        return 0

    made = _CALL(pending)
    if ctypes.pythonapi.Py_AddPendingCall(made, None) == 0:
        _waiting.append(made)
