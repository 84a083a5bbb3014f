"""The observer of a process: one thread observes all of its runners, for black box, socket and
metrics.

It begins with the first runner's start and ends with the last one's stop. A failure in it costs a
line in the log, and never a step of the training.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import weakref

from fastfeed.live.metrics import create_exporter
from fastfeed.live.seen import WatchedStream
from fastfeed.live.service import Service
from fastfeed.live.watched import WatchedRunner
from fastfeed.options import MetricsTarget

LOG = logging.getLogger("fastfeed")
JOIN_S = 0.2  # beside the 1.8 s of the producers: stop() promises two
EXIT_S = 1.0
OFF = ("0", "off", "no", "false")


class Watch:
    """A runner under observation, until `end`."""

    def __init__(self, watched: WatchedRunner, service: Service, *, hub: Hub) -> None:
        self._hub = hub
        self._service = service
        self._watched = watched
        self.forgotten: weakref.finalize[[], WatchedStream] | None = None

    @property
    def over(self) -> bool:
        """True if the observation is over, because the feed has ended: another feed needs another
        watch."""
        return self._service.watched.get(self._watched.number) is not self._watched

    def end(self, *, join: bool = True) -> None:
        """End the observation: the runner was stopped, or forgotten. Without `join` nothing is
        waited for, from any thread, at any time."""
        if self._hub.pid != os.getpid():  # a forked copy
            return
        if self.forgotten is not None:
            self.forgotten.detach()  # it references this, and so the service and its descriptor
        self._service.leave(self._watched)
        if join and not self._service.watched:
            self._service.join(JOIN_S)


class Hub:
    """The observed runners of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lock = threading.RLock()
        self._service: Service | None = None
        self._registered = False

    def observe(self, stream: WatchedStream, targets: tuple[MetricsTarget, ...]) -> Watch | None:
        """Begin to observe a runner; return None if nothing was requested. Raise OptionError and
        MissingExtra for metrics that cannot be published."""
        blackbox, door = (
            os.environ.get("FASTFEED_BLACKBOX", ""),
            os.environ.get("FASTFEED_SOCKET", ""),
        )
        wanted = (blackbox.lower() not in OFF, door.lower() not in OFF)
        if not (any(wanted) or targets):
            return None
        try:
            with self._lock:
                watch = self._enter(
                    stream, targets, wanted=(blackbox if wanted[0] else None, wanted[1])
                )
        except (
            OSError,
            RuntimeError,
        ) as error:  # no descriptor is left, or no thread can be started
            LOG.warning("this runner is not observed: %s", error)
            return None
        watch.forgotten = weakref.finalize(stream, watch.end, join=False)
        watch.forgotten.atexit = False
        return watch

    def _enter(
        self,
        stream: WatchedStream,
        targets: tuple[MetricsTarget, ...],
        *,
        wanted: tuple[str | None, bool],
    ) -> Watch:
        service = self._service
        if service is None or service.over:
            blackbox = "" if wanted[0] == "1" else wanted[0]
            service = Service(self._lock, self._ended, blackbox=blackbox, socket=wanted[1])
        fresh = {str(t): create_exporter(t) for t in targets if str(t) not in service.publishers}
        number = next(n for n in itertools.count() if n not in service.watched)
        watched = WatchedRunner(stream, number, targets=tuple(map(str, targets)))
        service.enter(watched, fresh)
        self._service = service
        self._register()
        return Watch(watched, service, hub=self)

    def _ended(self) -> None:
        if self._service is not None and self._service.over:
            self._service = None

    def _register(self) -> None:
        if not self._registered:
            self._registered = True
            # After that of weakref.finalize, which the feed has registered: so this one runs first,
            # while runners are as their user left them.
            atexit.register(self._at_exit)
            os.register_at_fork(after_in_child=self._forked)

    def _at_exit(self) -> None:
        """End the thread: nothing may be inside TensorFlow while the interpreter ends. Record an
        error that ends it."""
        service = self._service
        if service is None or service.over or self.pid != os.getpid():
            return
        error = getattr(sys, "last_value", None)
        if isinstance(error, Exception) and not hasattr(sys, "ps1"):
            service.failure = f"the process ends with {type(error).__name__}: {error}"
        service.stop()
        service.join(EXIT_S)

    def _forked(self) -> None:
        """Forget everything in a forked copy: it has no thread, and must not hold the port, the
        socket or the lock of the file."""
        service, self._service = self._service, None
        if service is not None:
            service.forget()


# by pid: a process has one socket for all its runners, and a forked copy its own
_HUBS: dict[int, Hub] = {}


def observe(stream: WatchedStream, *targets: MetricsTarget) -> Watch | None:
    """Begin to observe a runner of this process; see `Hub.observe`."""
    pid = os.getpid()
    return _HUBS.setdefault(pid, Hub(pid)).observe(stream, targets)
