"""The observer of a process: one thread observes all runners for black box, socket and metrics.

The thread begins with the first runner's start and ends with the last one's stop. A failure in it
costs a line in the log, and never a step of the training.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import weakref

from fastfeed.core.unix import ON_LINUX
from fastfeed.live.metrics import create_exporter
from fastfeed.live.runner_status import WatchedStream
from fastfeed.live.service import Service
from fastfeed.live.watched import WatchedRunner
from fastfeed.options import MetricsTarget

LOG = logging.getLogger("fastfeed")
STOP_TIMEOUT_S = 0.2  # producers may take 1.8 s of the two that stop() promises
EXIT_TIMEOUT_S = 1.0
DISABLED = ("0", "off", "no", "false")


class Watch:
    """The observation of a runner, until `end`."""

    def __init__(self, watched: WatchedRunner, service: Service, *, hub: Hub) -> None:
        self._hub = hub
        self._service = service
        self._watched = watched
        self.finalizer: weakref.finalize[[], WatchedStream] | None = None

    @property
    def over(self) -> bool:
        """True if the feed has ended. Another feed needs another watch."""
        return self._service.watched.get(self._watched.number) is not self._watched

    def end(self, *, join: bool = True) -> None:
        """End the observation of a runner that was stopped or garbage-collected.

        With join=False, return at once; any thread may then call this at any time.
        """
        if self._hub.pid != os.getpid():  # a forked copy
            return
        if self.finalizer is not None:
            self.finalizer.detach()  # it keeps this, and so the service and its descriptor, alive
        self._service.remove(self._watched)
        if join and not self._service.watched:
            self._service.join(STOP_TIMEOUT_S)


class Hub:
    """The observed runners of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lock = threading.RLock()
        self._service: Service | None = None
        self._registered = False

    def observe(self, stream: WatchedStream, targets: tuple[MetricsTarget, ...]) -> Watch | None:
        """Begin to observe a runner; return None if nothing was requested.

        Raise OptionError or MissingExtra for metrics that cannot be published.
        """
        if not (blackbox_path() is not None or has_socket() or targets):
            return None
        try:
            with self._lock:
                watch = self._add(stream, targets)
        except (OSError, RuntimeError) as error:  # too many descriptors or threads
            LOG.warning("this runner is not observed: %s", error)
            return None
        watch.finalizer = weakref.finalize(stream, watch.end, join=False)
        watch.finalizer.atexit = False
        return watch

    def _add(self, stream: WatchedStream, targets: tuple[MetricsTarget, ...]) -> Watch:
        service = self._service
        if service is None or service.over:
            service = Service(
                self._lock, self._ended, blackbox=blackbox_path(), socket=has_socket()
            )
        exporters = {str(t): create_exporter(t) for t in targets if str(t) not in service.exporters}
        number = next(n for n in itertools.count() if n not in service.watched)
        watched = WatchedRunner(stream, number, targets=tuple(map(str, targets)))
        service.add(watched, exporters)
        self._service = service
        self._register()
        return Watch(watched, service, hub=self)

    def _ended(self) -> None:
        if self._service is not None and self._service.over:
            self._service = None

    def _register(self) -> None:
        if not self._registered:
            self._registered = True
            # The feed has already registered the exit function of weakref.finalize. So this one
            # runs first, before any runner is finalized.
            atexit.register(self._at_exit)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._forked)

    def _at_exit(self) -> None:
        """Record the error that ends the interpreter, and end the thread.

        A thread must not be inside TensorFlow at the end of the interpreter.
        """
        service = self._service
        if service is None or service.over or self.pid != os.getpid():
            return
        error = getattr(sys, "last_value", None)
        if isinstance(error, Exception) and not hasattr(sys, "ps1"):
            service.failure = f"the process ends with {type(error).__name__}: {error}"
        service.stop()
        service.join(EXIT_TIMEOUT_S)

    def _forked(self) -> None:
        """Release everything in a forked copy.

        It has no thread, and must not hold the port, the socket or the lock of the file.
        """
        service, self._service = self._service, None
        if service is not None:
            service.forget()


def blackbox_path() -> str | None:
    """Return the requested path of the black box, "" for the default one, None if disabled."""
    given = os.environ.get("FASTFEED_BLACKBOX", "")
    return None if given.lower() in DISABLED or not ON_LINUX else "" if given == "1" else given


def has_socket() -> bool:
    """Return True unless the socket is disabled."""
    return ON_LINUX and os.environ.get("FASTFEED_SOCKET", "").lower() not in DISABLED


# By pid: a forked copy of the process has a socket of its own.
_HUBS: dict[int, Hub] = {}


def observe(stream: WatchedStream, *targets: MetricsTarget) -> Watch | None:
    """Begin to observe a runner of this process; see `Hub.observe`."""
    pid = os.getpid()
    return _HUBS.setdefault(pid, Hub(pid)).observe(stream, targets)
