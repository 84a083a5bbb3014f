"""Detection of a dead feed: the loop waits for a batch, and nothing produces one."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose.evidence import DeadProducer
from fastfeed.diagnose.hooks.child_exits import dead_process
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.patches import Undo, patch
from fastfeed.diagnose.run.lifecycle import STALL_PERIODS
from fastfeed.probes import procfs
from fastfeed.probes.family import descendants
from fastfeed.probes.machine_log import one_core
from fastfeed.probes.pyspy import MAX_SAMPLED_CHILDREN, dump
from fastfeed.steps.timeline import Loop

DEAD_PERIODS = 3  # without a step: the feed may be dead
BUSY_CORES = 0.2  # a process that uses more is working
BUSY_CHECKS = 9  # latest ones, over which CPU time is measured
QUIET_S = 1.0  # without a step: time to check
WAIT_FILES = (
    "queue.py",
    "threading.py",
    "connection.py",
    "queues.py",
    "synchronize.py",
    "_base.py",
)
SHOWN_FRAMES = 8  # of a stack, the innermost
POOL_FILE = "multiprocessing/pool.py"
LOST_WORK = "; a Pool never returns the result that a killed worker was computing"
NO_PRODUCER = DeadProducer(
    "", "the script has no other thread and no child process that could produce a batch"
)
THREAD_END = "_make_invoke_excepthook"  # of threading: makes what is called with the exception
BOOTSTRAP_NAMES = ("_bootstrap", "_bootstrap_inner")  # outermost functions of every thread
ProcessState = tuple[int, procfs.Stat]  # its pid, and its stat file


@dataclass(frozen=True)
class FeedStall:
    """Feed that delivers nothing.

    `proven`: a producer is known to have died, and nothing else is running, so the loop would wait
    for ever. `died`: the producers that have ended or are blocked.
    """

    proven: bool
    died: tuple[DeadProducer, ...]


class Watchdog:
    """Checks twice a second, in a thread of its own, whether the feed is dead.

    `record_thread_deaths` provides the exceptions that end threads.
    """

    def __init__(self, log: HookLog, thread: int, *, dead_s: float) -> None:
        self._log = log
        self._thread = thread  # of the script
        self._dead_s = dead_s
        self._names: dict[int, str] = {}  # of the threads that were alive at the last step
        self._zombies: set[int] = set()
        self._cpu: list[tuple[float, float]] = []
        self._processes: list[DeadProducer] = []  # in this stall: py-spy is called once

    def check(self, now_s: float, loop: Loop | None) -> FeedStall | None:
        """Return the stall of the feed, or None.

        The checked thread is that of the loop, or the script's own if no loop is known.
        """
        thread = self._thread if loop is None else loop.thread
        frames = {n: f for n, f in sys._current_frames().items() if n not in self._log.ours}
        waits = _is_waiting(frames.get(thread))
        if waits and thread in self._log.waiting:
            self._log.elsewhere.add(thread)
        last_s = loop.steps[-1].end_s if loop is not None else 0.0
        stall_s = now_s - max(self._log.waiting.get(thread, now_s), last_s)
        if stall_s < QUIET_S:
            self._names = {t.ident: t.name for t in threading.enumerate() if t.ident is not None}
            self._cpu.clear()
            self._processes.clear()
            return None
        processes = _find_processes()
        self._find_zombies(processes)
        self._cpu.append((now_s, _cpu_s(processes)))
        codes = {dead.exit_code for dead in self._log.died} - {None, -signal.SIGTERM}
        lost = LOST_WORK if codes and _is_in_pool(frames.get(thread)) else ""
        # The other workers of a pool continue with the next items, but that does not end the wait.
        least_s = max(self._dead_s, DEAD_PERIODS * _period_s(loop))
        if stall_s < least_s or (self._is_busy() and not lost):
            return None
        others = {n: f for n, f in frames.items() if n != thread}
        # A thread with a line of the script on its stack may still produce something, and so may a
        # process.
        alone = not any(_user_frame(f) is not None for f in others.values()) and all(
            s.state == "Z" for _, s in processes
        )
        died = tuple(
            dead if dead.exit_code is None else dead._replace(text=dead.text + lost)
            for dead in self._log.died
        )
        if died and alone and waits:
            return FeedStall(True, died)
        # The first batch may take long.
        if not died and (loop is None or stall_s < STALL_PERIODS * _period_s(loop)):
            return None
        died += *self._describe_threads(thread, others), *self._describe_processes(processes)
        return FeedStall(False, died or (NO_PRODUCER,))

    def deaths(self) -> tuple[DeadProducer, ...]:
        """Return the threads and processes that ended and were not terminated deliberately."""
        self._find_zombies(_find_processes())
        return tuple(dead for dead in self._log.died if dead.exit_code != -signal.SIGTERM)

    def _describe_threads(self, thread: int, others: dict[int, FrameType]) -> list[DeadProducer]:
        gone = [
            _ended(f"thread {name}", "has ended")
            for n, name in self._names.items()
            if n not in others and n != thread
        ]
        return gone + [
            _blocked(f"thread {self._names.get(n, n)}", format_stack(frame))
            for n, frame in others.items()
            if _user_frame(frame) is not None
        ]

    def _describe_processes(self, processes: list[ProcessState]) -> list[DeadProducer]:
        """Return which processes have ended, and where the others are."""
        if not self._processes:
            ended = [pid for pid, state in processes if state.state == "Z" and not state.status]
            alive = [pid for pid, state in processes if state.state != "Z"]
            self._processes = [
                _ended(f"process {pid}", "has ended, without an error") for pid in ended
            ]
            self._processes += map(_described, alive[:MAX_SAMPLED_CHILDREN])
        return self._processes

    def _is_busy(self) -> bool:
        """Return True if the processes of the script use CPU time."""
        (first_s, first), (last_s, last) = self._cpu[-BUSY_CHECKS:][0], self._cpu[-1]
        return last_s <= first_s or (last - first) / (last_s - first_s) > BUSY_CORES * one_core()

    def _find_zombies(self, processes: list[ProcessState]) -> None:
        for pid, state in processes:
            status = state.status if state.state == "Z" else 0
            if status and pid not in self._zombies:
                self._zombies.add(pid)
                self._log.saw_death(dead_process(pid, os.waitstatus_to_exitcode(status)))


def record_thread_deaths(log: HookLog) -> Undo:
    """Record every exception that ends a thread; return a function that undoes the patch.

    The script may handle the exception as it likes.
    """

    def wrap(original: Any) -> Any:
        def make() -> Any:
            invoke = original()

            def record(thread: threading.Thread) -> None:
                kind, error, at = sys.exc_info()
                if log.active and kind is not None and not issubclass(kind, SystemExit):
                    while at and at.tb_next and not is_users_code(at.tb_frame.f_code):
                        at = at.tb_next
                    text = "".join(traceback.format_exception(kind, error, at)).rstrip()
                    log.saw_death(_ended(f"thread {thread.name}", f"ended:\n{text}"))
                    log.deaths[threading.get_native_id()] = thread.name, text
                invoke(thread)

            return record

        return make

    if not hasattr(threading, THREAD_END):
        log.failed("exceptions that end threads", "this version of Python is not supported")
        return lambda: None
    return patch(threading, THREAD_END, wrap=wrap)


def _ended(name: str, how: str) -> DeadProducer:
    return DeadProducer(name, f"{name} {how}")


def _blocked(name: str, stack: str) -> DeadProducer:
    return DeadProducer(name, f"{name} is at\n{stack}", blocked=True)


def _described(pid: int) -> DeadProducer:
    """Return where a process is."""
    stack = "\n".join(dump(pid)[SHOWN_FRAMES - 1 :: -1])  # the order of a traceback
    name = f"process {pid}"
    return _blocked(name, stack) if stack else _ended(name, "does nothing")


def format_stack(frame: FrameType) -> str:
    """Return the innermost lines of a thread's stack, formatted as in a traceback."""
    lines = [line for line in traceback.extract_stack(frame) if line.name not in BOOTSTRAP_NAMES]
    return "".join(traceback.format_list(lines[-SHOWN_FRAMES:])).rstrip()


