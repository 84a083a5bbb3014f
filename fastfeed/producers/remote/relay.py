"""The trainer's end of one remote producer: a thread that moves its batches into a ring, as a
worker process would put them there."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np

from fastfeed.core.batch import Batch, BatchSpec, nbytes_of
from fastfeed.core.collate import ALIGN
from fastfeed.errors import FeedError, ProducerFailed
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.producers.process.main import DESCRIPTORS, ring_outlets
from fastfeed.producers.process.ship import unpack_from
from fastfeed.producers.process.work_socket import INLINE_NBYTES, REPLY, REQUEST
from fastfeed.producers.remote.actor import Dispatched
from fastfeed.producers.remote.remote_outlet import (
    DIRECT,
    PACKED,
    SPEC,
    MessageGroup,
    RemoteMessage,
)
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.ring.layout import offsets
from fastfeed.ring.memory import Segment, receive
from fastfeed.ring.token import BATCH, END, EPOCH, FAILURE, HOLE, SKIP, STREAM
from fastfeed.ring.writer import Stopped

Array = np.ndarray[Any, Any]
# An actor has items in advance for this time: longer than a request takes, and no longer, because
# they wait there instead of going to another producer.
AHEAD_S = 0.05
MIN_OUTSTANDING, MAX_OUTSTANDING = 2, 256
MAX_REASON = 600  # characters
DEATH_CAUSE = re.compile(r"The actor (?:is dead|died) because.*?(?=\. Some common causes|\.? *$)")


class ItemCourier:
    """Requests items for one producer, like the inbox of a worker process, and forwards them.
    `send` calls the actor, and returns at once."""

    def __init__(self, handle: WorkerHandle, send: Callable[[Dispatched], None]) -> None:
        work = handle.worker_fds()[5]
        self.socket = socket.socket(fileno=os.dup(work))
        self._send = send
        self._lock = threading.Lock()
        self._outstanding = 0  # items at the actor, or on the way to it or back
        self._sent = 0
        self._requested = False
        self._ended = not handle.task.dispatched
        self._rate = 0.0  # items per second
        self._last_s = time.perf_counter()

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
            self._send((kind, nbytes))
        elif kind == b"E":
            self._ended = True
            self._send((kind, self._sent))
        else:
            content: Any = data[REPLY.size :]
            count = nbytes
            if kind != b"I":
                content = unpack_from(Segment.received(fds, nbytes, writable=False).map)
                count = len(content)
            with self._lock:
                self._requested = False
                self._outstanding += count
            self._sent += count
            self._send((kind, content))
        return True

    def returned(self, items: int) -> None:
        """Note that so many items are back, 0 at first, and request others."""
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


class Relay:
    """Puts what `groups` yields into the ring of `handle`, and then calls `ended` with the reason
    for a loss, or "" at the end of the stream. Large batches stay in the object store, up to
    `lendable` bytes at a time."""

    def __init__(
        self,
        handle: WorkerHandle,
        groups: Iterator[MessageGroup],
        *,
        send: Callable[[Dispatched], None],
        ended: Callable[[str], None],
        lendable: int = 0,
    ) -> None:
        task = handle.task
        self._groups = groups
        self.courier = ItemCourier(handle, send)
        self._ended = ended
        self._dispatched = task.dispatched
        fds = dict(zip(DESCRIPTORS, map(os.dup, handle.worker_fds()), strict=True))
        (self._outlet,), self._news = ring_outlets(task, fds, admit=lambda _: True)
        del fds["news"]  # the socket has it
        self._fds = list(fds.values())
        self._poll = select.poll()
        self._poll.register(fds["tokens"], select.POLLOUT)
        self._poll.register(fds["stop"], select.POLLIN)
        self._stop = fds["stop"]
        self._borrowed, self._lendable = handle.borrowed, lendable
        self._spec: BatchSpec | None = None
        name = f"fastfeed-remote-{task.index}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def close(self) -> None:
        """Close the descriptors: the thread ends, or was never started."""
        self._news.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _run(self) -> None:
        reason = ""
        try:
            self.courier.returned(0)
            for group in self._groups:
                if not self._deliver(group):
                    break
                del group  # its memory in the object store
        except Exception as error:
            reason = _text_of(error)
        finally:
            with contextlib.suppress(Exception):
                self._groups.close()  # type: ignore[attr-defined]  # a generator
            self.close()
            self._ended(reason)

    def _deliver(self, group: MessageGroup) -> bool:
        """Put a group into the ring. Return False to end: the feed is over, or has failed here."""
        try:
            self._put(group)
        except Stopped:
            return False
        except Exception as error:
            failure = error if isinstance(error, FeedError) else ProducerFailed("a relay", error)
            with contextlib.suppress(Stopped):
                self._outlet.fail(failure, None)
                self._outlet.end()
            return False
        return True

    def _put(self, group: MessageGroup) -> None:
        self._outlet.row = group.row
        items = 0
        for message in group.messages:
            self._wait_for_pipe()
            self._pass_on(message, group.block)
            items += message.kind in (BATCH, HOLE)
        if self._dispatched:
            self.courier.returned(items)

    def _pass_on(self, message: RemoteMessage, block: Array) -> None:
        kind, stream, key, item, *_ = message
        outlet = self._outlet
        if kind in (BATCH, HOLE):
            batch = self._opened(message, block) if kind == BATCH else None
            produced = ProducedBatch(batch, stream, "", item)
            if message.form == DIRECT and batch is not None and self._borrows(batch):
                number = self._borrowed.add(batch.leaves, rows=batch.rows)
                outlet.put_borrowed(number, produced, key=key, spec=self._spec)
            else:
                outlet.put(produced, key, item=item, spec=self._spec)
        elif kind == SPEC:
            self._spec = cloudpickle.loads(message.body)
        elif kind == EPOCH:
            outlet.end_epoch(key)
        elif kind == END:
            outlet.end()
        elif kind in (FAILURE, SKIP):
            outlet.report(kind, message.body, key=key)
        elif kind == STREAM:
            outlet.compare(stream, item, digest=key)

    def _borrows(self, batch: Batch) -> bool:
        """Return True if a batch can stay where it is: it lies as in a slot, and the object store
        has room for it."""
        lies_well = all(
            leaf.flags.c_contiguous and leaf.nbytes and not leaf.ctypes.data % ALIGN
            for leaf in batch.leaves
        )
        return lies_well and self._borrowed.has_room(batch.nbytes, self._lendable)

    def _opened(self, message: RemoteMessage, block: Array) -> Batch:
        """Return the batch of a message as views of the group."""
        if message.form == DIRECT:
            leaves = tuple(message.body)
        elif message.form == PACKED:
            leaves = self._unpacked(message, block)
        else:
            leaves = tuple(pickle.loads(message.body))
        return Batch(leaves, message.rows, sum(map(nbytes_of, leaves)))

    def _unpacked(self, message: RemoteMessage, block: Array) -> tuple[Array, ...]:
        assert self._spec is not None
        leaves = self._spec.leaves  # no dimension of them varies
        shapes = [(message.rows, *(n or 0 for n in leaf.shape)) for leaf in leaves]
        dtypes = [leaf.dtype for leaf in leaves]
        sizes = [math.prod(s) * dtype.itemsize for s, dtype in zip(shapes, dtypes, strict=True)]
        places, _ = offsets(sizes)
        return tuple(
            np.ndarray(shape, dtype, block, message.body + at)
            for shape, dtype, at in zip(shapes, dtypes, places, strict=True)
        )

    def _wait_for_pipe(self) -> None:
        """Wait for room in the pipe of tokens. Raise Stopped: once the feed is stopped, nobody
        reads it, and this thread cannot be killed."""
        ready = dict(self._poll.poll())
        if self._stop in ready:
            raise Stopped


def _text_of(error: Exception) -> str:
    """Return what Ray says of a loss. The cause is one sentence of a long text."""
    text = " ".join(str(error).split())
    because = DEATH_CAUSE.search(text)
    return because[0] if because else text[:MAX_REASON] or type(error).__name__
