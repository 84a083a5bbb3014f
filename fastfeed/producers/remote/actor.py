"""The class of the actors: everything that happens on the producers' nodes."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

import fastfeed
from fastfeed.errors import FeedError, OptionError, StateError
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
LEASE_CHECK_S = 0.5
CONTROL = "control"  # the group of the short calls
MAX_STREAMS = 32  # of an actor that several trainers share, each in a thread of its own
DROPPED = "a remote producer has not heard of this trainer for too long"
TaskKey = tuple[str, int]  # of a trainer, and of a task among its own


Method = TypeVar("Method", bound=Callable[..., Any])


def short(method: Method) -> Method:
    """Have Ray call a method in a thread of its own, in the order of the calls, whatever the
    producers do. The attribute is the one that `ray.method` sets; a client of Ray cannot choose
    the group at the call."""
    vars(method)["__ray_concurrency_group__"] = CONTROL
    return method


class RemoteJob(NamedTuple):
    """A task of a trainer, its packed source, and what the trainer sends for it. `exclusive`: no
    other producer shares the process."""

    task: WorkerTask
    version: str
    shipment: np.ndarray[Any, Any]
    inbox: Inbox
    exclusive: bool


class RemoteWorker:
    """A worker on another node, with one producer for each task that a trainer attaches.

    With `lease_s` it belongs to several trainers: one that is silent for so long is dropped, and
    the process ends when none is left. Otherwise it ends with its only trainer.
    """

    def __init__(self, lease_s: float | None = None) -> None:
        keep_freed_memory()
        self._lease_s = lease_s
        self._jobs: dict[TaskKey, RemoteJob] = {}
        self._attached = threading.Condition()
        self._groups: dict[TaskKey, Iterator[MessageGroup]] = {}
        self._threads: dict[TaskKey, int] = {}
        self._early: dict[TaskKey, list[Callable[[], None]]] = {}  # calls that overtook its task
        self._heard_s: dict[str, float] = {}  # by trainer
        self._dropped: set[str] = set()  # trainers
        if lease_s is not None:
            threading.Thread(target=self._watch, args=(lease_s,), daemon=True).start()

    @short
    def attach(
        self,
        trainer: str,
        tasks: Sequence[dict[str, Any]],
        *shipments: Any,
        version: str,
        paths: Sequence[str],
    ) -> tuple[int, str, str]:
        """Take the tasks of a trainer, whose fastfeed is `version`, with the packed source of each.
        Modules are imported from its `paths`, too, which exist here on the same machine or a shared
        disk. Return the process id, and the address and the name of the node."""
        if self._lease_s is not None and len(self._jobs) + len(tasks) > MAX_STREAMS:
            raise OptionError(
                f"{MAX_STREAMS} trainers and validations share a remote producer already: give a "
                "part of the ranks a namespace of Ray of its own"
            )
        sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))
        alone = len(tasks) == 1 and self._lease_s is None
        with self._attached:
            if trainer in self._dropped:
                raise StateError(DROPPED)
            for number, (message, shipment) in enumerate(zip(tasks, shipments, strict=True)):
                task = WorkerTask(**message)
                inbox = Inbox(allowed=task.allowed)
                self._jobs[trainer, number] = RemoteJob(task, version, shipment, inbox, alone)
                if not number:
                    Generators().seed(task.draw_key)
            self._heard_s[trainer] = time.monotonic()
            self._attached.notify_all()
        for number in range(len(tasks)):
            for call in self._early.pop((trainer, number), ()):
                call()
        return os.getpid(), *self._node()

    @short
    def renew(self, trainer: str) -> None:
        """Note that a trainer is alive."""
        self._heard_s[trainer] = time.monotonic()

    @short
    def detach(self, trainer: str) -> None:
        """End the producers of a trainer, each before its next item."""
        with self._attached:
            self._heard_s.pop(trainer, None)
            self._dropped.add(trainer)
            for key in [key for key in self._jobs if key[0] == trainer]:
                self._jobs.pop(key).inbox.stop()
                self._threads.pop(key, None)
                self._groups.pop(key, None)
            for key in [key for key in self._early if key[0] == trainer]:
                self._early.pop(key)
            self._attached.notify_all()  # who waits in vain for a task of it

    def run(self, trainer: str, number: int) -> Iterator[MessageGroup]:
        """Yield the messages of a task's producer, until its shares are done."""
        key = trainer, number
        with self._attached:
            self._heard_s.setdefault(trainer, time.monotonic())  # its task may never come
            while key not in self._jobs and trainer not in self._dropped:
                self._attached.wait()
            if trainer in self._dropped:
                self._heard_s.pop(trainer, None)
                raise StateError(DROPPED)
            job = self._jobs[key]
            self._threads[key] = threading.get_ident()
        inbox = job.inbox
        outlet = RemoteOutlet(ordered=job.task.dispatched, place=self._place(), admit=inbox.admit)
        for _ in self._steps(job, outlet):
            if inbox.stopped:
                break
            if outlet.due(idle=job.task.dispatched and inbox.empty):
                start = time.perf_counter()
                yield outlet.take()
                # Ray copies the group, and waits until the trainer has taken earlier ones.
                outlet.resume(time.perf_counter() - start)
        if inbox.stopped:
            raise StateError(DROPPED)
        yield outlet.take()

    def more(self, trainer: str, number: int) -> MessageGroup | None:
        """Return the next group of `run`, or None after the last. For a trainer that cannot read
        streams, as a client of Ray."""
        key = trainer, number
        if key not in self._groups:
            self._groups[key] = self.run(trainer, number)
        return next(self._groups[key], None)

    @short
    def deliver(self, trainer: str, number: int, *, content: Any) -> None:
        """Take items for a task: a list, or its pickle; after the last one, how many there were.
        Calls for several tasks may overtake each other, and `attach`."""
        job = self._job(
            trainer, number, later=partial(self.deliver, trainer, number, content=content)
        )
        if job is None:
            return
        if isinstance(content, int):
            job.inbox.end(content)
        else:
            job.inbox.put(pickle.loads(content) if isinstance(content, bytes) else content)

    @short
    def allow(self, trainer: str, number: int, *, epochs: int) -> None:
        """Let `epochs` epochs in all of a task begin."""
        job = self._job(trainer, number, later=partial(self.allow, trainer, number, epochs=epochs))
        if job is not None:
            job.inbox.allow(epochs)

    @short
    def hello(self) -> None:
        """Answer: the actor is alive."""

    @short
    def stacks(self, trainer: str) -> str:
        """Return where the producers of a trainer are, as text."""
        frames = sys._current_frames()
        lines = [
            line
            for key, ident in list(self._threads.items())
            if key[0] == trainer
            for line in traceback.format_stack(frames.get(ident))[-STACK_FRAMES:]
        ]
        return "".join(lines).rstrip()

    def _job(self, trainer: str, number: int, *, later: Callable[[], None]) -> RemoteJob | None:
        """Return a job; or None, and have `attach` call `later`, if it has not come yet."""
        key = trainer, number
        with self._attached:
            if key not in self._jobs and trainer not in self._dropped:
                self._early.setdefault(key, []).append(later)
            return self._jobs.get(key)

    def _watch(self, lease_s: float) -> None:
        """Drop trainers that are silent, and end the process when there was none for a while."""
        last_s = time.monotonic()
        while True:
            time.sleep(LEASE_CHECK_S)
            now = time.monotonic()
            for trainer, heard_s in list(self._heard_s.items()):
                if now - heard_s > lease_s:
                    self.detach(trainer)
            last_s = now if self._heard_s else last_s
            if now - last_s > lease_s:
                os._exit(0)

    def _steps(self, job: RemoteJob, outlet: RemoteOutlet) -> Iterator[None]:
        try:
            producer = self._producer(job, outlet)
        except BaseException as error:  # unpickling runs code of the user's classes
            failure = error if isinstance(error, FeedError) else OptionError(setup_failure(error))
            outlet.fail(failure, None)
            outlet.end()
            return
        yield from producer.steps()

    def _producer(self, job: RemoteJob, outlet: RemoteOutlet) -> Producer:
        version = fastfeed.__version__
        if version != job.version:
            raise OptionError(
                f"fastfeed {job.version} here, and {version} on the node of a remote producer: "
                "install the same version on every node"
            )
        shipped = unpack_from(memoryview(job.shipment.data).cast("B"))
        (producer,) = producers_of(
            job.task, shipped, inbox=job.inbox, outlets=[outlet], exclusive=job.exclusive
        )
        return producer

    def _node(self) -> tuple[str, str]:
        ray = sys.modules.get("ray")
        if ray is None:
            return "here", "here"
        return str(ray.util.get_node_ip_address()), str(ray.get_runtime_context().get_node_id())

    def _place(self) -> str:
        return f"on node {self._node()[0]}, process {os.getpid()}"
