"""The worker processes of a runner: what starts and ends them, and the feeds that share them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fastfeed.producers.process.forkserver import ForkServer, WorkerEvent
from fastfeed.producers.process.handle import WorkerHandle
from fastfeed.ring.memory import CLOSED, Descriptor, notify

Group = Sequence[WorkerHandle]  # of one process: a handle for each feed that shares it
# Time that a producer's own code has to return after a stop; then its process is killed.
EXIT_GRACE_S = 0.5
MAX_OVERDUE_S = 0.3
EXIT_POLL_MS = 200


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


class WorkerLauncher(ServingThread):
    """Starts workers of one kind, learns of their end, and makes sure that none outlives the
    feed."""

    def __init__(self, name: str, workers: SharedWorkers) -> None:
        super().__init__(name)
        self._workers = workers
        self._waiting: deque[Group] = deque()  # to be started

    def connect(self) -> None:
        """Connect to where the workers run. Raise OptionError if that cannot be."""

    def start(self, groups: Sequence[Group]) -> None:
        """Start a worker for each group of handles."""
        self._waiting.extend(groups)
        self.thread.start()

    def add(self, groups: Sequence[Group]) -> None:
        """Start other workers, beside those that are alive. From any thread."""
        self._waiting.extend(groups)
        self.notify()

    def stop(self) -> None:
        """End the workers."""
        raise NotImplementedError


class Supervisor(WorkerLauncher):
    """Supervisor of worker processes of this machine, which do not end by themselves within the
    grace time after `stop`: then they are killed."""

    def __init__(self, workers: SharedWorkers) -> None:
        # The fork server dies with the thread that started it: this one, which ends when no worker
        # is left.
        super().__init__("fastfeed-supervisor", workers)
        self._alive: dict[int, Group] = {}
        self._started = 0
        self._kill_at: float | None = None

    def stop(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.perf_counter() + EXIT_GRACE_S
        self.notify()

    def _run(self) -> None:
        try:
            while self._kill_at is None and (self._waiting or self._alive):
                self._serve(ForkServer())
        except Exception as error:
            self._workers.failed(error)
        finally:
            for group in (*self._waiting, *self._alive.values()):
                for handle in group:
                    handle.close()
            self._workers.over()

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
                self._workers.tick()
        finally:
            server.close()

    def _enforce_end(self) -> bool:
        """Kill workers that are overdue. Return False if even the fork server's answer is
        overdue."""
        late_s = 0.0 if self._kill_at is None else time.perf_counter() - self._kill_at
        if self._kill_at is not None and late_s >= 0:
            for first, *_ in self._alive.values():
                first.kill()
        return late_s < MAX_OVERDUE_S

    def _start_waiting(self, server: ForkServer) -> bool:
        """Start the waiting workers. Return True if there was one."""
        if self._kill_at is not None:
            return False
        started = bool(self._waiting)
        while self._waiting:
            group = self._waiting.popleft()
            self._alive[self._started] = group
            # the next event reports a server that is gone
            with contextlib.suppress(ConnectionError):
                spawn(server, group, number=self._started)
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
            for handle in self._alive[event.number]:
                handle.start(event.pid, event.pidfd)
        else:
            self._handle_exit(event.number, event.status)
        return True

    def _handle_exit(self, number: int, status: int) -> None:
        self._waiting.extend(self._workers.exited(self._alive.pop(number), status))

    def _handle_server_loss(self) -> None:
        """Handle the loss of the fork server. The kernel kills its workers, which may deliver until
        then."""
        deadline = time.perf_counter() + MAX_OVERDUE_S
        for first, *_ in self._alive.values():
            first.kill()
        for number, (first, *_) in list(self._alive.items()):
            first.wait(max(0.0, deadline - time.perf_counter()))
            self._handle_exit(number, signal.SIGKILL)


def spawn(server: ForkServer, group: Group, *, number: int) -> None:
    """Request the start of a process. The worker's ends of the channels are its alone
    afterwards."""
    tasks = [handle.task.message() for handle in group]
    fds = [fd for handle in group for fd in handle.worker_fds()]
    try:
        server.spawn({"number": number, "tasks": tasks}, fds)
    finally:
        for handle in group:
            handle.share_stacks_file(group[0])
            handle.close_worker_ends()


class SharedWorkers:
    """The workers of a runner, shared by its feed, which leads, and those of `also()`.

    Every process has a handle of each member; where one has died, each member has a process of its
    own instead. Thread producers share no thread: they only ask who leads.
    """

    def __init__(self) -> None:
        self._led = False
        self._members: list[Any] = []  # the ProcessProducers of each feed
        self._supervisor: WorkerLauncher | None = None
        self._fleet: WorkerLauncher | None = None
        self._serving = 0  # launchers that may start other workers

    def claim(self) -> bool:
        """Return True for the first feed, which leads: it starts and ends the workers."""
        first, self._led = not self._led, True
        return first

    def add(self, member: Any) -> None:
        """Have the workers produce the batches of `member`, too."""
        self._members.append(member)

    def employ(self, launcher: Callable[[SharedWorkers], WorkerLauncher]) -> None:
        """Start remote workers with what `launcher` returns."""
        self._fleet = launcher(self)

    @property
    def shared(self) -> bool:
        """True if more than one feed uses the processes."""
        return len(self._members) > 1

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that serve the workers."""
        return [launcher.thread for launcher in self._launchers]

    def start(self) -> None:
        """Start the workers. Raise what `prepare` and the launchers raise."""
        if self._fleet is not None:
            self._fleet.connect()
        groups = list(zip(*(m.prepare() for m in self._members), strict=True))
        local = [group for group in groups if not group[0].task.remote]
        if local:
            self._supervisor = Supervisor(self)
        self._serving = len(self._launchers)
        if self._fleet is not None:
            self._fleet.start([group for group in groups if group[0].task.remote])
        if self._supervisor is not None:
            self._supervisor.start(local)

    def resize(self, processes: int, remote: int) -> None:
        """Change how many workers there are, as long as there are some."""
        if not all(launcher.thread.is_alive() for launcher in self._launchers):
            return  # the feed has come to its end
        handles = (member.change_workers(processes, remote) for member in self._members)
        groups = list(zip(*handles, strict=True))
        for launcher, elsewhere in ((self._supervisor, False), (self._fleet, True)):
            added = [group for group in groups if group[0].task.remote == elsewhere]
            if launcher is not None and added:
                launcher.add(added)

    def stop(self) -> None:
        """Stop the other members and end the workers: the feed that leads was stopped."""
        for launcher in self._launchers:
            launcher.stop()
        for member in self._members[1:]:
            member.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the workers. Return True if all have ended within the limit."""
        deadline = time.perf_counter() + timeout_s
        ended = [
            launcher.join(max(0.0, deadline - time.perf_counter())) for launcher in self._launchers
        ]
        return all(ended)

    def release(self) -> None:
        """Close all descriptors: everything was stopped, and every worker has ended."""
        for launcher in self._launchers:
            launcher.release()
        for member in self._members:
            member.release()

    @property
    def _launchers(self) -> list[WorkerLauncher]:
        return [one for one in (self._supervisor, self._fleet) if one is not None]

    def exited(self, handles: Group, status: int) -> list[Group]:
        """Handle the end of a worker. Return the handles of each worker to start in its place."""
        # any member at work may be to blame: ask them all before anything changes
        busy = [len(handles) > 1 and handle.owner.busy(handle) for handle in handles]
        successors = [
            handle.owner.exited(handle, status, beside=any(busy[:n] + busy[n + 1 :]))
            for n, handle in enumerate(handles)
        ]
        # each in a process of its own now: the next death shows whose record it was
        return [[successor] for successor in successors if successor is not None]

    def failed(self, error: Exception) -> None:
        """Report that workers cannot be started."""
        for member in self._members:
            member.failed(error)

    def tick(self) -> None:
        """Do what is to be done from time to time."""
        for member in self._members:
            member.tick()

    def over(self) -> None:
        """Note that one launcher starts no other worker."""
        self._serving -= 1
        if not self._serving:
            for member in self._members:
                member.close()
