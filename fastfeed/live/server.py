"""Answers for socket clients, from one thread that never waits for a client."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Returns what to send to a client, given what it has sent; None: its request is incomplete.
Answer = Callable[[bytes], "bytes | None"]
CLIENT_S = 2.0  # from the connection to the end: slower clients are dropped
MOST_CLIENTS = 16
MOST_NBYTES = 2**13  # of a request


@dataclass
class _Client:
    answer: Answer
    deadline_s: float
    asked: bytearray = field(default_factory=bytearray)
    left: memoryview | None = None  # of the answer


@dataclass
class _Door:
    answer: Answer
    admits: Callable[[socket.socket], bool]


class Server:
    """Listening sockets, their clients, and descriptors (`watch`) whose readiness ends a `wait`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, _Client] = {}

    def listen(
        self,
        door: socket.socket,
        answer: Answer,
        *,
        admits: Callable[[socket.socket], bool] = lambda _: True,
    ) -> None:
        """Serve clients that connect to `door`, which belongs to this server from now on, if it
        `admits` them."""
        door.setblocking(False)
        self._selector.register(door, selectors.EVENT_READ, _Door(answer, admits))

    def watch(self, fd: int, what: object) -> None:
        """Let `wait` return `what` when the descriptor is readable."""
        self._selector.register(fd, selectors.EVENT_READ, what)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor that is about to be closed."""
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(fd)

    def wait(self, until_s: float) -> list[object]:
        """Serve clients until a watched descriptor is ready, or `until_s` (of time.perf_counter);
        return what is ready."""
        found: list[object] = []
        while not found:
            now = time.perf_counter()
            first = min((c.deadline_s for c in self._clients.values()), default=until_s)
            for key, _ in self._selector.select(max(0.0, min(first, until_s) - now)):
                if isinstance(key.data, _Door) and isinstance(key.fileobj, socket.socket):
                    self._admit(key.fileobj, key.data)
                elif isinstance(key.data, _Client) and isinstance(key.fileobj, socket.socket):
                    self._serve(key.fileobj, key.data)
                else:
                    found.append(key.data)
            now = time.perf_counter()
            for late in [
                conn for conn, client in self._clients.items() if client.deadline_s <= now
            ]:
                self._end(late)
            if now >= until_s:
                break
        return found

    def close(self) -> None:
        """End every conversation and close every listening socket."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._clients.clear()

    def _admit(self, door: socket.socket, kind: _Door) -> None:
        try:
            conn, _ = door.accept()
        except OSError:  # the client has gone
            return
        if len(self._clients) >= MOST_CLIENTS or not kind.admits(conn):
            conn.close()
            return
        conn.setblocking(False)
        client = _Client(kind.answer, time.perf_counter() + CLIENT_S)
        self._clients[conn] = client
        self._selector.register(conn, selectors.EVENT_READ, client)
        self._answer(conn, client)

    def _serve(self, conn: socket.socket, client: _Client) -> None:
        if client.left is not None:
            self._send(conn, client)
            return
        try:
            data = conn.recv(MOST_NBYTES)
        except OSError:
            data = b""
        client.asked += data
        if not data or len(client.asked) > MOST_NBYTES:
            self._end(conn)
        else:
            self._answer(conn, client)

    def _answer(self, conn: socket.socket, client: _Client) -> None:
        answer = client.answer(bytes(client.asked))
        if answer is not None:
            client.left = memoryview(answer)
            self._send(conn, client)

    def _send(self, conn: socket.socket, client: _Client) -> None:
        left = client.left or memoryview(b"")
        try:
            client.left = left = left[conn.send(left) :]
        except BlockingIOError:
            pass
        except OSError:
            left = memoryview(b"")
        if not left:
            self._end(conn)
        else:
            self._selector.modify(conn, selectors.EVENT_WRITE, client)

    def _end(self, conn: socket.socket) -> None:
        self._clients.pop(conn, None)
        self._selector.unregister(conn)
        conn.close()
