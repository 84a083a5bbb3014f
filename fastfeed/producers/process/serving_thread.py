"""Base of the threads that wait for descriptors, and that others wake."""

from __future__ import annotations

import os
import threading

from fastfeed.ring.memory import CLOSED, Descriptor, notify


class ServingThread:
    """A daemon thread of that name, which runs `_run`. It polls `_wakeup` among its descriptors."""

    def __init__(self, name: str) -> None:
        self._wakeup = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def notify(self) -> None:
        """Wake the thread."""
        notify(self._wakeup)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread. Return True if it has ended within the limit."""
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def release(self) -> None:
        """Close the wake-up descriptor: the thread has ended, or was never started."""
        self._wakeup = CLOSED

    def _run(self) -> None:
        raise NotImplementedError
