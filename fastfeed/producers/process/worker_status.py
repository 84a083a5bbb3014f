"""Status of the producers of a worker process, read from its status page."""

from __future__ import annotations

from collections.abc import Iterator

from fastfeed.core.status import (
    DEAD,
    FINISHED,
    IDLE,
    INPUT,
    MAKING,
    PROCESS,
    REMOTE,
    ROOM,
    STARTING,
    ProducerStatus,
)
from fastfeed.producers.process.dispatch import Dispatcher
from fastfeed.producers.process.handle import WorkerHandle


def producers_of(
    worker: WorkerHandle, dispatcher: Dispatcher | None, *, allowed: int
) -> Iterator[ProducerStatus]:
    """Return the status of each producer of a worker, without a request to it. `allowed`: epochs
    that it may begin."""
    slots = worker.reader.audit()
    full = bool(slots.all) and not slots.free and not slots.filling
    for thread in range(worker.task.threads):
        in_flight, n = worker.in_flight(thread, dispatcher), worker.task.producer(thread)
        yield ProducerStatus(
            kind=REMOTE if worker.task.remote else PROCESS,
            state=_state(worker, thread, dispatcher=dispatcher, full=full, allowed=allowed),
            worker=worker.task.index,
            pid=worker.pid,
            tid=0,
            stream=-1 if dispatcher is not None else n,
            item=in_flight.item,
            record=in_flight.record,
            counters=worker.page.row(thread),
            where=worker.place,
        )


def _state(
    worker: WorkerHandle, thread: int, *, dispatcher: Dispatcher | None, full: bool, allowed: int
) -> int:
    """Return the state as far as it is known: what a worker waits for inside is not."""
    if thread in worker.ended:
        return FINISHED
    if worker.exited:
        return DEAD
    if not worker.pid:
        return STARTING
    if full:
        return ROOM
    if dispatcher is None:
        begun = worker.progress[worker.task.producer(thread)][0]
        return IDLE if begun >= allowed else MAKING
    if dispatcher.has(worker.task.number, worker.in_flight(thread, dispatcher).key):
        return MAKING
    return ROOM if dispatcher.held else INPUT
