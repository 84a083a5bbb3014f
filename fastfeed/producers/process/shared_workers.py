"""The worker processes of a runner, and the feeds that share them: its own, and those of
`also()`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from fastfeed.producers.process.supervisor import WorkerEvents

if TYPE_CHECKING:
    from fastfeed.producers.process.handle import WorkerHandle


class _Member(Protocol):
    """A feed for which the shared processes make batches: ProcessProducers."""

    def prepare(self) -> Sequence[WorkerHandle]: ...
    def change_workers(self, processes: int, remote: int) -> Sequence[WorkerHandle]: ...
    def failed(self, error: Exception) -> None: ...
    def tick(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def release(self) -> None: ...


class WorkerLauncher(Protocol):
    """Starts workers of one kind, learns of their end, and makes sure that none outlives the
    feed. A Supervisor does so with processes of this machine."""

    @property
    def thread(self) -> threading.Thread:
        """The thread that serves the workers."""

    def start(self, groups: Sequence[Sequence[WorkerHandle]]) -> None:
        """Start a worker for each group of handles. Raise OptionError for what cannot be sent."""

    def add(self, groups: Sequence[Sequence[WorkerHandle]]) -> None:
        """Start other workers, beside those that are alive. From any thread."""

    def stop(self) -> None:
        """End the workers."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of every worker. Return True if they ended within the limit."""

    def release(self) -> None:
        """Close all descriptors: every worker has ended."""


class RemoteLauncher(WorkerLauncher, Protocol):
    """Starts workers on other machines."""

    def connect(self) -> None:
        """Connect to them. Raise OptionError if that cannot be."""


class SharedWorkers:
    """The workers of a runner, shared by its feed, which leads, and those of `also()`.

    Every process has a handle of each member; where one has died, each member has a process of its
    own instead. Thread producers share no thread: they only ask who leads.
    """

    def __init__(self) -> None:
        self._led = False
        self._members: list[_Member] = []
        self._supervisor: WorkerLauncher | None = None
        self._fleet: RemoteLauncher | None = None
        self._serving = 0  # launchers that may start other workers

    def claim(self) -> bool:
        """Return True for the first feed, which leads: it starts and ends the workers."""
        first, self._led = not self._led, True
        return first

    def add(self, member: _Member) -> None:
        """Have the workers produce the batches of `member`, too."""
        self._members.append(member)

    def employ(self, launcher: Callable[[WorkerEvents], RemoteLauncher]) -> None:
        """Start remote workers with what `launcher` returns for the events."""
        self._fleet = launcher(self._events())

    @property
    def shared(self) -> bool:
        """True if more than one feed uses the processes."""
        return len(self._members) > 1

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that serve the workers."""
        return [launcher.thread for launcher in self._launchers]

    def start(self) -> None:
        """Start the workers. Raise what `prepare` and the launchers raise."""
        if self._fleet is not None:
            self._fleet.connect()
        groups = list(zip(*(m.prepare() for m in self._members), strict=True))
        local = [group for group in groups if not group[0].task.remote]
        if local:
            from fastfeed.producers.process.supervisor import Supervisor

            self._supervisor = Supervisor(self._events())
        self._serving = len(self._launchers)
        if self._fleet is not None:
            self._fleet.start([group for group in groups if group[0].task.remote])
        if self._supervisor is not None:
            self._supervisor.start(local)

    def resize(self, processes: int, remote: int) -> None:
        """Change how many workers there are, as long as there are some."""
        if not all(launcher.thread.is_alive() for launcher in self._launchers):
            return  # the feed has come to its end
        groups = list(
            zip(*(m.change_workers(processes, remote) for m in self._members), strict=True)
        )
        for launcher, elsewhere in ((self._supervisor, False), (self._fleet, True)):
            added = [group for group in groups if group[0].task.remote == elsewhere]
            if launcher is not None and added:
                launcher.add(added)

    def stop(self) -> None:
        """Stop the other members and end the workers: the feed that leads was stopped."""
        for launcher in self._launchers:
            launcher.stop()
        for member in self._members[1:]:
            member.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the workers. Return True if all have ended within the limit."""
        deadline = time.perf_counter() + timeout_s
        ended = [
            launcher.join(max(0.0, deadline - time.perf_counter())) for launcher in self._launchers
        ]
        return all(ended)

    def release(self) -> None:
        """Close all descriptors: everything was stopped, and every worker has ended."""
        for launcher in self._launchers:
            launcher.release()
        for member in self._members:
            member.release()

    @property
    def _launchers(self) -> list[WorkerLauncher]:
        return [one for one in (self._supervisor, self._fleet) if one is not None]

    def _events(self) -> WorkerEvents:
        return WorkerEvents(self._exited, self._failed, self._tick, self._over)

    def _exited(self, handles: Sequence[WorkerHandle], status: int) -> list[Sequence[WorkerHandle]]:
        # any member at work may be to blame: ask them all before anything changes
        busy = [len(handles) > 1 and handle.owner.busy(handle) for handle in handles]
        successors = [
            handle.owner.exited(handle, status, beside=any(busy[:n] + busy[n + 1 :]))
            for n, handle in enumerate(handles)
        ]
        # each in a process of its own now: the next death shows whose record it was
        return [[successor] for successor in successors if successor is not None]

    def _failed(self, error: Exception) -> None:
        for member in self._members:
            member.failed(error)

    def _tick(self) -> None:
        for member in self._members:
            member.tick()

    def _over(self) -> None:
        self._serving -= 1
        if not self._serving:
            for member in self._members:
                member.close()
