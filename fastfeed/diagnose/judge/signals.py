"""Shares of the time that no counter gives, from samples and counters together."""

from __future__ import annotations

import math
import re

from fastfeed.diagnose.evidence import (
    EMPTY,
    FEEDER,
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
from fastfeed.steps.timeline import ARRAYS_NOTE

MAX_CONVERTED = 0.98  # share of a step: the most that conversions of its input take
# Share of the time from which a loss counts. All losses are held to the threshold of starvation.
MIN_SHARE = INPUT_BOUND
SEVERAL_THREADS = 1.2  # threads at work at once, and cores that as many use beside one lock
# Share of the work from which copies, or names of preparing functions, characterise it.
COPYING_SHARE = 0.4
WORKING_STATES = (PYTHON, NATIVE, RUNNABLE, LOCK_PYTHON)
MIN_ACTIVE = 0.2  # share of their time at work: producers below it could make far more
WIDE_DTYPES = ("float64", "object")  # dtypes that no accelerator uses
TIMED_LOOPS = ("queue", "torch", "runner", "watch")  # kinds whose call for a batch is timed
DTYPE_BITS = re.compile(r"\d+$")


def in_memory(evidence: Evidence) -> bool:
    """Return True if all batches are slices of arrays in memory, which need no producer."""
    return evidence.loop is not None and evidence.loop.note.startswith(ARRAYS_NOTE)


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


def preparation(evidence: Evidence, waited: float) -> tuple[float, float]:
    """Return the share of the time in which the training thread prepares batches that it received,
    and the share of conversions and copies in that.

    `waited` is the known share of waits, which samples contain as well. Only conversions count: any
    other call on a batch may be the step.
    """
    loop = evidence.loop
    if loop is None or loop.waits != "exact" or loop.kind not in TIMED_LOOPS:
        return 0.0, 0.0
    inputs = evidence.parts_of("input")
    prepares = [part for part in inputs if part.copying >= COPYING_SHARE]
    work = sum(part.share_in(*WORKING_STATES) for part in prepares)
    share = max(0.0, min(work, sum(part.share for part in inputs) - waited))
    copying = sum(part.share * part.copying for part in prepares)
    return share, min(1.0, copying / work) if work else 0.0


def batch_nbytes(evidence: Evidence) -> int:
    """Return the bytes of a batch, 0 if its arrays are not known."""
    leaves = evidence.loop.leaves if evidence.loop is not None else ()
    known = [
        (leaf, DTYPE_BITS.search(leaf.dtype)) for leaf in leaves if min(leaf.shape, default=0) > 0
    ]
    return sum(math.prod(leaf.shape) * (int(bits[0]) // 8 if bits else 1) for leaf, bits in known)


def pickling_share(evidence: Evidence, producers: ProducerProfile) -> float:
    """Return the share of the work in pickling and sending: of the producers, of the feeders, or of
    the training thread."""
    fed = [task.pickling * (1 - task.share(EMPTY)) for task in evidence.tasks_of(FEEDER)]
    read = [part.pickling for part in evidence.parts_of("input") if part.share >= MIN_SHARE]
    return max([producers.pickling, *fed, *read])


def handover_share(evidence: Evidence, producers: ProducerProfile) -> float:
    """Return the share of the training thread's waits for worker processes in which it works.

    It reads and unpickles batches then. Time without a core counts if its own threads would fit on
    the cores; and all of it does if the workers have next to nothing to do.
    """
    inputs = evidence.parts_of("input")
    total = sum(part.share for part in inputs)
    if producers.kind != "processes" or not total:
        return 0.0
    if producers.known and producers.active < MIN_ACTIVE:
        return 1.0
    fits = evidence.machine.runnable <= evidence.machine.cores + MIN_ACTIVE
    working = [state for state in WORKING_STATES if fits or state != RUNNABLE]
    return sum(part.share_in(*working) for part in inputs) / total
