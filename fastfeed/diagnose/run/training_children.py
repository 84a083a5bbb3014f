"""Child processes that train: each observes its own loop, and the script's process reports.

Children of `multiprocessing` whose target is the user's get the hooks, and wait. If the script only
waits for its children, these are sampled, too. Each writes its evidence into a folder.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing import process, spawn
from pathlib import Path
from typing import Any

from fastfeed.diagnose.evidence_file import Recording, read_evidence, write_evidence
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, patch, undo_all
from fastfeed.diagnose.run.collector import EvidenceCollector
from fastfeed.diagnose.run.hidden_thread import HiddenThread
from fastfeed.diagnose.run.lifecycle import Lifecycle, Phase, WatchPlan
from fastfeed.diagnose.run.report_request import ReportReason, ReportRequest
from fastfeed.probes import procfs
from fastfeed.steps.recorder import is_users
from fastfeed.steps.timeline import Timeline

POLL_S, UNASKED_POLL_S = 0.1, 0.5
# The script only waits: its thread uses less than that of a core, its children more.
IDLE_SCRIPT_CORES, WORKING_CHILD_CORES = 0.05, 0.2
WAITING_S = 2.0  # for so long
ANSWER_S = 5.0  # for children that were asked for their evidence
MAX_KEPT_STEPS = 20_000  # of a child's loop
WATCH, REPORT, STARTED, WRITTEN = "watch", "report", ".started", ".evidence"
LAUNCHERS = ("torch.multiprocessing",)  # libraries whose targets call the user's function
# Executed in a started interpreter before the main module is imported.
PREPARATION = """
from multiprocessing import process
def prepare(original=process.BaseProcess._bootstrap):
    def _bootstrap(self, *args, **options):
        process.BaseProcess._bootstrap = original
        try:
            from fastfeed.diagnose.run.training_children import observe_started
        except ImportError:
            return original(self, *args, **options)
        call = lambda: original(self, *args, **options)
        return observe_started(self, call, folder={folder!r}, plan={plan!r})
    process.BaseProcess._bootstrap = _bootstrap
prepare()
"""


class Preparation:
    """Value whose unpickling executes PREPARATION in a child."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._text, {})


class TrainingChildren:
    """Child processes of the script that may train, seen from its own process.

    `thread`: of the script, by threading.get_ident().
    """

    def __init__(self, plan: WatchPlan, log: HookLog, *, thread: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastfeed-diagnose-"))
        self._plan = plan
        self._log = log
        self._clock = time.pthread_getcpuclockid(thread)
        self._pid = os.getpid()
        self._counted = 0.0, 0.0, 0.0  # time, CPU seconds of the script's thread, of its children
        self._waits_s = 0.0
        self._answered_s: float | None = None  # when the first of those that run had written

    @property
    def watching(self) -> bool:
        """True if children were asked to observe their loops."""
        return (self.folder / WATCH).exists()

    def install(self) -> Undo:
        """Patch multiprocessing; return a function that undoes it."""
        patches = [
            patch(process.BaseProcess, "_bootstrap", wrap=self._wrap_bootstrap),
            patch(spawn, "get_preparation_data", wrap=self._wrap_preparation),
        ]
        return undo_all(patches)

    def begin(self, now_s: float) -> bool:
        """Return True once, when the script only waits for its children: they are watched then.

        To be called again and again while no loop of the script itself is known.
        """
        then_s, own_s, children_s = self._counted
        running = [] if self.watching or now_s - then_s < UNASKED_POLL_S else self.running()
        if not running:
            return False
        self._counted = now_s, time.clock_gettime(self._clock), sum(map(cpu_s, running))
        passed_s = now_s - then_s
        idle = self._counted[1] - own_s < IDLE_SCRIPT_CORES * passed_s
        working = self._counted[2] - children_s > WORKING_CHILD_CORES * passed_s
        self._waits_s = self._waits_s + passed_s if idle and working and then_s else 0.0
        if self._waits_s >= WAITING_S:
            self._touch(WATCH)
        return self.watching

    def have_reported(self, now_s: float) -> bool:
        """Return True if the children that train have written their evidence."""
        if not self.watching:
            return False
        running = self.running()
        missing = [pid for pid in running if not self._path(pid, WRITTEN).exists()]
        if self._answered_s is None and len(missing) < len(running):
            self._answered_s = now_s
        late = self._answered_s is not None and now_s - self._answered_s > ANSWER_S
        return self._answered_s is not None and (late or not missing)

    def collect(self) -> tuple[Recording, ...]:
        """Return the evidence of all children that have seen a loop."""
        if not self.watching:
            return ()
        self._touch(REPORT)
        until_s = time.monotonic() + ANSWER_S
        while time.monotonic() < until_s and not all(
            self._path(pid, WRITTEN).exists() for pid in self.running()
        ):
            time.sleep(POLL_S)
        found = [read_evidence(path) for path in sorted(self.folder.glob("*" + WRITTEN))]
        return tuple(one for one in found if one.evidence.loop and len(one.evidence.loop.steps) > 1)

    def running(self) -> list[int]:
        """Return the pids of the children that have started and not ended."""
        started = [int(path.stem) for path in self.folder.glob("*" + STARTED)]
        return [pid for pid in started if procfs.stat_fields(pid)[:1] not in ([], ["Z"])]

    def stop(self) -> None:
        """Let the children observe nothing from here on."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _touch(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the diagnosis is over
            (self.folder / name).touch()

    def _path(self, pid: int, suffix: str) -> Path:
        return self.folder / f"{pid}{suffix}"

    def _wrap_bootstrap(self, original: Any) -> Any:
        @functools.wraps(original)
        def _bootstrap(one: Any, *args: Any, **options: Any) -> Any:
            def call() -> Any:
                return original(one, *args, **options)

            if os.getppid() != self._pid or not self.folder.exists() or not runs_users_code(one):
                return call()
            self._log.restart(max_steps=MAX_KEPT_STEPS)
            return TrainingChild(self._log, self._plan, folder=self.folder).run(call)

        return _bootstrap

    def _wrap_preparation(self, original: Any) -> Any:
        @functools.wraps(original)
        def get_preparation_data(name: str) -> Any:
            data = original(name)
            if os.getpid() == self._pid and self.folder.exists():
                values = {"folder": str(self.folder), "plan": asdict(self._plan)}
                data["fastfeed"] = Preparation(PREPARATION.format(**values))
            return data

        return get_preparation_data


class TrainingChild:
    """Observation of a child process from within: `run` runs the child's work."""

    def __init__(self, log: HookLog, plan: WatchPlan, *, folder: Path) -> None:
        self._log = log
        self._folder = folder
        self._plan = plan
        self._pid = os.getpid()
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
        while self._thread.pause(POLL_S if self._collector else UNASKED_POLL_S):
            if not self._folder.exists():
                break
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
    return code is not None and is_users(code.co_filename)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process."""
    ticks = sum(map(int, procfs.stat_fields(pid)[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def end_processes(pids: list[int], number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
