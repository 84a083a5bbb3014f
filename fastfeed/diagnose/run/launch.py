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

from fastfeed.diagnose.evidence import DeadProducer, Evidence
from fastfeed.diagnose.evidence_file import Recording
from fastfeed.diagnose.hooks.experiments import Experiments
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, call_before, undo_all
from fastfeed.diagnose.interventions.schedule import Interventions
from fastfeed.diagnose.run.collector import EvidenceCollector
from fastfeed.diagnose.run.endings import (
    arm_exit,
    end_processes,
    flush_output,
    prepare_hard_exit,
    run_exit_handlers,
)
from fastfeed.diagnose.run.hidden_thread import HiddenThread
from fastfeed.diagnose.run.lifecycle import Due, Lifecycle, WatchPlan, is_importing
from fastfeed.diagnose.run.live_tuning import tune_live
from fastfeed.diagnose.run.publisher import Publisher
from fastfeed.diagnose.run.script import EXIT_INTERRUPTED, Script
from fastfeed.diagnose.run.training_children import TrainingChildren, merged
from fastfeed.diagnose.run.watchdog import FeedStall, Watchdog, record_thread_deaths
from fastfeed.errors import OptionError
from fastfeed.probes.family import descendants
from fastfeed.probes.interpreter import CAN_TRACE_LINES
from fastfeed.steps.timeline import Timeline

END_POLL_S = 0.1
WATCHDOG_S = 0.5
SCRIPT_STOP_S = 5.0  # for a script that was asked to stop
BLOCK_STOP_S = 2.0  # for a block of interventions that is to end
STOP_LIMIT_S = 20.0  # after which it ends, whatever its interpreter does
REPORT_WAIT_S = 30.0  # most that the end of the script waits for a report in progress
DEAD_WAIT_S = 5.0  # without a step: a feed that was found blocked still is
MEASURING, REPORTING = "measuring", "the report"  # what failed


def run(script: Sequence[str], *, plan: WatchPlan, publisher: Publisher) -> int:
    """Run `script` (the words after `python`) as `__main__` and return its exit code, for sys.exit.

    The report of a script that ends early is made at exit, after its threads and its own atexit
    handlers. Raise OptionError if there is no such script.
    """
    found = Script(script, turns=not CAN_TRACE_LINES)
    return Launch(found, plan=plan, publisher=publisher).run(found.run)


def rank_of(environ: Any = os.environ) -> int | None:
    """Return the rank of this process; None unless torchrun or the like started several."""
    rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdigit() and world.isdigit() and int(world) > 1 else None


