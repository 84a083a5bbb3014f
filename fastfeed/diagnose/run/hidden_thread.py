"""Threads of a diagnosis, which the diagnosed script does not see."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from threading import Event

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
        self._stopping, self._ended = Event(), Event()
        self.ident = 0

    def start(self) -> None:
        """Start the thread."""
        self.ident = _thread.start_new_thread(self._run, ())
        self._log.ours.add(self.ident)

    def pause(self, seconds: float) -> bool:
        """Wait; return False when the thread is to stop. Called by `work`."""
        return not self._stopping.wait(seconds)

    def stop(self, join_s: float = 0.0) -> None:
        """End the current and all later pauses, and wait up to `join_s` seconds for `work` to end.

        It may be called repeatedly, and from within the thread.
        """
        self._stopping.set()
        if self.ident not in (0, _thread.get_ident()):
            self._ended.wait(join_s)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._log.failed(self._name, error)
        finally:
            self._log.ours.discard(_thread.get_ident())
            self._ended.set()
