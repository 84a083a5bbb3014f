"""Seeing Ctrl-C while the main thread is inside a C call that no signal can interrupt."""

from __future__ import annotations

import os
import select
import signal
import threading


class InterruptPipe:
    """The main thread enters it around a blocking call; another thread learns that SIGINT came during the call.

    Python runs signal handlers between bytecodes of the main thread only, so a call that blocks in C delays Ctrl-C
    for ever. The C part of the handler does write to the wakeup file descriptor at once, whatever the main thread
    does. It is ours only during the call, and only where nobody else (asyncio, say) uses it.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._inside = False
        self._closed = False

    def enter(self) -> bool:
        """Begins to listen, if this thread can; `leave` must follow when True."""
        if threading.current_thread() is not threading.main_thread() or self._closed:
            return False
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return False
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            return False
        self._inside = True
        return True

    def leave(self) -> None:
        """Ends what `enter` began."""
        signal.set_wakeup_fd(-1)
        with self._lock:
            self._inside = False
            if self._closed:
                self._release()

    def wait(self, timeout_s: float) -> bool:
        """Whether SIGINT came within the time; called by the other thread."""
        if self._closed or not select.select([self._read], [], [], timeout_s)[0]:
            return False
        return signal.SIGINT in os.read(self._read, 512)

    def close(self) -> None:
        """Gives the file descriptors back, at the latest when the main thread leaves."""
        with self._lock:
            if not self._closed:
                self._closed = True
                if not self._inside:
                    self._release()

    def _release(self) -> None:
        os.close(self._read)
        os.close(self._write)
