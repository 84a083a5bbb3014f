"""A worker process as its supervisor sees it: the lanes that it works for, one of each feed that
shares the process."""

from __future__ import annotations

from collections.abc import Sequence

from fastfeed.producers.process.forkserver import ForkServer
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.ring.memory import Descriptor


class WorkerProcess:
    """Its lanes come and go together."""

    def __init__(self, lanes: Sequence[WorkerHandle]) -> None:
        self.lanes = lanes
        for lane in lanes:
            lane.answers = lanes[0].answers

    def spawn(self, server: ForkServer, number: int) -> None:
        """Has the process started. Its ends of what they share are its alone from then on."""
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
        """The process is there."""
        for lane in self.lanes:
            lane.pid, lane.pidfd = pid, pidfd

    def close(self) -> None:
        """The process is gone, or never came; batches of it may still be about."""
        for lane in self.lanes:
            lane.close()

    def kill(self) -> None:
        """Ends the process, whatever it does."""
        self.lanes[0].kill()

    def gone(self, timeout_s: float) -> bool:
        """Whether the process has ended, within the limit; also where nobody is left to say how."""
        return self.lanes[0].gone(timeout_s)
