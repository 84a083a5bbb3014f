"""Answers for socket clients, from one thread that never waits for a client."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# From the request so far to the response, or None while the request is incomplete.
Responder = Callable[[bytes], "bytes | None"]
CLIENT_TIMEOUT_S = 2.0  # from the connection to the end of the response
MAX_CLIENTS = 16
MAX_REQUEST_NBYTES = 2**13


@dataclass
class _Client:
    respond: Responder
    deadline_s: float
    request: bytearray = field(default_factory=bytearray)
    unsent: memoryview | None = None  # None before the response


@dataclass
class _Listener:
    respond: Responder
    admits: Callable[[socket.socket], bool]


class Server:
    """Listening sockets, their clients, and descriptors (`watch`) whose readiness ends a `wait`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, _Client] = {}
        self._resting: list[tuple[socket.socket, _Listener]] = []

    def listen(
        self,
        listener: socket.socket,
        respond: Responder,
        *,
        admits: Callable[[socket.socket], bool] = lambda _: True,
    ) -> None:
        """Take over a listening socket, and serve the clients that it admits."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, _Listener(respond, admits))

    def watch(self, fd: int, key: object) -> None:
        """Let `wait` return the key when the descriptor is readable."""
        self._selector.register(fd, selectors.EVENT_READ, key)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor that is about to be closed."""
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(fd)

    def wait(self, until_s: float) -> list[object]:
        """Serve clients until a watched descriptor is readable, and return its key.

        Return no key at `until_s` (of time.perf_counter).
        """
        ready: list[object] = []
        for listening, listener in self._resting:
            with contextlib.suppress(ValueError):  # it was closed
                self._selector.register(listening, selectors.EVENT_READ, listener)
        self._resting.clear()
        while not ready:
            next_s = min((c.deadline_s for c in self._clients.values()), default=until_s)
            timeout_s = max(0.0, min(next_s, until_s) - time.perf_counter())
            for key, _ in self._selector.select(timeout_s):
                if isinstance(key.data, _Listener) and isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj, key.data)
                elif isinstance(key.data, _Client) and isinstance(key.fileobj, socket.socket):
                    self._serve(key.fileobj, key.data)
                else:
                    ready.append(key.data)
            now = time.perf_counter()
            for conn, client in list(self._clients.items()):
                if client.deadline_s <= now:
                    self._end(conn)
            if now >= until_s:
                break
        return ready

    def close(self) -> None:
        """Close every connection and every listening socket."""
        listening = [listening for listening, _ in self._resting]
        for one in (*listening, *(key.fileobj for key in self._selector.get_map().values())):
            if isinstance(one, socket.socket):
                one.close()
        self._selector.close()
        self._clients.clear()

    def _accept(self, listening: socket.socket, listener: _Listener) -> None:
        try:
            conn, _ = listening.accept()
        except (BlockingIOError, ConnectionError):  # the client has gone
            return
        except OSError:  # no descriptor is free: the client would be ready again at once
            self._selector.unregister(listening)
            self._resting.append((listening, listener))
            return
        if len(self._clients) >= MAX_CLIENTS or not listener.admits(conn):
            conn.close()
            return
        conn.setblocking(False)
        client = _Client(listener.respond, time.perf_counter() + CLIENT_TIMEOUT_S)
        self._clients[conn] = client
        self._selector.register(conn, selectors.EVENT_READ, client)
        self._respond(conn, client)

    def _serve(self, conn: socket.socket, client: _Client) -> None:
        if client.unsent is not None:
            self._send(conn, client)
            return
        try:
            data = conn.recv(MAX_REQUEST_NBYTES)
        except OSError:
            data = b""
        client.request += data
        if not data or len(client.request) > MAX_REQUEST_NBYTES:
            self._end(conn)
        else:
            self._respond(conn, client)

    def _respond(self, conn: socket.socket, client: _Client) -> None:
        response = client.respond(bytes(client.request))
        if response is not None:
            client.unsent = memoryview(response)
            self._send(conn, client)

    def _send(self, conn: socket.socket, client: _Client) -> None:
        unsent = client.unsent or memoryview(b"")
        try:
            client.unsent = unsent = unsent[conn.send(unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            unsent = memoryview(b"")
        if not unsent:
            self._end(conn)
        else:
            self._selector.modify(conn, selectors.EVENT_WRITE, client)

    def _end(self, conn: socket.socket) -> None:
        self._clients.pop(conn, None)
        self._selector.unregister(conn)
        conn.close()
