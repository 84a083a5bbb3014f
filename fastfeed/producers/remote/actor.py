"""The class of the actors: everything that happens on the producers' nodes."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

import fastfeed
from fastfeed.errors import FeedError, OptionError
from fastfeed.producers.generators import Generators
from fastfeed.producers.inbox import Inbox
from fastfeed.producers.loop import Producer
from fastfeed.producers.process.main import (
    WorkerTask,
    keep_freed_memory,
    producers_of,
    setup_failure,
)
from fastfeed.producers.process.ship import unpack_from
from fastfeed.producers.remote.remote_outlet import MessageGroup, RemoteOutlet

STACK_FRAMES = 4
CONTROL = "control"  # the group of the short calls
# The kind of a reply of the dispatcher, and its content: permits, items or their pickle, and after
# the last one, how many there were.
Dispatched = tuple[bytes, Any]
_UNPACKING = threading.Lock()  # what unpacks, looks for the generators that it has made
Method = TypeVar("Method", bound=Callable[..., Any])


def short(method: Method) -> Method:
    """Have Ray call a method in a thread of its own, in the order of the calls, whatever the
    producers do. The attribute is the one that `ray.method` sets; a client of Ray cannot choose
    the group at the call."""
    vars(method)["__ray_concurrency_group__"] = CONTROL
    return method


class RemoteWorker:
    """A worker on another node, with a producer for each of the tasks of a trainer, whose packed
    sources are `shipments`.

    The trainer has `version` of fastfeed. Modules are imported from its `paths`, too, which exist
    here on the same machine or a shared disk.
    """

    def __init__(
        self,
        tasks: Sequence[dict[str, Any]],
        *shipments: np.ndarray[Any, Any],
        version: str,
        paths: Sequence[str],
    ) -> None:
        keep_freed_memory()
        sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))
        self._tasks = [WorkerTask(**message) for message in tasks]
        self._shipments = shipments
        self._version = version
        self.inboxes = [Inbox(allowed=task.allowed) for task in self._tasks]
        self._groups: dict[int, Iterator[MessageGroup]] = {}
        self._unpacked: list[tuple[Any, Generators] | BaseException] = []
        self._threads: dict[int, int] = {}
        Generators().seed(self._tasks[0].draw_key)

    @short
    def hello(self) -> tuple[int, str, str]:
        """Return the process id, and the address and the name of the node."""
        ray = sys.modules.get("ray")
        if ray is None:
            return os.getpid(), "here", "here"
        node = ray.get_runtime_context().get_node_id()
        return os.getpid(), str(ray.util.get_node_ip_address()), str(node)

    @short
    def receive(self, number: int, message: Dispatched) -> None:
        """Take what the dispatcher sends for a task. Calls may overtake each other."""
        (kind, content), inbox = message, self.inboxes[number]
        if kind == b"A":
            inbox.allow(content)
        elif kind == b"E":
            inbox.end(content)
        else:
            inbox.put(pickle.loads(content) if isinstance(content, bytes) else content)

    @short
    def stacks(self) -> str:
        """Return where the producers are, as text."""
        frames = sys._current_frames()
        lines = [
            line
            for ident in list(self._threads.values())
            for line in traceback.format_stack(frames.get(ident))[-STACK_FRAMES:]
        ]
        return "".join(lines).rstrip()

    def run(self, number: int) -> Iterator[MessageGroup]:
        """Yield the messages of a task's producer, until its shares are done."""
        self._threads[number] = threading.get_ident()
        task, inbox = self._tasks[number], self.inboxes[number]
        place = f"on node {self.hello()[1]}, process {os.getpid()}"
        outlet = RemoteOutlet(ordered=task.dispatched, place=place, admit=inbox.admit)
        for _ in self._steps(number, outlet):
            if outlet.due(idle=task.dispatched and inbox.empty):
                start = time.perf_counter()
                yield outlet.take()
                # Ray copies the group, and waits until the trainer has taken earlier ones.
                outlet.resume(time.perf_counter() - start)
        yield outlet.take()

    def more(self, number: int) -> MessageGroup | None:
        """Return the next group of `run`, or None after the last. For a trainer that cannot read
        streams, as a client of Ray."""
        if number not in self._groups:
            self._groups[number] = self.run(number)
        return next(self._groups[number], None)

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
        if fastfeed.__version__ != self._version:
            raise OptionError(
                f"fastfeed {self._version} here, and {fastfeed.__version__} on the node of a "
                "remote producer: install the same version on every node"
            )
        with _UNPACKING:
            self._unpacked = self._unpacked or self._unpack()
        found = self._unpacked[number]
        if isinstance(found, BaseException):
            raise found
        shipped, own = found
        (producer,) = producers_of(
            self._tasks[number],
            shipped,
            inbox=self.inboxes[number],
            outlets=[outlet],
            exclusive=len(self._tasks) == 1,
            generators=own,
        )
        return producer

    def _unpack(self) -> list[tuple[Any, Generators] | BaseException]:
        """Return the source of each task with the generators that it holds, or the error. No
        producer runs yet: the generators that its code makes would count among them."""
        every: list[tuple[Any, Generators] | BaseException] = []
        collects = gc.isenabled()
        gc.disable()
        try:
            for shipment in self._shipments:
                present = Generators.present()
                try:
                    shipped = unpack_from(memoryview(shipment.data).cast("B"))
                    every.append((shipped, Generators.made_since(present, within=shipped)))
                except BaseException as error:  # unpickling runs code of the user's classes
                    every.append(error)
        finally:
            if collects:
                gc.enable()
        return every
