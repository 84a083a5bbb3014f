"""The ceiling by experiment: a few steps of the running job get batches that were taken ahead, in
their order."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any

from fastfeed.diagnose.hooks.copies import NotCopyable, addresses, copied, nbytes_of
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.recorder import NEVER, PrefetchedBatch, StepRecorder
from fastfeed.steps.timeline import Loop, Mark, Step

BATCHES = 8
BURSTS = 3
BUDGET = 0.2  # share of the measured time
STARVED = 0.03  # starvation below which there is nothing to measure
GUARD = 3  # steps before each burst that must draw no random number while they wait for their input
IDLE_S = 1.0  # the longest wait until the producers have filled their buffer
UNKNOWN_IDLE_S = 0.3  # the wait if it is unknown whether they have
LOOK_S = 0.005
MOST_NBYTES = 1 << 28


class Experiments:
    """Takes batches ahead of their steps, in `BURSTS` bursts over the measured time, so that some
    steps do not wait. Each batch is delivered once and in its order, with whatever the iterator
    raises in its place.

    It is done only where steps starve, and where results cannot differ: not where batches are made
    on the thread of the loop (which may draw random numbers in between; its wait is exact anyway)
    unless a GPU works behind it, nor where memory of batches is reused and cannot be copied.
    """

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._due: list[float] = []
        self._most_s = 0.0
        self._loop: Loop | None = None  # of the next burst
        self._guards = 0
        self._refused: set[int] = set()  # loops, by id
        self._start_s = 0.0
        self._made = 0  # bursts

    def plan(self, start_s: float, end_s: float) -> None:
        """Plan the bursts over the measured time."""
        measured = end_s - start_s
        self._start_s = start_s
        self._most_s = BUDGET * measured / BURSTS
        self._due = [start_s + measured * (i + 0.4) / BURSTS for i in range(BURSTS)]
        self._next()

    def is_due(self, loop: Loop) -> bool:
        """Return True if a burst of this loop is due, for hooks that make their own and report its
        time to `spent`."""
        if perf_counter() < self._log.due_s:
            return False
        if self._loop is None:
            self._loop = self._log.main or self._log.timeline.main()
        if self._loop is None or not self._worthwhile(self._loop):
            self._next()
            return False
        return self._loop is loop

    def end_burst(self, seconds: float) -> None:
        """Note the end of a burst; one that took too long was the last."""
        self._made += 1
        if seconds > self._most_s:
            self._due.clear()
        self._next()

    def run(self, steps: StepRecorder, get: Callable[[], Any]) -> None:
        """Fill `steps.ahead`, if it is worthwhile; called when a batch is requested and an
        experiment is due."""
        if self._loop is None:
            self._loop = self._log.main or self._log.timeline.main()
            if self._loop is None or not self._worthwhile(self._loop):
                self._next()
                return
        if steps.loop is not self._loop:
            return
        if not self._allowed(steps):
            self._next()
        elif self._guards < GUARD:
            self._guards += 1
            self._guarded(steps, get)
        else:
            self._next()
            self._made += 1
            self._burst(steps, get)

    def _next(self) -> None:
        self._loop, self._guards = None, 0
        self._log.due_s = self._due.pop(0) if self._due else NEVER

    def _worthwhile(self, loop: Loop) -> bool:
        rows = [
            step for step in list(loop.steps) if step.begin_s >= self._start_s and not step.free
        ]
        if not rows:
            return False
        waited = sum(step.wait_s for step in rows)
        starved = waited / max(1e-9, rows[-1].end_s - rows[0].begin_s)
        # Producers that hold the interpreter lock, or take the cores, slow the step itself, which
        # then hardly waits.
        worthwhile = starved > STARVED or self._made < self._log.contended()
        return worthwhile and waited / len(rows) < self._most_s / 3

    def _allowed(self, steps: StepRecorder) -> bool:
        loop = steps.loop
        if id(loop) in self._refused:
            return False
        elsewhere = loop.kind == "tf.data" or bool(loop.buffer)
        if loop.buffer is None:
            elsewhere = elsewhere or threading.get_ident() in self._log.elsewhere
        return elsewhere or _cuda() is not None

    def _refuse(self, loop: Loop, why: str) -> None:
        self._refused.add(id(loop))
        self._log.missing.append(f"no experiment: {why}")

    def _guarded(self, steps: StepRecorder, get: Callable[[], Any]) -> None:
        """Make an ordinary step; its input must draw no random numbers of generators that the step
        may use, too."""
        before = randomness()
        begin = perf_counter()
        taken = self._take(steps, get)
        steps.ahead.append(taken._replace(wait_s=perf_counter() - begin, free=False))
        if randomness() != before:
            self._refuse(steps.loop, "the input draws random numbers on the thread of the loop")
        elif steps.reuses_memory and taken.error is None:
            try:
                copied(taken.item)
            except NotCopyable as error:
                self._refuse(steps.loop, f"a batch holds what cannot be copied ({error})")

    def _take(self, steps: StepRecorder, get: Callable[[], Any]) -> PrefetchedBatch:
        """Return the next batch, or what is raised in its place. An interrupt is raised at once."""
        thread = threading.get_ident()
        steps.prefetching = True
        before = None if steps.get_state is None else steps.get_state()
        self._log.waiting[thread] = perf_counter()
        try:
            return PrefetchedBatch(get(), None, 0.0, True, before)
        except Exception as error:
            return PrefetchedBatch(None, error, 0.0, True, before)
        finally:
            steps.prefetching = False
            self._log.waiting.pop(thread, None)

    def _burst(self, steps: StepRecorder, get: Callable[[], Any]) -> None:
        begin = perf_counter()
        try:
            cuda = _cuda()
            if cuda is not None:
                cuda.synchronize()
            self._fill(steps, get, until_s=begin + 0.6 * self._most_s)
            if steps.ahead[-1].error is None:
                self._rest(steps, until_s=begin + self._most_s)
            if cuda is not None:
                steps.on_step_end = _evenly(steps, cuda)
        finally:
            self._log.timeline.marks.append(Mark("experiment", begin, perf_counter()))

    def _fill(self, steps: StepRecorder, get: Callable[[], Any], *, until_s: float) -> None:
        most = BATCHES if not steps.loop.buffer else max(2, min(BATCHES, steps.loop.buffer))
        before, held = randomness(), 0
        made: list[tuple[set[int], PrefetchedBatch]] = []  # the addresses of each, and a copy of it
        while len(steps.ahead) < most and perf_counter() < until_s and held < MOST_NBYTES:
            taken = self._take(steps, get)
            steps.ahead.append(taken)  # from here on it cannot be lost
            if taken.error is not None:
                break
            if randomness() != before:
                self._refuse(steps.loop, "the input draws random numbers on the thread of the loop")
                break
            if not steps.reuses_memory:
                continue
            try:
                copy = taken._replace(item=copied(taken.item))
            except NotCopyable as error:
                self._refuse(steps.loop, f"a batch holds what cannot be copied ({error})")
                break
            here = addresses(taken.item)
            for i, (there, earlier) in enumerate(made):
                if here & there:  # overwritten by now: it is delivered as it was
                    steps.ahead[i] = earlier
            made.append((here, copy))
            held += nbytes_of(taken.item)

    def _rest(self, steps: StepRecorder, *, until_s: float) -> None:
        """Wait until the producers have filled their buffer, so that the free steps have the
        machine."""
        now = perf_counter()
        until_s = min(until_s, now + (IDLE_S if steps.idle is not None else UNKNOWN_IDLE_S))
        while perf_counter() < until_s and not (steps.idle is not None and steps.idle()):
            time.sleep(LOOK_S)


def randomness() -> list[Any]:
    """Return the states of all global random generators that are in use."""
    states: list[Any] = [random.getstate()]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)["state"]
        states.append((state["pos"], state["key"].tobytes()) if "pos" in state else repr(state))
    if hasattr(torch, "get_rng_state"):
        states.append(torch.get_rng_state().numpy().tobytes())  # type: ignore[union-attr]
    return states


def _cuda() -> Any:
    """Return torch.cuda, if it is in use: its steps go on asynchronously."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _evenly(steps: StepRecorder, cuda: Any) -> Callable[[], None]:
    """Return what is called at the request after the free steps: it waits for the GPU and spreads
    their time evenly."""
    count = len(steps.ahead)

    def settle() -> None:
        cuda.synchronize()
        free = steps.loop.steps[len(steps.loop.steps) - count + 1 :]
        if not steps.in_step or len(free) != count - 1 or not all(step.free for step in free):
            return
        begin = free[0].begin_s if free else steps.begin_s
        each = (perf_counter() - begin) / count
        at = [begin + i * each for i in range(count)]
        steps.loop.steps[len(steps.loop.steps) - count + 1 :] = [
            Step(t, t + each, 0.0, True) for t in at[:-1]
        ]
        steps.begin_s = at[-1]

    return settle
