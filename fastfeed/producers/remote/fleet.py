"""The remote workers of a feed: a thread that starts actors, forwards items to them, and handles
their end."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fastfeed.options import FeedOptions, Remote
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.producers.process.ship import Shipment
from fastfeed.producers.process.supervisor import SharedWorkers, WorkerLauncher
from fastfeed.producers.remote.cluster import RayActor, RayCluster, describe_nodes, place
from fastfeed.producers.remote.relay import Relay
from fastfeed.ring.memory import Segment

LOG = logging.getLogger("fastfeed")
FLEET_POLL_MS = 200
# Share of the object store for batches that the training holds; the rest is for those on the way.
STORE_SHARE = 0.5
# A producer that has no place for so long is reported, with what is free.
UNPLACED_S = 10.0
JOIN_RELAYS_S = 1.0
SHUN_S = 30.0  # a node that has lost a producer gets none for so long, where others have room


class RemoteProcess:
    """An actor and its handles, which start and end together. `ended` is called once, in a thread
    of a relay, when no stream of it is left. Each relay lends `lendable` bytes of the store."""

    def __init__(
        self,
        handles: Sequence[WorkerHandle],
        actor: RayActor,
        *,
        ended: Callable[[RemoteProcess], None],
        lendable: int = 0,
    ) -> None:
        self.handles = handles
        self.lost = ""  # the reason, if it did not end by itself
        self.started = False
        self.node: str | None = None  # that was chosen for it
        self.created_s = time.perf_counter()
        self.relays: list[Relay] = []
        self._actor = actor
        self._ended = ended
        self._lock = threading.Lock()
        self._open = len(handles)  # streams that have not ended
        try:
            for number, handle in enumerate(handles):
                relay = Relay(
                    handle,
                    actor.groups(number),
                    send=partial(actor.send, number),
                    ended=self._note_end,
                    lendable=lendable,
                )
                self.relays.append(relay)
        except BaseException:
            actor.kill()
            for relay in self.relays:
                relay.close()
                relay.courier.close()
            raise
        finally:
            for handle in handles:
                handle.close_worker_ends()
        for relay in self.relays:
            relay.thread.start()

    def look(self) -> None:
        """Note that the actor has started, if it has."""
        found = self._actor.look()
        if found is not None and not self.started:
            self.started = True
            for handle in self.handles:
                handle.start_remotely(*found, stacks=self._actor.stacks)

    def kill(self) -> None:
        """Kill the actor, which ends its streams."""
        self._actor.kill()

    def end(self, until_s: float) -> None:
        """Kill the actor, and wait for its relays until that time of perf_counter: one that is
        inside the user's code here ends behind it."""
        self.kill()
        for relay in self.relays:
            relay.thread.join(max(0.0, until_s - time.perf_counter()))
            relay.courier.close()
        # with their memory: the relays refer to this object, and it would wait for the collector
        self.relays = []

    def close(self) -> None:
        """Close the handles of an actor that has ended or never started. Batches of it may still
        be in use."""
        for handle in self.handles:
            handle.close()

    def _note_end(self, reason: str) -> None:
        self.look()
        with self._lock:
            self.lost = self.lost or reason
            self._open -= 1
            last = not self._open
        if reason:
            for handle in self.handles:
                handle.lose(f"({handle.place or 'before it had started'}): {reason}")
        if reason and not last:
            self._actor.kill()  # its other streams end, too
        if last:
            self._ended(self)


