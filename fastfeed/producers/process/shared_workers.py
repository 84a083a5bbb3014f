"""The worker processes of a runner, and the feeds that share them: its own, and those of `also()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.producers.process.supervisor import Supervisor
from fastfeed.producers.process.worker_process import WorkerProcess


class Member(Protocol):
    """A feed whose batches the pool's processes make."""

    def prepare(self) -> Sequence[WorkerHandle]:
        """One lane for each process."""

    def busy(self, lane: WorkerHandle) -> bool:
        """Whether the process makes something for this member."""

    def exited(self, lane: WorkerHandle, status: int, *, beside: bool) -> WorkerHandle | None:
        """A worker process has ended, which made something for another member `beside`; the lane to
        take the place of its one."""

    def failed(self, error: Exception) -> None:
        """Workers cannot be started."""

    def tick(self) -> None:
        """Now and then."""

    def stop(self) -> None:
        """Nobody takes any more."""

    def close(self) -> None:
        """There will be no other worker."""

    def release(self) -> None:
        """All descriptors go, each when nobody is inside a call on it any more."""


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
        """Return True for the first feed that asks: it leads, which starts and ends the workers."""
        first, self._led = not self._led, True
        return first

    def add(self, member: Member) -> None:
        """Have the worker processes produce the batches of `member`, too."""
        self._members.append(member)

    @property
    def supervisor(self) -> Supervisor:
        """What starts the processes and hears of their end."""
        if self._supervisor is None:
            self._supervisor = Supervisor(
                exited=self._exited, failed=self._failed, tick=self._tick, over=self._over
            )
        return self._supervisor

    @property
    def shared(self) -> bool:
        """True if more than one feed uses the processes."""
        return len(self._members) > 1

    def start(self) -> None:
        """Starts the processes. Raises what `prepare` raises."""
        self.supervisor.start(
            [
                WorkerProcess(lanes)
                for lanes in zip(*(m.prepare() for m in self._members), strict=True)
            ]
        )

    def stop(self) -> None:
        """The first member has stopped: so do the others, and the processes end."""
        self.supervisor.stop()
        for member in self._members[1:]:
            member.stop()

    def release(self) -> None:
        """Everything was stopped, and every worker has ended: all descriptors go."""
        self.supervisor.release()
        for member in self._members:
            member.release()

    def _exited(self, host: WorkerProcess, status: int) -> list[WorkerProcess]:
        # Whoever was at work may be to blame: asked before anything is done about it.
        busy = [len(host.lanes) > 1 and lane.owner.busy(lane) for lane in host.lanes]
        heirs = [
            lane.owner.exited(lane, status, beside=any(busy[:n] + busy[n + 1 :]))
            for n, lane in enumerate(host.lanes)
        ]
        # Each in a process of its own now: the next death tells over whose sample it was.
        return [WorkerProcess([heir]) for heir in heirs if heir is not None]

    def _failed(self, error: Exception) -> None:
        for member in self._members:
            member.failed(error)

    def _tick(self) -> None:
        for member in self._members:
            member.tick()

    def _over(self) -> None:
        for member in self._members:
            member.close()
