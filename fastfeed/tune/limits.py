"""How many producers there may be: by memory, cores, and what the system lets a process have."""

from __future__ import annotations

import math
import re
import time

from fastfeed.core.machine import (
    cores,
    memory_groups,
    threads_that_fit,
    workers_that_fit,
)
from fastfeed.core.stats import Snapshot
from fastfeed.options import FeedOptions
from fastfeed.probes.procfs import text_of
from fastfeed.ring.layout import slot_nbytes

SYSTEM_POLL_S = 1.0  # between two looks at the system
# Share of the last ten seconds in which some task of the machine, or of the control group, waited
# for memory, from which producers leave. systemd-oomd kills at 60 %.
PRESSED = 0.1
NEARLY_FULL = 0.05  # of the memory of the control group is left
LARGE = 2  # times the mean: a batch that has room, too
CALM_S = 30.0  # without pressure, after which producers may come back


class ProducerLimits:
    """Limits of the number of producers `knob` of a feed."""

    def __init__(self, knob: str, options: FeedOptions) -> None:
        self._knob = knob
        self._options = options
        self._looked_s = self._pressed_s = -math.inf
        self._system = (1, "")
        self._started, self._refused_s = 0, -math.inf
        self._pressed_at = 0

    def refuse(self, count: int) -> None:
        """Note that the system could not start more than `count`, for now."""
        self._started, self._refused_s = count, time.monotonic()

    def most(self, now: Snapshot, count: int) -> tuple[int, str]:
        """Return the most producers that there may be, now that there are `count`, and what allows
        no more."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= SYSTEM_POLL_S:
            self._looked_s = now_s
            self._system = self._fits(count)
            if memory_is_short():
                self._pressed_s, self._pressed_at = now_s, max(1, count - max(1, count // 4))
        found: list[tuple[float, str]] = [self._system]
        if now_s - self._refused_s < CALM_S:
            found.append((self._started, "the system"))
        if now_s - self._pressed_s < CALM_S:
            found.append((self._pressed_at, "the pressure on the memory"))
        if now.consumed.batches:
            each = now.consumed.nbytes // now.consumed.batches
            found.append((most_in_memory(self._options, each, knob=self._knob), "memory="))
        made = now.produced
        if made.busy_s > 0 and made.cpu_s > 0 and self._knob != "producers":
            used = min(1.0, made.cpu_s / made.busy_s)  # of a core, by each
            # no more are tried; more that were found to gain wait longer than was known, and stay
            found.append((max(count, math.ceil(cores() / used)), "the number of cores"))
        most, why = min(found)
        return max(1, int(most)), why

    def _fits(self, count: int) -> tuple[int, str]:
        if self._knob == "threads":
            return threads_that_fit(1, count)
        return workers_that_fit(count)


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


def memory_is_short() -> bool:
    """Return True if tasks of this machine or control group wait for memory, or nearly all of it is
    in use."""
    texts = [text_of("/proc/pressure/memory"), text_of("/sys/fs/cgroup/memory.pressure")]
    shares = [re.search(r"^some avg10=([\d.]+)", text) for text in texts]
    if any(float(found[1]) / 100 > PRESSED for found in shares if found):
        return True
    highs = [text_of(f"{folder}/memory.high").strip() for folder in memory_groups()]
    used = [text_of(f"{folder}/memory.current").strip() for folder in memory_groups()]
    pairs = [(int(a), int(b)) for a, b in zip(highs, used, strict=True) if a.isdigit() and b]
    return any(current > high * (1 - NEARLY_FULL) for high, current in pairs)
