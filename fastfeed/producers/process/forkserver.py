"""Small clean process that forks the workers. It never runs the user's main module nor starts a
thread, so forking it is safe, and a worker costs milliseconds instead of repeated imports.

Both ends are here: ForkServer in the trainer, `serve` in the process. The kernel ends each level
with the one above it: trainer, fork server, workers.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import marshal
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging.handlers import QueueHandler
from typing import IO, Any, cast

from fastfeed.core.unix import die_with, fcntl
from fastfeed.errors import OptionError, ProducerError, ProducerFailed
from fastfeed.producers.failure import last_words
from fastfeed.ring.memory import Descriptor, receive
from fastfeed.ring.status_page import leave_from_outside

# b"S", number, pid, 0: started, with a pidfd; b"X", number, pid, status: ended; b"F", 0, 0, 0 and
# a text: not started
CHILD_EVENT = struct.Struct("<cqqq")
MESSAGE_NBYTES, REASON_NBYTES = 2**16, 2**10
RECORD_NBYTES = 2**20  # no socket holds a larger one
HANDLER_WAIT_S = 0.5  # a worker waits so long for a program that handles no record
# Libraries with one thread for each core would start that many threads in every worker. The user's
# own setting takes precedence.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
MAX_FDS = 253  # in one message, the limit of Linux
CLOSE_S = 0.3


@dataclass(frozen=True)
class WorkerEvent:
    """Start of a worker, or its end, with a status as of os.waitpid."""

    number: int
    pid: int
    status: int | None
    pidfd: Descriptor | None


class ForkServer:
    """The trainer's end. The thread that starts it must live as long as it is needed: the process
    dies with that thread."""

    def __init__(self) -> None:
        if not sys.executable:
            raise OptionError(
                "processes= needs a Python interpreter, and sys.executable does not name one"
            )
        self.socket, theirs = _socketpair()
        records, their_records = _socketpair()
        handling: Any = {"target": _handle_records, "args": (records,), "name": "fastfeed-log"}
        self._log = threading.Thread(**handling, daemon=True)  # a handler of the user's may wait
        channels = theirs.fileno(), their_records.fileno()
        # marshal is built in: it is there before sys.path is
        same = "sys.argv, sys.path[:], limit, levels = marshal.load(sys.stdin.buffer)"
        code = f"import marshal, sys; {same}; sys.setrecursionlimit(limit); "
        code += f"from {__name__} import serve; serve({channels}, {os.getpid()}, levels=levels)"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with theirs, their_records, _program() as program:
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                stdin=program,
                pass_fds=channels,
                env={**dict.fromkeys(ONE_THREAD, "1"), **os.environ},
                # the trainer decides on signals to the whole group
                start_new_session=True,
            )
        self._log.start()

    def spawn(self, task: dict[str, Any], fds: Sequence[int]) -> None:
        """Request a worker; its start and its end come as events. Raise OSError if the server is
        gone."""
        socket.send_fds(self.socket, [json.dumps(task).encode()], list(fds))

    def event(self) -> WorkerEvent | None:
        """Receive the next event, which must be there. Return None if the server is gone."""
        try:
            data, fds = receive(self.socket, CHILD_EVENT.size + REASON_NBYTES, fds=1)
        except ConnectionError:  # it is gone without having read all requests
            return None
        if not data:
            return None
        kind, number, pid, status = CHILD_EVENT.unpack_from(data)
        if kind == b"F":
            raise ProducerError(
                f"a worker process could not be started: {data[CHILD_EVENT.size :].decode()}. Use "
                "fewer processes=, or raise the limit of processes (ulimit -u, pids.max), of "
                "descriptors (ulimit -n) or of memory"
            )
        return WorkerEvent(
            number, pid, None if kind == b"S" else status, Descriptor(fds[0]) if fds else None
        )

    def close(self) -> int:
        """End the server and every remaining worker. Return the server's exit status."""
        with contextlib.suppress(OSError):
            # A forked copy of the trainer may hold this socket, too.
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        try:
            return self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._log.join(CLOSE_S)


def _program() -> IO[bytes]:
    """Return a file with what a worker has in common with this program: an argument would be too
    long for many file names."""
    file = os.fdopen(os.memfd_create("fastfeed-program"), "w+b")
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    levels = {str(name): int(getattr(logger, "level", 0)) for name, logger in loggers.items()}
    lists = list(map(str, sys.argv)), list(map(str, sys.path))
    marshal.dump((*lists, sys.getrecursionlimit(), levels), file)
    file.seek(0)
    return file


