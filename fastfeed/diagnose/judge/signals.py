"""Shares of the time that no counter gives, from samples and counters together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from fastfeed.diagnose.evidence import (
    LOCK_PYTHON,
    NATIVE,
    PYTHON,
    RUNNABLE,
    Evidence,
)
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.model.workload import INPUT_BOUND
from fastfeed.probes.lock import CONTENDED_S, LATE_S
from fastfeed.probes.machine_log import SATURATED
from fastfeed.steps.timeline import Leaf

MOST = 0.5  # share from which a part characterises the whole
# Share of the time from which a loss counts. All losses are held to the threshold of starvation.
MIN_SHARE = INPUT_BOUND
SEVERAL_THREADS = 1.2  # threads at work at once, and cores that as many use beside one lock
# Share of the work from which copies, or names of preparing functions, characterise it.
COPYING_SHARE = 0.4
WORKING_STATES = (PYTHON, NATIVE, RUNNABLE, LOCK_PYTHON)
WIDE_DTYPES = ("float64", "object")  # dtypes that no accelerator uses
MIN_WIDE_SHARE = 0.1  # share of the fed numbers that have such a dtype
TIMED_LOOPS = ("queue", "torch", "runner", "watch")  # kinds whose call for a batch is timed
LIST_NUMBER_S = 2e-8  # seconds to convert one number of a list into one of an array, at least
# Seconds to convert a number of an array, at most: 0.1 to 0.7 ns were measured from float64 to
# float32, and 2 to 9 ns into fresh memory.
ARRAY_NUMBER_S = 1e-8
LIST_READING_SHARE = 0.3  # share of the time that this takes, computed from the lists' lengths
DTYPE_BITS = re.compile(r"\d+$")


def lock_contended(evidence: Evidence) -> bool:
    """Return True if the interpreter lock is kept from threads that ask for it."""
    return evidence.gil_late_s is not None and evidence.gil_late_s > CONTENDED_S


def serialised(evidence: Evidence, producers: ProducerProfile) -> bool:
    """Return True if several threads use one core between them because of the interpreter lock.

    They have no other waits, cores are free, and the lock is contended. Short calls that release
    the lock and take it back look like native code.
    """
    several = producers.kind == "threads" and producers.count * producers.active >= SEVERAL_THREADS
    contended = evidence.gil_late_s is not None and evidence.gil_late_s > LATE_S
    machine = evidence.machine
    spare = (
        machine.own_cpu <= SEVERAL_THREADS
        and machine.own_cpu + machine.other_cpu < SATURATED * machine.cores
    )
    return several and contended and spare and producers.native > producers.waiting


def batch_nbytes(evidence: Evidence) -> int:
    """Return the bytes of a batch, 0 if its arrays are not known."""
    leaves = evidence.loop.leaves if evidence.loop is not None else ()
    known = [
        (leaf, DTYPE_BITS.search(leaf.dtype)) for leaf in leaves if min(leaf.shape, default=0) > 0
    ]
    return sum(math.prod(leaf.shape) * (int(bits[0]) // 8 if bits else 1) for leaf, bits in known)


def handover_share(evidence: Evidence, producers: ProducerProfile, *, waited: float) -> float:
    """Return the share of the training thread's waits for worker processes in which it works.

    It reads and unpickles batches then. All of the time counts if the workers are at work for a
    smaller share of it than steps wait (`waited`): the steps do not wait for them.
    """
    inputs = evidence.parts_of("input")
    total = sum(part.share for part in inputs)
    if producers.kind != "processes" or not total:
        return 0.0
    if producers.known and producers.active < waited:
        return 1.0
    return sum(part.share_in(*WORKING_STATES) for part in inputs) / total


def conversion_share(evidence: Evidence) -> float:
    """Return the share of the time in which the training thread converts the feed of a session.

    The conversion lies inside Session.run, before the step begins.
    """
    loop, trainer = evidence.loop, evidence.trainer
    if loop is None or trainer is None or loop.kind != "session":
        return 0.0
    # The rest of what the thread does comes before: it makes the batch.
    others = [part for part in evidence.parts if part.kind != "step"]
    python, native = (
        max(0.0, trainer.share(state) - sum(part.share_in(state) for part in others))
        for state in (PYTHON, NATIVE)
    )
    inside = max(1e-9, 1.0 - sum(part.share for part in others))
    copying_s = max(0.0, trainer.copying - sum(part.share * part.copying for part in others))
    copying = min(1.0, copying_s / inside)
    # Numbers in lists are read one by one with the lock held: a sample is taken only after that, or
    # at the next call.
    lists = [leaf for leaf in loop.leaves if leaf.kind in ("list", "tuple")]
    wide = [leaf for leaf in loop.leaves if leaf.dtype in WIDE_DTYPES and leaf not in lists]
    rate = 0.0
    if loop.steps:
        rate = (len(loop.steps) - 1) / max(1e-9, loop.steps[-1].begin_s - loop.steps[0].begin_s)
    numbers = _numbers(leaf for leaf in lists if min(leaf.shape, default=0) > 0)
    reading = LIST_NUMBER_S * rate * numbers
    if reading < MIN_SHARE and _numbers(wide) <= MIN_WIDE_SHARE * _numbers(loop.leaves):
        return copying * inside
    mostly = reading >= LIST_READING_SHARE or (reading >= MIN_SHARE and copying >= COPYING_SHARE)
    found = native + python * (1.0 if mostly else copying)
    slow = reading >= MIN_SHARE or any(leaf.dtype == "object" for leaf in wide)
    # The rest of such a run is what calling it costs.
    return found if slow else min(found, copying * inside + ARRAY_NUMBER_S * rate * _numbers(wide))


def _numbers(leaves: Iterable[Leaf]) -> int:
    return sum(math.prod(leaf.shape) for leaf in leaves)
