"""How many producers there may be: by memory, cores, and what the system lets a process have."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable

import psutil

from fastfeed.core.machine import (
    WORKER_NBYTES,
    cores_of_rank,
    memory_stalls_s,
    nearly_full,
    private_nbytes,
    threads_that_fit,
    workers_that_fit,
)
from fastfeed.core.stats import Snapshot
from fastfeed.options import FeedOptions, Remote
from fastfeed.ring.layout import slot_nbytes

SYSTEM_POLL_S = 1.0  # between two looks at the system,
ROOM_POLL_S = 10.0  # and at the room in it, while the number stays
# Share of the last second in which some task of the control group, or of the machine, waited for
# memory, from which producers leave. systemd-oomd kills at 60 %.
PRESSED = 0.1
NEARLY_FULL = 0.05  # of the memory of the control group is left
# Times the producers whose work would fill the cores: those that wait do so at random, and as many
# as fill the cores on average leave them idle at times. In the machine-repairman queue (M/M/c//N)
# these reach 97 % of what the cores can do, and those alone 84 %.
CORE_ROOM = 1.5
LATELY_S = 60.0  # whose work says how much of a core a producer uses
LARGE = 2  # times the mean: a batch that has room, too
COMPUTES = 0.5  # of a core, for the first batch, which more producers would only delay
CALM_S = 30.0  # without pressure, after which producers may come back


class ProducerLimits:
    """Limits of the number of producers `knob` of a feed."""

    def __init__(
        self, knob: str, options: FeedOptions, *, pids: Callable[[], Iterable[int]] = tuple
    ) -> None:
        self._pids = pids  # of its worker processes
        self._knob = knob
        self.options = options
        self._looked_s = self._pressed_s = -math.inf
        self._stalls_s = self._cpu_s = math.inf  # until the last look
        self._computes = False  # for the first batch
        self._system, self._cores = (1, ""), 1
        self._counted, self._counted_s = 0, -math.inf  # the number at the last look at the room
        self._in_memory: float = math.inf
        self._started, self._refused_s = 0, -math.inf
        self._pressed_at = 0
        self._work: deque[tuple[float, float]] = deque(maxlen=int(LATELY_S / SYSTEM_POLL_S))

    def begin_feed(self) -> None:
        """Go on with another feed, whose counters begin at 0."""
        self._work.clear()
        self._cpu_s = math.inf

    def refuse(self, count: int) -> None:
        """Note that the system could not start more than `count`, for now."""
        self._started, self._refused_s = count, time.monotonic()

    def most(self, now: Snapshot, count: int) -> tuple[int, str]:
        """Return the most producers that there may be, now that there are `count`, and what allows
        no more."""
        now_s, found = time.monotonic(), list[tuple[float, str]]()
        if now_s - self._looked_s >= SYSTEM_POLL_S:
            self._look(now, count, since_s=now_s - self._looked_s)
            self._looked_s = now_s
        found.append(self._system)
        if now_s - self._refused_s < CALM_S:
            found.append((self._started, "the system"))
        if now_s - self._pressed_s < CALM_S:
            found.append((self._pressed_at, "the pressure on the memory"))
        found.append((self._in_memory, "memory="))
        if self._computes:
            found.append((count, "the first batch, which takes a core,"))
        used = self._core_share()
        if used and self._knob != "producers":
            # no more are tried; more that were found to gain wait longer than was known, and stay
            fill = math.ceil(CORE_ROOM * self._cores / used)
            found.append((max(count, fill), "the number of cores"))
        most, why = min(found)
        return max(1, int(most)), why

    def _look(self, now: Snapshot, count: int, *, since_s: float) -> None:
        """Look at the system, and at the work of the producers."""
        now_s = time.monotonic()
        batches, known = now.consumed.batches, self._in_memory < math.inf
        old = count != self._counted or now_s - self._counted_s >= ROOM_POLL_S
        if old:
            self._system, self._cores = self._fits(count), cores_of_rank()
            self._counted, self._counted_s = count, now_s
        if batches and (old or not known):
            each = now.consumed.nbytes // batches
            self._in_memory = most_in_memory(self.options, each, knob=self._knob)
        stalls_s = memory_stalls_s() or 0.0
        pressed = stalls_s - self._stalls_s > PRESSED * since_s
        self._stalls_s = stalls_s
        if pressed or nearly_full(NEARLY_FULL):
            # a thread that leaves frees a batch or two, which is not what fills the group
            fewer = max(1, count // 4) if pressed or self._knob != "threads" else 0
            self._pressed_s, self._pressed_at = time.monotonic(), max(1, count - fewer)
        cpu_s = 0.0 if now.produced.batches else self._trees_cpu_s()
        self._computes = cpu_s - self._cpu_s > COMPUTES * since_s
        self._cpu_s = cpu_s
        self._work.append((now.produced.cpu_s, now.produced.busy_s))

    def _trees_cpu_s(self) -> float:
        """Return the seconds on a core of this process and its workers; producers count their own
        when a batch is made."""
        total = time.process_time()
        for pid in self._pids():
            with contextlib.suppress(psutil.Error):  # it has ended
                total += sum(psutil.Process(pid).cpu_times()[:2])
        return total

    def _core_share(self) -> float:
        """Return how much of a core a producer that works has used lately; 0 if unknown."""
        if not self._work:
            return 0.0
        (cpu_s, busy_s), (now_cpu_s, now_busy_s) = self._work[0], self._work[-1]
        if now_busy_s == busy_s:  # all of it, at first
            cpu_s = busy_s = 0.0
        return min(1.0, (now_cpu_s - cpu_s) / (now_busy_s - busy_s)) if now_busy_s else 0.0

    def _fits(self, count: int) -> tuple[int, str]:
        remote = self.options.remote
        if self._knob == "producers" and isinstance(remote, Remote) and remote.address != "local":
            return workers_that_fit(count, nbytes=1)  # their memory is that of other nodes
        if self._knob == "threads":
            return threads_that_fit(1, count)
        used = [private_nbytes(pid) for pid in self._pids()]
        return workers_that_fit(count, nbytes=max([WORKER_NBYTES, *used]))


def fitting(options: FeedOptions, nbytes: int, *, knob: str) -> int:
    """Return how many producers `knob` a feed that begins, with batches of `nbytes`, has room
    for."""
    found: list[float] = [most_in_memory(options, nbytes, knob=knob)] * bool(nbytes)
    found += [threads_that_fit(1)[0]] * (knob == "threads")
    found += [workers_that_fit()[0]] * (knob == "processes")
    return max(1, int(min(found, default=sys.maxsize)))


def most_in_memory(options: FeedOptions, nbytes: int, *, knob: str) -> int:
    """Return how many producers `knob` memory= has room for, with batches of `nbytes`."""
    if knob == "threads":
        return options.memory_nbytes // max(1, nbytes)
    # a fifth of the time that `import fastfeed` would take, and only Linux has all of it
    from fastfeed.producers.process.workers import share_of_worker

    shares = [share_of_worker(options, remote=knob == "producers")]
    if options.processes and knob == "producers":
        shares.append(share_of_worker(options))
    slot = slot_nbytes(LARGE * nbytes)
    room = min(share.budget * options.workers // (share.min_slots * slot) for share in shares)
    return room - (options.processes if knob == "producers" else 0)
