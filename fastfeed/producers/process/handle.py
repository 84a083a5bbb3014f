"""The trainer's handle of one worker process: its ring, its news, its progress and its state."""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import os
import re
import select
import signal
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import psutil

from fastfeed.core.batch import Batch, BatchSpec
from fastfeed.core.position import ONLY_STREAM
from fastfeed.errors import FeedError, ProducerError
from fastfeed.producers.failure import decode_error, read_last_words
from fastfeed.producers.process.main import STACKS_SIGNAL, WorkerTask
from fastfeed.producers.process.ship import Shipment
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.ring.memory import CLOSED, Descriptor, Segment, receive
from fastfeed.ring.reader import RingReader, SlotRef, copied
from fastfeed.ring.status_page import NO_ITEM, NOT_IN_FLIGHT, InFlight, StatusPage
from fastfeed.ring.token import HOLE, LAST_WORDS, Token
from fastfeed.ring.writer import NEWS, SHORT_NBYTES

STACKS_TIMEOUT_S = 0.5  # a running process answers within a millisecond
MAX_DUMPED_FRAMES = 4
FRAME = re.compile(r'  File "(.+)", line (\d+) in ')  # of faulthandler
Array = np.ndarray[Any, Any]
FIRST_BORROWED = 2**31  # the number of the first such batch in a token; no ring has so many slots


class BorrowAnchor:
    """Keeps the arrays of a batch alive as long as one of its views."""

    __slots__ = ("__weakref__", "leaves")

    def __init__(self, leaves: Sequence[Array]) -> None:
        self.leaves = leaves


