"""Threads of a diagnosis, which the diagnosed script does not see."""

from __future__ import annotations

import _thread
from collections.abc import Callable

from fastfeed.diagnose.hooks.context import Context


class HiddenThread:
    """Runs `work` in a thread that `threading` does not know: scripts wait until
    threading.active_count() is 1.

    It ends with the process, as daemon threads do. An exception of `work` is noted in the context
    under `name`.
    """

    def __init__(self, context: Context, work: Callable[[], None], *, name: str) -> None:
        self._context = context
        self._work = work
        self._name = name
        self._ends = _thread.allocate_lock()
        self._wakes = _thread.allocate_lock()
        self._wakes.acquire()
        self.ident = 0

    def start(self) -> None:
        """Start the thread."""
        self._ends.acquire()
        self.ident = _thread.start_new_thread(self._run, ())
        self._context.ours.add(self.ident)

    def pause(self, seconds: float) -> bool:
        """Wait, in `work`; return True if it is to go on."""
        stopped = self._wakes.acquire(timeout=seconds)
        if stopped:
            self._wakes.release()
        return not stopped

    def stop(self, join_s: float = 0.0) -> None:
        """End the pause, for good; wait for the end of `work`. May be repeated, also from
        within."""
        if self._wakes.locked():
            self._wakes.release()
        if self.ident != _thread.get_ident() and self._ends.acquire(timeout=join_s):
            self._ends.release()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._context.failed(self._name, error)
        finally:
            self._context.ours.discard(_thread.get_ident())
            self._ends.release()
