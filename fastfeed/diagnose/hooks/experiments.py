"""Experiments that measure the ceiling: a few steps of the running job get batches that were taken
ahead, in their order."""

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
from fastfeed.steps.timeline import Loop, Mark

BURSTS = 3  # number of bursts in the measured time
MAX_TIME_SHARE = 0.2  # of the measured time, for all bursts
MAX_FILL_SHARE = 0.6  # of the time of a burst, for taking its batches
MAX_BATCHES = 8  # batches that are taken ahead in a burst
MAX_NBYTES = 1 << 28  # bytes of batches that are taken ahead in a burst
MIN_STARVATION = 0.03  # a loop that waits for a smaller share of its time has nothing to measure
# steps before each burst whose input must draw no random number on the thread of the loop
GUARD_STEPS = 3
MAX_IDLE_WAIT_S = 1.0  # longest wait until the producers have filled their buffer
UNKNOWN_IDLE_WAIT_S = 0.3  # wait if it is unknown whether they have
IDLE_POLL_S = 0.005
RANDOM_INPUT = "the input draws random numbers on the thread of the loop"


class Experiments:
    """Takes batches ahead of their steps in `BURSTS` bursts, so that some steps do not wait.

    Each batch is delivered once and in its order, as is every error of the iterator. A burst is
    made only for a loop that starves, and only where it cannot change results. Batches that are
    made on the thread of the loop are not taken ahead, unless a GPU works behind it: they may draw
    random numbers between the steps, and their wait is exact anyway. Nor are batches whose memory
    is reused and cannot be copied.
    """

    def __init__(self, log: HookLog) -> None:
        self._log = log
        self._due: list[float] = []
        self._max_burst_s = 0.0
        self._loop: Loop | None = None  # loop of the next burst
        self._guarded_steps = 0
        self._refused: set[int] = set()  # ids of loops
        self._start_s = 0.0
        self._bursts = 0

    def plan(self, start_s: float, end_s: float) -> None:
        """Spread the bursts over the measured time."""
        measured_s = end_s - start_s
        self._start_s = start_s
        self._max_burst_s = MAX_TIME_SHARE * measured_s / BURSTS
        self._due = [start_s + measured_s * (i + 0.4) / BURSTS for i in range(BURSTS)]
        self._schedule_next()

    def is_due(self, loop: Loop) -> bool:
        """Return True if a burst of this loop is due.

        For hooks that take batches ahead themselves; they call `end_burst` afterwards.
        """
        return perf_counter() >= self._log.due_s and self._chosen_loop() is loop

    def end_burst(self, seconds: float) -> None:
        """Record the end of a burst that took `seconds`; one that took too long is the last."""
        self._bursts += 1
        if seconds > self._max_burst_s:
            self._due.clear()
        self._schedule_next()

    def run(self, steps: StepRecorder, get: Callable[[], Any]) -> None:
        """Fill `steps.ahead`, if that is worthwhile.

        Called when a batch is requested and an experiment is due.
        """
        chosen = self._loop or self._chosen_loop()
        if chosen is None or steps.loop is not chosen:
            return
        if not self._is_allowed(steps):
            self._schedule_next()
        elif self._guarded_steps < GUARD_STEPS:
            self._guarded_steps += 1
            self._guard(steps, get)
        else:
            self._schedule_next()
            self._bursts += 1
            self._burst(steps, get)

    def _schedule_next(self) -> None:
        self._loop, self._guarded_steps = None, 0
        self._log.schedule_burst(self._due.pop(0) if self._due else NEVER)

    def _chosen_loop(self) -> Loop | None:
        """Return the loop of the burst that is due; skip the burst if it is not worthwhile."""
        self._loop = self._loop or self._log.main or self._log.timeline.main()
        if self._loop is None or not self._is_worthwhile(self._loop):
            self._schedule_next()
        return self._loop

    def _is_worthwhile(self, loop: Loop) -> bool:
        rows = [
            step for step in list(loop.steps) if step.begin_s >= self._start_s and not step.free
        ]
        if not rows:
            return False
        waited_s = sum(step.wait_s for step in rows)
        starvation = waited_s / max(1e-9, rows[-1].end_s - rows[0].begin_s)
        # Producers that hold the interpreter lock, or take the cores, slow the step itself, which
        # then hardly waits.
        worthwhile = starvation > MIN_STARVATION or self._bursts < self._log.contended()
        return worthwhile and waited_s / len(rows) < self._max_burst_s / 3

    def _is_allowed(self, steps: StepRecorder) -> bool:
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

    def _copied(self, steps: StepRecorder, prefetched: PrefetchedBatch) -> PrefetchedBatch | None:
        """Return a copy, or None if there cannot be one, which refuses the loop."""
        try:
            return prefetched._replace(item=copied(prefetched.item))
        except NotCopyable as error:
            self._refuse(steps.loop, f"a batch holds what cannot be copied ({error})")
            return None

    def _guard(self, steps: StepRecorder, get: Callable[[], Any]) -> None:
        """Make an ordinary step, and refuse the loop if its batches must not be taken ahead.

        Its input must draw no random numbers of generators that the step may use, too.
        """
        before = randomness()
        prefetched = steps.prefetch(get, free=False)
        if randomness() != before:
            self._refuse(steps.loop, RANDOM_INPUT)
        elif steps.source.reuses_memory and prefetched.error is None:
            self._copied(steps, prefetched)

    def _burst(self, steps: StepRecorder, get: Callable[[], Any]) -> None:
        begin_s = perf_counter()
        try:
            cuda = _cuda()
            if cuda is not None:
                cuda.synchronize()
            self._fill(steps, get, until_s=begin_s + MAX_FILL_SHARE * self._max_burst_s)
            if steps.ahead[-1].error is None:
                _await_idle(steps, until_s=begin_s + self._max_burst_s)
            if cuda is not None:
                steps.even_out(cuda.synchronize)
        finally:
            self._log.add_mark(Mark("experiment", begin_s, perf_counter()))

    def _fill(self, steps: StepRecorder, get: Callable[[], Any], *, until_s: float) -> None:
        buffer = steps.loop.buffer
        most = max(2, min(MAX_BATCHES, buffer)) if buffer else MAX_BATCHES
        before, nbytes = randomness(), 0
        copies: list[tuple[set[int], PrefetchedBatch]] = []  # with the addresses of the originals
        while len(steps.ahead) < most and perf_counter() < until_s and nbytes < MAX_NBYTES:
            prefetched = steps.prefetch(get)
            if prefetched.error is not None:
                break
            if randomness() != before:
                self._refuse(steps.loop, RANDOM_INPUT)
                break
            if not steps.source.reuses_memory:
                continue
            copy = self._copied(steps, prefetched)
            if copy is None:
                break
            new = addresses(prefetched.item)
            for i, (old, earlier) in enumerate(copies):
                if new & old:  # overwritten by now: it is delivered as it was
                    steps.ahead[i] = earlier
            copies.append((new, copy))
            nbytes += nbytes_of(prefetched.item)


def _await_idle(steps: StepRecorder, *, until_s: float) -> None:
    """Wait until the producers have filled their buffer: the free steps then have the machine."""
    idle = steps.source.idle
    longest_s = UNKNOWN_IDLE_WAIT_S if idle is None else MAX_IDLE_WAIT_S
    until_s = min(until_s, perf_counter() + longest_s)
    while perf_counter() < until_s and not (idle is not None and idle()):
        time.sleep(IDLE_POLL_S)


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
    """Return torch.cuda if it is in use: its steps go on asynchronously."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None
