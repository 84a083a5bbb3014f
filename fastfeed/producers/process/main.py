"""Main function of a worker process: everything between the fork and the exit."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

from fastfeed.core.worker import Worker
from fastfeed.errors import FeedError, OptionError
from fastfeed.producers.builder import BatchBuilder, Outlet
from fastfeed.producers.generators import Generators
from fastfeed.producers.inbox import Inbox, InboxSource
from fastfeed.producers.loop import Producer, run_with_low_priority
from fastfeed.producers.process.data_changes import apply_changes
from fastfeed.producers.process.outlet import RingOutlet
from fastfeed.producers.process.ship import by_value, unpack
from fastfeed.producers.process.work_socket import SocketInbox
from fastfeed.ring.layout import MemoryShare
from fastfeed.ring.memory import Segment
from fastfeed.ring.status_page import StatusPage
from fastfeed.ring.writer import RingChannels, RingWriter
from fastfeed.source import CallableSource, Source, source_from

LOG = logging.getLogger("fastfeed")
SEEDED = "seed= seeds %d random generators of the source in each worker: copies would draw alike"
Run = tuple[Callable[[Producer], None], Producer]
KEPT: list[Any] = []  # channels that are closed by the end of the process
STACKS_SIGNAL = signal.SIGRTMAX - 3  # no library is known to use it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
TRIM_NBYTES, MMAP_NBYTES = 2**27, 2**25  # glibc accepts no larger mmap threshold


@dataclass(frozen=True)
class WorkerTask:
    """Task of one worker process for one feed. It runs `threads` of the feed's `producers`, which
    share `count` streams, from number `first` on. `skip` holds, for each stream (and each producer
    without one), the epochs and the items of the next one that were produced before."""

    number: int
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
    capped: bool = False
    first: int = 0
    remote: bool = False

    @property
    def draw_key(self) -> tuple[int, ...]:
        """What the draws of the process depend on, before its first item."""
        return (self.seed, self.first_epoch, self.rank, self.index, self.number)

    def producer(self, thread: int) -> int:
        """Return the number of a producer among all of the feed's."""
        return self.first + thread

    def streams(self, thread: int) -> range:
        """Return the streams of a producer."""
        return range(self.producer(thread), self.count, self.producers)

    def message(self) -> dict[str, Any]:
        """Return the task as JSON types."""
        return asdict(self)


# The descriptors of a worker, in the order in which they are sent.
DESCRIPTORS = ("page", "returned", "tokens", "stop", "news", "work", "stacks", "shipment")


def main(message: dict[str, Any], fds: Sequence[int]) -> int:
    """Run a worker's producers until their shares are done or the trainer stops them. Return the
    exit code.

    The first task is the training's. The tasks of feeds that share the process run at lower
    priority.
    """
    keep_freed_memory()
    ForkingPickler.reducer_override = by_value  # type: ignore[method-assign,unused-ignore]
    first = WorkerTask(**message["tasks"][0])
    Generators().seed(first.draw_key)  # unpickling may draw
    exclusive = len(message["tasks"]) == 1 and first.threads == 1
    runs: list[Run] = []
    for number, task in enumerate(WorkerTask(**task) for task in message["tasks"]):
        channels = dict(zip(DESCRIPTORS, fds[number * len(DESCRIPTORS) :], strict=False))
        if not number:  # faulthandler shows even native code that never returns
            faulthandler.register(STACKS_SIGNAL, file=channels["stacks"], all_threads=True)
        work, stop = socket.socket(fileno=channels["work"]), channels["stop"]
        inbox = SocketInbox(work, stop, threads=task.threads, allowed=task.allowed)
        outlets, _ = ring_outlets(task, channels, admit=inbox.admit)
        KEPT.append((outlets, inbox))
        gc.disable()  # it would go over all that is unpickled, again and again
        try:
            present = Generators.present()
            shipped = unpack(channels["shipment"], task.nbytes)
            own = Generators.made_since(present, within=shipped, adopts=True)
            found = producers_of(
                task, shipped, inbox=inbox, outlets=outlets, exclusive=exclusive, generators=own
            )
            runs += [(run_with_low_priority if number else Producer.run, p) for p in found]
        except BaseException as error:  # unpickling runs code of the user's classes
            outlets[0].fail(
                error if isinstance(error, FeedError) else OptionError(setup_failure(error)), None
            )
            if not number:
                return 1
        finally:
            gc.freeze()  # a large data set is not searched for garbage
            gc.enable()
    threads = [
        threading.Thread(target=_run_visibly, args=run, name=f"producer-{n}")
        for n, run in enumerate(runs[1:], start=1)
    ]
    for thread in threads:
        thread.start()
    run, producer = runs[0]
    run(producer)
    for thread in threads:
        thread.join()
    return 0


