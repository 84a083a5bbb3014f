"""Find a feed that is dead: no batches are made any more, and the loop waits for one."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fastfeed.diagnose.hooks.child_exits import how
from fastfeed.diagnose.hooks.context import Context
from fastfeed.probes.pyspy import CHILDREN, dump
from fastfeed.steps.recorder import is_users
from fastfeed.steps.timeline import Loop

USUAL = 10  # times the usual period is a stall without other signs
USUAL_OF_DEAD = 3
IDLE = 0.2  # of a core: a process above it works
QUIET_S = 1.0  # without a step: time to check
WAITING = ("queue.py", "threading.py", "connection.py", "queues.py", "synchronize.py", "_base.py")
FRAMES = 8  # of a stack, the innermost
TOLD = how(-signal.SIGTERM)
BY_CTRL_C = (how(-signal.SIGINT), how(1))  # how a worker ends whose process group is interrupted
POOL = "multiprocessing/pool.py"
LOST = "; what a killed worker of a Pool was making never comes, and whoever asks for it waits for ever"
NOBODY = "nobody is left who could make a batch: no other thread of the script, and no process of its own"
STARTS = ("_bootstrap", "_bootstrap_inner")  # of every thread
Child = tuple[int, list[str]]  # its pid, and the fields of its stat file from the state on


@dataclass(frozen=True)
class Dead:
    """A feed without batches. `proven`: a producer is known to have died, and nothing else works,
    so that the loop would wait for ever. `died`: tracebacks, or the last stacks."""

    proven: bool
    waited_s: float
    died: tuple[str, ...]


class Watchdog:
    """Watches a feed. `look` is called twice a second from a thread of its own; `threads_end` sees
    exceptions that end threads."""

    def __init__(self, context: Context, thread: int, *, dead_s: float) -> None:
        self._context = context
        self._thread = thread  # of the script
        self._dead_s = dead_s
        self._at: dict[int, tuple[Any, float]] = {}  # by thread: its position, and since when
        self._names: dict[int, str] = {}  # of threads that were alive while steps were made
        self._zombies: set[int] = set()
        self._cpu: list[tuple[float, float]] = []
        self._processes: list[str] = []  # their stacks in this stall: py-spy is asked once

    def look(self, now_s: float, loop: Loop | None) -> Dead | None:
        """Return what is known if the feed of the loop (of the script's thread, without a known
        loop) is dead, else None."""
        thread = self._thread if loop is None else loop.thread
        last_s = loop.steps[-1].end_s if loop is not None else None
        frames = {n: f for n, f in sys._current_frames().items() if n not in self._context.ours}
        self._follow(frames, now_s)
        waits = _waits(frames.get(thread))
        since_s = self._context.waiting.get(thread, self._at[thread][1] if waits else None)
        if waits and thread in self._context.waiting:
            self._context.elsewhere.add(thread)
        stall_s = 0.0 if since_s is None else now_s - max(since_s, last_s or since_s)
        if stall_s < QUIET_S:
            self._names = {t.ident: t.name for t in threading.enumerate() if t.ident is not None}
            self._cpu.clear()
            self._processes.clear()
            return None
        children = [(pid, state) for pid, state in _children() if not _helps(pid)]
        self._find_zombies(children)
        self._cpu.append((now_s, _cpu_s(children)))
        lost = LOST if _inside(frames.get(thread), POOL) and self._killed() else ""
        # other workers of a pool may go on with later items, which does not help
        if stall_s < max(self._dead_s, USUAL_OF_DEAD * _period(loop)) or (
            self._busy() and not lost
        ):
            return None
        others = {n: f for n, f in frames.items() if n != thread}
        # a thread with a line of the script on its stack may still make a batch, and so may a
        # process
        alone = not any(_users(f) is not None for f in others.values()) and all(
            s[0] == "Z" for _, s in children
        )
        died = tuple(text + lost * text.startswith("process ") for _, text in self._context.died)
        if died and alone and waits:
            return Dead(True, stall_s, died)
        # the first batch may take long
        if not died and (loop is None or stall_s < USUAL * _period(loop)):
            return None
        return Dead(
            False,
            stall_s,
            (*died, *self._stacks(thread, others), *self._of_processes(children)) or (NOBODY,),
        )

    def deaths(self, interrupted_s: float = float("inf")) -> tuple[str, ...]:
        """Return how threads and processes ended, without those that were told to, such as by a
        Ctrl-C."""
        self._find_zombies([(pid, state) for pid, state in _children() if not _helps(pid)])
        died = (
            (text, (TOLD, *BY_CTRL_C) if at_s > interrupted_s else TOLD)
            for at_s, text in self._context.died
        )
        return tuple(text for text, told in died if not text.endswith(told))

    def _killed(self) -> bool:
        return any(
            text.startswith("process ") and not text.endswith(TOLD)
            for _, text in self._context.died
        )

    def _stacks(self, thread: int, others: dict[int, FrameType]) -> list[str]:
        gone = [
            f"thread {name} has ended"
            for n, name in self._names.items()
            if n not in others and n != thread
        ]
        at_work = {n: frame for n, frame in others.items() if _users(frame) is not None}
        return gone + [
            f"thread {self._names.get(n, n)} is at\n{stack_of(frame)}"
            for n, frame in at_work.items()
        ]

    def _of_processes(self, children: list[Child]) -> list[str]:
        """Return how the child processes ended, and the stacks of those that still live."""
        if not self._processes:
            ended = [pid for pid, state in children if state[0] == "Z" and state[-1] == "0"]
            self._processes = [f"process {pid} has ended, without an error" for pid in ended]
            for pid, _ in [child for child in children if child[1][0] != "Z"][:CHILDREN]:
                stack = "\n".join(dump(pid)[FRAMES - 1 :: -1])  # as in a traceback
                self._processes.append(
                    f"process {pid} is at\n{stack}" if stack else f"process {pid} does nothing"
                )
        return self._processes

    def _follow(self, frames: dict[int, FrameType], now_s: float) -> None:
        for thread, frame in frames.items():
            at = _users(frame) or frame
            key = (id(at), at.f_lasti)
            if thread not in self._at or self._at[thread][0] != key:
                self._at[thread] = (key, now_s)

    def _busy(self) -> bool:
        """Return True if some process of the script works."""
        (first_s, first), (last_s, last) = self._cpu[max(0, len(self._cpu) - 9)], self._cpu[-1]
        return last_s <= first_s or (last - first) / (last_s - first_s) > IDLE

    def _find_zombies(self, children: list[Child]) -> None:
        for pid, state in children:
            if (
                state[0] == "Z"
                and pid not in self._zombies
                and state[-1].isdigit()
                and int(state[-1])
            ):
                self._zombies.add(pid)
                status = int(state[-1])
                self._context.saw_death(
                    f"process {pid} ended: {how(-(status & 127) if status & 127 else status >> 8)}"
                )


def threads_end(context: Context) -> Callable[[], None]:
    """See every exception that ends a thread, whatever the script does with it; return the function
    that undoes that."""
    private: Any = threading
    original = getattr(private, "_make_invoke_excepthook", None)
    if original is None:  # another Python
        context.failed("exceptions that end threads", "this Python is not known")
        return lambda: None

    def make() -> Any:
        invoke = original()

        def seen(thread: threading.Thread) -> None:
            kind, error, at = sys.exc_info()
            if context.active and kind is not None and not issubclass(kind, SystemExit):
                while (
                    at is not None
                    and at.tb_next is not None
                    and not is_users(at.tb_frame.f_code.co_filename)
                ):
                    at = at.tb_next
                text = "".join(traceback.format_exception(kind, error, at)).rstrip()
                context.saw_death(f"thread {thread.name} ended:\n{text}")
                context.deaths[threading.get_ident()] = thread.name, text
            invoke(thread)

        return seen

    private._make_invoke_excepthook = make

    def undo() -> None:
        private._make_invoke_excepthook = original

    return undo


def stack_of(frame: FrameType) -> str:
    """Return the innermost lines of a thread's stack, as in a traceback."""
    lines = [line for line in traceback.extract_stack(frame) if line.name not in STARTS]
    return "".join(traceback.format_list(lines[-FRAMES:])).rstrip()


