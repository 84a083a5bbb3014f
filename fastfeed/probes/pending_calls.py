"""Calls in the main thread, between two of its instructions, on request of another thread."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
# The callbacks must live until they are called. The interpreter queues at most 32.
_waiting: deque[Any] = deque(maxlen=64)
_uncalled: set[object] = set()


def in_main(call: Callable[[FrameType], None]) -> None:
    """Call `call(frame)` in the main thread soon; `frame.f_back` is the interrupted frame."""

    token = object()

    def pending(_: Any) -> int:
        _uncalled.discard(token)
        call(sys._getframe())
        return 0

    callback = _CALL(pending)
    _uncalled.add(token)
    if ctypes.pythonapi.Py_AddPendingCall(callback, None) == 0:
        _waiting.append(callback)
    else:
        _uncalled.discard(token)


def is_call_pending() -> bool:
    """Return True if the main thread has not made a call yet.

    An exception that is sent to the main thread meanwhile would be lost in that call.
    """
    return bool(_uncalled)
