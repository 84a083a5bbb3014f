"""A worker process, from the fork to the end. It follows the trainer's orders and leaves nothing
behind."""

from __future__ import annotations

import ctypes
import faulthandler
import random
import signal
import socket
import threading
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fastfeed.core.worker import Worker
from fastfeed.errors import FeedError, OptionError
from fastfeed.producers.builder import BatchBuilder
from fastfeed.producers.loop import Producer, run_politely
from fastfeed.producers.process.inbox import EpochPermit, Inbox, InboxSource
from fastfeed.producers.process.outlet import RingOutlet
from fastfeed.producers.process.ship import unpack
from fastfeed.ring.layout import MemoryShare
from fastfeed.ring.memory import Segment
from fastfeed.ring.status_page import StatusPage
from fastfeed.ring.writer import RingChannels, RingWriter
from fastfeed.source import Source, source_from

STACKS_SIGNAL = signal.SIGRTMAX - 3  # no library is known to use it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_NBYTES, MMAP_NBYTES = 2**27, 2**25  # glibc accepts no larger mmap threshold


@dataclass(frozen=True)
class WorkerTask:
    """What one worker process does. Its producers are `threads` of `producers` in all, which share
    `count` streams; `skip` holds, for each stream (and each producer without one), the epochs and
    the items of the next one that were produced before."""

    lane: int
    index: int
    count: int
    producers: int
    threads: int
    seed: int
    first_epoch: int
    epochs: int
    skip: tuple[tuple[int, int], ...]
    dispatched: bool
    rank: int
    allowed: int
    budget: int
    wanted: int
    nbytes: int

    def producer(self, thread: int) -> int:
        """Return the number of a producer among all of the feed's."""
        return self.index * self.threads + thread

    def streams(self, thread: int) -> range:
        """Return the streams of a producer."""
        return range(self.producer(thread), self.count, self.producers)

    def message(self) -> dict[str, Any]:
        """Return the task as a dict for JSON."""
        return asdict(self)


# The descriptors of a worker, in this order.
DESCRIPTORS = ("board", "returned", "tokens", "stop", "news", "work", "stacks", "shipment")


def main(message: dict[str, Any], fds: Sequence[int]) -> int:
    """Run the producers of a worker until their shares are made or the trainer stops them; return
    the exit code.

    The first task is the training's. Those of feeds that share the process give way to it where
    cores are scarce.
    """
    _keep_heap()
    first = WorkerTask(**message["tasks"][0])
    _reseed((first.seed, first.first_epoch, first.rank, first.index, first.lane))
    exclusive = len(message["tasks"]) == 1 and first.threads == 1
    producers: list[Producer] = []
    polite: list[Producer] = []
    for number, task in enumerate(WorkerTask(**task) for task in message["tasks"]):
        ends = dict(zip(DESCRIPTORS, fds[number * len(DESCRIPTORS) :], strict=False))
        if not number:  # with this even native code that never returns can be asked where it is
            faulthandler.register(STACKS_SIGNAL, file=ends["stacks"], all_threads=True)
        outlets, orders = _outlets(task, ends)
        try:
            found = _producers(
                task, ends["shipment"], orders=orders, outlets=outlets, exclusive=exclusive
            )
            (polite if number else producers).extend(found)
        # the user's own classes may raise anything while they are unpickled
        except BaseException as error:
            outlets[0].fail(
                error if isinstance(error, FeedError) else OptionError(_shown(error)), None
            )
            if not number:
                return 1
    _run(producers, polite)
    return 0


def _outlets(
    task: WorkerTask, ends: dict[str, int]
) -> tuple[list[RingOutlet], Inbox | EpochPermit]:
    board = StatusPage(Segment(ends["board"], StatusPage.nbytes(task.threads)), task.threads)
    writer = RingWriter(
        board,
        RingChannels(
            ends["returned"], ends["tokens"], socket.socket(fileno=ends["news"]), ends["stop"]
        ),
        share=MemoryShare(task.budget, task.wanted, task.threads),
        lane=task.lane,
    )
    work = socket.socket(fileno=ends["work"])
    orders: Inbox | EpochPermit = EpochPermit(work, ends["stop"], allowed=task.allowed)
    if task.dispatched:
        orders = Inbox(work, ends["stop"], threads=task.threads)
    return [
        RingOutlet(
            writer,
            t,
            ordered=task.dispatched,
            epoch=task.skip[task.producer(t)][0],
            admit=orders.admit,
        )
        for t in range(task.threads)
    ], orders


def _producers(
    task: WorkerTask,
    shipment: int,
    *,
    orders: Inbox | EpochPermit,
    outlets: Sequence[RingOutlet],
    exclusive: bool,
) -> list[Producer]:
    given, options = unpack(shipment, task.nbytes)
    source = given if task.dispatched else source_from(given, options)
    # All threads of a process share its generators: they are seeded for each item only if there is
    # one thread.
    maker = BatchBuilder(source, options, reseed=_reseed if exclusive else None)
    producers = []
    for thread, outlet in enumerate(outlets):
        own: Source = (
            InboxSource(given, orders, outlet=outlet) if isinstance(orders, Inbox) else source
        )
        workers = [
            Worker(n, task.count, task.seed, task.first_epoch, passed=task.skip[n][1])
            for n in task.streams(thread)
        ]
        epochs, skip = (
            range(task.first_epoch, task.first_epoch + task.epochs),
            task.skip[task.producer(thread)][0],
        )
        producers.append(
            Producer(workers, source=own, maker=maker, outlet=outlet, epochs=epochs, skip=skip)
        )
    return producers


def _run(producers: Sequence[Producer], polite: Sequence[Producer]) -> None:
    """Run all producers; a single one needs no thread beside the main one."""
    threads = [
        threading.Thread(target=p.run, name=f"producer-{n}")
        for n, p in enumerate(producers[1:], start=1)
    ]
    threads += [
        threading.Thread(target=run_politely, args=(p,), name=f"also-{n}")
        for n, p in enumerate(polite)
    ]
    for thread in threads:
        thread.start()
    producers[0].run()
    for thread in threads:
        thread.join()


def _keep_heap() -> None:
    """Keep freed memory: glibc returns large arrays to the system after every batch, and the pages
    of the next one cost more than copying. Images/s of a worker that decodes photographs rose by a
    third with these thresholds."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_NBYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_NBYTES)


def _reseed(key: tuple[int, ...]) -> None:
    """Seed the generators of this process: forked processes share their state, and would all draw
    the same numbers. An item that is made again, elsewhere or later, draws the same."""
    mixed = hash(key) & 2**64 - 1  # the hash of a tuple of integers is the same in every process
    np.random.seed(mixed & 2**32 - 1)  # seeding with two integers takes three times as long
    random.seed(mixed)


def _shown(error: BaseException) -> str:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return f"the source could not be set up in a worker process:\n{text.rstrip()}"
