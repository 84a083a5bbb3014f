"""Child processes that train: each observes its own loop, and the script's process reports.

A child of `multiprocessing` that runs the user's code gets the hooks, and waits. If the script only
waits for its children, they are sampled, too. Files in a folder ask for that (WATCH) and for the
evidence (REPORT), which each child writes there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import process
from pathlib import Path
from typing import Any

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose.evidence import ChildRate, Evidence
from fastfeed.diagnose.evidence_file import Recording, read_evidence, write_evidence
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, patch
from fastfeed.diagnose.run.collector import EvidenceCollector
from fastfeed.diagnose.run.hidden_thread import HiddenThread
from fastfeed.diagnose.run.lifecycle import Due, Lifecycle, WatchPlan
from fastfeed.probes import procfs
from fastfeed.probes.machine_log import Machine, one_core
from fastfeed.steps.timeline import Timeline

WATCH, REPORT, WRITTEN = "watch", "report", ".evidence"
CHILD_POLL_S, UNASKED_POLL_S = 0.1, 0.5
# The script only waits: its thread uses less than that of a core, its children more.
IDLE_SCRIPT_CORES, WORKING_CHILD_CORES = 0.05, 0.2
WAITING_S = 2.0  # for so long
ANSWER_S = 5.0  # for children that were asked for their evidence
MAX_KEPT_STEPS = 20_000  # of a child's loop
LAUNCHERS = ("torch.multiprocessing",)  # libraries whose targets call the user's function


class TrainingChildren:
    """Child processes of the script that may train, seen from its own process.

    `thread`: of the script, by threading.get_ident().
    """

    def __init__(self, plan: WatchPlan, log: HookLog, *, thread: int) -> None:
        name = f"fastfeed-diagnose-{secrets.token_hex(8)}"
        self._folder = Path(tempfile.gettempdir(), name)  # it exists from the first such child on
        self._started: list[int] = []
        self._over = False
        self._plan = plan
        self._log = log
        self._clock = time.pthread_getcpuclockid(thread)
        self._pid = os.getpid()
        self._counted = 0.0, 0.0, 0.0  # time, CPU seconds of the script's thread, of its children
        self._waits_s = 0.0

    @property
    def watched(self) -> bool:
        """True if children were asked to observe their loops."""
        return (self._folder / WATCH).exists()

    def install(self) -> Undo:
        """Patch multiprocessing; return a function that undoes it."""
        return patch(process.BaseProcess, "start", wrap=self._wrap_start)

    def begin(self, now_s: float) -> bool:
        """Return True once, when the script only waits for its children: they are watched then.

        To be called again and again while no loop of the script itself is known.
        """
        then_s, own_s, children_s = self._counted
        running = [] if self.watched or now_s - then_s < UNASKED_POLL_S else self.running()
        if not running:
            return False
        own_now_s = time.clock_gettime(self._clock)
        children_now_s = sum(procfs.stat_of(pid).cpu_s for pid in running)
        self._counted = now_s, own_now_s, children_now_s
        allowed_s = (now_s - then_s) * one_core()
        idle = own_now_s - own_s < IDLE_SCRIPT_CORES * allowed_s
        working = children_now_s - children_s > WORKING_CHILD_CORES * allowed_s
        self._waits_s = self._waits_s + now_s - then_s if idle and working and then_s else 0.0
        if self._waits_s >= WAITING_S:
            self._ask(WATCH)
        return self.watched

    def have_reported(self) -> bool:
        """Return True if one that runs has written its evidence: the others are about as far."""
        return any(map(self._has_written, self.running()))

    def collect(self) -> tuple[Recording, ...]:
        """Return the evidence of all children that have seen a loop."""
        if not self.watched:
            return ()
        self._ask(REPORT)
        until_s = time.monotonic() + ANSWER_S
        while time.monotonic() < until_s and not all(map(self._has_written, self.running())):
            time.sleep(CHILD_POLL_S)
        found = [read_evidence(path) for path in sorted(self._folder.glob("*" + WRITTEN))]
        return tuple(one for one in found if one.evidence.loop and len(one.evidence.loop.steps) > 1)

    def running(self) -> list[int]:
        """Return the pids of the children that have started and not ended."""
        return [pid for pid in self._started if procfs.stat_of(pid).state not in ("", "Z")]

    def stop(self) -> None:
        """Let the children observe nothing from here on."""
        if os.getpid() == self._pid:
            self._over = True
            shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the diagnosis is over
            (self._folder / name).touch()

    def _has_written(self, pid: int) -> bool:
        return (self._folder / f"{pid}{WRITTEN}").exists()

    def _wrap_start(self, original: Any) -> Any:
        @functools.wraps(original)
        def start(one: Any) -> Any:
            if os.getpid() != self._pid or self._over or not runs_users_code(one):
                return original(one)
            with contextlib.suppress(OSError):  # no room for it: children are not seen
                self._folder.mkdir(mode=0o700, exist_ok=True)
            one.run = ObservedRun(one, self._log, plan=self._plan, folder=self._folder)
            try:
                original(one)
                self._started.append(one.pid)
            finally:
                del one.run

        return start


class ObservedRun:
    """The `run` of a child process, with an observation from within.

    It comes to a forked child as it is, with the hooks of the script. For a started interpreter it
    is pickled without the log, and installs the hooks there.
    """

    def __init__(self, child: Any, log: HookLog, *, plan: WatchPlan, folder: Path) -> None:
        self._child = child
        self._log: HookLog | None = log
        self._plan = plan
        self._folder = folder

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_log": None}

    def __call__(self) -> None:
        """Run the child's work."""
        child = self._child
        if not self._folder.exists():  # the diagnosis is over
            type(child).run(child)
            return
        name = f"{child.name} (process {os.getpid()})"
        observation = ChildObservation(name, self._prepared(), plan=self._plan, folder=self._folder)
        observation.start()
        try:
            type(child).run(child)
        finally:
            observation.finish()

    def _prepared(self) -> HookLog:
        """Return the log into which the hooks write."""
        if self._log is not None:
            self._log.restart(max_steps=MAX_KEPT_STEPS)
            return self._log
        log = HookLog(Timeline())
        log.max_steps = MAX_KEPT_STEPS
        ImportHooks(log).start()
        os.register_at_fork(after_in_child=log.stop)
        return log


