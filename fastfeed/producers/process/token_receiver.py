"""The trainer's end of the pipe of tokens of all workers, and a wake-up for the consumer."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Callable
from itertools import chain

from fastfeed.errors import StateError
from fastfeed.ring.memory import CLOSED, Descriptor, notify
from fastfeed.ring.token import FORMAT, READ_TOKENS, Token

TOKEN_POLL_MS = 200
SPIN_S = 5e-5


class TokenReceiver:
    """Receiver: `fetch` tokens that have arrived, `wait` for more, `wake` the waiting consumer."""

    def __init__(self) -> None:
        tokens, self.write_end = map(Descriptor, os.pipe2(os.O_CLOEXEC))
        os.set_blocking(tokens.fd, False)
        wakeup = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        poll = select.poll()
        poll.register(tokens.fd, select.POLLIN)
        poll.register(wakeup.fd, select.POLLIN)
        # A call that uses them holds a reference: until it returns, their numbers cannot be reused.
        self._descriptors = (tokens, wakeup, poll)
        self._spins = False
        self._pid = os.getpid()
        self.unread: deque[Token] = deque()

    @property
    def is_copy(self) -> bool:
        """True in a forked copy of the trainer."""
        return os.getpid() != self._pid

    def refuse_copies(self) -> None:
        """Raise StateError in a forked copy of the trainer, which would take the trainer's
        batches."""
        if self.is_copy:
            raise StateError(
                "this process is a forked copy of the one that owns the FeedRunner and its "
                "batches: create a FeedRunner in this process"
            )

    def fetch(self) -> bool:
        """Append what has arrived to `unread`. Return True if there may be more."""
        tokens = self._descriptors[0]
        if tokens is CLOSED:
            return False
        pipe = ((tokens.fd,), (READ_TOKENS * FORMAT.size,))
        with contextlib.suppress(BlockingIOError):
            # One call that runs no Python code: no exception of a signal handler can come between
            # reading and storing.
            self.unread.extend(chain.from_iterable(map(FORMAT.iter_unpack, map(os.read, *pipe))))
        return len(self.unread) >= READ_TOKENS

    def wake(self) -> None:
        """End a wait."""
        notify(self._descriptors[1])

    def close(self) -> None:
        """Close the descriptors: nothing comes any more."""
        self._descriptors = (CLOSED, CLOSED, select.poll())
        self.write_end = CLOSED

    def wait(self, seconds: float, check: Callable[[], bool]) -> None:
        """Wait until a token or a wake-up arrives. If batches come every few microseconds, first
        call `check` repeatedly, which costs less than to be woken for each."""
        start = time.perf_counter()
        _, wakeup, poll = self._descriptors
        if self._spins:
            while time.perf_counter() < start + SPIN_S:
                if check():
                    return
        for fd, _ in poll.poll(min(max(seconds, 0.0) * 1000 + 1, TOKEN_POLL_MS)):
            if fd == wakeup.fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
        self._spins = time.perf_counter() - start < SPIN_S


class StopEvent:
    """Event for all worker processes: a pipe whose end becomes readable when it is set."""

    def __init__(self) -> None:
        self.read_end, self._write_end = map(Descriptor, os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))

    def set(self) -> None:
        """Set the event; it may be set repeatedly."""
        write_end = self._write_end
        with contextlib.suppress(OSError):  # it is full, or closed
            os.write(write_end.fd, b"!")  # never read: every worker sees it

    def close(self) -> None:
        """Close both ends."""
        self.read_end = self._write_end = CLOSED
