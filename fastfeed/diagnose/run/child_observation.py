"""Observation of a child process from within: it writes the evidence about its loop into a folder.

The script's process asks for it by files in that folder: WATCH and REPORT.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shutil
import threading
import time
from collections.abc import Callable
from multiprocessing import process
from pathlib import Path
from typing import Any

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose.evidence_file import Recording, write_evidence
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.run.collector import EvidenceCollector
from fastfeed.diagnose.run.hidden_thread import HiddenThread
from fastfeed.diagnose.run.lifecycle import Lifecycle, Phase, WatchPlan
from fastfeed.diagnose.run.report_request import ReportReason, ReportRequest
from fastfeed.steps.timeline import Timeline

CHILD_POLL_S, UNASKED_POLL_S = 0.1, 0.5
MAX_KEPT_STEPS = 20_000  # of a child's loop
WATCH, REPORT, STARTED, WRITTEN = "watch", "report", ".started", ".evidence"
LAUNCHERS = ("torch.multiprocessing",)  # libraries whose targets call the user's function


class TrainingChild:
    """Observation of a child process from within: `run` runs the child's work."""

    def __init__(self, log: HookLog, plan: WatchPlan, *, folder: Path) -> None:
        self._log = log
        self._folder = folder
        self._plan = plan
        self._pid, self._parent = os.getpid(), os.getppid()
        self._begin_s = time.perf_counter()
        self._collector: EvidenceCollector | None = None
        self._lifecycle: Lifecycle | None = None
        self._written = threading.Lock()
        self._thread = HiddenThread(log, self._observe, name="observing a child process")

    def run(self, call: Callable[[], Any]) -> Any:
        """Return or raise what `call` does."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / f"{self._pid}{STARTED}").touch()
            self._thread.start()
        try:
            return call()
        finally:
            if os.getpid() == self._pid:
                self._thread.stop()
                self._write()

    def _observe(self) -> None:
        """Run the observing thread."""
        while self._thread.pause(CHILD_POLL_S if self._collector else UNASKED_POLL_S):
            if os.getppid() != self._parent:  # the script was killed, and has not cleaned up
                shutil.rmtree(self._folder, ignore_errors=True)
            if not self._folder.exists():
                return self._log.stop()
            now_s = time.perf_counter()
            if self._collector is None or self._lifecycle is None:
                if (self._folder / WATCH).exists():
                    thread = threading.main_thread().ident or 0
                    self._lifecycle = Lifecycle(self._plan, self._log, begin_s=now_s, thread=thread)
                    self._collector = EvidenceCollector()
                    self._collector.watch(self._log)
                continue
            phase = self._lifecycle.update(now_s)
            if phase in (Phase.WORKING, Phase.MEASURING):
                self._collector.measure(self._lifecycle.start_s)
            elif phase == Phase.REPORTING or (self._folder / REPORT).exists():
                break
        self._write()

    def _write(self) -> None:
        """Write the evidence once, and observe nothing from here on."""
        self._log.stop()
        if self._lifecycle is None or self._collector is None or not self._written.acquire(False):
            return
        life = self._lifecycle
        request = ReportRequest(
            script=f"{process.current_process().name} (process {self._pid})",
            reason=ReportReason.TIME,
            loop=life.loop,
            timeline=self._log.timeline,
            start_s=life.start_s,
            end_s=time.perf_counter(),
            warmup_s=life.warmup_s,
            begin_s=self._begin_s,
            missing=tuple(self._log.missing),
        )
        found = self._collector.evidence(request)
        self._collector.stop()
        part = self._folder / f"{self._pid}.part"
        with contextlib.suppress(FileNotFoundError):  # the diagnosis is over
            write_evidence(Recording(found, request.script), part)
            part.rename(self._folder / f"{self._pid}{WRITTEN}")


def observe_started(one: Any, call: Callable[[], Any], *, folder: str, plan: dict[str, Any]) -> Any:
    """Run a child that began as an interpreter of its own, and observe it if it may train."""
    if not os.path.exists(folder) or not runs_users_code(one):
        return call()
    log = HookLog(Timeline())
    log.max_steps = MAX_KEPT_STEPS
    ImportHooks(log).start()
    os.register_at_fork(after_in_child=log.stop)
    return TrainingChild(log, WatchPlan(**plan), folder=Path(folder)).run(call)


def runs_users_code(one: Any) -> bool:
    """Return True if a process of multiprocessing runs a function of the user's."""
    run = type(one).run
    target = getattr(one, "_target", None) if run is process.BaseProcess.run else run
    while isinstance(target, functools.partial):
        target = target.func
    if getattr(target, "__module__", "").startswith(LAUNCHERS):
        return True
    code = getattr(inspect.unwrap(target) if callable(target) else None, "__code__", None)
    return code is not None and is_users_code(code)
