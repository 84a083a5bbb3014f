"""A worker process as its supervisor sees it: one handle for each feed that shares the process."""

from __future__ import annotations

from collections.abc import Sequence

from fastfeed.producers.process.forkserver import ForkServer
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.ring.memory import Descriptor


class WorkerProcess:
    """A process whose handles come and go together."""

    def __init__(self, lanes: Sequence[WorkerHandle]) -> None:
        self.lanes = lanes
        for lane in lanes:
            lane.answers = lanes[0].answers

    def spawn(self, server: ForkServer, number: int) -> None:
        """Have the process started. The ends that it is given are closed here."""
        tasks = [lane.task.message() for lane in self.lanes]
        try:
            server.spawn(
                {"lane": number, "tasks": tasks},
                [fd for lane in self.lanes for fd in lane.theirs()],
            )
        finally:
            for lane in self.lanes:
                lane.let_go()

    def started(self, pid: int, pidfd: Descriptor | None) -> None:
        """Note that the process has started."""
        for lane in self.lanes:
            lane.pid, lane.pidfd = pid, pidfd

    def close(self) -> None:
        """Close what only the worker needed: it has ended, or never started; its batches may still
        be in use."""
        for lane in self.lanes:
            lane.close()

    def kill(self) -> None:
        """Kill the process."""
        self.lanes[0].kill()

    def gone(self, timeout_s: float) -> bool:
        """Return True if the process has ended, within the limit, even if the fork server is
        gone."""
        return self.lanes[0].gone(timeout_s)
