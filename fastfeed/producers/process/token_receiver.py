"""The trainer's end of the pipe with the tokens of all workers, and a bell for everything else."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Callable
from itertools import chain

from fastfeed.errors import StateError
from fastfeed.ring.memory import NOWHERE, Descriptor, ring
from fastfeed.ring.token import FORMAT, READ_TOKENS, Token

POLL_MS = 200
SPIN_S = 5e-5


class TokenReceiver:
    """Receives tokens: `fetch` those that have come, `wait` for more, `wake` a wait."""

    def __init__(self) -> None:
        tokens, self.entrance = map(Descriptor, os.pipe2(os.O_CLOEXEC))
        os.set_blocking(tokens.fd, False)
        bell = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        poll = select.poll()
        poll.register(tokens.fd, select.POLLIN)
        poll.register(bell.fd, select.POLLIN)
        # calls that use them hold a reference: until then their numbers are no other file's
        self._ends = (tokens, bell, poll)
        self._brisk = False
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
                "this process is a forked copy of the one that made the runner, whose batches they "
                "are: needed a FeedRunner of its own"
            )

    def fetch(self) -> bool:
        """Put tokens that have come into `unread`; return True if there may be more."""
        tokens = self._ends[0]
        if tokens is NOWHERE:
            return False
        pipe = ((tokens.fd,), (READ_TOKENS * FORMAT.size,))
        with contextlib.suppress(BlockingIOError):
            # One call without Python code: no exception of a signal handler can come between
            # reading and keeping.
            self.unread.extend(chain.from_iterable(map(FORMAT.iter_unpack, map(os.read, *pipe))))
        return len(self.unread) >= READ_TOKENS

    def wake(self) -> None:
        """End a wait."""
        ring(self._ends[1])

    def close(self) -> None:
        """Close the pipe: nothing comes any more."""
        self._ends = (NOWHERE, NOWHERE, select.poll())
        self.entrance = NOWHERE

    def wait(self, seconds: float, look: Callable[[], bool]) -> None:
        """Wait until there is news. Where batches come every few microseconds, waking for each
        would cost more than to check with `look` again at once."""
        start = time.perf_counter()
        ends = self._ends
        _, bell, poll = ends
        if self._brisk:
            while time.perf_counter() < start + SPIN_S:
                if look():
                    return
        for fd, _ in poll.poll(min(max(seconds, 0.0) * 1000 + 1, POLL_MS)):
            if fd == bell.fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
        self._brisk = time.perf_counter() - start < SPIN_S


class StopEvent:
    """A pipe that becomes readable, for every process with its end, once the feed is over."""

    def __init__(self) -> None:
        self.seen, self._say = map(Descriptor, os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))

    def say(self) -> None:
        """Set the event. May be repeated."""
        say = self._say
        with contextlib.suppress(OSError):  # it is full, or closed
            os.write(say.fd, b"!")  # never read: every worker sees it

    def close(self) -> None:
        """Close the pipe: no process needs it any more."""
        self.seen = self._say = NOWHERE
