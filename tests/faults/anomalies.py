"""Anomalies: the n-th call of a producer into the system fails, for one n after the other.

`Fault` says which calls fail. In threads, `injected` patches the functions for the threads of the
producers. Worker processes come from a `FaultyServer`, which patches each of them right after its
fork: even what a worker does before the user's code fails. `judge` says how a run has ended.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
import pickle
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest

from fastfeed import FeedError, FeedRunner, Worker
from fastfeed.errors import FeedTimeout
from fastfeed.producers import reorder
from fastfeed.producers.process import forkserver, supervisor

BATCHES, SIZE = 12, 4
FOR_GOOD = 2**31  # calls
STALL_S = 20.0  # an end of this kind is a defect
PROMISE_S = 2.0
MARK = "injected"
FOLDER = "FASTFEED_ANOMALIES"  # environment variable with the folder of the plan
KINDS: dict[str, Callable[[], BaseException]] = {
    "EMFILE": lambda: OSError(errno.EMFILE, f"{MARK}: no descriptor"),
    "ENOSPC": lambda: OSError(errno.ENOSPC, f"{MARK}: no space"),
    "MemoryError": lambda: MemoryError(f"{MARK}: no memory"),
    "SystemExit": lambda: SystemExit(f"{MARK}: an exit"),
}
# The functions that fail: everything by which a producer gets memory, descriptors or threads, and
# by which it talks to the trainer.
SITES: tuple[tuple[Any, str], ...] = (
    (os, "memfd_create"),
    (os, "ftruncate"),
    (os, "read"),
    (os, "write"),
    (os, "open"),
    (mmap, "mmap"),
    (socket, "send_fds"),
    (socket.socket, "send"),
    (socket.socket, "recv"),
    (socket.socket, "recvmsg"),
    (pickle, "dumps"),
    (pickle, "loads"),
    (cloudpickle, "dumps"),
    (np, "empty"),
    (np, "frombuffer"),
    (threading.Thread, "start"),
    (threading.Condition, "notify"),
)


# Calls of the fork server, each of which is a kind of its own.
SERVER_CALLS = ("fork", "pidfd_open")


class Fault(NamedTuple):
    """The calls that fail: `count` of them, from number `at` on, with an error of a kind."""

    kind: str
    at: int
    count: int = 1


class Injector:
    """Replaces the functions, and counts their calls where `concerned` returns True. `fired` is
    called for every call that fails."""

    def __init__(
        self, fault: Fault, *, concerned: Callable[[], bool], fired: Callable[[], None]
    ) -> None:
        self._fault = fault
        self._concerned, self._fired = concerned, fired
        self._lock = threading.Lock()
        self._calls = 0
        self._inside = threading.local()
        self._saved: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        """Replace every function."""
        for place, name in SITES:
            real = getattr(place, name)
            self._saved.append((place, name, vars(place).get(name, self)))
            setattr(place, name, self._failing(real))

    def remove(self) -> None:
        """Put every function back."""
        for place, name, real in self._saved:
            if real is self:
                delattr(place, name)
            else:
                setattr(place, name, real)

    def _failing(self, real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if not getattr(self._inside, "yes", False) and self._concerned():
                self._inside.yes = True  # what a function calls itself is one call
                try:
                    self._count()
                    return real(*given, **named)
                finally:
                    self._inside.yes = False
            return real(*given, **named)

        return call

    def _count(self) -> None:
        with self._lock:
            self._calls += 1
            due = 0 <= self._calls - self._fault.at < self._fault.count
        if due:
            self._fired()
            raise KINDS[self._fault.kind]()


def in_producer() -> bool:
    """Return True in the thread of a producer. `current_thread` would make up a thread where one
    has just begun."""
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return thread is not None and thread.name.startswith("fastfeed-producer")


@contextlib.contextmanager
def injected(fault: Fault) -> Iterator[list[int]]:
    """Let calls of the producers' threads of this process fail. Yield a list with an entry for each
    that did.

    No garbage is collected meanwhile: a producer's thread would end the feeds of earlier runners,
    and their calls are none of its own.
    """
    fired: list[int] = []
    injector = Injector(
        fault,
        concerned=in_producer,
        fired=lambda: fired.append(1),
    )
    gc.collect()
    gc.disable()
    injector.install()
    try:
        yield fired
    finally:
        injector.remove()
        gc.enable()


class FaultyServer(forkserver.ForkServer):
    """A fork server for one run after the other. `fault` holds for every worker that it forks."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._plan, self._log_file = (Path(self._folder.name, name) for name in ("plan", "log"))
        self._log_file.touch()
        self._alive: dict[int, int] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(FOLDER, self._folder.name)
            patch.setattr(forkserver, "__name__", __name__)  # from where it imports `serve`
            super().__init__()

    def event(self) -> forkserver.WorkerEvent | None:
        """Receive an event as a ForkServer does, and note who is alive."""
        event = super().event()
        if event is not None and event.status is None:
            self._alive[event.number] = event.pid
        elif event is not None:
            self._alive.pop(event.number, None)
        return event

    def close(self) -> int:
        """End the workers of a run; the server stays."""
        for pid in self._alive.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        while self._alive:
            self.event()
        return 0

    def end(self) -> None:
        """End the server."""
        super().close()
        self._folder.cleanup()

    @contextlib.contextmanager
    def fault(self, fault: Fault) -> Iterator[list[int]]:
        """Let calls of the workers fail. Yield a list with an entry for each that did, once the
        run is over."""
        fired: list[int] = []
        before = self._log_file.stat().st_size
        self._plan.write_text(" ".join(map(str, fault)))
        try:
            yield fired
        finally:
            self._plan.unlink()
            fired += [1] * (self._log_file.stat().st_size - before)


