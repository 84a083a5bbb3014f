"""Child processes that train: each observes its own loop, and the script's process reports.

Children of `multiprocessing` whose target is the user's get the hooks, and wait. If the script only
waits for its children, these are sampled, too. Each writes its evidence into a folder.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import tempfile
import time
from dataclasses import asdict
from multiprocessing import process, spawn
from pathlib import Path
from typing import Any

from fastfeed.diagnose.evidence_file import Recording, read_evidence
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import Undo, patch, undo_all
from fastfeed.diagnose.run.child_observation import (
    MAX_KEPT_STEPS,
    REPORT,
    STARTED,
    UNASKED_POLL_S,
    WATCH,
    WRITTEN,
    TrainingChild,
    runs_users_code,
)
from fastfeed.diagnose.run.lifecycle import WatchPlan
from fastfeed.probes import procfs

ANSWER_POLL_S = 0.1
# The script only waits: its thread uses less than that of a core, its children more.
IDLE_SCRIPT_CORES, WORKING_CHILD_CORES = 0.05, 0.2
WAITING_S = 2.0  # for so long
ANSWER_S = 5.0  # for children that were asked for their evidence
# Executed in a started interpreter before the main module is imported.
PREPARATION = """
from multiprocessing import process
def prepare(original=process.BaseProcess._bootstrap):
    def _bootstrap(self, *args, **options):
        process.BaseProcess._bootstrap = original
        try:
            from fastfeed.diagnose.run.child_observation import observe_started
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
        self._folder: Path | None = None  # from the start of the first such child on
        self._over = False
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
        return self._folder is not None and (self._folder / WATCH).exists()

    def install(self) -> Undo:
        """Patch multiprocessing; return a function that undoes it."""
        patches = [
            patch(process.BaseProcess, "start", wrap=self._wrap_start),
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
        self._counted = (
            now_s,
            time.clock_gettime(self._clock),
            sum(procfs.stat_of(pid).cpu_s for pid in running),
        )
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
        missing = [pid for pid in running if not self._has_written(pid)]
        if self._answered_s is None and len(missing) < len(running):
            self._answered_s = now_s
        late = self._answered_s is not None and now_s - self._answered_s > ANSWER_S
        return self._answered_s is not None and (late or not missing)

    def collect(self) -> tuple[Recording, ...]:
        """Return the evidence of all children that have seen a loop."""
        if self._folder is None or not self.watching:
            return ()
        self._touch(REPORT)
        until_s = time.monotonic() + ANSWER_S
        while time.monotonic() < until_s and not all(map(self._has_written, self.running())):
            time.sleep(ANSWER_POLL_S)
        found = [read_evidence(path) for path in sorted(self._folder.glob("*" + WRITTEN))]
        return tuple(one for one in found if one.evidence.loop and len(one.evidence.loop.steps) > 1)

    def running(self) -> list[int]:
        """Return the pids of the children that have started and not ended."""
        paths = self._folder.glob("*" + STARTED) if self._folder is not None else ()
        started = [int(path.stem) for path in paths]
        return [pid for pid in started if procfs.stat_of(pid).state not in ("", "Z")]

    def stop(self) -> None:
        """Let the children observe nothing from here on."""
        if os.getpid() == self._pid:
            self._over = True
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _touch(self, name: str) -> None:
        if self._folder is not None:
            with contextlib.suppress(FileNotFoundError):  # the diagnosis is over
                (self._folder / name).touch()

    def _has_written(self, pid: int) -> bool:
        return self._folder is not None and (self._folder / f"{pid}{WRITTEN}").exists()

    def _wrap_start(self, original: Any) -> Any:
        @functools.wraps(original)
        def start(one: Any) -> Any:
            ours = os.getpid() == self._pid and not self._over
            if ours and self._folder is None and runs_users_code(one):
                with contextlib.suppress(OSError):  # no room for it: children are not seen
                    self._folder = Path(tempfile.mkdtemp(prefix="fastfeed-diagnose-"))
            return original(one)

        return start

    def _wrap_bootstrap(self, original: Any) -> Any:
        @functools.wraps(original)
        def _bootstrap(one: Any, *args: Any, **options: Any) -> Any:
            def call() -> Any:
                return original(one, *args, **options)

            folder = self._folder if os.getppid() == self._pid else None
            if folder is None or not folder.exists() or not runs_users_code(one):
                return call()
            self._log.restart(max_steps=MAX_KEPT_STEPS)
            return TrainingChild(self._log, self._plan, folder=folder).run(call)

        return _bootstrap

    def _wrap_preparation(self, original: Any) -> Any:
        @functools.wraps(original)
        def get_preparation_data(name: str) -> Any:
            data = original(name)
            if os.getpid() == self._pid and self._folder is not None and not self._over:
                values = {"folder": str(self._folder), "plan": asdict(self._plan)}
                data["fastfeed"] = Preparation(PREPARATION.format(**values))
            return data

        return get_preparation_data


def end_processes(pids: list[int], number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
