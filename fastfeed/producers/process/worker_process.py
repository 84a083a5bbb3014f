"""A worker process as its supervisor sees it: one handle for each feed that shares the process."""

from __future__ import annotations

from collections.abc import Sequence

from fastfeed.producers.process.forkserver import ForkServer
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.ring.memory import Descriptor


class WorkerProcess:
    """A process and its handles, which start and end together."""

    def __init__(self, handles: Sequence[WorkerHandle]) -> None:
        self.handles = handles
        for handle in handles:
            handle.share_stacks_file(handles[0])

    def spawn(self, server: ForkServer, number: int) -> None:
        """Request the start of the process. The worker's ends of the channels are its alone
        afterwards."""
        tasks = [handle.task.message() for handle in self.handles]
        try:
            server.spawn(
                {"number": number, "tasks": tasks},
                [fd for handle in self.handles for fd in handle.worker_fds()],
            )
        finally:
            for handle in self.handles:
                handle.close_worker_ends()

    def started(self, pid: int, pidfd: Descriptor | None) -> None:
        """Note that the process has started."""
        for handle in self.handles:
            handle.start(pid, pidfd)

    def close(self) -> None:
        """Close the handles of a process that is gone or never started. Batches of it may still be
        in use."""
        for handle in self.handles:
            handle.close()

    def kill(self) -> None:
        """Kill the process."""
        self.handles[0].kill()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process, also if its exit status is lost. Return True if it has
        ended within the limit."""
        return self.handles[0].wait(timeout_s)