class ChildObservation:
    """Observation of this process, a child of the script, as soon as the script asks for it."""

    def __init__(self, name: str, log: HookLog, *, plan: WatchPlan, folder: Path) -> None:
        self._name = name
        self._log = log
        self._folder = folder
        self._pid, self._parent = os.getpid(), os.getppid()
        thread = threading.main_thread().ident or 0
        self._life = Lifecycle(plan, log, begin_s=time.perf_counter(), thread=thread)
        self._collector: EvidenceCollector | None = None  # from the question on
        self._thread = HiddenThread(log, self._observe, name="observing a child process")

    def start(self) -> None:
        """Start the observing thread."""
        self._thread.start()

    def finish(self) -> None:
        """Have the evidence written at the end of the child's work, if it was asked for."""
        if os.getpid() == self._pid:  # a child that it has forked has no such thread
            self._thread.stop(join_s=ANSWER_S)

    def _observe(self) -> None:
        while self._thread.pause(CHILD_POLL_S if self._collector else UNASKED_POLL_S):
            if os.getppid() != self._parent:  # the script was killed, and has not cleaned up
                shutil.rmtree(self._folder, ignore_errors=True)
            if not self._folder.exists():
                return self._log.stop()
            if self._collector is None and (self._folder / WATCH).exists():
                self._collector = EvidenceCollector()
                self._collector.watch(self._log)
                self._life.restart(time.perf_counter())
            elif self._collector is not None:
                now_s = time.perf_counter()
                self._collector.search(now_s)
                due = self._life.update(now_s)
                if due == Due.MEASURE:
                    self._collector.measure()
                elif due == Due.REPORT or (self._folder / REPORT).exists():
                    break
        self._write()

    def _write(self) -> None:
        """Write the evidence, and observe nothing from here on."""
        self._log.stop()
        if self._collector is None:
            return
        found = self._collector.evidence(self._life)
        self._collector.stop()
        part = self._folder / f"{self._pid}.part"
        with contextlib.suppress(FileNotFoundError):  # the diagnosis is over
            write_evidence(Recording(found, self._name), part)
            part.rename(self._folder / f"{self._pid}{WRITTEN}")


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


def merged(children: Sequence[Recording], machine: Machine) -> Evidence:
    """Return the evidence of the child with the median speed, and the speeds of all.

    `machine`: as the script's own process sees it, for which no child is another process.
    """
    from fastfeed.diagnose.judge.entries import ledger_of

    seen = [replace(one.evidence, machine=machine) for one in children]
    ledgers = [ledger_of(one) for one in seen]
    rates = tuple(
        ChildRate(child.script, len(one), len(one) / one.seconds if len(one) else 0.0)
        for child, one in zip(children, ledgers, strict=True)
    )
    ranked = sorted(range(len(rates)), key=lambda i: rates[i].steps_per_second)
    return replace(seen[ranked[(len(ranked) - 1) // 2]], children=rates)
