"""Calls that another thread asks the main thread to make."""

from __future__ import annotations

import _thread
import sys
from types import FrameType

from fastfeed.probes.pending_calls import in_main, is_call_pending


def test_a_call_that_the_main_thread_cannot_make_yet() -> None:
    """It waits for a lock. An exception that is sent to it now would be lost in the call."""
    seen: list[object] = []
    lock = _thread.allocate_lock()
    lock.acquire()

    def called(frame: FrameType) -> None:
        assert frame.f_back is not None
        seen.append(frame.f_back.f_back)

    def ask() -> None:
        in_main(called)
        seen.append(is_call_pending())
        lock.release()

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60.0)  # the thread runs once this one waits
    try:
        _thread.start_new_thread(ask, ())
        lock.acquire()
    finally:
        sys.setswitchinterval(interval_s)
    assert seen[0] is True
    assert len(seen) == 2 and not is_call_pending()