def _waits(frame: FrameType | None) -> bool:
    """Return True if a stack ends in a wait for a queue, a pipe or a condition (not for the end of
    a thread), or in a session of TensorFlow."""
    at, waits = frame, False
    while at is not None and not is_users(at.f_code.co_filename):
        file = at.f_code.co_filename
        waits = waits or Path(file).name in WAITING or file.endswith("client/session.py")
        if at.f_code.co_name in ("join", "_wait_for_tstate_lock"):
            return False
        at = at.f_back
    return waits


def _inside(frame: FrameType | None, file: str) -> bool:
    """Return True if the library's part of a stack, below the script's own code, is in this
    file."""
    at = frame
    while at is not None and not is_users(at.f_code.co_filename):
        if at.f_code.co_filename.replace(os.sep, "/").endswith(file):
            return True
        at = at.f_back
    return False


def _users(frame: FrameType) -> FrameType | None:
    """Return the innermost frame of the script's own code."""
    at: FrameType | None = frame
    while at is not None and not is_users(at.f_code.co_filename):
        at = at.f_back
    return at


def _period(loop: Loop | None) -> float:
    steps = [] if loop is None else loop.steps[-50:]
    return (steps[-1].end_s - steps[0].begin_s) / len(steps) if steps else 0.0


def _children() -> list[Child]:
    """Return the children of this process; none without /proc."""
    found = []
    try:
        pids = [
            pid for f in Path("/proc/self/task").glob("*/children") for pid in f.read_text().split()
        ]
    except OSError:
        return []
    for pid in pids:
        try:
            found.append(
                (int(pid), Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split())
            )
        except OSError:  # gone
            continue
    return found


def _helps(pid: int) -> bool:
    """Return True for one of multiprocessing's own helpers."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"resource_tracker" in line or b"forkserver import main" in line


def _cpu_s(children: list[Child]) -> float:
    """Return CPU seconds of this process and its children."""
    ticks = sum(int(state[11]) + int(state[12]) for _, state in children)
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