class BorrowedBatches:
    """Batches outside the ring between a relay, which adds them, and the consumer, which takes
    them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: list[tuple[weakref.ref[BorrowAnchor], int]] = []  # with their bytes
        self._ready: dict[int, Batch] = {}
        self._next = 0

    def has_room(self, nbytes: int, limit: int) -> bool:
        """Return True if another batch of `nbytes` would keep all of them within `limit` bytes."""
        with self._lock:
            self._lent = [one for one in self._lent if one[0]() is not None]
            return sum(n for _, n in self._lent) + nbytes <= limit

    def add(self, leaves: Sequence[Array], *, rows: int) -> int:
        """Add a batch of contiguous arrays. Return its number."""
        anchor = BorrowAnchor(leaves)
        views = tuple(_view(leaf, anchor) for leaf in leaves)
        nbytes = sum(leaf.nbytes for leaf in leaves)
        with self._lock:
            number = FIRST_BORROWED + self._next % FIRST_BORROWED
            self._next += 1
            self._lent.append((weakref.ref(anchor), nbytes))
            self._ready[number] = Batch(views, rows, nbytes)
        return number

    def take(self, number: int) -> Batch:
        """Return the batch of a number, once."""
        with self._lock:
            return self._ready.pop(number)

    def clear(self) -> None:
        """Drop what nobody has taken."""
        with self._lock:
            self._ready.clear()

    @property
    def depth(self) -> tuple[int, int]:
        """Number of batches that nobody has taken yet, and their bytes."""
        with self._lock:
            ready = list(self._ready.values())
        return len(ready), sum(batch.nbytes for batch in ready)


def _view(leaf: Array, anchor: BorrowAnchor) -> Array:
    """Return the same memory as an array that may be written to, as all batches may: nobody else
    has this memory."""
    owner: Any = (ctypes.c_ubyte * leaf.nbytes).from_address(leaf.ctypes.data)
    owner.anchor = anchor
    return np.ndarray(leaf.shape, leaf.dtype, owner)


@dataclass(frozen=True)
class WorkerChannels:
    """Channels that all workers of a feed share: the pipe of tokens, the stop event, and the packed
    source."""

    tokens: Descriptor
    stop: Descriptor
    shipment: Shipment


CLOSED_CHANNELS = WorkerChannels(CLOSED, CLOSED, Shipment(-1, 0))


class WorkerHandle:
    """A worker process, and the trainer's end of everything that it was given."""

    def __init__(
        self,
        task: WorkerTask,
        released: deque[SlotRef],
        *,
        channels: WorkerChannels,
        owner: Any = None,
    ) -> None:
        self.task = task
        self.owner = owner  # the pool's member that is notified of its end
        self.channels = channels
        self.page = StatusPage.create(task.threads)
        self.pid = 0
        self.pidfd: Descriptor | None = None
        self.spec: BatchSpec | None = None
        # By stream: epochs that have arrived, and items of the next one.
        self.progress = list(task.skip)
        self.delivered = 0
        self.ended: set[int] = set()  # threads that have no more items
        self.failed = False
        self.exited = False
        self.borrowed = BorrowedBatches()  # of a remote worker
        self.place = ""  # the node of a remote worker
        self.lost = ""  # how a remote worker was lost
        self.spec_checked = False  # True once its spec was compared with the first worker's
        # True if its batches differ from the first worker's, or are copies
        self.mismatched = False
        self._returned, give_back = map(Descriptor, os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        self._news, self._worker_news = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.work, self._worker_work = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._remote_stacks: Callable[[], str] = lambda: "  waits for a place on a node"
        self._stacks = Descriptor(os.memfd_create("fastfeed-stacks", os.MFD_CLOEXEC))
        # The file to which the process writes its stacks: the one of its first handle.
        self.stacks_file = self._stacks
        self._errors: dict[bytes, deque[tuple[FeedError, int | None]]] = {
            b"E": deque(),
            b"K": deque(),
        }
        self.reader = RingReader(
            self.page, returns=give_back, released=released, reserved=task.threads + 1
        )

    def worker_fds(self) -> tuple[int, ...]:
        """Descriptors for the worker, in the order of DESCRIPTORS."""
        return (
            self.page.segment.fd,
            self._returned.fd,
            self.channels.tokens.fd,
            self.channels.stop.fd,
            self._worker_news.fileno(),
            self._worker_work.fileno(),
            self._stacks.fd,
            self.channels.shipment.fd,
        )

    def start(self, pid: int, pidfd: Descriptor | None) -> None:
        """Note that the process has started."""
        self.pid, self.pidfd = pid, pidfd

    def start_remotely(self, pid: int, place: str, *, stacks: Callable[[], str]) -> None:
        """Note that the worker has started at `place`, and how its stacks are asked for."""
        self.pid, self.place, self._remote_stacks = pid, place, stacks

    def lose(self, how: str) -> None:
        """Note how a remote worker was lost."""
        self.lost = how

    def in_flight(self, thread: int, dispatcher: Any) -> InFlight:
        """Return what a producer works on. A remote worker, whose page is filled here, works on
        the lowest of its tickets."""
        if not self.task.remote or dispatcher is None:
            return self.page.in_flight(thread)
        item = dispatcher.lowest(self.task.number)
        return NOT_IN_FLIGHT if item is None else InFlight(item.ticket, item.number, NO_ITEM)

    def share_stacks_file(self, first: WorkerHandle) -> None:
        """Read the stacks from the file of the process's first handle."""
        self.stacks_file = first.stacks_file

    def follow(self, predecessor: WorkerHandle) -> None:
        """Take over which threads of a dead worker had no more items."""
        self.ended = set(predecessor.ended)

    def exit(self) -> None:
        """Note that the process has ended, and close its channels."""
        self.exited = True
        self.close()

    def close(self) -> None:
        """Close the channels of a worker that is gone or never started. Batches of it may still be
        in use."""
        self.close_worker_ends()
        self._news.close()
        self.work.close()

    def release(self) -> None:
        """Drop all descriptors: the feed was stopped, and no worker is left."""
        self.channels, self.pidfd = CLOSED_CHANNELS, None
        self._stacks = self.stacks_file = CLOSED
        self.reader.close()
        self.borrowed.clear()

    def close_worker_ends(self) -> None:
        """Close the worker's ends, which are the worker's alone now."""
        self.page.segment.close_fd()
        self._returned = CLOSED
        self._worker_news.close()
        self._worker_work.close()

    def open_batch(self, token: Token, *, dispatched: bool) -> tuple[ProducedBatch, bool]:
        """Return the batch that a token announces, and True if it is a copy. `dispatched`: the
        trainer has sent the item to the worker."""
        kind, stream, slot, key, item, rows, room, _ = token
        batch, is_copy = None, False
        if kind != HOLE and slot >= FIRST_BORROWED:
            batch = self.borrowed.take(slot)
        elif kind != HOLE and self.spec is not None:
            batch, is_copy = self.reader.lend(slot, self.spec, rows=rows, room=room)
        if dispatched:
            return ProducedBatch(batch, ONLY_STREAM, f"batch {key}", item), is_copy
        return ProducedBatch(batch, stream, f"batch {item} of producer {stream}", item), is_copy

    def copy_batch(self, token: Token) -> ProducedBatch:
        """Return the batch that a token announces, in memory of its own, and free its slot."""
        produced, is_copy = self.open_batch(token, dispatched=False)
        batch = produced.batch
        return produced if batch is None or is_copy else produced._replace(batch=copied(batch))

    def await_memory(self, slot: int) -> bool:
        """Receive news until the slot can be opened. Return False if the worker died before it had
        sent them."""
        while self.spec is None or not self.has_memory(slot):
            if not self._receive_news():
                return False
        return True

    def has_memory(self, slot: int) -> bool:
        """Return True if the batch in a slot can be opened."""
        return slot >= FIRST_BORROWED or slot in self.reader.mapped

    def adopt_spec(self, spec: BatchSpec | None) -> str:
        """Adopt the spec of all workers. Return how this worker's spec differs, or ""."""
        difference = (
            spec.difference(self.spec) if spec is not None and self.spec is not None else ""
        )
        self.spec_checked, self.spec = True, spec
        self.mismatched = self.mismatched or bool(difference)
        return difference

    def error(self, kind: bytes, *, slot: int = 0) -> tuple[FeedError, int | None]:
        """Return the error that a token refers to, and its ticket. b"E" ends the feed, b"K" was
        skipped."""
        self.failed = self.failed or kind == b"E"
        while not self._errors[kind]:
            if slot == LAST_WORDS or not self._receive_news():
                return self.last_error(), None
        return self._errors[kind].popleft()

    def last_error(self) -> ProducerError:
        """Return the error that the last words of the process tell of."""
        return read_last_words(self.page.last_words)

    def count(self, stream: int, progress: tuple[int, int] | None = None) -> None:
        """Count a batch that has arrived, which moves its stream on to `progress`."""
        self.delivered += 1
        if progress is not None:
            self.progress[stream] = progress

    def end(self, thread: int) -> None:
        """Note that a thread has no more items."""
        self.ended.add(thread)

    def end_epoch(self, thread: int, epoch: int) -> None:
        """Note that a whole epoch of a producer has arrived: all its streams are at the beginning
        of the next one."""
        for stream in range(self.task.producer(thread), len(self.progress), self.task.producers):
            self.progress[stream] = (epoch + 1, 0)

    def kill(self) -> None:
        """Kill the process."""
        pidfd = self.pidfd
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd.fd, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process, also if its exit status is lost. Return True if it has
        ended within the limit."""
        if self.pidfd is None:  # then at least its end of the news socket is closed
            return _readable_within(self._news.fileno(), timeout_s)
        return _readable_within(self.pidfd.fd, timeout_s)

    def request_stacks(self) -> None:
        """Make the process write down where each of its threads is."""
        pidfd, stacks_file = self.pidfd, self.stacks_file
        if pidfd is not None and stacks_file is not CLOSED and not self.exited:
            os.ftruncate(stacks_file.fd, 0)
            os.lseek(stacks_file.fd, 0, os.SEEK_SET)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd.fd, STACKS_SIGNAL)

    def stacks(self) -> str:
        """Describe what the process is doing: its state as the kernel reports it, and its answer to
        `request_stacks`."""
        if self.task.remote:
            return (
                f"remote producer {self.task.index} ({self.place or 'not started'}):\n"
                f"{'  has ended' if self.exited else self._remote_stacks()}"
            )
        head, text = f"worker process {self.task.index} (pid {self.pid or 'not started'}", ""
        with contextlib.suppress(psutil.Error, ValueError):
            head += f", {psutil.Process(self.pid or -1).status()}"
        deadline, stacks_file = time.perf_counter() + STACKS_TIMEOUT_S, self.stacks_file
        if self.exited or stacks_file is CLOSED:
            return f"{head}): has ended"
        while not text.endswith("\n\n") and time.perf_counter() < deadline:
            before, text = text, os.pread(stacks_file.fd, 2**16, 0).decode(errors="replace")
            if text and text == before:
                break
            time.sleep(0.002)
        threads = (thread.split("\n")[1 : MAX_DUMPED_FRAMES + 1] for thread in text.split("\n\n"))
        lines = [_with_code(line) for thread in threads for line in thread]
        return "\n".join((f"{head}):", *(lines or ["  no answer"])))

    def _receive_news(self) -> bool:
        data, fds = receive(self._news, NEWS.size + SHORT_NBYTES, fds=1)
        if not data:
            return False
        kind, nbytes, first, count = NEWS.unpack_from(data)
        if kind == b"S":
            self.reader.add_block(fds, range(first, first + count), slot_nbytes=nbytes)
            return True
        text = data[NEWS.size :]
        if nbytes > SHORT_NBYTES and (fds or kind == b"P"):
            text = bytes(Segment.received(fds, nbytes, writable=False).map)
        if kind == b"P":
            self.spec = cloudpickle.loads(text)
        else:
            self._errors[kind].append(decode_error(text) if text else (self.last_error(), None))
        return True


def _with_code(line: str) -> str:
    """Return a line of faulthandler with the line of code that it names."""
    found = FRAME.match(line)
    code = linecache.getline(found[1], int(found[2])).strip() if found else ""
    return f"{line}\n    {code}" if code else line


def _readable_within(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
