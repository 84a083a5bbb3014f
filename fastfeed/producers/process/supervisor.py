"""Thread that starts workers, handles their end, and makes sure that none outlives the feed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fastfeed.producers.process.forkserver import ForkServer, WorkerEvent
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.ring.memory import CLOSED, Descriptor, notify

# Time that a producer's own code has to return after a stop; then its process is killed.
EXIT_GRACE_S = 0.5
MAX_OVERDUE_S = 0.3
EXIT_POLL_MS = 200


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


class WorkerEvents(NamedTuple):
    """Calls of a launcher of workers.

    `exited(handles, status)` for each ended worker returns the handles of each worker to start in
    its place. `failed(error)`: workers cannot be started. `tick()` comes from time to time,
    `over()` when no worker will follow.
    """

    exited: Callable[[Sequence[WorkerHandle], int], Iterable[Sequence[WorkerHandle]]]
    failed: Callable[[Exception], None]
    tick: Callable[[], None]
    over: Callable[[], None]


class ServingThread:
    """A daemon thread of that name, which runs `_run`. It polls `_wakeup` among its descriptors."""

    def __init__(self, name: str) -> None:
        self._wakeup = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def notify(self) -> None:
        """Wake the thread."""
        notify(self._wakeup)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread. Return True if it has ended within the limit."""
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def release(self) -> None:
        """Close the wake-up descriptor: the thread has ended, or was never started."""
        self._wakeup = CLOSED

    def _run(self) -> None:
        raise NotImplementedError


class Supervisor(ServingThread):
    """Supervisor of worker processes."""

    def __init__(self, events: WorkerEvents) -> None:
        # The fork server dies with the thread that started it: this one, which ends when no worker
        # is left.
        super().__init__("fastfeed-supervisor")
        self._events = events
        self._waiting: deque[WorkerProcess] = deque()  # to be started
        self._alive: dict[int, WorkerProcess] = {}
        self._started = 0
        self._kill_at: float | None = None

    def start(self, groups: Iterable[Sequence[WorkerHandle]]) -> None:
        """Start a worker for each group of handles; return at once."""
        self._waiting.extend(map(WorkerProcess, groups))
        self.thread.start()

    def add(self, groups: Iterable[Sequence[WorkerHandle]]) -> None:
        """Start other workers, from any thread."""
        self._waiting.extend(map(WorkerProcess, groups))
        self.notify()

    def stop(self) -> None:
        """Kill the workers if they do not end by themselves within the grace time."""
        if self._kill_at is None:
            self._kill_at = time.perf_counter() + EXIT_GRACE_S
        self.notify()

    def _run(self) -> None:
        try:
            while self._kill_at is None and (self._waiting or self._alive):
                self._serve(ForkServer())
        except Exception as error:
            self._events.failed(error)
        finally:
            for process in (*self._waiting, *self._alive.values()):
                process.close()
            self._events.over()

    def _serve(self, server: ForkServer) -> None:
        """Serve one fork server until no worker is left or the server dies."""
        poll = select.poll()
        poll.register(server.socket, select.POLLIN)
        poll.register(self._wakeup.fd, select.POLLIN)
        try:
            while self._start_waiting(server) or self._alive:
                ready = dict(poll.poll(self._poll_timeout_ms()))
                if self._wakeup.fd in ready:
                    os.eventfd_read(self._wakeup.fd)
                served = server.socket.fileno() not in ready or self._handle_event(server.event())
                if not served or not self._enforce_end():
                    server.close()
                    self._handle_server_loss()
                    return
                self._events.tick()
        finally:
            server.close()

    def _enforce_end(self) -> bool:
        """Kill workers that are overdue. Return False if even the fork server's answer is
        overdue."""
        late_s = 0.0 if self._kill_at is None else time.perf_counter() - self._kill_at
        if self._kill_at is not None and late_s >= 0:
            for process in self._alive.values():
                process.kill()
        return late_s < MAX_OVERDUE_S

    def _start_waiting(self, server: ForkServer) -> bool:
        """Start the waiting workers. Return True if there was one."""
        if self._kill_at is not None:
            return False
        started = bool(self._waiting)
        while self._waiting:
            process = self._waiting.popleft()
            self._alive[self._started] = process
            # the next event reports a server that is gone
            with contextlib.suppress(ConnectionError):
                process.spawn(server, self._started)
            self._started += 1
        return started

    def _poll_timeout_ms(self) -> float:
        if self._kill_at is None:
            return EXIT_POLL_MS
        return max(1.0, min(EXIT_POLL_MS, (self._kill_at - time.perf_counter()) * 1000 + 1))

    def _handle_event(self, event: WorkerEvent | None) -> bool:
        if event is None:
            return False
        if event.status is None:
            self._alive[event.number].started(event.pid, event.pidfd)
        else:
            self._handle_exit(event.number, event.status)
        return True

    def _handle_exit(self, number: int, status: int) -> None:
        self._waiting.extend(
            map(WorkerProcess, self._events.exited(self._alive.pop(number).handles, status))
        )

    def _handle_server_loss(self) -> None:
        """Handle the loss of the fork server. The kernel kills its workers, which may deliver until
        then."""
        deadline = time.perf_counter() + MAX_OVERDUE_S
        for process in self._alive.values():
            process.kill()
        for number, process in list(self._alive.items()):
            process.wait(max(0.0, deadline - time.perf_counter()))
            self._handle_exit(number, signal.SIGKILL)
