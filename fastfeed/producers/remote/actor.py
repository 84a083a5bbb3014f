"""The class of the actors: everything that happens on the producers' nodes."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import fastfeed
from fastfeed.errors import FeedError, OptionError
from fastfeed.producers.loop import Producer
from fastfeed.producers.process.main import (
    WorkerTask,
    keep_freed_memory,
    producers_of,
    reseed,
    setup_failure,
)
from fastfeed.producers.process.ship import unpack_from
from fastfeed.producers.remote.messages import MessageGroup
from fastfeed.producers.remote.remote_inbox import RemoteInbox, RemotePermit
from fastfeed.producers.remote.remote_outlet import RemoteOutlet

STACK_FRAMES = 4


class RemoteWorker:
    """A worker on another node: one producer for each task, which the trainer runs as a stream.

    `version` is the trainer's fastfeed, and `shipments` hold the packed source of each task.
    """

    def __init__(
        self, messages: Sequence[dict[str, Any]], version: str, *shipments: np.ndarray[Any, Any]
    ) -> None:
        keep_freed_memory()
        self._tasks = [WorkerTask(**message) for message in messages]
        self._version = version
        self._shipments = shipments
        self._controls: list[RemoteInbox | RemotePermit] = [
            RemoteInbox() if task.dispatched else RemotePermit(task.allowed) for task in self._tasks
        ]
        self._groups: dict[int, Iterator[MessageGroup]] = {}
        self._threads: dict[int, int] = {}
        first = self._tasks[0]
        reseed((first.seed, first.first_epoch, first.rank, first.index, first.number))

    def run(self, number: int) -> Iterator[MessageGroup]:
        """Yield the messages of the producer of task `number`, until its shares are done."""
        task, control = self._tasks[number], self._controls[number]
        self._threads[number] = threading.get_ident()
        outlet = RemoteOutlet(ordered=task.dispatched, place=self._place(), admit=control.admit)
        steps = self._steps(number, outlet)
        for _ in steps:
            if outlet.due(idle=control.empty):
                start = time.perf_counter()
                yield outlet.take()
                # Ray copies the group, and waits until the trainer has taken earlier ones.
                outlet.row.wait_out_s += time.perf_counter() - start
        yield outlet.take()

    def more(self, number: int) -> MessageGroup | None:
        """Return the next group of `run`, or None after the last. For a trainer that cannot read
        streams, as a client of Ray."""
        if number not in self._groups:
            self._groups[number] = self.run(number)
        return next(self._groups[number], None)

    def deliver(self, number: int, content: Any) -> None:
        """Take items for task `number`: a list, or its pickle; None after the last."""
        inbox = self._controls[number]
        assert isinstance(inbox, RemoteInbox)
        if content is None:
            inbox.end()
        else:
            inbox.put(pickle.loads(content) if isinstance(content, bytes) else content)

    def allow(self, number: int, epochs: int) -> None:
        """Let `epochs` epochs in all of task `number` begin."""
        permit = self._controls[number]
        assert isinstance(permit, RemotePermit)
        permit.allow(epochs)

    def hello(self) -> tuple[int, str]:
        """Return the process id and the address of the node: the actor is there."""
        import ray

        return os.getpid(), str(ray.util.get_node_ip_address())

    def stacks(self) -> str:
        """Return where the producers are, as text."""
        frames = sys._current_frames()
        lines = [
            line
            for ident in list(self._threads.values())
            for line in traceback.format_stack(frames.get(ident))[-STACK_FRAMES:]
        ]
        return "".join(lines).rstrip()

    def _steps(self, number: int, outlet: RemoteOutlet) -> Iterator[None]:
        try:
            producer = self._producer(number, outlet)
        except BaseException as error:  # unpickling runs code of the user's classes
            failure = error if isinstance(error, FeedError) else OptionError(setup_failure(error))
            outlet.fail(failure, None)
            outlet.end()
            return
        yield from producer.steps()

    def _producer(self, number: int, outlet: RemoteOutlet) -> Producer:
        task, version = self._tasks[number], fastfeed.__version__
        if version != self._version:
            raise OptionError(
                f"fastfeed {self._version} here, and {version} on the node of a remote "
                "producer: install the same version on every node"
            )
        shipped = unpack_from(memoryview(self._shipments[number].data).cast("B"))
        (producer,) = producers_of(
            task,
            shipped,
            control=self._controls[number],
            outlets=[outlet],
            exclusive=len(self._tasks) == 1,
        )
        return producer

    def _place(self) -> str:
        pid, address = self.hello()
        return f"on node {address}, process {pid}"
