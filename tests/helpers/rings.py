"""A ring with both ends in this process, over real pipes: handle, writer and outlets without a
process."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.producers.process.handle import WorkerChannels, WorkerHandle
from fastfeed.producers.process.main import DESCRIPTORS, WorkerTask
from fastfeed.producers.process.outlet import RingOutlet
from fastfeed.producers.process.ship import Shipment
from fastfeed.producers.process.supervisor import spawn
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.ring.layout import MemoryShare
from fastfeed.ring.memory import Descriptor, Segment
from fastfeed.ring.reader import SlotRef
from fastfeed.ring.slots import FREE
from fastfeed.ring.status_page import StatusPage
from fastfeed.ring.token import BATCH, FORMAT, Token
from fastfeed.ring.writer import RingChannels, RingWriter


class Ring:
    """Writer, outlets and reader of one worker, and the pipes between them."""

    def __init__(self, *, threads: int = 1, budget: int = 2**24, wanted: int = 6) -> None:
        skip = ((0, 0),) * threads
        numbers = dict.fromkeys(("number", "index", "seed", "first_epoch", "nbytes", "rank"), 0)
        numbers |= {"count": threads, "producers": threads, "epochs": 1}
        task = WorkerTask(
            threads=threads,
            skip=skip,
            dispatched=True,
            allowed=1,
            budget=budget,
            wanted=wanted,
            **numbers,
        )
        self._released: deque[SlotRef] = deque()
        self._tokens, tokens = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        stop, self._say_stop = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        channels = WorkerChannels(Descriptor(tokens), Descriptor(stop), Shipment(os.dup(stop), 0))
        self.handle = WorkerHandle(task, self._released, channels=channels)
        spawn(self, [self.handle], number=0)  # type: ignore[arg-type]
        self._own = [self._tokens, self._say_stop]
        channels.shipment.close()
        given = dict(zip(DESCRIPTORS, self._given, strict=True))
        self._news = socket.socket(fileno=given.pop("news"))
        self._own += given.values()
        self.writer = RingWriter(
            StatusPage(Segment(given["page"], StatusPage.nbytes(threads)), threads),
            RingChannels(given["returned"], given["tokens"], self._news, given["stop"]),
            share=MemoryShare(budget, wanted, threads),
            number=0,
        )
        self.outlets = [
            RingOutlet(
                self.writer, t, ordered=True, epoch=0, admit=lambda _: True, beside=threads > 1
            )
            for t in range(threads)
        ]
        self.reader = self.handle.reader
        self.slots = self.handle.page.slots

    def spawn(self, task: dict[str, Any], fds: Sequence[int]) -> None:
        """Stand in for a ForkServer: keep the worker's descriptors here."""
        self._given = [os.dup(fd) for fd in fds]

    def put(self, batch: Batch, spec: BatchSpec, *, thread: int = 0, key: int = 0) -> None:
        """Put a batch like a producer."""
        assert self.outlets[thread].put(ProducedBatch(batch, -1, ""), key, item=0, spec=spec)

    def token(self) -> Token | None:
        """Return the next token that has arrived, or None."""
        with contextlib.suppress(BlockingIOError):
            (token,) = FORMAT.iter_unpack(os.read(self._tokens, FORMAT.size))
            return token
        return None

    def take(self) -> tuple[Batch, bool]:
        """Return the next batch as the trainer opens it, and True if it is a copy."""
        token = self.token()
        assert token is not None and token[0] == BATCH
        _, _, slot, _, _, rows, room, _ = token
        self.handle.await_memory(slot)
        assert self.handle.spec is not None
        return self.reader.lend(slot, self.handle.spec, rows=rows, room=room)

    def give_back(self) -> None:
        """Return slots without views, as the trainer does periodically."""
        while self._released:
            self.reader.return_slots([self._released.popleft()])

    def say_stop(self) -> None:
        """Set the stop event, as the trainer does."""
        os.write(self._say_stop, b"!")

    @property
    def current(self) -> range:
        """The slots of the newest block."""
        return self.writer._blocks[-1].slots if self.writer._blocks else range(0)

    @property
    def free(self) -> int:
        """Number of slots that a producer would get without waiting."""
        return self.slots.count(FREE, self.current)

    def close(self) -> None:
        """Close every descriptor; batches may live on."""
        self.handle.close()
        self._news.close()
        for fd in self._own:
            os.close(fd)


@contextmanager
def ring(**options: int) -> Iterator[Ring]:
    """Yield a ring and close it after the block."""
    made = Ring(**options)
    try:
        yield made
    finally:
        made.close()


def mapped_nbytes(name: str = "fastfeed-ring") -> int:
    """Return the bytes of all mappings of memory with this name in this process."""
    lines = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if f"memfd:{name}" in line
    ]
    spans = [re.match(r"(\w+)-(\w+) ", line) for line in lines]
    return sum(int(span[2], 16) - int(span[1], 16) for span in spans if span)


def leaves_equal(have: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> bool:
    """Return True if values, shapes and dtypes are equal."""
    return len(have) == len(want) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())
        for a, b in zip(have, want, strict=True)
    )


def give_back_early(batch: Batch) -> None:
    """Give the slot of a batch back although the arrays are views of it, as no reader may."""
    for owner in {id(leaf.base): leaf.base for leaf in batch.leaves}.values():
        for ref in weakref.getweakrefs(owner):
            ref.reader.released.append(ref)
