"""Items on their way from the trainer to a worker: their weight, and how they are sent."""

from __future__ import annotations

import contextlib
import pickle
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastfeed.producers.process.inbox import INLINE_NBYTES, ORDER, REQUEST
from fastfeed.producers.process.ship import pack


class WorkItem(NamedTuple):
    """An item on its way: its epoch and that epoch's position among those of this feed, its ticket,
    its payload, its number in the epoch, and True if a worker has died over it."""

    position: int
    ticket: int
    payload: Any
    epoch: int
    number: int = 0
    suspect: bool = False


def weight(payload: Any) -> int:
    """Return the bytes of the arrays and bytes in an item, as far as they can be found."""
    if isinstance(payload, dict):
        payload = payload.values()
    elif not isinstance(payload, (list, tuple)):
        return len(payload) if isinstance(payload, bytes) else int(getattr(payload, "nbytes", 0))
    if isinstance(payload, list) and payload and isinstance(payload[0], int):
        return 0  # indices
    return sum(map(weight, payload))


def request_from(work: socket.socket) -> bytes:
    """Return how many items a worker asks for, packed; empty when it has ended."""
    try:
        return work.recv(REQUEST.size)
    except OSError:  # closed, from either side
        return b""


def send_deals(work: socket.socket, deals: Sequence[WorkItem]) -> None:
    """Send small items in the message itself; large ones, and those with large arrays, in memory
    that the worker maps."""
    items = [(d.ticket, d.epoch, d.payload, d.number) for d in deals]
    small = None
    with contextlib.suppress(Exception):  # `pack` reports any failure better
        small = pickle.dumps(items, protocol=5)
    # a class of the main module would be pickled by its name, which means nothing in a worker
    if small is not None and len(small) <= INLINE_NBYTES and b"__main__" not in small:
        tell(work, ORDER.pack(b"I", 0) + small)
        return
    shipment = pack(items, what="an item of the source")
    try:
        tell(work, ORDER.pack(b"F", shipment.nbytes), shipment.fd)
    finally:
        shipment.close()


def tell(work: socket.socket, message: bytes, *fds: int) -> None:
    """Send a message, which a worker that has died need not get."""
    with contextlib.suppress(OSError):  # it died: its items are sent again
        socket.send_fds(work, [message], fds)
