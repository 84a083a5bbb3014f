"""The thread that has workers started, learns of their end, and makes sure that none outlives the
feed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from fastfeed.producers.process.forkserver import ForkServer, WorkerEvent
from fastfeed.producers.process.worker_process import WorkerProcess
from fastfeed.ring.memory import NOWHERE, Descriptor, ring

# how long a producer's own code may take to return after the end; then its process is killed
GRACE_S = 0.5
OVERDUE_S = 0.3
POLL_MS = 200


class Supervisor:
    """Starts and watches worker processes. `exited(process, status)` is called for each one that
    has ended, and returns those to start in its place; `failed(error)` if workers cannot be started
    at all; `tick()` from time to time; `over()` when none will follow."""

    def __init__(
        self,
        *,
        exited: Callable[[WorkerProcess, int], Sequence[WorkerProcess]],
        failed: Callable[[Exception], None],
        tick: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self._exited = exited
        self._failed = failed
        self._tick = tick
        self._over = over
        self._bell = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._waiting: deque[WorkerProcess] = deque()  # to be started
        self._alive: dict[int, WorkerProcess] = {}
        self._started = 0
        self._kill_at: float | None = None
        # The fork server lives as long as the thread that started it: this one, which ends with the
        # last worker.
        self.thread = threading.Thread(target=self._run, name="fastfeed-supervisor", daemon=True)

    def start(self, hosts: Sequence[WorkerProcess]) -> None:
        """Start the workers; return at once."""
        self._waiting.extend(hosts)
        self.thread.start()

    def stop(self) -> None:
        """End the workers, which were stopped, if they do not end by themselves."""
        if self._kill_at is None:
            self._kill_at = time.perf_counter() + GRACE_S
        ring(self._bell)

    def join(self, timeout_s: float) -> bool:
        """Return True if every worker has ended, within the limit."""
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def release(self) -> None:
        """Close the bell: the thread has ended, or was never started."""
        self._bell = NOWHERE

    def _run(self) -> None:
        try:
            while self._kill_at is None and (self._waiting or self._alive):
                self._serve(ForkServer())
        except Exception as error:
            self._failed(error)
        finally:
            for host in (*self._waiting, *self._alive.values()):
                host.close()
            self._over()

    def _serve(self, server: ForkServer) -> None:
        """Run one fork server, until no worker is left, or it dies."""
        poll = select.poll()
        poll.register(server.socket, select.POLLIN)
        poll.register(self._bell.fd, select.POLLIN)
        try:
            while self._start_waiting(server) or self._alive:
                ready = dict(poll.poll(self._patience_ms()))
                if self._bell.fd in ready:
                    os.eventfd_read(self._bell.fd)
                heard = server.socket.fileno() not in ready or self._hear(server.event())
                if not heard or not self._enforce_end():
                    server.close()
                    self._all_lost()
                    return
                self._tick()
        finally:
            server.close()

    def _enforce_end(self) -> bool:
        """Kill what does not end by itself; return False if even the fork server's answer is
        overdue."""
        late_s = 0.0 if self._kill_at is None else time.perf_counter() - self._kill_at
        if self._kill_at is not None and late_s >= 0:
            for host in self._alive.values():
                host.kill()
        return late_s < OVERDUE_S

    def _start_waiting(self, server: ForkServer) -> bool:
        """Start the workers that wait; return True if there was one."""
        if self._kill_at is not None:
            return False
        started = bool(self._waiting)
        while self._waiting:
            host = self._waiting.popleft()
            self._alive[self._started] = host
            with contextlib.suppress(OSError):  # a server that is gone is noticed next
                host.spawn(server, self._started)
            self._started += 1
        return started

    def _patience_ms(self) -> float:
        if self._kill_at is None:
            return POLL_MS
        return max(1.0, min(POLL_MS, (self._kill_at - time.perf_counter()) * 1000 + 1))

    def _hear(self, event: WorkerEvent | None) -> bool:
        if event is None:
            return False
        if event.status is None:
            self._alive[event.lane].started(event.pid, event.pidfd)
        else:
            self._gone(event.lane, event.status)
        return True

    def _gone(self, number: int, status: int) -> None:
        self._waiting.extend(self._exited(self._alive.pop(number), status))

    def _all_lost(self) -> None:
        """Handle the end of the fork server: the kernel kills its workers, which may still deliver
        until then."""
        deadline = time.perf_counter() + OVERDUE_S
        for host in self._alive.values():
            host.kill()
        for number, host in list(self._alive.items()):
            host.gone(max(0.0, deadline - time.perf_counter()))
            self._gone(number, signal.SIGKILL)