def ring_outlets(
    task: WorkerTask, channels: dict[str, int], *, admit: Callable[[int], bool]
) -> tuple[list[RingOutlet], socket.socket]:
    """Return an outlet into the ring for each producer of a task, and the socket of its news."""
    page = StatusPage(Segment(channels["page"], StatusPage.nbytes(task.threads)), task.threads)
    news = socket.socket(fileno=channels["news"])
    writer = RingWriter(
        page,
        RingChannels(channels["returned"], channels["tokens"], news, channels["stop"]),
        share=MemoryShare(task.budget, task.wanted, task.threads, capped=task.capped),
        number=task.number,
    )
    epochs = [task.skip[task.producer(thread)][0] for thread in range(task.threads)]
    made = partial(
        RingOutlet, writer, ordered=task.dispatched, admit=admit, beside=task.threads > 1
    )
    return [made(thread, epoch=epoch) for thread, epoch in enumerate(epochs)], news


def producers_of(
    task: WorkerTask,
    shipped: Any,
    *,
    inbox: Inbox,
    outlets: Sequence[Outlet],
    exclusive: bool,
    generators: Generators | None = None,
) -> list[Producer]:
    """Return the producers of a task, given the source and the options that were shipped. With
    `dispatched`, the items come from `inbox`. `exclusive`: no other producer
    shares the process."""
    given, options = shipped
    source = None if task.dispatched else source_from(given, options)
    if isinstance(source, CallableSource):
        owners = {n: one for thread, one in enumerate(outlets) for n in task.streams(thread)}
        source.compare = lambda stream, item, *, digest: owners[stream].compare(
            stream, item, digest=digest
        )
    generators = generators or Generators()
    generators.seed(task.draw_key)
    if generators.held and not task.number:
        say = LOG.warning if options.seed is None else LOG.info
        say(SEEDED, len(generators.held))
    # All threads of a process share its generators: they are seeded for each item only if there is
    # one thread.
    reader = given if source is None else source.reader
    inbox.change = partial(apply_changes, reader.data)
    builder = BatchBuilder(reader, options, generators=generators if exclusive else None)
    producers = []
    for thread, outlet in enumerate(outlets):
        own: Source = source or InboxSource(reader, inbox, outlet=outlet)
        workers = [
            Worker(n, task.count, task.seed, task.first_epoch, passed=task.skip[n][1])
            for n in task.streams(thread)
        ]
        epochs = range(task.first_epoch, task.first_epoch + task.epochs)
        skip = task.skip[task.producer(thread)][0]
        producers.append(
            Producer(workers, source=own, builder=builder, outlet=outlet, epochs=epochs, skip=skip)
        )
    return producers


def _run_visibly(run: Callable[[Producer], None], producer: Producer) -> None:
    """Run a producer in a thread. What it could not report ends the process, which is seen."""
    try:
        run(producer)
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
        os._exit(1)


def keep_freed_memory() -> None:
    """Keep freed memory in the heap. glibc returns large arrays to the system after every batch,
    and the page faults of the next one cost more than copying: images/s of a worker that decodes
    photographs rose by a third with these thresholds."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_NBYTES)
        libc.mallopt(M_TRIM_THRESHOLD, TRIM_NBYTES)


def setup_failure(error: BaseException) -> str:
    """Return the text for a source that fails before its first item."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return f"the source could not be set up in a worker process:\n{text.rstrip()}"