class ObservedProcess:
    """The claim of the one diagnosis of this process; a forked child is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0

    def take(self) -> bool:
        """Return True if no diagnosis of this process has it."""
        with self._lock:
            free, self._pid = self._pid != os.getpid(), os.getpid()
            return free

    def give_back(self) -> None:
        """Let another diagnosis begin."""
        self._pid = 0


OBSERVED = ObservedProcess()


class ObservedCode(Protocol):
    """Script, or a block of one, that runs under observation; see Script."""

    name: str
    crashed: bool
    crashed_in_feed: bool


class Launch:
    """One script, or a block of one, under observation.

    Only patches without effect remain once the report is made. Forked children are not observed.
    What fails in the observation is noted, and does not reach the script.
    """

    def __init__(
        self,
        script: ObservedCode,
        *,
        plan: WatchPlan,
        publisher: Publisher,
        collector: EvidenceCollector | None = None,
        log: HookLog | None = None,
    ) -> None:
        self._script = script
        self._plan = plan
        self._publisher = publisher
        self._collector = collector or EvidenceCollector()
        self.log = log or HookLog(Timeline())
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._life = Lifecycle(plan, self.log, begin_s=time.perf_counter(), thread=self._thread)
        self._watchdog = Watchdog(self.log, self._thread, dead_s=plan.dead_s)
        self._observing = HiddenThread(self.log, self._observe, name="observing the script")
        self._interventions = Interventions(self.log)
        self._intervening = HiddenThread(
            self.log, lambda: self._interventions.run(self._intervening.pause), name="interventions"
        )
        self._children = TrainingChildren(plan, self.log, thread=self._thread)
        self._reporting = threading.RLock()
        self._stall: FeedStall | None = None  # that was reported
        self._told_unseen = False
        self._concluded = False  # the final report was begun
        self._ending = threading.Lock()  # the script ends by itself, or is stopped
        self._code: int | None = None
        self._ended = False
        self._stopping = False  # the script is to end because of the report
        self._imports = ImportHooks(self.log)
        self._undo: list[Undo] = []
        self._exit: Callable[[int], None] = os._exit

    def begin(self) -> None:
        """Observe from here on what this process does.

        Raise OptionError if it is under diagnosis already.
        """
        if not OBSERVED.take():
            raise OptionError(
                "this process is under diagnosis already, by fastfeed diagnose or another block, "
                "of this thread or another one: leave one of them out"
            )
        try:
            self._install()
        except BaseException:
            OBSERVED.give_back()
            raise
        self._guard(lambda: self._collector.watch(self.log), MEASURING)
        self._observing.start()

    def run(self, script: Callable[[], int]) -> int:
        """Run the script and return its exit code."""
        self.begin()
        try:
            self._code = script()
        finally:
            with self._ending:
                self._ended = True
        return self._code

    def at_exit(self) -> None:
        """Report if that is still to be done, and end an interrupted script by the signal.

        The end of the interpreter can hang in threads of a framework that call Python, or abort. A
        script that is stopped does not wait for it.
        """
        self.finish()
        ends_here = self._code == EXIT_INTERRUPTED or self._stopping
        if not ends_here or os.getpid() != self._pid:
            return
        run_exit_handlers()
        prepare_hard_exit()
        if self._code == EXIT_INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        self._exit(self._code or 0)

    def finish(self) -> None:
        """Report the end of the script, if that is still to be done, and switch every hook off."""
        if os.getpid() != self._pid:
            return
        if not self._reporting.acquire(timeout=REPORT_WAIT_S):
            _say(f"{REPORTING} was not ready {REPORT_WAIT_S:g} s after the end of the script")
            return
        try:
            if not self._concluded:
                self._guard(self._conclude_early, MEASURING)
                self._report_after_failure()
        finally:
            self._reporting.release()
            self._observing.stop()
            self._children.stop()

    def close(self) -> None:
        """Undo all patches, for a process that continues."""
        self.log.stop()
        if os.getpid() == self._pid:  # a forked child has none of the threads
            self._intervening.stop(join_s=BLOCK_STOP_S)
            self._interventions.helper.close()
            self._observing.stop(join_s=SCRIPT_STOP_S)
            self._collector.stop()
            self._children.stop()
        self._imports.undo()
        atexit.unregister(self.at_exit)
        undo_all(self._undo)()
        OBSERVED.give_back()

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
            call_before(os, "_exit", action=lambda *_, **__: self.finish()),
            self._children.install(),
        ]
        launch = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _switch_off(launch()))
        self._imports.start()

    def _observe(self) -> None:
        """Run the observing thread."""
        watchdog_s = 0.0
        while self._observing.pause(END_POLL_S) and not self._life.over:
            now_s = time.perf_counter()
            with self._reporting:
                self._guard(lambda: self._advance(time.perf_counter()), MEASURING)
            if now_s - watchdog_s >= WATCHDOG_S:
                watchdog_s = now_s
                stall = self._watchdog.check(now_s, self._life.loop)
                with self._reporting:
                    if stall is not None and not self._life.over:
                        self._handle_stall(stall)
        with self._reporting:
            if self._life.over:
                self._report_after_failure()
        trainers = self._children.running() if self._children.watched else []
        self._children.stop()
        if self._plan.stop:
            self._stop(trainers)

    def _advance(self, now_s: float) -> None:
        """Do what is due now."""
        importing = is_importing(sys._current_frames().get(self._thread))
        due = self._life.update(now_s, importing=importing)
        self._collector.search(now_s)
        if due == Due.MEASURE:
            self._measure()
        elif due == Due.REPORT:
            self._conclude()
        elif due == Due.UNSEEN:
            self._report_unseen()
        elif due == Due.SEARCH and not self._stall and self._collector.sees_loop():
            self._conclude()
        loop = self._life.loop
        if not self._life.over and (loop is None or self._collector.only_takes(loop)):
            if self._children.begin(now_s):
                # the children may train, whose results it takes
                self._life.restart(now_s, without=loop)
                self._measure()
            elif self._children.have_reported():
                self._conclude()

    def _measure(self) -> None:
        self._collector.measure()
        life, bursts = self._life, self.log.experiments
        if life.loop is not None and bursts is not None:
            bursts.plan(life.start_s, life.end_s)
            if rank_of() is None:
                self._interventions.plan(life.start_s, life.end_s, loop=life.loop)
                if not self._intervening.ident:
                    self._intervening.start()

    def _handle_stall(self, stall: FeedStall) -> None:
        """Report a stall once; end the process if it is proven to be permanent."""
        if stall.proven:
            self._report(stall.died)
            self._children.stop()
            prepare_hard_exit()
            self._exit(1)
        elif self._stall is None:
            self._stall = stall
            self._report(stall.died, final=False)

    def _report_unseen(self) -> None:
        """Report what the script did; if it goes on and children do not train, observe it on."""
        children = self._children.collect()
        self._told_unseen = not children and not self._plan.stop
        self._report(children=children, final=not self._told_unseen)

    def _report_after_failure(self) -> None:
        """Report, if what comes before the last report has failed."""
        if not self._concluded:
            self._guard(self._report, REPORTING)

    def _conclude_early(self) -> None:
        now_s = time.perf_counter()
        self._life.update(now_s)
        self._conclude(short=self._life.short(now_s, self._interventions.results()))

    def _conclude(self, *, short: str = "") -> None:
        """Report and stop observing; not again, if there was nothing to see since the last time."""
        self._intervening.stop(join_s=BLOCK_STOP_S)
        died = self._deaths()
        children = self._children.collect() if self._life.loop is None else ()
        new = not self._told_unseen or bool(self._life.loop or children or died)
        self._report(died, children=children, short=short, new=new)

    def _report(
        self,
        died: tuple[DeadProducer, ...] = (),
        *,
        children: tuple[Recording, ...] = (),
        short: str = "",
        final: bool = True,
        new: bool = True,
    ) -> None:
        """Report what was seen, if it is new; nothing is seen after the `final` report."""
        waited_s = self._waiting_s()
        if final:
            self._life.finish()
            self._imports.stop()
            self._interventions.helper.close()
            self.log.stop()
            self._concluded = True

        def report() -> None:
            try:
                found = replace(self._evidence(), waiting_now_s=waited_s, short=short)
                found = self._tuned(found) if final and self._plan.live and not died else found
                found = merged(children, found.machine) if children else found
            finally:
                if final:
                    self._collector.stop()
            if new:
                self._publisher.report(Recording(found, self._script.name, died), rank=rank_of())

        self._guard(report, REPORTING)

    def _evidence(self) -> Evidence:
        """Return what was seen, without the CPU time that interventions took."""
        found, interventions = self._collector.evidence(self._life), self._interventions
        dosed = interventions.helper.cpu_s / max(1e-9, found.seconds)
        others = max(0.0, found.machine.other_cpu - dosed)
        machine = replace(found.machine, other_cpu=others)
        if self._code == EXIT_INTERRUPTED:
            cut = "the rest of the watch: the script was interrupted"
            found = replace(found, missing=(*found.missing, cut))
        return replace(found, machine=machine, interventions=interventions.results())

    def _tuned(self, found: Evidence) -> Evidence:
        """Search for the best number of producers in the running job, and leave it."""
        pause = self._observing.pause
        decided, why = tune_live(lambda seconds: not self._ended and pause(seconds))
        if found.feed is not None:
            found = replace(found, feed=replace(found.feed, tuning=(*found.feed.tuning, *decided)))
        missing = [f"other numbers of producers in the running job: {why}"] if why else []
        return replace(found, missing=(*found.missing, *missing))

    def _waiting_s(self) -> float:
        """Return for how long the loop, or the script without one, has waited for input."""
        loop, now_s = self._life.loop, time.perf_counter()
        return now_s - self.log.waiting.get(loop.thread if loop else self._thread, now_s)

    def _deaths(self) -> tuple[DeadProducer, ...]:
        """Return what the feed died of, as far as it is known at the end."""
        interrupted, loop, stall = self._code == EXIT_INTERRUPTED, self._life.loop, self._stall
        if self._script.crashed and not interrupted:
            return self._watchdog.deaths() if self._script.crashed_in_feed else ()
        idle_s = self._waiting_s()
        if interrupted:  # it waits no more, and its producers have been ended, too
            idle_s = time.perf_counter() - (loop.steps[-1].end_s if loop else 0.0)
        return stall.died if stall and idle_s >= min(DEAD_WAIT_S, self._plan.dead_s) else ()

    def _guard(self, call: Callable[[], Any], what: str) -> None:
        try:
            call()
        except Exception as error:
            self.log.failed(what, error)
            if what == REPORTING:
                at = traceback.extract_tb(error.__traceback__)[-1]
                _say(
                    f"{what} failed: {type(error).__name__}: {error} "
                    f"({os.path.basename(at.filename)}:{at.lineno}). --evidence FILE keeps what "
                    "was seen, for a bug report"
                )

    def _stop(self, trainers: list[int]) -> None:
        """End the script as by sys.exit(0), and abruptly what does not end within some seconds."""
        with self._ending:  # it would interrupt the exit of a script that has ended meanwhile
            if self._ended:
                return
            self._stopping = True
            flush_output()  # the interpreter may not come to it
            arm_exit(STOP_LIMIT_S, 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread), ctypes.py_object(SystemExit)
            )
        end_processes(trainers)
        if not self._observing.pause(SCRIPT_STOP_S):
            time.sleep(2 * SCRIPT_STOP_S)  # a process that ends does not wait for this thread
        for number in (signal.SIGTERM, signal.SIGKILL):
            end_processes([one.pid for one in descendants(self._pid)], number)
            time.sleep(END_POLL_S)
        prepare_hard_exit()
        self._exit(self._code or 0)


def _say(text: str) -> None:
    sys.stderr.write(f"fastfeed: {text}\n")


def _remove(filters: Any, one: Any) -> None:
    if one in filters:
        filters.remove(one)


def _switch_off(launch: Launch | None) -> None:
    """Switch the observation off in a forked child, which is not diagnosed."""
    if launch is not None:
        launch.log.stop()
        atexit.unregister(launch.at_exit)
