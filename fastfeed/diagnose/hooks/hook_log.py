"""Log of a diagnosis, into which all hooks write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter
from typing import Any

from fastfeed.diagnose.evidence import DeadProducer
from fastfeed.diagnose.hooks.device_clock import BegunFetch, DeviceClock
from fastfeed.steps.recorder import NEVER, StepLog, StepRecorder
from fastfeed.steps.timeline import Beats, Loop, Mark, Step, Timeline

# maximum number of loops that are told apart by objects which a script may create without end
MAX_LOOPS = 256
MAX_BEATS = 20_000  # updates of an optimizer, and iterations of a loop, that are kept


class HookLog(StepLog):
    """Timeline of a diagnosis, and the other reports of its hooks.

    Once `active` is False, a hook only calls the original. `missing`: what could not be measured,
    for the report. `died`: unexpected ends of the script's threads and processes.
    """

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(timeline)
        self.experiments: Any = None  # Experiments, which know this log
        self.main: Loop | None = None  # the loop that is diagnosed, if it is known
        self.missing: list[str] = []
        self.died: list[DeadProducer] = []
        # by threading.get_native_id(): name and traceback of a thread that died
        self.deaths: dict[int, tuple[str, str]] = {}
        # threads whose input comes from other threads or processes
        self.elsewhere: set[int] = set()
        self.ours: set[int] = set()  # threads of the diagnosis itself
        # By thread and optimizer: its updates, of which most loops make one in each iteration, and
        # the lines that lead to them.
        self._beats: dict[tuple[int, int], tuple[list[float], tuple[tuple[str, int], ...]]] = {}
        # By thread, and file and line of a loop: when its iterations began.
        self._turns: dict[tuple[int, tuple[str, int]], list[float]] = {}
        # In the same way: fetches that have begun, and those that left the device idle.
        self._fetches: dict[tuple[int, tuple[str, int]], BegunFetch] = {}
        self._gaps: dict[tuple[int, tuple[str, int]], Loop] = {}
        # Files and lines of the user's in which a model computes what is trained.
        self.step_lines: set[tuple[str, int]] = set()
        self.device_clock = DeviceClock(self.failed)
        # Number of experiments that are worthwhile although the loop does not wait: producers may
        # hold the interpreter lock, or take the cores.
        self.contended: Callable[[], int] = lambda: 0
        self._failed: set[str] = set()
        self._hold: Callable[[Loop], None] | None = None

    def failed(self, what: str, error: BaseException | str) -> None:
        """Report that a hook failed, once for each `what`; the script is not affected."""
        if what not in self._failed:
            self._failed.add(what)
            kind = "" if isinstance(error, str) else f"{type(error).__name__}: "
            self.missing.append(f"{what}: {kind}{error}")

    def saw_death(self, dead: DeadProducer) -> None:
        """Record the unexpected end of a thread or a process."""
        if self.active:
            self.died.append(dead._replace(time_s=perf_counter()))

    def restart(self, *, max_steps: int) -> None:
        """Start over in a forked child, for its own loops: the hooks refer to this log."""
        vars(self).update(vars(HookLog(Timeline())), max_steps=max_steps)

    def stop(self) -> None:
        """Let every hook only call the original from now on."""
        self.active = False
        self.schedule_burst(NEVER)

    def fetch(self, loop: Loop, get: Callable[[], Any], *, begin_s: float) -> Any:
        return self.device_clock.fetch(loop, get, begin_s=begin_s)

    def begin_wait(self, now_s: float) -> None:
        """Record that this thread begins a call that may wait for input."""
        self.waiting[get_ident()] = now_s

    def end_wait(self) -> None:
        """Record that this thread has left a call that may wait for input."""
        self.waiting.pop(get_ident(), None)

    @contextmanager
    def wait(self, now_s: float) -> Iterator[None]:
        """Record that this thread is in a call that may wait for input."""
        self.begin_wait(now_s)
        try:
            yield
        finally:
            self.end_wait()

    def add_mark(self, mark: Mark) -> None:
        """Record an interval beside the steps."""
        self.timeline.marks.append(mark)

    def add_loop(self, key: Hashable, loop: Loop) -> Loop:
        """Return the loop of this key, which is `loop` if the key is new."""
        return self.timeline.loops.setdefault(key, loop)

    def add_beat(self, optimizer: int, lines: Callable[[], tuple[tuple[str, int], ...]]) -> None:
        """Record that an optimizer, by its id, has updated its variables on this thread. The first
        time, `lines` returns the files and lines of the user's that lead to it."""
        key = get_ident(), optimizer
        if key not in self._beats:
            self._beats[key] = [], lines()
        _add_time(self._beats[key][0])

    def add_turn(self, file: str, line: int) -> None:
        """Record that an iteration of the loop at a line begins on this thread."""
        key = get_ident(), (file, line)
        begun = self._fetches.pop(key, None)
        if begun is not None:
            loop = self._gaps.setdefault(key, Loop("", "", key[0]))
            self.device_clock.end(begun, loop=loop)
            del loop.device_gaps[:-MAX_BEATS]
        _add_time(self._turns.setdefault(key, []))

    def ask_turn(self, file: str, line: int) -> None:
        """Record that the next iteration of the loop at a line is asked for."""
        key = get_ident(), (file, line)
        # another thread may make what the device computes: no wait for that in there
        known = key[0] != threading.main_thread().ident or self._sees_loop
        begun = None if known else self.device_clock.begin()
        self._fetches.pop(key, None)
        if begun is not None:
            self._fetches[key] = begun

    @property
    def _sees_loop(self) -> bool:
        """True if a hook sees a loop: then its fetches are timed."""
        return any(len(loop.steps) > 1 for loop in self.timeline.loops.values())

    def end_turns(self, file: str, line: int) -> None:
        """Record that the loop at a line has no more iterations."""
        self._fetches.pop((get_ident(), (file, line)), None)

    def beats_of(self, thread: int) -> Beats:
        """Return the updates of the optimizer that is busiest on a thread, and the iterations of
        its loops."""
        found = [beats for (owner, _), beats in list(self._beats.items()) if owner == thread]
        times, lines = max(found, key=lambda beats: len(beats[0]), default=([], ()))
        turns = {at: one[:] for (owner, at), one in list(self._turns.items()) if owner == thread}
        gaps = {
            at: one.device_gaps[:]
            for (owner, at), one in list(self._gaps.items())
            if owner == thread
        }
        return Beats(times[:], lines, turns, gaps)

    def find_loop(self, key: Hashable, create: Callable[[], Loop]) -> Loop | None:
        """Return the loop of this key, created if it is new; None for more than MAX_LOOPS."""
        loops = self.timeline.loops
        found = loops.get(key)
        return self.add_loop(key, create()) if not found and len(loops) < MAX_LOOPS else found

    def add_step(self, loop: Loop, step: Step, *, waits: str | None = None) -> None:
        """Record a step. `waits` says how its wait was found, if that may have changed."""
        loop.add(step, max_steps=self.max_steps, waits=waits)
        hold = self._hold
        if hold is not None:
            hold(loop)

    def hold_loop(self, hold: Callable[[Loop], None] | None) -> None:
        """Call `hold` with each loop after a step, on the thread that made it; None: no more."""
        self._hold = hold

    def burst_is_due(self, loop: Loop | None) -> bool:
        """Return True if a burst of this loop is due, which the hook then makes."""
        if perf_counter() < self.due_s or self.experiments is None or loop is None:
            return False
        return bool(self.experiments.is_due(loop))

    def burst(self, source: Any) -> None:
        """Make a burst of a `BurstInput`; see `Experiments.burst`."""
        if self.experiments is not None:
            self.experiments.burst(source)

    def schedule_burst(self, due_s: float) -> None:
        """Set the time of the next burst."""
        self.due_s = due_s

    def experiment(self, steps: StepRecorder, take: Callable[[], Any]) -> None:
        if self.experiments is not None:
            self.experiments.run(steps, take)


def _add_time(times: list[float]) -> None:
    times.append(perf_counter())
    if len(times) > MAX_BEATS:
        del times[: MAX_BEATS // 2]