def _library_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames below the script's own code, the innermost first."""
    while frame is not None and not is_users_code(frame.f_code):
        yield frame
        frame = frame.f_back


def _is_waiting(frame: FrameType | None) -> bool:
    """Return True if a stack ends in a wait for a queue, pipe, condition or TensorFlow session.

    Waiting for the end of a thread does not count.
    """
    codes = [one.f_code for one in _library_frames(frame)]
    if any(code.co_name in ("join", "_wait_for_tstate_lock") for code in codes):
        return False
    files = [code.co_filename for code in codes]
    return any(Path(f).name in WAIT_FILES or f.endswith("client/session.py") for f in files)


def _is_in_pool(frame: FrameType | None) -> bool:
    """Return True if the script's code has called a function of a pool of multiprocessing."""
    files = (one.f_code.co_filename.replace(os.sep, "/") for one in _library_frames(frame))
    return any(name.endswith(POOL_FILE) for name in files)


def _user_frame(frame: FrameType) -> FrameType | None:
    """Return the innermost frame of the script's own code."""
    innermost: FrameType | None = frame
    for library in _library_frames(frame):
        innermost = library.f_back
    return innermost


def _period_s(loop: Loop | None) -> float:
    steps = [] if loop is None else loop.steps[-50:]
    return (steps[-1].end_s - steps[0].begin_s) / len(steps) if steps else 0.0


def _find_processes() -> list[ProcessState]:
    """Return the processes that descend from this one, also behind a fork server, and the zombies
    among its children; none that serves only multiprocessing itself."""
    alive = [one.pid for one in descendants(os.getpid())]
    states = [(pid, procfs.stat_of(pid)) for pid in (*procfs.children_of(os.getpid()), *alive)]
    return [(pid, one) for pid, one in dict(states).items() if one.state == "Z" or pid in alive]


def _cpu_s(processes: list[ProcessState]) -> float:
    """Return the CPU seconds of this process and of these."""
    return time.process_time() + sum(state.cpu_s for _, state in processes)
