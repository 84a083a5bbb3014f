"""Delay with which a thread gets the interpreter lock, and who held it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fastfeed.probes.procfs import DescriptorReader

WITH_SYMBOL = 1  # RTLD_DL_SYMENT of dlfcn.h
SWITCHING = 0.1  # weight of a thread on a core that may be about to wait for the lock
MIN_LATE_SAMPLES = 8
# Without contention a thread gets the lock within 0.1 ms, seldom after more than 0.3 ms.
LATE_S = 4e-4  # a longer delay is a wait for the lock
PROBE_S = 0.005  # between two delays of a probe
CONTENDED_S = 1e-3  # typical lateness from which the lock slows a training step


class Symbol(ctypes.Structure):
    """Symbol of a library: Elf64_Sym of elf.h."""

    _fields_ = (
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint8),
        ("other", ctypes.c_uint8),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
    )


@cache
def runtime_addresses() -> range:
    """Return the addresses of the interpreter's own state; empty if they are unknown.

    The interpreter lock lies in it, so that a thread that waits for the lock is in a futex of one
    of these addresses, and no other thread is.
    """
    info, symbol = (ctypes.c_void_p * 4)(), ctypes.POINTER(Symbol)()  # info: Dl_info of dlfcn.h
    with contextlib.suppress(AttributeError, ValueError):  # of C libraries without dladdr1
        first = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        found = ctypes.CDLL(None).dladdr1(
            ctypes.c_void_p(first), info, ctypes.byref(symbol), WITH_SYMBOL
        )
        if found and symbol:
            return range(first, first + symbol.contents.nbytes)
    return range(0)


class LockDelay:
    """Delay with which the calling thread gets a core, and then the interpreter lock, after a
    sleep. A training step has the same delay."""

    def __init__(self, reader: DescriptorReader) -> None:
        self._reader = reader
        self._schedstat = -1
        with contextlib.suppress(OSError):  # of other systems than Linux
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._queued_s = reader.queued_s(self._schedstat)

    def sleep(self, until_s: float) -> tuple[float, float]:
        """Sleep until that time of perf_counter; return the seconds without the lock, and those
        without a core."""
        begin_s, before_s = time.perf_counter(), self._queued_s
        time.sleep(max(0.0, until_s - begin_s))
        woke_s, self._queued_s = time.perf_counter(), self._reader.queued_s(self._schedstat)
        queued_s = self._queued_s - before_s
        return woke_s - max(until_s, begin_s) - queued_s, queued_s

    def close(self) -> None:
        """Close the file."""
        if self._schedstat >= 0:
            os.close(self._schedstat)


class LockProbe:
    """A thread that measures its delay, again and again: `times` times, or until `stop`."""

    def __init__(self, *, times: int = sys.maxsize) -> None:
        self.delays_s: list[float] = []
        self._times = times
        self._over = False
        self.thread = threading.Thread(target=self._run, name="fastfeed-lock-probe", daemon=True)

    @property
    def median_s(self) -> float | None:
        """The typical delay, once all are measured."""
        return quantile(self.delays_s, 0.5) if len(self.delays_s) == self._times else None

    @property
    def late_share(self) -> float:
        """The share of the delays that were waits for the lock: of the time, it was held."""
        return sum(one > LATE_S for one in self.delays_s) / max(1, len(self.delays_s))

    def stop(self) -> None:
        """End the thread within its pause."""
        self._over = True

    def _run(self) -> None:
        with contextlib.closing(LockDelay(DescriptorReader())) as delay:
            while not self._over and len(self.delays_s) < self._times:
                self.delays_s.append(delay.sleep(time.perf_counter() + PROBE_S)[0])


class LockCandidate(NamedTuple):
    """A thread that may have held the lock when the sampler got it late.

    `cpu_s` is its CPU time since the last sample. `wants` is True if it waits for the lock, as a
    thread does that wants it back.
    """

    cpu_s: float
    wants: bool


def holder_likelihoods(threads: Sequence[LockCandidate], late_s: float) -> list[float]:
    """Return the likelihood of each thread to have held the lock before the sampler got it.

    The sum is 1, or all are 0. A thread that had to release the lock wants it back: such threads
    count by their CPU time. Threads on a core may be about to wait, and count little. If no thread
    wants the lock, its holder released it voluntarily, after it had used a core for at least as
    long as the sampler waited.
    """
    if any(one.wants and one.cpu_s > 0 for one in threads):
        weights = [one.cpu_s * (1.0 if one.wants else SWITCHING) for one in threads]
    else:
        weights = [one.cpu_s if one.cpu_s >= late_s * 0.5 else 0.0 for one in threads]
    total = sum(weights)
    return [weight / total if total else 0.0 for weight in weights]


def held_share(credit: float, late: int, *, samples: int, blind: int, cpu: float) -> float:
    """Return the share of time for which a thread held the lock.

    It is the thread's credit, the sum of its likelihoods in `late` of all `samples`, and at most
    its share of a core. Without late samples bytecode ran too seldom to count.

    In `blind` samples the sampler waited for a core and then not for the lock. They prove nothing:
    the sampler may have been queued behind the holder, which frees the core with the lock.
    """
    if not samples or not late:
        return 0.0
    conclusive = samples - blind
    return min(cpu, credit / (conclusive if conclusive >= MIN_LATE_SAMPLES else samples))


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of the values lie, or None without values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