def serve(*given: Any, **named: Any) -> None:
    """Run a fork server whose workers fail as the plan says."""
    folder = os.environ.pop(FOLDER)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    log, write = os.open(f"{folder}/log", os.O_WRONLY | os.O_APPEND), os.write

    def planned() -> Fault | None:
        with contextlib.suppress(FileNotFoundError), open(f"{folder}/plan") as file:
            kind, at, count = file.read().split()
            return Fault(kind, int(at), int(count))
        return None

    def patch() -> None:
        if (fault := planned()) is not None and fault.kind in KINDS:
            fired = lambda: write(log, b"!")  # noqa: E731
            # Not a thread that has not begun: its starter would wait for it, in any program.
            began = lambda: threading.get_ident() in threading._active  # type: ignore[attr-defined]  # noqa: E731
            Injector(fault, concerned=began, fired=fired).install()

    def failing(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*given: Any) -> Any:
            if (fault := planned()) is not None and fault.kind == name:
                raise OSError(errno.EAGAIN, f"{MARK}: {name}")
            return real(*given)

        return call

    for name in SERVER_CALLS:
        setattr(os, name, failing(name))
    os.register_at_fork(after_in_child=patch)
    forkserver.serve(*given, **named)


@contextlib.contextmanager
def faulty_server() -> Iterator[FaultyServer]:
    """Let all feeds get their workers from one FaultyServer. In the main thread."""
    server = FaultyServer()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(supervisor, "ForkServer", lambda: server)
            yield server
    finally:
        server.end()


class Numbers:
    """An indexable of numbers."""

    def __len__(self) -> int:
        return BATCHES * SIZE

    def __getitem__(self, index: int) -> Any:
        return np.int64(index)


def shares(worker: Worker) -> Iterator[Any]:
    """Yield the shares of a callable; a batch is made in memory that is asked for."""
    for start in range(worker.index, BATCHES, worker.count):
        yield np.arange(start * SIZE, (start + 1) * SIZE)


def whole(batch: Any) -> Any:
    """Return an item as it is."""
    return batch


def stream() -> Iterator[Any]:
    """Yield all batches."""
    for start in range(0, BATCHES * SIZE, SIZE):
        yield np.arange(start, start + SIZE)


SOURCES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "callable": lambda: (shares, {}),
    "indexable": lambda: (Numbers(), {"batch_size": SIZE}),
    "iterable": lambda: (stream(), {"transform": whole}),
}


@dataclass
class Ending:
    """End of a run: what is wrong with it ("" if nothing), how it ended, and after how long."""

    wrong: str
    how: str
    seconds: float
    fired: int


def texts_of(error: BaseException | None) -> str:
    """Return the text of an error and of its causes."""
    found = ""
    while error is not None:
        found += f"{type(error).__name__}: {error}\n"
        error = error.__cause__ or error.__context__
    return found


def judge(got: Sequence[int], error: BaseException | None) -> tuple[str, str]:
    """Return what is wrong with a run that has delivered these records and ended with this error,
    or None, and how it ended. An error must name its cause."""
    if error is None:
        complete = sorted(got) == list(range(BATCHES * SIZE))
        return ("" if complete else f"a silent end after {len(got)} records"), "complete"
    text = texts_of(error)
    if isinstance(error, FeedTimeout):
        return f"a stall: {text}", "stall"
    if len(set(got)) != len(got):
        return "records came twice", "error"
    if MARK not in text:
        return f"it does not name its cause: {text}", "error"
    return ("" if isinstance(error, FeedError) else f"not an error of the feed: {text}"), "error"


def take_all(runner: FeedRunner) -> Iterator[Any]:
    """Iterate in a plain loop."""
    yield from runner


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Deliver what was made before a failure for a moment only: a point then costs milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reorder, "FAILURE_GRACE_S", 0.02)
        yield


def run(
    source: str,
    options: dict[str, Any],
    fault: contextlib.AbstractContextManager[list[int]],
    sink: Callable[[FeedRunner], Iterator[Any]] = take_all,
) -> Ending:
    """Feed a source through a sink while calls fail."""
    got: list[int] = []
    error: BaseException | None = None
    given, more = SOURCES[source]()
    with fault as fired:
        start = time.perf_counter()
        try:
            with FeedRunner(given, stall_timeout_s=STALL_S, **more, **options) as runner:
                for batch in sink(runner):
                    got += np.asarray(batch).ravel().tolist()
        except BaseException as caught:
            error = caught
        seconds = time.perf_counter() - start
    wrong, how = judge(got, error)
    del error
    return Ending(wrong, how, seconds, len(fired))


def points(
    source: str,
    options: dict[str, Any],
    faulty: Callable[[Fault], contextlib.AbstractContextManager[list[int]]],
    *,
    step: int = 1,
    kinds: Sequence[str] = tuple(KINDS),
    sink: Callable[[FeedRunner], Iterator[Any]] = take_all,
) -> Iterator[tuple[Fault, Ending]]:
    """Let the n-th call fail, once and for good, for n = 1, 1 + step ... until none is left. The
    kinds take turns if `step` leaves calls out."""
    for turn, kind in enumerate(kinds):
        for count in (1, FOR_GOOD):
            at = 1 + (2 * turn + (count > 1)) % step
            while True:
                fault = Fault(kind, at, count)
                ending = run(source, options, faulty(fault), sink)
                if not ending.fired:
                    break
                yield fault, ending
                at += step
