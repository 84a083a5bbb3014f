"""Launch of a script under observation, which the script does not notice: `run`."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fastfeed.diagnose.evidence import DeadProducer
from fastfeed.diagnose.hooks.experiments import Experiments
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.interventions.schedule import Interventions
from fastfeed.diagnose.run.endings import (
    arm_exit,
    flush_output,
    prepare_hard_exit,
    run_exit_handlers,
)
from fastfeed.diagnose.run.hidden_thread import HiddenThread
from fastfeed.diagnose.run.lifecycle import Lifecycle, Phase, WatchPlan, is_importing
from fastfeed.diagnose.run.report_request import ReportReason, ReportRequest
from fastfeed.diagnose.run.script import EXIT_INTERRUPTED, Script
from fastfeed.diagnose.run.training_children import TrainingChildren, end_processes
from fastfeed.diagnose.run.watchdog import FeedStall, Watchdog, record_thread_deaths
from fastfeed.probes.family import descendants
from fastfeed.steps.timeline import Loop, Timeline

END_POLL_S = 0.1
WATCHDOG_S = 0.5
SCRIPT_STOP_S = 5.0  # for a script that was asked to stop
BLOCK_STOP_S = 2.0  # for a block of interventions that is to end
STOP_LIMIT_S = 20.0  # after which it ends, whatever its interpreter does
REPORT_WAIT_S = 30.0  # most that the end of the script waits for a report in progress
WITH_CHILDREN = (
    ReportReason.END,
    ReportReason.EXIT,
    ReportReason.UNSEEN,
    ReportReason.CHILDREN,
    ReportReason.CRASH,
)
MEASURING, REPORTING = "measuring", "the report"  # what failed


class Observer(Protocol):
    """Measures a script and reports.

    `watch` is called before the script starts; `measure` when its imports are over, when the
    warm-up is over, and again if another loop becomes the main one; `report` from any thread.
    `report` returns False if there was nothing to report, which is allowed only for STEPLESS. Their
    exceptions are noted and do not reach the script.
    """

    def watch(self, log: HookLog) -> None: ...

    def measure(self, start_s: float) -> None: ...

    def only_takes(self, loop: Loop) -> bool: ...

    def report(self, request: ReportRequest) -> bool: ...


def run(script: Sequence[str], *, plan: WatchPlan, observer: Observer) -> int:
    """Run `script` (the words after `python`) as `__main__` and return its exit code, for sys.exit.

    The report of a script that ends early is made at exit, after its threads and its own atexit
    handlers. Raise OptionError if there is no such script.
    """
    found = Script(script)
    return Launch(found, plan=plan, observer=observer).run(found.run)


def rank_of(environ: Any = os.environ) -> int | None:
    """Return the rank of this process; None unless torchrun or the like started several."""
    rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdigit() and world.isdigit() and int(world) > 1 else None


class ObservedCode(Protocol):
    """Script, or a block of one, that runs under observation; see Script."""

    name: str
    crashed: bool
    crashed_in_feed: bool


class Launch:
    """One script, or a block of one, under observation.

    Only patches without effect remain once the report is made. Forked children are not observed.
    """

    def __init__(self, script: ObservedCode, *, plan: WatchPlan, observer: Observer) -> None:
        self._script = script
        self._plan = plan
        self._observer = observer
        self.log = HookLog(Timeline())
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._begin_s = time.perf_counter()
        self._lifecycle = Lifecycle(plan, self.log, begin_s=self._begin_s, thread=self._thread)
        self._watchdog = Watchdog(self.log, self._thread, dead_s=plan.dead_s)
        self._observing = HiddenThread(self.log, self._observe, name="observing the script")
        self._interventions = Interventions(self.log)
        self._intervening = HiddenThread(
            self.log, lambda: self._interventions.run(self._intervening.pause), name="interventions"
        )
        self._children = TrainingChildren(plan, self.log, thread=self._thread)
        self._told_unseen = False
        self._reporting = threading.RLock()
        self._reported_stall: FeedStall | None = None
        self._code: int | None = None
        self._ending = threading.Lock()  # the script ends by itself, or is stopped
        self._ended_s = self._begin_s  # end of the script
        self._stopped = False  # the script has ended otherwise than by itself
        self._stopping = False  # because of the report
        self._imports = ImportHooks(self.log)
        self._undo: list[Callable[[], None]] = []
        self._exit: Callable[[int], None] = os._exit

    def begin(self) -> None:
        """Observe from here on what this process does."""
        self._install()
        self._guard(lambda: self._observer.watch(self.log), MEASURING)
        self._observing.start()

    def run(self, script: Callable[[], int]) -> int:
        """Run the script and return its exit code."""
        self.begin()
        try:
            code = script()
            with self._ending:
                self._code = code
        finally:
            self._stopped = self._stopped or self._code is None
            self._ended_s = time.perf_counter()
        return code

    def at_exit(self) -> None:
        """Report if that is still to be done, and end an interrupted script by the signal.

        The end of the interpreter can hang in threads of a framework that call Python, or abort. A
        script that is stopped does not wait for it.
        """
        self.finish(ReportReason.CRASH if self._script.crashed else ReportReason.END)
        if self._code == EXIT_INTERRUPTED and os.getpid() == self._pid:
            run_exit_handlers()
            flush_output()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        if self._stopping and os.getpid() == self._pid:
            run_exit_handlers()
            prepare_hard_exit()
            self._exit(self._code or 0)

    def finish(self, reason: ReportReason) -> None:
        """Report the end of the script, if that is still to be done, and switch every hook off."""
        if os.getpid() != self._pid or not self._reporting.acquire(timeout=REPORT_WAIT_S):
            return
        try:
            if self._lifecycle.phase != Phase.OVER:
                self._lifecycle.update(time.perf_counter())
                self._report_and_finish(reason)
        finally:
            self._reporting.release()
            self._observing.stop()
            self._children.stop()

    def close(self) -> None:
        """Undo all patches, for a process that continues."""
        self.log.stop()
        self._intervening.stop(join_s=BLOCK_STOP_S)
        self._interventions.helper.close()
        self._observing.stop(join_s=SCRIPT_STOP_S)
        self._imports.undo()
        self._children.stop()
        atexit.unregister(self.at_exit)
        while self._undo:
            self._undo.pop()()

    def _install(self) -> None:
        # The threads belong to the diagnosis and do not exist in the child.
        if sys.version_info >= (3, 12):
            warnings.filterwarnings(
                "ignore", r"This process .* is multi-threaded", DeprecationWarning
            )
            self._undo.append(functools.partial(_remove, warnings.filters, warnings.filters[0]))
        if self._plan.experiments:
            self.log.experiments = Experiments(self.log)
            if rank_of() is None:  # ranks share their machine, and wait for each other
                self._interventions.helper.start()
        atexit.register(self.at_exit)
        self._undo += [
            record_thread_deaths(self.log),
            self._patch_exit(),
            self._children.install(),
        ]
        launch = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _switch_off(launch()))
        self._imports.start()

    def _patch_exit(self) -> Callable[[], None]:
        original = self._exit

        def _exit(status: int) -> None:
            self.finish(ReportReason.EXIT)
            original(status)

        os._exit = _exit  # type: ignore[assignment]

        def undo() -> None:
            os._exit = original  # type: ignore[assignment]

        return undo

    def _observe(self) -> None:
        """Run the observing thread."""
        watchdog_s = 0.0
        while self._observing.pause(END_POLL_S):
            now_s = time.perf_counter()
            with self._reporting:
                self._advance(now_s)
            if self._lifecycle.phase == Phase.OVER:
                break
            if now_s - watchdog_s >= WATCHDOG_S:
                watchdog_s = now_s
                stall = self._watchdog.check(now_s, self._lifecycle.loop)
                if stall is not None:
                    self._handle_stall(stall)
        trainers = self._children.running() if self._children.watching else []
        self._children.stop()
        if self._plan.stop:
            self._stop(trainers)

    def _advance(self, now_s: float) -> None:
        """Do what is due now."""
        importing = is_importing(sys._current_frames().get(self._thread))
        phase = self._lifecycle.update(now_s, importing=importing)
        if phase in (Phase.WORKING, Phase.MEASURING):
            self._measure(phase)
        elif phase == Phase.REPORTING:
            self._report_and_finish(ReportReason.TIME)
        elif phase == Phase.UNSEEN:
            self._report_unseen()
        elif phase == Phase.SEARCHING and not self._reported_stall:
            self._report_and_finish(ReportReason.STEPLESS)
        loop, over = self._lifecycle.loop, self._lifecycle.phase == Phase.OVER
        if not over and (loop is None or self._only_takes(loop)):
            if self._children.begin(now_s):
                self._lifecycle.leave(loop)  # the children may train, whose results it takes
                self._measure(phase)
            elif self._children.have_reported(now_s):
                self._report_and_finish(ReportReason.CHILDREN)

    def _only_takes(self, loop: Loop) -> bool:
        return bool(self._guard(lambda: self._observer.only_takes(loop), MEASURING))

    def _measure(self, phase: Phase) -> None:
        bursts = self.log.experiments
        if bursts is not None and phase == Phase.MEASURING:
            self._guard(lambda: self._plan_experiments(bursts), MEASURING)
        self._guard(lambda: self._observer.measure(self._lifecycle.start_s), MEASURING)

    def _plan_experiments(self, bursts: Experiments) -> None:
        life = self._lifecycle
        bursts.plan(life.start_s, life.end_s)
        if life.loop is not None and rank_of() is None:
            self._interventions.plan(life.start_s, life.end_s, loop=life.loop)
            if not self._intervening.ident:
                self._intervening.start()

    def _report_unseen(self) -> None:
        """Report what the script did; if it goes on and children do not train, observe it on."""
        request = self._request(ReportReason.UNSEEN)
        if self._plan.stop or request.children:
            return self._finish(request)
        self._told_unseen = True
        self._report(replace(request, final=False))

    def _report_and_finish(self, reason: ReportReason) -> None:
        """Report and stop observing; without a loop and a report, continue to observe."""
        if reason != ReportReason.STEPLESS:
            self._intervening.stop(join_s=BLOCK_STOP_S)
        request = self._request(reason)  # it records deaths, while the log is active
        if reason != ReportReason.STEPLESS or self._report(request):
            told = self._told_unseen and not (request.loop or request.children or request.died)
            self._finish(None if told or reason == ReportReason.STEPLESS else request)

    def _finish(self, request: ReportRequest | None) -> None:
        self._lifecycle.finish()
        self._imports.stop()
        self._interventions.helper.close()
        self.log.stop()
        if request is not None:
            self._report(request)

    def _handle_stall(self, stall: FeedStall) -> None:
        """Report a stall once; end the process if it is proven to be permanent."""
        with self._reporting:
            if self._lifecycle.phase == Phase.OVER:
                return
            if stall.proven:
                self._lifecycle.finish()
                self.log.stop()
                self._report(self._request(ReportReason.DEAD, stall))
                self._children.stop()
                prepare_hard_exit()
                self._exit(1)
            elif self._reported_stall is None:
                self._reported_stall = stall
                blocked = self._request(ReportReason.BLOCKED, stall)
                self._report(replace(blocked, final=False))

    def _report(self, request: ReportRequest) -> bool:
        return bool(self._guard(lambda: self._observer.report(request), REPORTING))

    def _request(self, reason: ReportReason, stall: FeedStall | None = None) -> ReportRequest:
        now_s = time.perf_counter()
        life = self._lifecycle
        died = stall.died if stall else self._deaths(reason)
        asked_s = self.log.waiting.get(life.loop.thread) if life.loop else None
        waits_s = stall.waited_s if stall else 0.0 if asked_s is None else now_s - asked_s
        steps_elsewhere = life.loop is None and reason in WITH_CHILDREN
        return ReportRequest(
            script=self._script.name,
            reason=reason,
            loop=life.seen_loop if reason == ReportReason.UNSEEN else life.loop,
            timeline=self.log.timeline,
            start_s=life.start_s,
            end_s=now_s,
            warmup_s=life.warmup_s,
            begin_s=self._begin_s,
            died=died,
            missing=tuple(self.log.missing),
            waiting_now_s=waits_s,
            rank=rank_of(),
            children=self._children.collect() if steps_elsewhere else (),
            interventions=self._interventions.results(),
            dosed_cpu_s=self._interventions.helper.cpu_s,
        )

    def _deaths(self, reason: ReportReason) -> tuple[DeadProducer, ...]:
        """Return what the feed died of, as far as it is known at the end."""
        if reason == ReportReason.CRASH and not self._script.crashed_in_feed:
            return ()
        if self._code != EXIT_INTERRUPTED:
            return self._watchdog.deaths()
        died = self._watchdog.deaths(self._ended_s - SCRIPT_STOP_S)
        loop, stall = self._lifecycle.loop, self._reported_stall
        stalled = loop is None or self._ended_s - loop.steps[-1].end_s >= self._plan.dead_s
        return died or (stall.died if stall and stalled else ())

    def _guard(self, call: Callable[[], Any], what: str) -> Any:
        try:
            return call()
        except Exception as error:
            self.log.failed(what, error)
            if what == REPORTING:
                at = traceback.extract_tb(error.__traceback__)[-1]
                sys.stderr.write(
                    f"fastfeed: {what} failed: {type(error).__name__}: {error} "
                    f"({os.path.basename(at.filename)}:{at.lineno}). --evidence FILE keeps what "
                    "was seen, for a bug report\n"
                )
            return True  # the next one would fail, too

    def _stop(self, trainers: list[int]) -> None:
        """End the script as by sys.exit(0), and abruptly what does not end within some seconds."""
        if self._code is not None or self._stopped:
            return
        with self._ending:  # it would interrupt the exit of a script that has ended meanwhile
            if self._code is None:
                self._stopping = True
                flush_output()  # the interpreter may not come to it
                arm_exit(STOP_LIMIT_S, 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(SystemExit)
                )
        end_processes(trainers)
        if not self._observing.pause(SCRIPT_STOP_S) or self._code is not None:
            time.sleep(2 * SCRIPT_STOP_S)  # a process that ends does not wait for this thread
        for number in (signal.SIGTERM, signal.SIGKILL):
            end_processes([one.pid for one in descendants(self._pid)], number)
            time.sleep(END_POLL_S)
        prepare_hard_exit()
        self._exit(self._code or 0)


def _remove(filters: Any, one: Any) -> None:
    if one in filters:
        filters.remove(one)


def _switch_off(launch: Launch | None) -> None:
    """Switch the observation off in a forked child, which is not diagnosed."""
    if launch is not None:
        launch.log.stop()
        atexit.unregister(launch.at_exit)
