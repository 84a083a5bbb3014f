"""Thread that starts workers, handles their end, and makes sure that none outlives the feed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence

from fastfeed.producers.process.forkserver import ForkServer, WorkerEvent
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.producers.process.serving_thread import ServingThread
from fastfeed.producers.process.worker_events import WorkerEvents
from fastfeed.producers.process.worker_process import WorkerProcess

# Time that a producer's own code has to return after a stop; then its process is killed.
EXIT_GRACE_S = 0.5
MAX_OVERDUE_S = 0.3
EXIT_POLL_MS = 200


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
