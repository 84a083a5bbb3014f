"""The work of the hub's thread, from the first runner's start to the last one's stop."""

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

from fastfeed.live.blackbox import BlackBox
from fastfeed.live.metrics import Exporter, Prometheus, exposition, http_response
from fastfeed.live.seen import RunnerStatus, rss_of
from fastfeed.live.server import Server
from fastfeed.live.socket import same_user, serve
from fastfeed.live.watched import WatchedRunner
from fastfeed.ring.memory import Descriptor

LOG = logging.getLogger("fastfeed")
TICK_S = 1.0
EXPORT_TICKS = 5
SCHEMA = 1


class Service:
    """The thread, and what it has open. `blackbox`: None for none, "" for the default place;
    `lock`: the hub's, under which `ended` is called."""

    def __init__(
        self, lock: Any, ended: Callable[[], None], *, blackbox: str | None, socket: bool
    ) -> None:
        self._lock = lock
        self._ended = ended
        self._wanted = (blackbox, socket)
        self.watched: dict[int, WatchedRunner] = {}
        self.publishers: dict[str, Exporter] = {}
        self.failure = ""
        self.over = False
        self._new: deque[Exporter] = deque()  # publishers that the thread has not opened yet
        self._news: deque[tuple[WatchedRunner, str]] = deque()
        self._pidfds: dict[int, Any] = {}
        self._failed = False
        self._bell = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._server = Server()
        self._box: BlackBox | None = None
        self._socket: Path | None = None
        self._version = ""
        self._thread = threading.Thread(target=self._run, name="fastfeed-live", daemon=True)

    def enter(self, watched: WatchedRunner, publishers: dict[str, Exporter]) -> None:
        """Add a runner. Under the hub's lock."""
        self.publishers.update(publishers)
        self._new.extend(publishers.values())
        self.watched[watched.number] = watched
        self._news.append((watched, "start"))
        if self._thread.ident is None:
            self._thread.start()
        self._ring()

    def leave(self, watched: WatchedRunner) -> None:
        """Note that a runner has ended. From any thread, at any time, also inside this one."""
        if self.watched.get(watched.number) is watched:
            self._news.append((watched, "stop"))
            self.watched.pop(watched.number, None)
            self._ring()

    def stop(self) -> None:
        """Note that all runners have ended."""
        for watched in list(self.watched.values()):
            self.leave(watched)
        self._ring()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, which must have no runner left."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def forget(self) -> None:
        """Release everything silently, in a forked copy."""
        self.over = True
        self.watched.clear()
        self._server.close()
        if self._box is not None:
            self._box.forget()

    def _ring(self) -> None:
        os.eventfd_write(self._bell.fd, 1)

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
        blackbox, socket = self._wanted
        self._server.watch(self._bell.fd, None)
        self._version = own_version()
        if blackbox is not None:
            try:
                self._box = BlackBox(blackbox, version=self._version)
            except OSError as error:
                LOG.warning(
                    "no black box: %s. FASTFEED_BLACKBOX=PATH names another place, 0 does without",
                    error,
                )
        if socket:
            try:
                door, self._socket = serve()
                self._server.listen(door, lambda _: self._json(), admits=same_user)
            except OSError as error:
                LOG.warning(
                    "no socket for `fastfeed top`: %s. FASTFEED_SOCKET=0 does without", error
                )

    def _loop(self) -> None:
        due_s, ticks = time.perf_counter(), 0
        while True:
            self._publish()
            self._tell()
            with self._lock:
                # from here on the next runner gets a thread of its own
                self.over = not self.watched and not self._news
                if self.over:
                    return
            now = time.perf_counter()
            if now >= due_s:
                self._tick(keep=True)
                due_s, ticks = max(due_s + TICK_S, now), ticks + 1
                if ticks % EXPORT_TICKS == 0:
                    self._export()
            found = self._server.wait(due_s)
            if found:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell.fd)
                for worker in filter(None, found):  # it has ended: reported once
                    self._server.unwatch(self._pidfds[worker].fd)  # type: ignore[index]
                self._tick(keep=False)

    def _tick(self, *, keep: bool) -> None:
        """Sample every runner and record it."""
        looks = [
            (w, found)
            for w in list(self.watched.values())
            if (found := w.look(keep=keep)) is not None
        ]
        rss = rss_of()
        for forgotten in [w for w in list(self.watched.values()) if w.stream() is None]:
            self.leave(forgotten)
        for watched, found in looks:
            self._write_down(watched, found, rss=rss)
            if found.over:  # its runner may be held forever, by a session that has ended
                self.leave(watched)
        if looks:
            self._note(BlackBox.table, [row for _, found in looks for row in found.rows])
        self._watch_workers([found for _, found in looks])

    def _write_down(self, watched: WatchedRunner, found: RunnerStatus, *, rss: int) -> None:
        self._failed = self._failed or bool(found.error)
        for text in watched.news(found):
            self._note(BlackBox.event, watched.number, text)
        self._note(BlackBox.sample, watched.sample(found, rss))

    def _tell(self) -> None:
        """Record which runners came and went, with the last state of the latter."""
        while self._news:
            watched, text = self._news.popleft()
            if text == "stop":
                self._last_words(watched)
            said = _start(watched) if text == "start" else "stopped"
            self._note(BlackBox.event, watched.number, said)

    def _last_words(self, watched: WatchedRunner) -> None:
        found = watched.look(keep=False)
        if found is not None:
            self._write_down(watched, found, rss=rss_of())
            if not self.watched:
                self._note(BlackBox.table, found.rows)
            self._export(watched)
        watched.forget()
        self._watch_workers([w.last for w in list(self.watched.values()) if w.last is not None])
        with self._lock:  # a new runner with the same address finds it free
            wanted = {name for w in self.watched.values() for name in w.targets}
            for name in self.publishers.keys() - wanted:
                self._retire(name)

    def _watch_workers(self, looks: list[RunnerStatus]) -> None:
        """Watch worker processes, so that their end is noticed at once."""
        now = {
            w.pid: w.pidfd
            for found in looks
            for w in found.workers
            if w.pidfd is not None and not w.ended
        }
        for pid in [pid for pid in self._pidfds if pid not in now]:
            self._server.unwatch(self._pidfds.pop(pid).fd)
        for pid, pidfd in now.items():
            if pid not in self._pidfds:
                self._pidfds[pid] = pidfd
                with contextlib.suppress(OSError, KeyError, ValueError):
                    self._server.watch(pidfd.fd, pid)

    def _publish(self) -> None:
        """Open new publishers."""
        while self._new:
            new = self._new.popleft()
            LOG.info("metrics at %s", new.address)
            if isinstance(new, Prometheus):
                for name in [name for name, one in self.publishers.items() if one is new]:
                    self._server.listen(new.listener, self._page(name))

    def _page(self, name: str) -> Callable[[bytes], bytes | None]:
        return lambda question: http_response(question, lambda: exposition(self._figures(name)))

    def _export(self, leaving: WatchedRunner | None = None) -> None:
        for name, one in list(self.publishers.items()):
            try:
                own = [leaving] if leaving is not None else list(self.watched.values())
                one.write(
                    [w.figures(w.last) for w in own if name in w.targets and w.last is not None]
                )
            except OSError as error:
                LOG.warning("metrics=%r: %s. No more is written there", name, error)
                self._retire(name)

    def _retire(self, name: str) -> None:
        one = self.publishers.pop(name)
        if isinstance(one, Prometheus):
            self._server.unwatch(one.listener.fileno())
        with contextlib.suppress(OSError):
            one.close()

    def _figures(self, name: str | None = None) -> list[dict[str, Any]]:
        found = [
            (w, w.look(keep=False))
            for w in list(self.watched.values())
            if name is None or name in w.targets
        ]
        return [w.figures(look) for w, look in found if look is not None]

    def _json(self) -> bytes:
        answer: dict[str, Any] = {"schema": SCHEMA, "fastfeed": self._version, "pid": os.getpid()}
        answer |= {
            "time_s": time.time(),
            "clock_s": time.perf_counter(),
            "command": sys.argv,
            "rss": rss_of(),
        }
        answer["blackbox"] = None if self._box is None else str(self._box.path)
        answer["metrics"] = [one.address for one in self.publishers.values()]
        answer["runners"] = self._figures()
        return json.dumps(answer).encode() + b"\n"

    def _note(self, write: Callable[..., None], *given: Any) -> None:
        """Write into the black box, if there is one; give it up if that fails."""
        box = self._box
        if box is not None:
            try:
                write(box, *given)
            except OSError as error:
                LOG.warning("the black box ends here: %s", error)
                self._box = None
                box.give_up()

    def _close(self) -> None:
        with self._lock:
            self.over = True
            self._ended()
        for name in list(self.publishers):
            self._retire(name)
        self._server.close()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.unlink()
        if self.failure:
            self._note(BlackBox.event, -1, self.failure)
        self._note(BlackBox.close, self._failed or bool(self.failure))


def own_version() -> str:
    """Return the installed version of fastfeed."""
    try:
        return version("fastfeed")
    except PackageNotFoundError:
        return ""


def _start(watched: WatchedRunner) -> str:
    return "start" + "".join(f" {name}={value}" for name, value in watched.options.items())
