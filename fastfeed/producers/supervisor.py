"""The thread that has workers started, hears of their end, and sees to it that none outlives the feed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from fastfeed.producers.forkserver import Event, ForkServer
from fastfeed.producers.lane import Lane
from fastfeed.producers.ship import Shipment
from fastfeed.ring.memory import Descriptor

GRACE_S = 0.5  # how long a producer's own code may take to come back when it is over; then its process is killed
OVERDUE_S = 0.3
POLL_MS = 200


class Supervisor:
    """`exited(lane, status)` is called for each worker that has ended, and gives the one to start in its place;
    `failed(error)` where workers cannot be started at all; `tick()` now and then."""

    def __init__(
        self,
        tokens: Descriptor,
        *,
        exited: Callable[[Lane, int], Lane | None],
        failed: Callable[[Exception], None],
        tick: Callable[[], None],
    ) -> None:
        self._tokens = tokens
        self._exited = exited
        self._failed = failed
        self._tick = tick
        self._stop, self._say_stop = map(Descriptor, os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        self._bell = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._waiting: deque[Lane] = deque()  # to be started
        self._alive: dict[int, Lane] = {}
        self._kill_at: float | None = None
        self._shipment: Shipment | None = None
        # The fork server lives as long as the thread that started it: this one, which ends when no worker is left.
        self.thread = threading.Thread(target=self._run, name="fastfeed-supervisor", daemon=True)

    def start(self, lanes: Sequence[Lane], shipment: Shipment) -> None:
        """Starts the workers; returns at once."""
        self._waiting.extend(lanes)
        self._shipment = shipment
        self.thread.start()

    def stop(self) -> None:
        """Tells the workers to end, and ends those that do not."""
        if self._kill_at is None:
            self._kill_at = time.perf_counter() + GRACE_S
        with contextlib.suppress(BlockingIOError):
            os.write(self._say_stop.fd, b"!")  # never read: every worker sees it
        os.eventfd_write(self._bell.fd, 1)

    def join(self, timeout_s: float) -> bool:
        """Whether every worker has ended, within the limit."""
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _run(self) -> None:
        try:
            while self._kill_at is None and (self._waiting or self._alive):
                self._serve(ForkServer())
        except Exception as error:
            self._failed(error)
        finally:
            for lane in (*self._waiting, *self._alive.values()):
                lane.close()
            if self._shipment is not None:
                self._shipment.close()

    def _serve(self, server: ForkServer) -> None:
        """The life of one fork server: until no worker is left, or it dies."""
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
        """Kills what does not end by itself; False when even the fork server's answer is overdue."""
        late_s = 0.0 if self._kill_at is None else time.perf_counter() - self._kill_at
        if self._kill_at is not None and late_s >= 0:
            for lane in self._alive.values():
                lane.kill()
        return late_s < OVERDUE_S

    def _start_waiting(self, server: ForkServer) -> bool:
        """Whether there was one to start."""
        if self._kill_at is not None:
            return False
        started = bool(self._waiting)
        while self._waiting:
            lane = self._waiting.popleft()
            self._alive[lane.task.lane] = lane
            assert self._shipment is not None
            with contextlib.suppress(OSError):  # a server that is gone is heard of next
                lane.spawn(server, tokens=self._tokens.fd, stop=self._stop.fd, shipment=self._shipment.fd)
        return started

    def _patience_ms(self) -> float:
        if self._kill_at is None:
            return POLL_MS
        return max(1.0, min(POLL_MS, (self._kill_at - time.perf_counter()) * 1000 + 1))

    def _hear(self, event: Event | None) -> bool:
        if event is None:
            return False
        lane = self._alive[event.lane]
        if event.status is None:
            lane.pid, lane.pidfd = event.pid, event.pidfd
        else:
            self._gone(lane, event.status)
        return True

    def _gone(self, lane: Lane, status: int) -> None:
        del self._alive[lane.task.lane]
        heir = self._exited(lane, status)
        if heir is not None:
            self._waiting.append(heir)

    def _all_lost(self) -> None:
        """The fork server is gone, and the kernel kills its workers; until it has, they may still deliver."""
        deadline = time.perf_counter() + OVERDUE_S
        for lane in self._alive.values():
            lane.kill()
        for lane in list(self._alive.values()):
            lane.gone(max(0.0, deadline - time.perf_counter()))
            self._gone(lane, signal.SIGKILL)
