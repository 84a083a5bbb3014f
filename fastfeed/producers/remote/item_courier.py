"""Items on their way from the dispatcher to an actor, and the requests for more of them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.producers.process.ship import unpack_from
from fastfeed.producers.process.work_socket import INLINE_NBYTES, REPLY, REQUEST
from fastfeed.ring.memory import Segment, receive

# An actor has items in advance for this time: longer than a request takes, and no longer, because
# they wait there instead of going to another producer.
AHEAD_S = 0.05
MIN_OUTSTANDING, MAX_OUTSTANDING = 2, 256


class ItemCourier:
    """Requests items for one producer, like the Inbox of a worker process, and forwards them.

    `deliver` and `allow` are calls of the actor that return at once.
    """

    def __init__(
        self,
        handle: WorkerHandle,
        *,
        deliver: Callable[[Any], None],
        allow: Callable[[int], None],
    ) -> None:
        work = handle.worker_fds()[5]
        self.socket = socket.socket(fileno=os.dup(work))
        self._deliver = deliver
        self._allow = allow
        self._lock = threading.Lock()
        self._outstanding = 0  # items at the actor, or on the way to it or back
        self._sent = 0
        self._requested = False
        self._ended = not handle.task.dispatched
        self._rate = 0.0  # items per second
        self._last_s = time.perf_counter()

    def begin(self) -> None:
        """Request the first items."""
        with self._lock:
            self._request()

    def forward(self) -> bool:
        """Forward what the dispatcher has sent. Return False if its end is closed."""
        try:
            data, fds = receive(self.socket, REPLY.size + INLINE_NBYTES, fds=1)
        except OSError:
            return False
        if not data:
            return False
        kind, nbytes = REPLY.unpack_from(data)
        if kind == b"A":
            self._allow(nbytes)
            return True
        if kind == b"E":
            self._ended = True
            self._deliver(self._sent)
            return True
        content: Any = data[REPLY.size :]
        count = 0
        if kind != b"I":
            content = unpack_from(memoryview(Segment.received(fds, nbytes, writable=False).map))
            count = len(content)
        with self._lock:
            self._requested = False
            self._outstanding += count or nbytes
        self._sent += count or nbytes
        self._deliver(content)
        return True

    def returned(self, items: int) -> None:
        """Note that so many items are back, and request others."""
        now = time.perf_counter()
        with self._lock:
            self._outstanding -= items
            passed, self._last_s = now - self._last_s, now
            self._rate += 0.2 * (items / max(passed, 1e-6) - self._rate)
            self._request()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _request(self) -> None:
        wanted = (
            min(MAX_OUTSTANDING, max(MIN_OUTSTANDING, int(self._rate * AHEAD_S)))
            - self._outstanding
        )
        if wanted > 0 and not self._requested and not self._ended:
            self._requested = True
            try:
                self.socket.send(REQUEST.pack(wanted))
            except OSError:  # the feed is over
                self._ended = True