def _handle_records(channel: socket.socket) -> None:
    """Pass the log records of all workers to the program's handlers, until no worker is left."""
    with channel:
        while data := channel.recv(RECORD_NBYTES):
            record = logging.makeLogRecord(json.loads(data))
            logger = logging.root if record.handled else logging.getLogger(record.name)  # type: ignore[attr-defined]
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)


class _RecordSender(QueueHandler):
    """Sends the log records of a worker to the program, which treats them like its own."""

    def enqueue(self, record: logging.LogRecord) -> None:
        logger, channel = logging.getLogger(record.name), cast("socket.socket", self.queue)
        while logger.parent is not None and not logger.handlers:
            logger = logger.parent
        # True if a logger of a module has handled it here, as the same one would there
        record.handled = logger is not logging.root
        channel.send(json.dumps(vars(record), default=str).encode())

    def handleError(self, record: logging.LogRecord) -> None:
        """Print a record that the program cannot take now."""
        logging.lastResort.handle(record)  # type: ignore[union-attr]


def _socketpair() -> tuple[socket.socket, socket.socket]:
    """Return a pair whose second socket has none of the numbers 0 to 2: those are the child's
    standard streams, and may be free here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return ours, socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def serve(channels: tuple[int, int], trainer: int, *, levels: dict[str, int]) -> None:
    """Run the fork server; never return. The channels are for requests, and for log records from
    the `levels` of the program's loggers on."""
    control, records = channels
    die_with(trainer)
    for fd in channels:
        os.set_inheritable(fd, False)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    channel: Any = socket.socket(fileno=records)
    channel.settimeout(HANDLER_WAIT_S)
    logging.root.addHandler(_RecordSender(channel))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A trainer that blocks signals passes its mask on.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.close(0)
    # Otherwise a memfd could get such a number, and native code would print into it.
    for fd in range(3):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # by programs that workers start
    # Imported once, here: everything that every worker needs.
    from fastfeed.producers.process import main as worker

    server = _Server(socket.socket(fileno=control), worker.main)
    # With a signal that it can handle: programs that the workers have started must end, too.
    signal.signal(signal.SIGTERM, lambda *_: server.end())
    die_with(trainer, signal.SIGTERM)
    gc.freeze()
    # The trainer has closed its end and receives no events any more.
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
        self._workers: dict[int, int] = {}
        ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ended = ended
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(ended, select.POLLIN)

    def step(self) -> bool:
        """Wait for a request or a death. Return False if the trainer has closed its end."""
        ready = dict(self._poll.poll())
        if self._ended in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ended, 4096)
            self._reap()
        if self._control.fileno() not in ready:
            return True
        data, fds = receive(self._control, MESSAGE_NBYTES, fds=MAX_FDS)
        try:
            if data:
                self._fork(json.loads(data), fds)
        except (OSError, MemoryError) as error:  # a limit is reached
            text = f"{type(error).__name__}: {error}".encode()[:REASON_NBYTES]
            self._control.send(CHILD_EVENT.pack(b"F", 0, 0, 0) + text)
        return bool(data)

    def end(self) -> None:
        """End the remaining workers, the programs they have started, and this process."""
        try:
            for pid in self._workers:
                _kill_group(pid)
        finally:
            os._exit(0)

    def _fork(self, task: dict[str, Any], fds: Sequence[int]) -> None:
        if not fds:
            raise OSError(errno.EMFILE, "no descriptor is left for its channels")
        server = os.getpid()
        # Before its own first line, a worker has the server's handler, which ends the others.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(task, fds, server=server)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self._workers[pid] = task["number"]
        pidfd = os.pidfd_open(pid)
        socket.send_fds(
            self._control, [CHILD_EVENT.pack(b"S", self._workers[pid], pid, 0)], [pidfd]
        )
        for fd in (*fds, pidfd):
            os.close(fd)

    def _become_worker(self, task: dict[str, Any], fds: Sequence[int], *, server: int) -> None:
        code = 1
        try:
            try:
                die_with(server)
                os.setpgid(0, 0)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(self._control.detach())
                code = self._run(task, fds)
            except BaseException as error:  # it has no ring or no thread, or could not be reported
                leave_from_outside(fds[0], last_words(ProducerFailed("a worker process", error)))
                traceback.print_exc()
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # a daemon has none
                    stream.flush()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._workers:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            # Until it is reaped, its number cannot be another process's.
            _kill_group(ended.si_pid)
            pid, status = os.waitpid(ended.si_pid, 0)
            self._control.send(CHILD_EVENT.pack(b"X", self._workers.pop(pid), pid, status))
