"""Messages between a rank and its server, over TCP: the token, then one line of JSON each."""

from __future__ import annotations

import json
import socket
from typing import Any

MAX_LINE_NBYTES = 2**24  # of a state
# A host that loses its power or its network closes no connection: seconds, seconds, times, ms. The
# last one is for messages under way, for which the others do not count.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
WAIT = {"wait": True}  # a claim has no answer yet: other ranks hold the last batches


def encode(message: dict[str, Any]) -> bytes:
    """Return the line of a message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def token_line(token: str) -> bytes:
    """Return what a rank sends first. A server reads no more before it has seen it."""
    return token.encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Return the message of a line. Raise ValueError if it is none."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("a message must be a JSON object")
    return message


def tune(connection: socket.socket) -> None:
    """Send messages at once, and notice within half a minute that the other host is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
