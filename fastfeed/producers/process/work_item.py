"""Items on their way from the trainer to a worker: their size, and how they are sent."""

from __future__ import annotations

import contextlib
import errno
import pickle
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastfeed.producers.process.inbox import INLINE_NBYTES, REPLY, REQUEST
from fastfeed.producers.process.ship import pack


class WorkItem(NamedTuple):
    """Item for a worker: the position of its epoch among those of the feed, its ticket, its
    payload, its epoch, its number in the epoch, and True if a worker has died over it."""

    position: int
    ticket: int
    payload: Any
    epoch: int
    number: int = 0
    suspect: bool = False


def payload_nbytes(payload: Any) -> int:
    """Return the bytes of the arrays and bytes objects in an item, as far as they are visible."""
    if isinstance(payload, dict):
        payload = payload.values()
    elif not isinstance(payload, (list, tuple)):
        return len(payload) if isinstance(payload, bytes) else int(getattr(payload, "nbytes", 0))
    if isinstance(payload, list) and payload and isinstance(payload[0], int):
        return 0  # indices
    return sum(map(payload_nbytes, payload))


def receive_request(work: socket.socket) -> bytes:
    """Receive a packed number of items that a worker requests; empty if the worker has ended."""
    try:
        return work.recv(REQUEST.size)
    except OSError:  # closed, from either side
        return b""


def send_items(work: socket.socket, items: Sequence[WorkItem]) -> None:
    """Send small items in the message itself, and large ones in memory that the worker maps."""
    content = [(item.ticket, item.epoch, item.payload, item.number) for item in items]
    small = None
    with contextlib.suppress(Exception):  # `pack` raises the better error
        small = pickle.dumps(content, protocol=5)
    # A class of the main module would be pickled by its name, which means nothing in a worker.
    if small is not None and len(small) <= INLINE_NBYTES and b"main__" not in small:
        send_message(work, REPLY.pack(b"I", len(items)) + small)
        return
    shipment = pack(content, what="an item of the source")
    try:
        send_message(work, REPLY.pack(b"F", shipment.nbytes), shipment.fd)
    finally:
        shipment.close()


def send_message(work: socket.socket, message: bytes, *fds: int) -> None:
    """Send a message, unless the worker has died. Raise OSError where it is alive and gets none."""
    try:
        socket.send_fds(work, [message], fds)
    except OSError as error:  # it died: its items are dispatched again
        if not (isinstance(error, ConnectionError) or error.errno in (errno.EBADF, errno.ENOTCONN)):
            raise