class RemoteFleet(WorkerLauncher):
    """Launcher of remote workers."""

    def __init__(self, options: FeedOptions, workers: SharedWorkers) -> None:
        super().__init__("fastfeed-fleet", workers)
        assert isinstance(options.remote, Remote)
        self._options, self._remote = options, options.remote
        self._alive: list[RemoteProcess] = []
        self._ended: deque[RemoteProcess] = deque()  # put in by the threads of relays
        self._stopping = False
        self._store_nbytes = 0  # of the object store, for batches that the training holds
        self._lost_at_s: dict[str | None, float] = {}  # by node
        self._cluster: RayCluster | None = None
        self._sources: dict[int, tuple[Shipment, Any]] = {}
        self._reported = False

    def connect(self) -> None:
        """Connect to the cluster. Raise OptionError if there is none, or no node that is large
        enough."""
        self._cluster = RayCluster(self._remote.address)
        self._cluster.refuse_too_small(self._remote.cpus)
        self._store_nbytes = min(
            self._options.memory_nbytes, int(STORE_SHARE * self._cluster.store_nbytes())
        )

    def stop(self) -> None:
        """Kill the actors. They hold nothing that is worth a grace time."""
        self._stopping = True
        self.notify()

    def _launch(self) -> None:
        """Start an actor for each group that waits: together, so that they spread over the
        nodes."""
        assert self._cluster is not None
        waiting = list(self._waiting)
        workers = self._options.processes + len(self._alive) + len(waiting)
        nodes = self._choose(len(waiting)) if waiting else []
        for handles, node in zip(waiting, nodes, strict=True):
            actor = self._cluster.start_actor(
                [handle.task.message() for handle in handles],
                given=[self._put(handle.channels.shipment) for handle in handles],
                cpus=self._remote.cpus,
                node=node,
            )
            lendable = self._store_nbytes // workers // len(handles)
            process = RemoteProcess(handles, actor, ended=self._note_end, lendable=lendable)
            process.node = node
            self._alive.append(process)
            self._waiting.popleft()

    def _choose(self, count: int) -> list[str | None]:
        """Return a node for each of `count` producers, or None where Ray shall find one."""
        assert self._cluster is not None
        while True:
            since_s = time.perf_counter() - SHUN_S
            shunned = {node for node, lost_s in self._lost_at_s.items() if lost_s > since_s}
            known = [node for node in self._cluster.nodes() if node.node_id not in shunned]
            nodes = place(known, count, cpus=self._remote.cpus)
            silent = {node for node in nodes if node and not self._cluster.answers(node)}
            if not silent:
                return nodes
            self._lost_at_s.update(dict.fromkeys(silent, time.perf_counter()))

    def _put(self, shipment: Shipment) -> Any:
        """Return the reference to a packed source, which is put into the object store once, and
        again after a loss."""
        assert self._cluster is not None
        if id(shipment) not in self._sources:
            memory = Segment(shipment.fd, shipment.nbytes, writable=False).map
            ref = self._cluster.put(np.frombuffer(memory, np.uint8))
            self._sources[id(shipment)] = shipment, ref
        return self._sources[id(shipment)][1]

    def _note_end(self, process: RemoteProcess) -> None:
        self._ended.append(process)
        self.notify()

    def _run(self) -> None:
        try:
            while (self._alive or self._waiting) and not self._stopping:
                self._launch()
                self._serve()
        except Exception as error:
            self._workers.failed(error)
        finally:
            for handle in (handle for group in self._waiting for handle in group):
                handle.close()
            for process in self._alive:
                process.kill()
            until_s = time.perf_counter() + JOIN_RELAYS_S
            for process in self._alive:
                process.end(until_s)
                process.close()
            self._sources.clear()
            self._workers.over()

    def _serve(self) -> None:
        self._listen()
        while self._ended and not self._stopping:
            process = self._ended.popleft()
            self._alive.remove(process)
            process.look()
            process.end(time.perf_counter() + JOIN_RELAYS_S)
            # before its start it is rather the cluster's fault than an accident
            status = int(bool(process.lost)) and (signal.SIGKILL if process.started else 1 << 8)
            if process.lost:
                self._lost_at_s[process.node] = time.perf_counter()
                # Ray would try for 10 s or more to take what it has put from the lost node.
                self._sources.clear()
            self._waiting.extend(self._workers.exited(process.handles, status))
        for process in self._alive:
            process.look()
        self._report_unplaced()
        self._workers.tick()

    def _listen(self) -> None:
        """Forward items until something else happens, for a while at most."""
        poll = select.poll()
        poll.register(self._wakeup.fd, select.POLLIN)
        relays = (relay for process in self._alive for relay in process.relays)
        couriers = {one.courier.socket.fileno(): one.courier for one in relays}
        for fd in couriers:
            poll.register(fd, select.POLLIN)
        until = time.perf_counter() + FLEET_POLL_MS / 1000
        while (left_s := until - time.perf_counter()) > 0:
            for fd, _ in poll.poll(left_s * 1000):
                if fd == self._wakeup.fd:
                    os.eventfd_read(fd)
                    return
                if not couriers[fd].forward():
                    poll.unregister(fd)

    def _report_unplaced(self) -> None:
        """Say once which producers wait for a place, with what is free."""
        since_s = time.perf_counter() - UNPLACED_S
        unplaced = sum(not p.started and p.created_s < since_s for p in self._alive)
        if self._reported or not unplaced or self._cluster is None:
            self._reported = bool(unplaced)
            return
        self._reported = True
        LOG.warning(
            "%d of %d remote producers wait for a node: each needs %g CPUs, and %s. Lower "
            "producers or cpus of Remote(...), or add nodes",
            unplaced,
            len(self._alive),
            self._remote.cpus,
            describe_nodes(self._cluster.nodes()),
        )
