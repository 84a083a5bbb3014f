"""Calls that the main thread makes between two instructions, whoever asks for them."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
# they must live until they were called; the interpreter takes 32 at once
_waiting: deque[Any] = deque(maxlen=64)


def in_main(call: Callable[[FrameType], None]) -> None:
    """Soon: `call(frame)`, whose f_back is what the main thread is at then."""

    def pending(_: Any) -> int:
        call(sys._getframe())
        return 0

    made = _CALL(pending)
    if ctypes.pythonapi.Py_AddPendingCall(made, None) == 0:
        _waiting.append(made)
