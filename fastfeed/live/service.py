"""The observing thread of a process, from the first runner's start to the last one's stop."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastfeed.core.shard_address import without_tokens
from fastfeed.live.blackbox import BlackBox
from fastfeed.live.metrics import Exporter, Prometheus, exposition, http_response
from fastfeed.live.runner_status import RunnerStatus, rss_of
from fastfeed.live.server import Server
from fastfeed.live.socket import same_user, serve
from fastfeed.live.watched import WatchedRunner
from fastfeed.ring.memory import Descriptor

LOG = logging.getLogger("fastfeed")
SAMPLE_EVERY_S = 1.0
EXPORT_EVERY_SAMPLES = 5
ANSWER_SCHEMA = 1


class Service:
    """The thread, and the files and sockets that it has open.

    `blackbox` is a path, "" for the default one, or None for no black box. `lock` is the hub's;
    `ended` is called under it at the end of the thread.
    """

    def __init__(
        self, lock: Any, ended: Callable[[], None], *, blackbox: str | None, socket: bool
    ) -> None:
        self._lock = lock
        self._ended = ended
        self._blackbox_path = blackbox
        self._has_socket = socket
        self.watched: dict[int, WatchedRunner] = {}
        self.exporters: dict[str, Exporter] = {}
        self.failure = ""
        self.over = False
        self._new_exporters: deque[Exporter] = deque()
        self._changes: deque[tuple[WatchedRunner, str]] = deque()  # "start" or "stop"
        self._pidfds: dict[int, Any] = {}
        self._failed = False
        self._wakeup = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._server = Server()
        self._blackbox: BlackBox | None = None
        self._socket_path: Path | None = None
        self._version = ""
        self._thread = threading.Thread(target=self._run, name="fastfeed-live", daemon=True)

    def add(self, watched: WatchedRunner, exporters: dict[str, Exporter]) -> None:
        """Add a runner and its new exporters. The caller holds the hub's lock."""
        self.exporters.update(exporters)
        self._new_exporters.extend(exporters.values())
        self.watched[watched.number] = watched
        self._changes.append((watched, "start"))
        if self._thread.ident is None:
            self._thread.start()
        self._wake()

    def remove(self, watched: WatchedRunner) -> None:
        """Remove a runner that has ended, from any thread at any time, including this one."""
        if self.watched.get(watched.number) is watched:
            self._changes.append((watched, "stop"))
            self.watched.pop(watched.number, None)
            self._wake()

    def stop(self) -> None:
        """Remove all runners."""
        for watched in list(self.watched.values()):
            self.remove(watched)
        self._wake()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, which must have no runner left."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def forget(self) -> None:
        """Release everything silently, in a forked copy."""
        self.over = True
        self.watched.clear()
        self._server.close()
        if self._blackbox is not None:
            self._blackbox.forget()

    def _wake(self) -> None:
        os.eventfd_write(self._wakeup.fd, 1)

    def _run(self) -> None:
        try:
            self._open()
            self._loop()
        except Exception:  # a defect of fastfeed must not end a training
            LOG.warning(
                "the runners are no longer observed: no black box, no socket, no metrics",
                exc_info=True,
            )
            self._failed = True
        finally:
            self._close()

    def _open(self) -> None:
        self._server.watch(self._wakeup.fd, None)
        self._version = own_version()
        if self._blackbox_path is not None:
            try:
                self._blackbox = BlackBox(self._blackbox_path, version=self._version)
            except OSError as error:
                LOG.warning(
                    "no black box: %s. FASTFEED_BLACKBOX=PATH sets another path, 0 disables it",
                    error,
                )
        if self._has_socket:
            try:
                listener, self._socket_path = serve()
                self._server.listen(listener, lambda _: self._answer(), admits=same_user)
            except OSError as error:
                LOG.warning(
                    "no socket for `fastfeed top`: %s. FASTFEED_SOCKET=0 disables it", error
                )

    def _loop(self) -> None:
        due_s, samples = time.perf_counter(), 0
        while True:
            self._open_exporters()
            self._record_changes()
            with self._lock:
                # Once this is set, the next runner gets a thread of its own.
                self.over = not self.watched and not self._changes
                if self.over:
                    return
            now = time.perf_counter()
            if now >= due_s:
                self._sample(keep=True)
                due_s, samples = max(due_s + SAMPLE_EVERY_S, now), samples + 1
                if samples % EXPORT_EVERY_SAMPLES == 0:
                    self._export(list(self.watched.values()))
            ready = self._server.wait(due_s)
            if ready:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wakeup.fd)
                for pid in filter(None, ready):  # report the end of a worker once
                    self._server.unwatch(self._pidfds[pid].fd)  # type: ignore[index]
                self._sample(keep=False)

    def _sample(self, *, keep: bool) -> None:
        """Sample and record every runner."""
        statuses: list[tuple[WatchedRunner, RunnerStatus]] = []
        for watched in list(self.watched.values()):
            status = watched.update(keep=keep)
            if status is not None:
                statuses.append((watched, status))
            if watched.stream() is None:
                self.remove(watched)
        rss = rss_of()
        for watched, status in statuses:
            self._record(watched, status, rss=rss)
            if status.over:  # an ended session may keep its runner forever
                self.remove(watched)
        if statuses:
            self._write(BlackBox.table, [row for _, status in statuses for row in status.rows])
        self._watch_workers([status for _, status in statuses])

    def _record(self, watched: WatchedRunner, status: RunnerStatus, *, rss: int) -> None:
        self._failed = self._failed or bool(status.error)
        for text in watched.new_events(status):
            self._write(BlackBox.event, watched.number, text)
        self._write(BlackBox.write, watched.sample(status, rss))

    def _record_changes(self) -> None:
        """Record the runners that were added and removed, with the last status of the latter."""
        while self._changes:
            watched, change = self._changes.popleft()
            if change == "start":
                options = (f" {name}={value}" for name, value in watched.options.items())
                self._write(BlackBox.event, watched.number, "start" + "".join(options))
            else:
                self._record_end(watched)
                self._write(BlackBox.event, watched.number, "stopped")

    def _record_end(self, watched: WatchedRunner) -> None:
        status = watched.update(keep=False)
        if status is not None:
            self._record(watched, status, rss=rss_of())
            if not self.watched:
                self._write(BlackBox.table, status.rows)
            self._export([watched])
        watched.forget()
        self._watch_workers([w.last for w in list(self.watched.values()) if w.last is not None])
        with self._lock:  # free the address for a new runner
            wanted = {name for w in self.watched.values() for name in w.targets}
            for name in self.exporters.keys() - wanted:
                self._close_exporter(name)

    def _watch_workers(self, statuses: list[RunnerStatus]) -> None:
        """Watch worker processes, to notice their end at once."""
        running = {
            worker.pid: worker.pidfd
            for status in statuses
            for worker in status.workers
            if worker.pidfd is not None and not worker.ended
        }
        for pid in self._pidfds.keys() - running.keys():
            self._server.unwatch(self._pidfds.pop(pid).fd)
        for pid in running.keys() - self._pidfds.keys():
            self._pidfds[pid] = running[pid]
            with contextlib.suppress(OSError, KeyError, ValueError):
                self._server.watch(running[pid].fd, pid)

    def _open_exporters(self) -> None:
        while self._new_exporters:
            new = self._new_exporters.popleft()
            LOG.info("metrics at %s", new.address)
            if isinstance(new, Prometheus):
                for name in [name for name, known in self.exporters.items() if known is new]:
                    self._server.listen(new.listener, self._responder(name))

    def _responder(self, name: str) -> Callable[[bytes], bytes | None]:
        return lambda request: http_response(request, lambda: exposition(self._figures(name)))

    def _export(self, runners: list[WatchedRunner]) -> None:
        for name, exporter in list(self.exporters.items()):
            try:
                exporter.write(
                    [w.figures(w.last) for w in runners if name in w.targets and w.last is not None]
                )
            except OSError as error:
                LOG.warning("metrics=%r: %s. No more is written there", name, error)
                self._close_exporter(name)

    def _close_exporter(self, name: str) -> None:
        exporter = self.exporters.pop(name)
        if isinstance(exporter, Prometheus):
            self._server.unwatch(exporter.listener.fileno())
        with contextlib.suppress(OSError):
            exporter.close()

    def _figures(self, target: str | None = None) -> list[dict[str, Any]]:
        """Return the present figures of the runners with this target, or of all."""
        return [
            watched.figures(status)
            for watched in list(self.watched.values())
            if target is None or target in watched.targets
            if (status := watched.update(keep=False)) is not None
        ]

    def _answer(self) -> bytes:
        """Return the figures of the process as JSON, for a client of the socket."""
        answer = {
            "schema": ANSWER_SCHEMA,
            "fastfeed": self._version,
            "pid": os.getpid(),
            "time_s": time.time(),
            "clock_s": time.perf_counter(),
            "command": sys.argv,
            "rss": rss_of(),
            "blackbox": None if self._blackbox is None else str(self._blackbox.path),
            "metrics": [exporter.address for exporter in self.exporters.values()],
            "runners": self._figures(),
        }
        return without_tokens(json.dumps(answer)).encode() + b"\n"

    def _write(self, write: Callable[..., None], *args: Any) -> None:
        """Write to the black box, if there is one. Give it up if that fails."""
        blackbox = self._blackbox
        if blackbox is not None:
            try:
                write(blackbox, *args)
            except OSError as error:
                LOG.warning("the black box ends here: %s", error)
                self._blackbox = None
                blackbox.give_up()

    def _close(self) -> None:
        with self._lock:
            self.over = True
            self._ended()
        for name in list(self.exporters):
            self._close_exporter(name)
        self._server.close()
        if self._socket_path is not None:
            with contextlib.suppress(OSError):
                self._socket_path.unlink()
        if self.failure:
            self._write(BlackBox.event, -1, self.failure)
        self._write(BlackBox.close, self._failed or bool(self.failure))


def own_version() -> str:
    """Return the installed version of fastfeed."""
    try:
        return version("fastfeed")
    except PackageNotFoundError:
        return ""
