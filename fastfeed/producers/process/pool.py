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


class Pool:
    """Every process has a lane of each member; where one has died, each member has a process of its
    own instead."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.supervisor = Supervisor(
            exited=self._exited, failed=self._failed, tick=self._tick, over=self._over
        )

    def start(self) -> None:
        """Starts the processes. Raises what `prepare` raises."""
        self.supervisor.start(
            [
                WorkerProcess(lanes)
                for lanes in zip(*(m.prepare() for m in self.members), strict=True)
            ]
        )

    def stop(self) -> None:
        """The first member has stopped: so do the others, and the processes end."""
        self.supervisor.stop()
        for member in self.members[1:]:
            member.stop()

    def release(self) -> None:
        """Everything was stopped, and every worker has ended: all descriptors go."""
        self.supervisor.release()
        for member in self.members:
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
        for member in self.members:
            member.failed(error)

    def _tick(self) -> None:
        for member in self.members:
            member.tick()

    def _over(self) -> None:
        for member in self.members:
            member.close()
