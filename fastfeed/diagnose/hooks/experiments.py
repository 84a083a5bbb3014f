"""Bursts, which measure the ceiling: a few steps of the running job get batches that are there
already, in their order."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from fastfeed.diagnose.hooks.copies import NotCopyable, addresses, copied, nbytes_of
from fastfeed.diagnose.hooks.device_clock import all_done, cuda_in_use
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


class BurstInput(Protocol):
    """The input of a loop, as a burst sees it."""

    def take(self) -> bool:
        """Take the next batch ahead; return False if no more can be taken."""

    def is_full(self) -> bool | None:
        """Return True if the producers have nothing to do, None if that is unknown."""


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
        """Return True if a burst of this loop is due."""
        if perf_counter() < self._log.due_s:
            return False
        self._loop = self._loop or self._log.main or self._log.timeline.main()
        if self._loop is None or not self._is_worthwhile(self._loop):
            self._schedule_next()
        return self._loop is loop

    def burst(self, source: BurstInput) -> None:
        """Take batches ahead, and wait until the producers have filled their buffer again.

        The steps that follow then have their batches and the machine. A burst that takes too long
        is the last one.
        """
        self._schedule_next()
        self._bursts += 1
        begin_s = perf_counter()
        finish = all_done()
        if finish is not None:
            finish()
        until_s = begin_s + MAX_FILL_SHARE * self._max_burst_s
        count = 0
        try:
            while count < MAX_BATCHES and perf_counter() < until_s and source.take():
                count += 1
            self.await_full(source, until_s=begin_s + self._max_burst_s)
        finally:
            end_s = perf_counter()
            self._log.add_mark(Mark("experiment", begin_s, end_s))
        if end_s - begin_s > 2 * self._max_burst_s:
            self._due.clear()
            self._schedule_next()

    def await_full(self, source: BurstInput, *, until_s: float) -> None:
        """Wait until the producers have filled their buffer."""
        begin_s = perf_counter()
        while (now_s := perf_counter()) < until_s:
            full = source.is_full()
            if full or now_s - begin_s >= (
                UNKNOWN_IDLE_WAIT_S if full is None else MAX_IDLE_WAIT_S
            ):
                return
            time.sleep(IDLE_POLL_S)

    def run(self, steps: StepRecorder, get: Callable[[], Any]) -> None:
        """Fill `steps.ahead`, if that is worthwhile.

        Called when a batch is requested and an experiment is due. Some ordinary steps come first:
        their input must draw no random numbers of generators that the step may use, too.
        """
        if not self.is_due(steps.loop):
            return
        source = RecordedInput(self, steps, get=get)
        if not self._is_allowed(steps):
            self._schedule_next()
        elif self._guarded_steps < GUARD_STEPS:
            self._guarded_steps += 1
            source.take(free=False)
        else:
            self.burst(source)
            finish = all_done()
            if finish is not None:
                steps.even_out(finish)

    def refuse(self, loop: Loop, why: str) -> None:
        """Make no burst of a loop any more."""
        self._refused.add(id(loop))
        self._log.missing.append(f"no experiment: {why}")

    def _schedule_next(self) -> None:
        self._loop, self._guarded_steps = None, 0
        self._log.schedule_burst(self._due.pop(0) if self._due else NEVER)

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
        return elsewhere or cuda_in_use() is not None


class RecordedInput:
    """The iterator behind a StepRecorder, for one burst: batches go into `steps.ahead`."""

    def __init__(
        self, experiments: Experiments, steps: StepRecorder, *, get: Callable[[], Any]
    ) -> None:
        self._experiments = experiments
        self._steps = steps
        self._get = get
        self._randomness = randomness()
        self._nbytes = 0
        # with the addresses of the originals
        self._copies: list[tuple[set[int], PrefetchedBatch]] = []

    def take(self, *, free: bool = True) -> bool:
        """Take the next batch, or the error in its place, ahead.

        It refuses the loop if its batches must not be taken ahead.
        """
        steps = self._steps
        prefetched = steps.prefetch(self._get, free=free)
        if prefetched.error is not None:
            return False
        if randomness() != self._randomness:
            self._experiments.refuse(steps.loop, RANDOM_INPUT)
            return False
        if not steps.source.reuses_memory:
            return True
        try:
            copy = prefetched._replace(item=copied(prefetched.item))
        except NotCopyable as error:
            why = f"a batch holds what cannot be copied ({error})"
            self._experiments.refuse(steps.loop, why)
            return False
        new = addresses(prefetched.item)
        for i, (old, earlier) in enumerate(self._copies):
            if new & old:  # overwritten by now: it is delivered as it was
                steps.ahead[i] = earlier
        self._copies.append((new, copy))
        self._nbytes += nbytes_of(prefetched.item)
        return self._nbytes < MAX_NBYTES

    def is_full(self) -> bool | None:
        """Return True if the producers are idle, or the data have ended."""
        ahead = self._steps.ahead
        if not ahead or ahead[-1].error is not None:
            return True
        idle = self._steps.source.idle
        return None if idle is None else idle()


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
