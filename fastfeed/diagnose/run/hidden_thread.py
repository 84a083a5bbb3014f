"""Threads of a diagnosis, which the diagnosed script does not see."""

from __future__ import annotations

import _thread
from collections.abc import Callable

from fastfeed.diagnose.hooks.hook_log import HookLog


class HiddenThread:
    """Thread of `work` that `threading` does not know.

    Some scripts wait until threading.active_count() is 1. The thread ends with the process, as
    daemon threads do. The log reports an exception from `work` under `name`.
    """

    def __init__(self, log: HookLog, work: Callable[[], None], *, name: str) -> None:
        self._log = log
        self._work = work
        self._name = name
        self._running = _thread.allocate_lock()
        self._paused = _thread.allocate_lock()
        self._paused.acquire()
        self.ident = 0

    def start(self) -> None:
        """Start the thread."""
        self._running.acquire()
        self.ident = _thread.start_new_thread(self._run, ())
        self._log.ours.add(self.ident)

    def pause(self, seconds: float) -> bool:
        """Wait; return False when the thread is to stop. Called by `work`."""
        stopped = self._paused.acquire(timeout=seconds)
        if stopped:
            self._paused.release()
        return not stopped

    def stop(self, join_s: float = 0.0) -> None:
        """End the current and all later pauses, and wait up to `join_s` seconds for `work` to end.

        It may be called repeatedly, and from within the thread.
        """
        if self._paused.locked():
            self._paused.release()
        if self.ident != _thread.get_ident() and self._running.acquire(timeout=join_s):
            self._running.release()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._log.failed(self._name, error)
        finally:
            self._log.ours.discard(_thread.get_ident())
            self._running.release()
