"""Detect Ctrl-C during a C call of the main thread that signals cannot interrupt."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptPipe:
    """Reports signals that arrive during a call of the main thread, to other threads.

    Python runs signal handlers only between bytecodes of the main thread, so a call that blocks in
    C delays Ctrl-C indefinitely. The C part of the handler writes to the wakeup file descriptor at
    once. That descriptor is set only during the call, and its bytes are passed on to the one that
    was set before (of asyncio, for example).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._fds: tuple[int, int] | None = None
        self._before = -1
        self._inside = False
        # time of the last ending signal during the present call
        self.signalled_s: float | None = None

    def open(self) -> None:
        """Add a user; the first one creates the pipe."""
        with self._lock:
            self._users += 1
            if self._fds is None:
                self._fds = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """Remove a user. After the last one the file descriptors are closed, at the latest when the
        main thread leaves."""
        with self._lock:
            self._users -= 1
            self._release()

    def enter(self) -> bool:
        """Begin to listen, in the main thread and if there is a user. Return True if `leave` must
        follow."""
        fds = self._fds
        if (
            fds is None
            or not self._users
            or threading.current_thread() is not threading.main_thread()
        ):
            return False
        self._inside = True
        self.signalled_s = None
        self._before = signal.set_wakeup_fd(fds[1], warn_on_full_buffer=False)
        return True

    def leave(self) -> None:
        """End what `enter` began."""
        signal.set_wakeup_fd(self._before)
        self.poll()
        with self._lock:
            self._inside = False
            self._release()

    def poll(self) -> None:
        """Read the signals without waiting, and note an ending one with a handler in Python."""
        with self._lock:
            if self._fds is None:
                return
            with contextlib.suppress(BlockingIOError):
                signals = os.read(self._fds[0], 512)
                if self._before != -1:
                    with contextlib.suppress(OSError):
                        os.write(self._before, signals)
                if any(s in signals and callable(signal.getsignal(s)) for s in ENDING_SIGNALS):
                    self.signalled_s = time.perf_counter()

    def _release(self) -> None:
        if self._fds is not None and not self._users and not self._inside:
            for fd in self._fds:
                os.close(fd)
            self._fds = None
