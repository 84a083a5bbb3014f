"""Shares of the time that no counter gives, from samples and counters together."""

from __future__ import annotations

import math
import re

from fastfeed.diagnose.evidence import (
    LOCK_PYTHON,
    NATIVE,
    PYTHON,
    RUNNABLE,
    Evidence,
)
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.probes.lock import CONTENDED_S, LATE_S
from fastfeed.probes.machine_log import SATURATED

MOST = 0.5  # share from which a part characterises the whole
SEVERAL_THREADS = 1.2  # threads at work at once, and cores that as many use beside one lock
WORKING_STATES = (PYTHON, NATIVE, RUNNABLE, LOCK_PYTHON)
WIDE_DTYPES = ("float64", "object")  # dtypes that no accelerator uses
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
