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

from fastfeed.producers.process.forkserver import ForkServer, WorkerEvent
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.producers.process.worker_process import WorkerProcess
from fastfeed.ring.memory import CLOSED, Descriptor, notify

# Time that a producer's own code has to return after a stop; then its process is killed.
EXIT_GRACE_S = 0.5
MAX_OVERDUE_S = 0.3
EXIT_POLL_MS = 200


class Supervisor:
    """Supervisor of worker processes. It calls `exited(handles, status)` for each ended worker,
    which returns the handles of each process to start in its place; `failed(error)` if workers
    cannot be started; `tick()` periodically; `over()` when none will follow."""

    def __init__(
        self,
        *,
        exited: Callable[[Sequence[WorkerHandle], int], Iterable[Sequence[WorkerHandle]]],
        failed: Callable[[Exception], None],
        tick: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self._exited = exited
        self._failed = failed
        self._tick = tick
        self._over = over
        self._wakeup = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._waiting: deque[WorkerProcess] = deque()  # to be started
        self._alive: dict[int, WorkerProcess] = {}
        self._started = 0
        self._kill_at: float | None = None
        # The fork server dies with the thread that started it: this one, which ends when no worker
        # is left.
        self.thread = threading.Thread(target=self._run, name="fastfeed-supervisor", daemon=True)

    def start(self, groups: Iterable[Sequence[WorkerHandle]]) -> None:
        """Start a worker for each group of handles; return at once."""
        self._waiting.extend(map(WorkerProcess, groups))
        self.thread.start()

    def stop(self) -> None:
        """Kill the workers if they do not end by themselves within the grace time."""
        if self._kill_at is None:
            self._kill_at = time.perf_counter() + EXIT_GRACE_S
        notify(self._wakeup)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread. Return True if every worker has ended within the limit."""
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def release(self) -> None:
        """Close the wake-up descriptor: the thread has ended, or was never started."""
        self._wakeup = CLOSED

    def _run(self) -> None:
        try:
            while self._kill_at is None and (self._waiting or self._alive):
                self._serve(ForkServer())
        except Exception as error:
            self._failed(error)
        finally:
            for process in (*self._waiting, *self._alive.values()):
                process.close()
            self._over()

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
                self._tick()
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
            with contextlib.suppress(OSError):  # the next event reports a server that is gone
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
            map(WorkerProcess, self._exited(self._alive.pop(number).handles, status))
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
