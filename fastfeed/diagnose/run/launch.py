"""Run a script under observation as if it ran alone: `run`."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastfeed.diagnose.hooks.context import Context
from fastfeed.diagnose.hooks.experiments import Experiments
from fastfeed.diagnose.hooks.imports import Imports
from fastfeed.diagnose.run.endings import ends_at_once, flush, rest_of_exit
from fastfeed.diagnose.run.hidden_thread import HiddenThread
from fastfeed.diagnose.run.lifecycle import (
    MEASURES,
    OVER,
    REPORTS,
    Life,
    WatchPlan,
)
from fastfeed.diagnose.run.script import INTERRUPTED, Script
from fastfeed.diagnose.run.watchdog import Dead, Watchdog, threads_end
from fastfeed.steps.timeline import Loop, Timeline

LOOK_S = 0.1
DOG_S = 0.5
AGAIN_S = 1.0  # between searches for the loop of a script whose time is over
STOP_S = 5.0  # for a script that is told to end
REPORT_S = 30.0  # how long the end of the script waits for a report in progress
TIME, END, CRASH, EXIT, DEAD, BLOCKED, STEPLESS = (
    "time",
    "end",
    "crash",
    "exit",
    "dead",
    "blocked",
    "no steps",
)


@dataclass(frozen=True)
class ReportRequest:
    """The data of a report, and `why` it is made now: TIME (the time is over), END or CRASH (the
    script is over), EXIT (it calls os._exit), DEAD (the feed is, and the process is ended right
    after the report), BLOCKED (no batch comes; it may go on) or STEPLESS (the time is over, and no
    hook has found a loop: requested repeatedly). After BLOCKED there may be another report."""

    script: str
    why: str
    loop: Loop | None
    timeline: Timeline
    start_s: float  # of what was measured, time.perf_counter
    end_s: float
    warmup_s: float
    begin_s: float  # when the script was started
    died: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    waiting_now_s: float = 0.0
    rank: int | None = None  # of several processes, RANK of torchrun


class Observer(Protocol):
    """Measures and reports. `watch` is called before the script starts; `measure` when warm-up is
    over (again, if another loop turns out to be the main one); `report` from any thread; it returns
    True if it reported, which without a loop it need not. Its exceptions are noted and do not reach
    the script."""

    def watch(self, context: Context) -> None: ...

    def measure(self, start_s: float) -> None: ...

    def report(self, seen: ReportRequest) -> bool: ...


def run(script: Sequence[str], *, plan: WatchPlan, observer: Observer) -> int:
    """Run `script` (the words after `python`) as `__main__` and return its exit code, for sys.exit.
    The report of a script that ends early is made at exit, after its threads and its own atexit
    handlers.

    Raise OptionError if there is no such script.
    """
    return Launch(Script(script), plan=plan, observer=observer).run()


def rank_of(environ: Any = os.environ) -> int | None:
    """Return the rank of this process, if torchrun or the like started several."""
    rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdigit() and world.isdigit() and int(world) > 1 else None


class Launch:
    """One script under observation. Once the report is made, only patches that do nothing are left;
    in forked children it is off."""

    def __init__(self, script: Script, *, plan: WatchPlan, observer: Observer) -> None:
        self._script = script
        self._plan = plan
        self._observer = observer
        self.context = Context(Timeline())
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._begin_s = time.perf_counter()
        self._life = Life(plan, self.context, begin_s=self._begin_s, thread=self._thread)
        self._dog = Watchdog(self.context, self._thread, dead_s=plan.dead_s)
        self._watch = HiddenThread(self.context, self._look, name="the watch over the script")
        self._reporting = threading.RLock()
        self._blocked: Dead | None = None  # the last report of it
        self._code: int | None = None
        self._ended_s = self._begin_s  # of the script
        self._stopped = False
        self._imports = Imports(self.context)
        self._undo: list[Callable[[], None]] = []
        self._exit: Callable[[int], None] = os._exit

    def run(self) -> int:
        """Run the script; return its exit code."""
        self._install()
        self._tell(lambda: self._observer.watch(self.context), "measuring")
        self._watch.start()
        try:
            self._code = self._script.run()
        finally:
            self._stopped = self._stopped or self._code is None
            self._ended_s = time.perf_counter()
        return self._code

    def at_exit(self) -> None:
        """Report, if there was no report; a script that was interrupted dies of the signal, as in
        Python."""
        self.finish(CRASH if self._script.crashed else END)
        if self._code == INTERRUPTED and os.getpid() == self._pid:
            rest_of_exit()
            flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    def finish(self, why: str) -> None:
        """Report the end of the script, if there was no report, and remove every hook."""
        if os.getpid() != self._pid or not self._reporting.acquire(timeout=REPORT_S):
            return
        try:
            if self._life.phase != OVER:
                self._life.look(time.perf_counter())
                self._over(why)
        finally:
            self._reporting.release()
            self._watch.stop()

    def close(self) -> None:
        """Remove every patch, for code that goes on in this process."""
        self.context.active = False
        self._watch.stop(join_s=STOP_S)
        self._imports.undo()
        atexit.unregister(self.at_exit)
        while self._undo:
            self._undo.pop()()

    def _install(self) -> None:
        if sys.version_info >= (3, 12):  # these threads do not live in the child
            warnings.filterwarnings(
                "ignore", r"This process .* is multi-threaded", DeprecationWarning
            )
        if self._plan.experiments:
            self.context.experiments = Experiments(self.context)
        atexit.register(self.at_exit)
        self._undo += [threads_end(self.context), self._patch_exit()]
        of = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _off(of()))
        self._imports.start()

    def _patch_exit(self) -> Callable[[], None]:
        original = self._exit

        def _exit(status: int) -> None:
            self.finish(EXIT)
            original(status)

        os._exit = _exit  # type: ignore[assignment]

        def undo() -> None:
            os._exit = original  # type: ignore[assignment]

        return undo

    def _look(self) -> None:
        """Watch, in a thread."""
        dog_s, again_s = 0.0, self._begin_s + self._plan.seconds
        while self._watch.pause(LOOK_S):
            now_s = time.perf_counter()
            with self._reporting:
                phase = self._life.look(now_s)
                if phase == MEASURES:
                    self._measure()
                elif phase == REPORTS:
                    self._over(TIME)
                elif self._life.loop is None and now_s > again_s and self._blocked is None:
                    again_s = now_s + AGAIN_S
                    self._over(STEPLESS)
            if self._life.phase == OVER:
                break
            if now_s - dog_s >= DOG_S:
                dog_s = now_s
                dead = self._dog.look(now_s, self._life.loop)
                if dead is not None:
                    self._dead(dead)
        if self._plan.stop:
            self._stop()

    def _measure(self) -> None:
        if self.context.experiments is not None:
            self.context.experiments.plan(self._life.start_s, self._life.end_s)
        self._tell(lambda: self._observer.measure(self._life.start_s), "measuring")

    def _over(self, why: str) -> None:
        """Report; a script without a loop may get no report, and is watched further."""
        seen = self._seen(why)
        if why == STEPLESS and not self._tell(lambda: self._observer.report(seen), "the report"):
            return
        self._life.over()
        self.context.due_s = float("inf")
        self._imports.stop()
        self.context.active = False
        if why != STEPLESS:
            self._tell(lambda: self._observer.report(seen), "the report")

    def _dead(self, dead: Dead) -> None:
        with self._reporting:
            if self._life.phase == OVER or not dead.proven:
                if self._life.phase != OVER and self._blocked is None:
                    self._blocked = dead
                    self._tell(
                        lambda: self._observer.report(self._seen(BLOCKED, dead)), "the report"
                    )
                return
            self._life.over()
            self.context.active = False
            self._tell(lambda: self._observer.report(self._seen(DEAD, dead)), "the report")
            ends_at_once()
            self._exit(1)

    def _seen(self, why: str, dead: Dead | None = None) -> ReportRequest:
        now_s, life = time.perf_counter(), self._life
        died = dead.died if dead is not None else self._deaths(why)
        asked_s = self.context.waiting.get(life.loop.thread) if life.loop is not None else None
        waits_s = dead.waited_s if dead is not None else 0.0 if asked_s is None else now_s - asked_s
        return ReportRequest(
            script=self._script.name,
            why=why,
            loop=life.loop,
            timeline=self.context.timeline,
            start_s=life.start_s,
            end_s=now_s,
            warmup_s=life.warmup_s,
            begin_s=self._begin_s,
            died=died,
            missing=tuple(self.context.missing),
            waiting_now_s=waits_s,
            rank=rank_of(),
        )

    def _deaths(self, why: str) -> tuple[str, ...]:
        """Return what the feed died of, as far as is known at the end."""
        if why == CRASH and not self._script.crashed_in_feed:
            return ()
        if self._code != INTERRUPTED:
            return self._dog.deaths()
        died, loop = self._dog.deaths(self._ended_s - STOP_S), self._life.loop
        still = loop is None or self._ended_s - loop.steps[-1].end_s >= self._plan.dead_s
        return died or (self._blocked.died if self._blocked is not None and still else ())

    def _tell(self, call: Callable[[], Any], what: str) -> Any:
        try:
            return call()
        except Exception as error:
            self.context.failed(what, error)
            if what == "the report":
                sys.stderr.write(f"fastfeed: {what} failed: {type(error).__name__}: {error}\n")
            return True  # the next one would fail, too

    def _stop(self) -> None:
        """End the script as if it had called sys.exit(0); end it as well if it does not return to
        Python."""
        if self._code is not None or self._stopped:
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._thread), ctypes.py_object(SystemExit)
        )
        if self._watch.pause(STOP_S) and self._code is None:
            ends_at_once()
            self._exit(0)


def _off(launch: Launch | None) -> None:
    """Switch off in a forked child, which is not diagnosed."""
    if launch is not None:
        launch.context.active = False
        atexit.unregister(launch.at_exit)
