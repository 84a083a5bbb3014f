"""The socket between the dispatcher and a worker process: requests, items and permits."""

from __future__ import annotations

import contextlib
import errno
import pickle
import select
import socket
import struct
from array import array
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any, NamedTuple

import numpy as np

from fastfeed.core.structure import fields_of
from fastfeed.producers.inbox import Inbox
from fastfeed.producers.process.ship import pack, unpack_from
from fastfeed.ring.memory import Segment, receive
from fastfeed.ring.writer import Stopped
from fastfeed.source.reused_memory import arrays_in, attributes_of, is_writable

REQUEST = struct.Struct("<I")  # number of items wanted
# b"I": so many items (ticket, epoch, payload, number) follow. b"F": they lie in the descriptor, in
# so many bytes; b"C": changes of the data set do. b"E": there are no more items. b"A": so many
# epochs may begin.
REPLY = struct.Struct("<cq")
INLINE_NBYTES = 2**15
# A worker requests items in advance for this time. More would wait here instead of going to another
# worker.
REQUEST_AHEAD_S = 0.01
MAX_REQUEST = 64
ITEM_POLL_MS = 1000
PLAIN_PARTS = {bool, int, float, complex, str, bytes, type(None)}


class WorkItem(NamedTuple):
    """Item for a worker: the position of its epoch among those of the feed, its ticket, its
    payload, its epoch, its number in the epoch, and True if a worker has died over it."""

    position: int
    ticket: int
    payload: Any
    epoch: int
    number: int = 0
    suspect: bool = False


class SocketInbox(Inbox):
    """Inbox of a worker process. The producer that waits receives, and requests items."""

    def __init__(self, work: socket.socket, stop: int, *, threads: int, allowed: int) -> None:
        super().__init__(allowed=allowed)
        self._work = work
        self._stop = stop
        self._threads = threads
        self._requested = self._receiving = False
        self._item_s = REQUEST_AHEAD_S
        self._poll = select.poll()
        self._poll.register(work, select.POLLIN)
        self._poll.register(stop, select.POLLIN)

    def note_duration(self, seconds: float) -> None:
        """Note how long one item took."""
        self._item_s += 0.2 * (seconds - self._item_s)

    def _request(self) -> None:
        few = len(self._items) < self._threads
        if few and not self._requested and not self._ended:
            self._requested = True
            wanted = int(REQUEST_AHEAD_S / max(self._item_s, 1e-6)) * self._threads
            try:
                self._work.send(REQUEST.pack(max(self._threads, min(MAX_REQUEST, wanted))))
            except ConnectionError:  # the trainer is gone
                raise Stopped from None

    def _receive(self) -> None:
        if self._receiving:  # another producer does
            self._changed.wait(ITEM_POLL_MS / 1000)
            return
        self._receiving = True
        self._changed.release()
        try:
            data, fds = self._listen()
        finally:
            self._changed.acquire()
            self._receiving = False
            self._changed.notify_all()
        if data:
            self._handle(data, fds)

    def _listen(self) -> tuple[bytes, list[int]]:
        ready = dict(self._poll.poll(ITEM_POLL_MS))
        if self._stop in ready:
            raise Stopped
        if not ready:
            return b"", []
        data, fds = receive(self._work, REPLY.size + INLINE_NBYTES, fds=1)
        if not data:  # the trainer is gone
            raise Stopped
        return data, fds

    def _handle(self, data: bytes, fds: list[int]) -> None:
        kind, count = REPLY.unpack_from(data)
        if kind == b"A":
            self.allow(count)
            return
        if kind == b"C":
            self.change(Segment.received(fds, count, writable=False).map)
            return
        self._requested = False
        if kind == b"E":
            self.end(0)
        elif kind == b"I":
            self.put(pickle.loads(data[REPLY.size :]))
        else:
            self.put(unpack_from(Segment.received(fds, count, writable=False).map))


def payload_nbytes(payload: Any) -> int:
    """Return the bytes of the arrays and bytes objects in an item, as far as they are visible."""
    if isinstance(payload, dict):
        payload = payload.values()
    elif not isinstance(payload, (list, tuple)):
        return len(payload) if isinstance(payload, bytes) else int(getattr(payload, "nbytes", 0))
    if isinstance(payload, list) and payload and isinstance(payload[0], int):
        return 0  # indices
    return sum(map(payload_nbytes, payload))


def own_payload(payload: Any, copies: dict[int, Any] | None = None) -> Any:
    """Return a payload with copies of its arrays and objects: the source may fill them again before
    it is sent, or sent once more for a worker that died. `copies` is the memo of `deepcopy`."""
    kind = type(payload)
    if kind in PLAIN_PARTS:
        return payload
    copies = {} if copies is None else copies
    if kind in (list, tuple):
        plain = set(map(type, payload)) <= PLAIN_PARTS
        return kind(payload if plain else [own_payload(part, copies) for part in payload])
    if kind in (bytearray, array) or (kind is np.ndarray and payload.dtype.kind != "O"):
        return copy(payload)
    if kind is np.ndarray:
        return _own_objects(payload, copies)
    if kind.__module__ == "torch" and kind.__name__ == "Tensor":
        return payload.clone()
    if isinstance(payload, dict):
        found = copy(payload)
        found.update((key, own_payload(part, copies)) for key, part in payload.items())
        return found
    if kind is memoryview:
        return payload.tobytes()  # as the pickler sends it
    return _own_object(payload, copies)


def _own_objects(payload: np.ndarray[Any, Any], copies: dict[int, Any]) -> Any:
    found = copy(payload)
    if not set(map(type, payload.flat)) <= PLAIN_PARTS:
        for at in np.ndindex(payload.shape):
            found[at] = own_payload(payload[at], copies)
    return found


def _own_object(payload: Any, copies: dict[int, Any]) -> Any:
    if not (fields_of(type(payload)) or _is_plain(type(payload)) or is_writable(payload)):
        return payload
    with contextlib.suppress(Exception):  # such as a lock: `pack` raises the better error
        for leaf in arrays_in(payload):
            for part in (leaf, *attributes_of(leaf)):
                if type(part) is memoryview:  # which `deepcopy` cannot copy
                    copies[id(part)] = part.tobytes()
        return deepcopy(payload, copies)
    return payload


def _is_plain(kind: type) -> bool:
    """Return True for a class whose objects are copied and pickled by their attributes, and by no
    code of their own."""
    own = ("__copy__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")
    return all(getattr(kind, name, None) is getattr(object, name, None) for name in own)


def receive_request(work: socket.socket) -> int:
    """Receive the number of items that a worker requests; 0 if the worker has ended."""
    with contextlib.suppress(OSError):  # closed, from either side
        if data := work.recv(REQUEST.size):
            return int(REQUEST.unpack(data)[0])
    return 0


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
