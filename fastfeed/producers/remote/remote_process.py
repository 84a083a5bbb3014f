"""An actor, with the relays that read its streams: a remote worker as its fleet sees it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import fastfeed
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.producers.process.ship import Shipment
from fastfeed.producers.remote.actor import RemoteWorker
from fastfeed.producers.remote.cluster import RayCluster
from fastfeed.producers.remote.item_courier import ItemCourier
from fastfeed.producers.remote.messages import MessageGroup
from fastfeed.producers.remote.relay import Relay
from fastfeed.ring.memory import Segment

# Groups of one producer in the object store. Twice as many brought 1 % more bytes per second.
STORED_GROUPS = 2
LOOK_S = 1.0  # an object that does not come for so long may have died with its node
ANSWER_S = 0.5  # of a healthy actor, which answers within milliseconds
JOIN_RELAY_S = 1.0
CONTROL = "control"


class Shipper:
    """Puts packed sources into the object store, each once."""

    def __init__(self, cluster: RayCluster) -> None:
        self._ray = cluster.ray
        self._refs: dict[int, tuple[Shipment, Any]] = {}

    def ship(self, shipment: Shipment) -> Any:
        """Return the reference to a packed source."""
        if id(shipment) not in self._refs:
            memory = Segment(shipment.fd, shipment.nbytes, writable=False).map
            ref = self._ray.put(np.frombuffer(memory, np.uint8))
            self._refs[id(shipment)] = shipment, ref
        return self._refs[id(shipment)][1]


class RemoteProcess:
    """An actor and its handles, which start and end together. `ended` is called once, in a thread
    of a relay, when no stream of it is left."""

    def __init__(
        self,
        handles: Sequence[WorkerHandle],
        cluster: RayCluster,
        *,
        ended: Callable[[RemoteProcess], None],
    ) -> None:
        self.handles = handles
        self.couriers: list[ItemCourier] = []
        self.lost = ""  # the reason, if it did not end by itself
        self.started = False
        self.created_s = time.perf_counter()
        self._ray = cluster.ray
        self._streams = not cluster.is_client
        self._ended = ended
        self._relays: list[Relay] = []
        self._actor: Any = None
        self._hello: Any = None
        self._lock = threading.Lock()
        self._open = len(handles)  # streams that have not ended

    def spawn(self, shipper: Shipper, *, node: str | None, cpus: float) -> None:
        """Create the actor, which Ray starts as soon as there is room."""
        shipments = [shipper.ship(handle.channels.shipment) for handle in self.handles]
        tasks = [handle.task.message() for handle in self.handles]
        self._actor = self._kind(node, cpus).remote(tasks, fastfeed.__version__, *shipments)
        self._hello = self._actor.hello.options(concurrency_group=CONTROL).remote()
        try:
            for number, handle in enumerate(self.handles):
                courier = ItemCourier(
                    handle,
                    deliver=partial(self._deliver, number),
                    allow=partial(self._allow, number),
                )
                self.couriers.append(courier)
                groups = self._groups(number)
                self._relays.append(Relay(handle, groups, courier=courier, ended=self._note_end))
        finally:
            for handle in self.handles:
                handle.close_worker_ends()
        for relay in self._relays:
            relay.thread.start()

    def look(self) -> None:
        """Note that the actor has started, if it has."""
        if self.started or not self._ray.wait([self._hello], timeout=0)[0]:
            return
        with contextlib.suppress(self._ray.exceptions.RayError):  # the relay meets it, too
            pid, address = self._ray.get(self._hello)
            self.started = True
            for handle in self.handles:
                handle.start_remotely(pid, f"node {address}", stacks=self._stacks)

    def end(self) -> None:
        """Kill the actor, and wait for its relays."""
        if self._actor is not None:
            with contextlib.suppress(Exception):  # it is dead, or the connection is
                self._ray.kill(self._actor)
        deadline = time.perf_counter() + JOIN_RELAY_S
        for relay in self._relays:
            if relay.thread.ident is not None:
                relay.thread.join(max(0.0, deadline - time.perf_counter()))
            if not relay.thread.is_alive():
                relay.close()
        for courier in self.couriers:
            courier.close()
        self._actor = self._hello = None

    def close(self) -> None:
        """Close the handles of an actor that has ended or never started. Batches of it may still
        be in use."""
        for handle in self.handles:
            handle.close()

    def _kind(self, node: str | None, cpus: float) -> Any:
        """Return the class of the actor, with its options."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy: Any = "SPREAD"
        if node is not None:
            strategy = NodeAffinitySchedulingStrategy(node, soft=True)
        kind = self._ray.remote(concurrency_groups={CONTROL: 1}, max_restarts=0)(RemoteWorker)
        return kind.options(
            num_cpus=cpus, max_concurrency=len(self.handles), scheduling_strategy=strategy
        )

    def _deliver(self, number: int, content: Any) -> None:
        actor = self._actor
        if actor is not None:
            actor.deliver.options(concurrency_group=CONTROL).remote(number, content)

    def _allow(self, number: int, epochs: int) -> None:
        actor = self._actor
        if actor is not None:
            actor.allow.options(concurrency_group=CONTROL).remote(number, epochs)

    def _stacks(self) -> str:
        actor = self._actor
        if actor is None:
            return "  has ended"
        try:
            ref = actor.stacks.options(concurrency_group=CONTROL).remote()
            return str(self._ray.get(ref, timeout=ANSWER_S))
        except Exception:
            return "  no answer"

    def _note_end(self, reason: str) -> None:
        with self._lock:
            self.lost = self.lost or reason
            self._open -= 1
            last = not self._open
        if reason:
            for handle in self.handles:
                handle.lose(f"({handle.place or 'before it had started'}): {reason}")
        if reason and not last and self._actor is not None:
            self._ray.kill(self._actor)  # the other streams end, too
        if last:
            self._ended(self)

    def _groups(self, number: int) -> Iterator[MessageGroup]:
        """Yield the groups of a producer. Raise what Ray raises when the actor is lost."""
        refs = self._streamed(number) if self._streams else self._called(number)
        for ref in refs:
            group = self._value_of(ref)
            del ref
            if group is None:
                return
            yield group
            del group

    def _streamed(self, number: int) -> Iterator[Any]:
        run = self._actor.run.options(
            num_returns="streaming", _generator_backpressure_num_objects=STORED_GROUPS
        )
        for ref in run.remote(number):  # it does not support the `close` of `yield from`
            yield ref
            del ref

    def _called(self, number: int) -> Iterator[Any]:
        """Yield references to one group after another. A client of Ray has no streams."""
        ahead = STORED_GROUPS if len(self.handles) == 1 else 1
        refs = deque(self._actor.more.remote(number) for _ in range(ahead))
        while refs:
            yield refs.popleft()
            refs.append(self._actor.more.remote(number))

    def _value_of(self, ref: Any) -> MessageGroup | None:
        """Return a group, unless it has died with its node."""
        while True:
            try:
                found: MessageGroup | None = self._ray.get(ref, timeout=LOOK_S)
                return found
            except self._ray.exceptions.GetTimeoutError:
                answer = self._actor.hello.options(concurrency_group=CONTROL).remote()
                with contextlib.suppress(self._ray.exceptions.GetTimeoutError):
                    self._ray.get(answer, timeout=LOOK_S)
