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
from collections.abc import Callable, Iterable
from typing import Any

from fastfeed.jobs.blackbox import VARIABLE, BlackBox, is_enabled
from fastfeed.jobs.metrics import Exporter, exporter_for
from fastfeed.jobs.runner_samples import Sighting, WatchedRunner, WatchedStream
from fastfeed.options import MetricsTarget

LOG = logging.getLogger("fastfeed")
SAMPLE_EVERY_S = 1.0
EXPORT_EVERY_SAMPLES = 5
STOP_TIMEOUT_S = 0.2  # producers may take 1.8 s of the two that stop() promises
EXIT_TIMEOUT_S = 1.0


class JobObserver:
    """The thread, and the files and ports that it has open."""

    # Of this process. `lock` guards `current`, and the addition of runners and exporters.
    current: JobObserver | None = None
    lock = threading.RLock()

    def __init__(self) -> None:
        self._runners: list[WatchedRunner] = []  # until their end is recorded
        self._exporters: dict[str, Exporter] = {}
        self._changed = threading.Event()
        self._blackbox: BlackBox | None = None
        self._failure = ""  # the error that ends the process
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="fastfeed-jobs", daemon=True)

    def add(self, stream: WatchedStream, target: MetricsTarget | None) -> WatchedRunner:
        """Observe another runner. The caller holds the lock.

        Raise OptionError or MissingExtra for metrics that cannot be published.
        """
        name = "" if target is None else str(target)
        if target is not None and name not in self._exporters:
            self._exporters[name] = exporter_for(target, lambda: self._published(name))
        taken = {one.number for one in list(self._runners) if not one.over}
        number = next(n for n in itertools.count() if n not in taken)
        watched = WatchedRunner(stream, number, target=name)
        self._runners.append(watched)
        try:
            if self._thread.ident is None:
                self._thread.start()
        except RuntimeError:
            self._close_exporters()
            raise
        self._changed.set()
        return watched

    def wake(self, timeout_s: float) -> None:
        """Let the thread see which runners are over, from any thread, including this one. Wait for
        its end if all are."""
        self._changed.set()
        is_last = all(one.over for one in list(self._runners))
        if is_last and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def stop(self, failure: str) -> None:
        """Record the error that ends the interpreter, and end the thread.

        A thread must not be inside TensorFlow at the end of the interpreter.
        """
        self._failure = failure
        for watched in list(self._runners):
            watched.over = True
        self.wake(EXIT_TIMEOUT_S)

    def forget(self) -> None:
        """Release the ports and the lock of the file in a forked copy, which has no thread."""
        for watched in self._runners:
            watched.over = True
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
        if is_enabled():
            try:
                self._blackbox = BlackBox()
            except OSError as error:
                LOG.warning(
                    "no black box: %s. %s=DIR sets another folder, 0 disables it", error, VARIABLE
                )

    def _loop(self) -> None:
        due_s, samples = time.perf_counter(), 0
        while True:
            self._changed.clear()
            for watched in list(self._runners):
                if not watched.begun:
                    self._record_begin(watched)
                if watched.over:
                    self._record_end(watched)
            with self.lock:
                if not self._runners:
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
        seen = []
        for watched in list(self._runners):
            sighting = watched.look()
            if sighting is not None:
                seen.append(sighting)
                self._record(sighting)
            # An ended session may keep its runner forever.
            if watched.stream() is None or (sighting is not None and sighting.over):
                watched.over = True
                self._changed.set()
        if seen:
            self._write(BlackBox.table, [row for one in seen for row in one.producers])

    def _record(self, seen: Sighting) -> None:
        self._failed = self._failed or bool(seen.sample.error)
        for text in seen.events:
            self._write(BlackBox.event, seen.sample.runner, text)
        self._write(BlackBox.write, seen.sample)

    def _record_begin(self, watched: WatchedRunner) -> None:
        watched.begun = True
        self._write(BlackBox.event, watched.number, f"start {watched.options}".rstrip())
        if watched.target in self._exporters:
            text = f"metrics at {self._exporters[watched.target].address}"
            LOG.info(text)
            self._write(BlackBox.event, watched.number, text)

    def _record_end(self, watched: WatchedRunner) -> None:
        """Record the last status of a runner, and free its address for a new one."""
        seen = watched.look()
        self._runners.remove(watched)
        if seen is not None:
            self._record(seen)
            if not self._runners:
                self._write(BlackBox.table, seen.producers)
            if watched.target in self._exporters:
                self._export(watched.target, [seen])
        self._write(BlackBox.event, watched.number, "stopped")
        with self.lock:
            self._close_exporters({one.target for one in self._runners})

    def _published(self, target: str) -> list[Sighting]:
        """Return the last sightings of the runners with this target, for any thread."""
        shown = [one for one in list(self._runners) if one.target == target and not one.over]
        return [one.last for one in shown if one.last is not None]

    def _export(self, name: str, seen: list[Sighting]) -> None:
        try:
            self._exporters[name].write(seen)
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


def observe(stream: WatchedStream, target: MetricsTarget | None = None) -> WatchedRunner | None:
    """Begin to observe a runner; return None if nothing was requested.

    Raise OptionError or MissingExtra for metrics that cannot be published.
    """
    if target is None and not is_enabled():
        return None
    try:
        with JobObserver.lock:
            observer = JobObserver.current or JobObserver()
            watched = observer.add(stream, target)
            JobObserver.current = observer
    except (OSError, RuntimeError) as error:  # too many descriptors or threads
        LOG.warning("this runner is not observed: %s", error)
        return None
    # The feed has already registered the exit function of weakref.finalize. So this one, registered
    # later, runs first, before any runner is finalized.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    return watched


def unobserve(watched: WatchedRunner) -> None:
    """End the observation of a runner that was stopped."""
    watched.over = True
    observer = JobObserver.current  # it leaves when all are over
    if observer is not None:
        observer.wake(STOP_TIMEOUT_S)


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
