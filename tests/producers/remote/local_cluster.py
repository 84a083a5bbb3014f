"""A cluster of Ray without Ray: its actors run in the threads that read their streams."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import fastfeed
from fastfeed.core.collate import aligned_arrays
from fastfeed.producers.remote.actor import RemoteWorker
from fastfeed.producers.remote.cluster import RayNode


def _carried(group: Any) -> Any:
    """Return a copy whose large arrays lie as in an object store, at multiples of 64."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(group, protocol=5, buffer_callback=buffers.append)
    stored = []
    for raw in map(pickle.PickleBuffer.raw, buffers):
        (memory,) = aligned_arrays([((raw.nbytes,), np.dtype(np.uint8))])
        memory[...] = np.frombuffer(raw, np.uint8)
        stored.append(memoryview(memory).toreadonly())
    return pickle.loads(data, buffers=stored)


class LocalActor:
    """Everything is pickled as on the way to a node. `is_lost` is asked before each group; once it
    has returned True, the actor is lost."""

    def __init__(
        self, tasks: Sequence[dict[str, Any]], given: Sequence[Any], is_lost: Callable[[], bool]
    ) -> None:
        sent = pickle.loads(pickle.dumps(tasks))
        self._worker = RemoteWorker(sent, *given, version=LocalCluster.version, paths=())
        self._is_lost = is_lost
        self._dead = False

    def look(self) -> tuple[int, str]:
        return os.getpid(), "node here"

    def send(self, number: int, message: Any) -> None:
        self._worker.receive(number, pickle.loads(pickle.dumps(message)))

    def groups(self, number: int) -> Iterator[Any]:
        for group in self._worker.run(number):
            self._dead = self._dead or self._is_lost()
            if self._dead:
                break
            yield _carried(group)
        if self._dead:
            raise ConnectionError("The actor is dead because a test has killed it.")

    def stacks(self) -> str:
        return self._worker.stacks()

    def kill(self) -> None:
        """Also end a wait for items or permits, which elsewhere ends with the process."""
        self._dead = True
        for inbox in self._worker.inboxes:
            inbox.stop()


class LocalCluster:
    """Stands in for a RayCluster, where a test patches its name in the module of the fleet.
    `losses` are the groups, counted over all actors, in whose place an actor is lost."""

    version = fastfeed.__version__  # of the trainer

    def __init__(self, losses: Sequence[int] = ()) -> None:
        self._losses = set(losses)
        self.silent: set[str] = set()  # nodes that have died, which the cluster does not know yet
        self.places: list[str | None] = []  # of the actors
        self._groups = 0
        self.actors = 0

    def nodes(self) -> list[RayNode]:
        names = ["here", *sorted(self.silent)]
        return [RayNode(name, "127.0.0.1", 8.0, 8.0 + (name != "here")) for name in names]

    def answers(self, node_id: str) -> bool:
        return node_id not in self.silent

    def store_nbytes(self) -> int:
        return 10**7

    def refuse_too_small(self, cpus: float) -> None:
        """Accept any number: nothing is reserved."""

    def put(self, value: Any) -> Any:
        return np.array(value)

    def start_actor(
        self,
        tasks: Sequence[dict[str, Any]],
        *,
        given: Sequence[Any],
        cpus: float,
        node: str | None,
    ) -> LocalActor:
        self.actors += 1
        self.places.append(node)
        return LocalActor(tasks, given, self._is_lost)

    def _is_lost(self) -> bool:
        self._groups += 1
        return self._groups in self._losses
