"""A small clean process that forks the workers: it never ran the user's main module nor started a
thread, so forking it is safe, and a worker costs milliseconds instead of repeated imports.

Both ends are here. The trainer's holds the process and its socket; the other one runs in the
process. When one of trainer, fork server and workers dies, the kernel kills those after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastfeed.errors import OptionError
from fastfeed.ring.memory import Descriptor, receive

PR_SET_PDEATHSIG = 1
# b"S", handle, pid, 0: started, with a pidfd; b"X", handle, pid, status: ended
EVENT = struct.Struct("<cqqq")
MESSAGE_NBYTES = 2**16
# Libraries that start one thread for each core would do so in each worker; an environment variable
# that is set wins.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
MOST_FDS = 253  # of one message, as many as Linux passes
CLOSE_S = 0.3


@dataclass(frozen=True)
class WorkerEvent:
    """A worker has started, or (with a status as of os.waitpid) ended."""

    lane: int
    pid: int
    status: int | None
    pidfd: Descriptor | None


class ForkServer:
    """The trainer's end. The thread that starts it must live as long as it is needed: its end kills
    the process."""

    def __init__(self) -> None:
        if not sys.executable:
            raise OptionError(
                "processes= needs a Python interpreter, and sys.executable does not name one"
            )
        self.socket, theirs = _socketpair()
        call = f"serve({theirs.fileno()}, {os.getpid()})"
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; {call}"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**dict.fromkeys(ONE_THREAD, "1"), **os.environ},
                # signals to the whole group are for the trainer to handle
                start_new_session=True,
            )
        self.pid = self._process.pid

    def spawn(self, task: dict[str, Any], fds: Sequence[int]) -> None:
        """Request a worker; its start and its end come as events. Raise OSError when the server is
        gone."""
        socket.send_fds(self.socket, [json.dumps(task).encode()], list(fds))

    def event(self) -> WorkerEvent | None:
        """Return the next event, which must be there; None when the server is gone."""
        try:
            data, fds = receive(self.socket, EVENT.size, fds=1)
        except ConnectionError:  # it is gone, and has not read all requests
            return None
        if not data:
            return None
        kind, lane, pid, status = EVENT.unpack(data)
        return WorkerEvent(
            lane, pid, None if kind == b"S" else status, Descriptor(fds[0]) if fds else None
        )

    def close(self) -> int:
        """End the server and every worker that is left; return its exit status."""
        with contextlib.suppress(OSError):
            # a forked copy of the trainer may have this socket, too
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        try:
            return self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _socketpair() -> tuple[socket.socket, socket.socket]:
    """Return a pair of sockets, none with a number from 0 to 2: those may be free here, but not in
    the server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return ours, socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def die_with(parent: int, by: int = signal.SIGKILL) -> None:
    """Let the kernel end this process when `parent` ends, whatever either of them does then. See
    prctl(2)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:  # it ended first
        os._exit(1)


def serve(control: int, trainer: int) -> None:
    """Run the fork server; never returns."""
    die_with(trainer)
    os.set_inheritable(control, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # a trainer that blocks signals would have blocked them here, too
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # else memory of the server would get such a number, and native code would print into it
    for fd in range(3):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        os.open(os.devnull, os.O_RDWR)
    # imported once, here: every worker needs it
    from fastfeed.producers.process import main as worker

    server = _Server(socket.socket(fileno=control), worker.main)
    # a signal that the server can handle: what the workers have started ends, too
    signal.signal(signal.SIGTERM, lambda *_: server.end())
    die_with(trainer, signal.SIGTERM)
    gc.freeze()
    # the trainer has closed its end, and needs no events any more
    with contextlib.suppress(ConnectionError):
        while server.step():
            pass
    server.end()


def _kill_group(leader: int) -> None:
    """Kill a worker and the programs that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader, signal.SIGKILL)  # it may not have its own group yet


class _Server:
    def __init__(
        self, control: socket.socket, run: Callable[[dict[str, Any], Sequence[int]], int]
    ) -> None:
        self._control = control
        self._run = run
        self._lanes: dict[int, int] = {}
        ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ended = ended
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(ended, select.POLLIN)

    def step(self) -> bool:
        """Wait for a request or a death; return False when the trainer has closed its end."""
        ready = dict(self._poll.poll())
        if self._ended in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ended, 4096)
            self._reap()
        if self._control.fileno() not in ready:
            return True
        data, fds = receive(self._control, MESSAGE_NBYTES, fds=MOST_FDS)
        if data:
            self._fork(json.loads(data), fds)
        return bool(data)

    def end(self) -> None:
        """End the workers that are left, all that they have started, and this process."""
        try:
            for pid in self._lanes:
                _kill_group(pid)
        finally:
            os._exit(0)

    def _fork(self, task: dict[str, Any], fds: Sequence[int]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(task, fds, server=server)
        self._lanes[pid] = task["lane"]
        pidfd = os.pidfd_open(pid)
        socket.send_fds(self._control, [EVENT.pack(b"S", self._lanes[pid], pid, 0)], [pidfd])
        for fd in (*fds, pidfd):
            os.close(fd)

    def _become_worker(self, task: dict[str, Any], fds: Sequence[int], *, server: int) -> None:
        code = 1
        try:
            die_with(server)
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._control.detach())
            gc.unfreeze()
            try:
                code = self._run(task, fds)
            except BaseException:  # a defect of fastfeed: failures of producers go another way
                traceback.print_exc()
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # a daemon has none
                    stream.flush()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._lanes:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            # until it is reaped, its number means no other process
            _kill_group(ended.si_pid)
            pid, status = os.waitpid(ended.si_pid, 0)
            self._control.send(EVENT.pack(b"X", self._lanes.pop(pid), pid, status))
