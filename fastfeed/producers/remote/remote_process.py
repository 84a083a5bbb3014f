"""An actor, with the relays that read its streams: a remote worker as its fleet sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.producers.remote.item_courier import ItemCourier
from fastfeed.producers.remote.messages import MessageGroup
from fastfeed.producers.remote.relay import Relay


class WorkerActor(Protocol):
    """An actor that runs a RemoteWorker."""

    def whereabouts(self) -> tuple[int, str] | None:
        """Return the process id and the node, or None before the start."""

    def renew(self) -> None:
        """Tell the actor from time to time that this trainer is alive; return at once."""

    def deliver(self, number: int, content: Any) -> None:
        """Send items for a task; return at once."""

    def allow(self, number: int, epochs: int) -> None:
        """Let `epochs` epochs in all of a task begin; return at once."""

    def groups(self, number: int) -> Iterator[MessageGroup]:
        """Yield what the producer of a task sends; raise when the actor is lost."""

    def stacks(self) -> str:
        """Return where its producers are, as text."""

    def kill(self) -> None:
        """End the actor, which may have ended before."""


class RemoteProcess:
    """An actor and its handles, which start and end together. `ended` is called once, in a thread
    of a relay, when no stream of it is left. Each relay lends `lendable` bytes of the store."""

    def __init__(
        self,
        handles: Sequence[WorkerHandle],
        actor: WorkerActor,
        *,
        ended: Callable[[RemoteProcess], None],
        lendable: int = 0,
    ) -> None:
        self.handles = handles
        self.lost = ""  # the reason, if it did not end by itself
        self.started = False
        self.node: str | None = None  # that was chosen for it
        self.created_s = time.perf_counter()
        self.couriers: list[ItemCourier] = []
        self._actor = actor
        self._ended = ended
        self._relays: list[Relay] = []
        self._lock = threading.Lock()
        self._open = len(handles)  # streams that have not ended
        try:
            for number, handle in enumerate(handles):
                courier = ItemCourier(
                    handle,
                    deliver=partial(actor.deliver, number),
                    allow=partial(actor.allow, number),
                )
                self.couriers.append(courier)
                groups = actor.groups(number)
                self._relays.append(
                    Relay(handle, groups, courier=courier, ended=self._note_end, lendable=lendable)
                )
        except BaseException:
            actor.kill()
            for relay in self._relays:
                relay.close()
            for courier in self.couriers:
                courier.close()
            raise
        finally:
            for handle in handles:
                handle.close_worker_ends()
        for relay in self._relays:
            relay.thread.start()

    def look(self) -> None:
        """Note that the actor has started, if it has, and that the trainer is alive."""
        self._actor.renew()
        found = None if self.started else self._actor.whereabouts()
        if found is not None:
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
        for relay in self._relays:
            relay.thread.join(max(0.0, until_s - time.perf_counter()))
        for courier in self.couriers:
            courier.close()
        # with their memory: the relays refer to this object, and it would wait for the collector
        self.couriers, self._relays = [], []

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
