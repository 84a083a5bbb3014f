"""The observer of a process: one thread samples all runners for the black box and the metrics.

The thread begins with the first runner's start and ends with the last one's stop. A failure in it
costs a line in the log, and never a step of the training.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from fastfeed.core.unix import ON_LINUX
from fastfeed.jobs.blackbox import BlackBox
from fastfeed.jobs.metrics import Exporter, exporter_for
from fastfeed.jobs.runner_samples import Sighting, WatchedRunner, WatchedStream
from fastfeed.options import MetricsTarget

LOG = logging.getLogger("fastfeed")
SAMPLE_EVERY_S = 1.0
EXPORT_EVERY_SAMPLES = 5
STOP_TIMEOUT_S = 0.2  # producers may take 1.8 s of the two that stop() promises
EXIT_TIMEOUT_S = 1.0
DISABLED = ("0", "off", "no", "false")


class Watch:
    """The observation of a runner, until `end`."""

    def __init__(self, watched: WatchedRunner, observer: JobObserver) -> None:
        self._watched = watched
        self._observer = observer

    @property
    def over(self) -> bool:
        """True if the feed has ended. Another feed needs another watch."""
        return self._observer.runners.get(self._watched.number) is not self._watched

    def end(self) -> None:
        """End the observation of a runner that was stopped."""
        self._observer.remove(self._watched)
        if not self._observer.runners:
            self._observer.join(STOP_TIMEOUT_S)


class JobObserver:
    """The thread, and the files and ports that it has open."""

    # Of this process. `lock` guards `current` and the exporters.
    current: JobObserver | None = None
    lock = threading.RLock()

    def __init__(self) -> None:
        self.runners: dict[int, WatchedRunner] = {}
        self._exporters: dict[str, Exporter] = {}
        self._figures: dict[WatchedRunner, dict[str, Any]] = {}  # of the last sample
        self._changes: deque[tuple[WatchedRunner, bool]] = deque()  # True for a start
        self._changed = threading.Event()
        self._blackbox: BlackBox | None = None
        self._failure = ""  # the error that ends the process
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="fastfeed-jobs", daemon=True)

    def add(self, stream: WatchedStream, target: MetricsTarget | None) -> Watch:
        """Observe another runner. The caller holds the lock.

        Raise OptionError or MissingExtra for metrics that cannot be published.
        """
        name = "" if target is None else str(target)
        if target is not None and name not in self._exporters:
            self._exporters[name] = exporter_for(target, lambda: self._published(name))
        number = next(n for n in itertools.count() if n not in self.runners)
        watched = self.runners[number] = WatchedRunner(stream, number, target=name)
        self._changes.append((watched, True))
        try:
            if self._thread.ident is None:
                self._thread.start()
        except RuntimeError:
            self._close_exporters()
            raise
        self._changed.set()
        return Watch(watched, self)

    def remove(self, watched: WatchedRunner) -> None:
        """Remove a runner that has ended, from any thread, including this one."""
        if self.runners.get(watched.number) is watched:
            self._changes.append((watched, False))
            self.runners.pop(watched.number, None)
            self._changed.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, which must have no runner left."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def stop(self, failure: str) -> None:
        """Record the error that ends the interpreter, and end the thread.

        A thread must not be inside TensorFlow at the end of the interpreter.
        """
        self._failure = failure
        for watched in list(self.runners.values()):
            self.remove(watched)
        self.join(EXIT_TIMEOUT_S)

    def forget(self) -> None:
        """Release the ports and the lock of the file in a forked copy, which has no thread."""
        self.runners.clear()
        for held in (self._blackbox, *self._exporters.values()):
            if held is not None:
                held.forget()

    def _run(self) -> None:
        try:
            self._open()
            self._loop()
        except Exception:  # a defect of fastfeed must not end a training
            LOG.warning(
                "the runners are no longer observed: no black box, no metrics", exc_info=True
            )
            self._failed = True
        finally:
            self._close()

    def _open(self) -> None:
        path = blackbox_path()
        if path is not None:
            try:
                self._blackbox = BlackBox(path, version=own_version())
            except OSError as error:
                LOG.warning(
                    "no black box: %s. FASTFEED_BLACKBOX=PATH sets another path, 0 disables it",
                    error,
                )

    def _loop(self) -> None:
        due_s, samples = time.perf_counter(), 0
        while True:
            self._changed.clear()
            self._record_changes()
            with self.lock:
                if not self.runners and not self._changes:
                    self._leave()  # the next runner gets a thread of its own
                    return
            now = time.perf_counter()
            if now >= due_s:
                self._sample()
                due_s, samples = max(due_s + SAMPLE_EVERY_S, now), samples + 1
                if samples % EXPORT_EVERY_SAMPLES == 0:
                    for name in list(self._exporters):
                        self._export(name, self._published(name))
            self._changed.wait(max(0.0, due_s - time.perf_counter()))

    def _sample(self) -> None:
        """Sample and record every runner."""
        seen: dict[WatchedRunner, Sighting] = {}
        for watched in list(self.runners.values()):
            sighting = watched.look()
            if sighting is not None:
                seen[watched] = sighting
                self._record(sighting)
            # An ended session may keep its runner forever.
            if watched.stream() is None or (sighting is not None and sighting.over):
                self.remove(watched)
        self._figures = {watched: one.figures() for watched, one in seen.items()}
        if seen:
            self._write(BlackBox.table, [row for one in seen.values() for row in one.producers])

    def _record(self, seen: Sighting) -> None:
        self._failed = self._failed or bool(seen.sample.error)
        for text in seen.events:
            self._write(BlackBox.event, seen.sample.runner, text)
        self._write(BlackBox.write, seen.sample)

    def _record_changes(self) -> None:
        """Record the runners that were added and removed, with the last status of the latter."""
        while self._changes:
            watched, begins = self._changes.popleft()
            if begins:
                text = f"start {watched.options}".rstrip()
                self._write(BlackBox.event, watched.number, text)
                if watched.target in self._exporters:
                    address = self._exporters[watched.target].address
                    LOG.info("metrics at %s", address)
                    self._write(BlackBox.event, watched.number, f"metrics at {address}")
            else:
                self._record_end(watched)

    def _record_end(self, watched: WatchedRunner) -> None:
        seen = watched.look()
        if seen is not None:
            self._record(seen)
            if not self.runners:
                self._write(BlackBox.table, seen.producers)
            if watched.target in self._exporters:
                self._export(watched.target, [seen.figures()])
        self._write(BlackBox.event, watched.number, "stopped")
        self._figures = {w: figures for w, figures in self._figures.items() if w is not watched}
        with self.lock:  # free the address for a new runner
            self._close_exporters({w.target for w in self.runners.values()})

    def _published(self, target: str) -> list[dict[str, Any]]:
        """Return the figures of the runners with this target, for any thread."""
        return [one for watched, one in self._figures.items() if watched.target == target]

    def _export(self, name: str, figures: list[dict[str, Any]]) -> None:
        try:
            self._exporters[name].write(figures)
        except OSError as error:
            LOG.warning("metrics=%r: %s. No more is written there", name, error)
            self._close_exporters(self._exporters.keys() - {name})

    def _close_exporters(self, wanted: Iterable[str] = ()) -> None:
        for name in self._exporters.keys() - set(wanted):
            with contextlib.suppress(OSError):
                self._exporters.pop(name).close()

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

    def _leave(self) -> None:
        if JobObserver.current is self:
            JobObserver.current = None

    def _close(self) -> None:
        with self.lock:
            self._leave()
            self._close_exporters()
        if self._failure:
            self._write(BlackBox.event, -1, self._failure)
        self._write(BlackBox.close, self._failed or bool(self._failure))


def observe(stream: WatchedStream, target: MetricsTarget | None = None) -> Watch | None:
    """Begin to observe a runner; return None if nothing was requested.

    Raise OptionError or MissingExtra for metrics that cannot be published.
    """
    if blackbox_path() is None and target is None:
        return None
    try:
        with JobObserver.lock:
            observer = JobObserver.current or JobObserver()
            watch = observer.add(stream, target)
            JobObserver.current = observer
    except (OSError, RuntimeError) as error:  # too many descriptors or threads
        LOG.warning("this runner is not observed: %s", error)
        return None
    # The feed has already registered the exit function of weakref.finalize. So this one, registered
    # later, runs first, before any runner is finalized.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    return watch


def _at_exit() -> None:
    observer = JobObserver.current
    if observer is not None:
        error = getattr(sys, "last_value", None)
        ends = isinstance(error, Exception) and not hasattr(sys, "ps1")
        observer.stop(f"the process ends with {type(error).__name__}: {error}" if ends else "")


def _forked() -> None:
    observer, JobObserver.current = JobObserver.current, None
    JobObserver.lock = threading.RLock()
    if observer is not None:
        observer.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def blackbox_path() -> str | None:
    """Return the requested path of the black box, "" for the default one, None if disabled."""
    given = os.environ.get("FASTFEED_BLACKBOX", "")
    return None if given.lower() in DISABLED or not ON_LINUX else "" if given == "1" else given


def own_version() -> str:
    """Return the installed version of fastfeed."""
    try:
        return metadata.version("fastfeed")
    except metadata.PackageNotFoundError:
        return ""
