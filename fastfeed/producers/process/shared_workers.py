"""The worker processes of a runner, and the feeds that share them: its own, and those of
`also()`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fastfeed.producers.process.handle import WorkerHandle
    from fastfeed.producers.process.supervisor import Supervisor
    from fastfeed.producers.process.worker_process import WorkerProcess


class Member(Protocol):
    """A feed for which the shared processes make batches."""

    def prepare(self) -> Sequence[WorkerHandle]:
        """Return one handle for each process."""

    def busy(self, handle: WorkerHandle) -> bool:
        """Return True if the process makes something for this member."""

    def exited(self, handle: WorkerHandle, status: int, *, beside: bool) -> WorkerHandle | None:
        """Note that a worker process has ended, which also worked for another member if `beside`;
        return the handle that replaces it."""

    def failed(self, error: Exception) -> None:
        """Note that workers cannot be started."""

    def tick(self) -> None:
        """Do what is due from time to time."""

    def stop(self) -> None:
        """Stop the feed."""

    def close(self) -> None:
        """Note that there will be no other worker."""

    def release(self) -> None:
        """Close all descriptors, each when no call uses it any more."""


class SharedWorkers:
    """The workers of a runner, shared by its feed, which leads, and those of `also()`.

    Every process has a handle of each member; where one has died, each member has a process of its
    own instead. Thread producers share no thread: they only ask who leads.
    """

    def __init__(self) -> None:
        self._led = False
        self._members: list[Member] = []
        self._supervisor: Supervisor | None = None

    def claim(self) -> bool:
        """Return True for the first feed, which leads: it starts and ends the workers."""
        first, self._led = not self._led, True
        return first

    def add(self, member: Member) -> None:
        """Have the worker processes produce the batches of `member`, too."""
        self._members.append(member)

    @property
    def supervisor(self) -> Supervisor:
        """Starts the processes and learns of their end."""
        if self._supervisor is None:
            from fastfeed.producers.process.supervisor import Supervisor

            self._supervisor = Supervisor(
                exited=self._exited, failed=self._failed, tick=self._tick, over=self._over
            )
        return self._supervisor

    @property
    def shared(self) -> bool:
        """True if more than one feed uses the processes."""
        return len(self._members) > 1

    def start(self) -> None:
        """Start the processes. Raise what `prepare` raises."""
        handles = zip(*(m.prepare() for m in self._members), strict=True)
        self.supervisor.start(_processes(handles))

    def stop(self) -> None:
        """Stop the other members and end the processes: the feed that leads was stopped."""
        self.supervisor.stop()
        for member in self._members[1:]:
            member.stop()

    def release(self) -> None:
        """Close all descriptors: everything was stopped, and every worker has ended."""
        self.supervisor.release()
        for member in self._members:
            member.release()

    def _exited(self, process: WorkerProcess, status: int) -> list[WorkerProcess]:
        # any member at work may be to blame: ask them all before anything changes
        handles = process.handles
        busy = [len(handles) > 1 and handle.owner.busy(handle) for handle in handles]
        successors = [
            handle.owner.exited(handle, status, beside=any(busy[:n] + busy[n + 1 :]))
            for n, handle in enumerate(handles)
        ]
        # each in a process of its own now: the next death shows whose record it was
        return _processes([successor] for successor in successors if successor is not None)

    def _failed(self, error: Exception) -> None:
        for member in self._members:
            member.failed(error)

    def _tick(self) -> None:
        for member in self._members:
            member.tick()

    def _over(self) -> None:
        for member in self._members:
            member.close()


def _processes(handles: Iterable[Sequence[WorkerHandle]]) -> list[WorkerProcess]:
    """Return a process for each group of handles. Only Linux has what it needs."""
    from fastfeed.producers.process.worker_process import WorkerProcess

    return [WorkerProcess(group) for group in handles]
