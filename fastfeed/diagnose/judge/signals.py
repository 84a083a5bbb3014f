"""Predicates that distinguish causes, with the measured threshold of each."""

from __future__ import annotations

import math
import re

from fastfeed.diagnose.evidence import (
    CALLED_BACK,
    DISK,
    FRAMEWORK,
    LOCK_PYTHON,
    NATIVE,
    PRODUCER,
    PYTHON,
    RUNNABLE,
    SLEEP,
    TRAINER,
    Evidence,
    LoopPart,
    Task,
)
from fastfeed.diagnose.judge.producer_profile import FAULT_S, ProducerProfile, feeders_of
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import ARRAYS_NOTE

MOST = 0.98  # of a step, at most, are conversions of what it is fed
# share of the time from which a loss counts: a feed is input-bound from 5 % starvation
LEAST = 0.05
GIL_LATE_S = 1e-3  # without contention a thread is late by 0.1 ms
GIL_ASKED_S, SEVERAL, ONE_CORE = 4e-4, 1.2, 1.15  # of serialised: seconds, working threads, cores
CROWDED = 2.5  # runnable threads per core from which they are too many
POOLS = 1.5  # the same if native pools multiply the producers
NOISE = 0.25  # share of the cores that others use
OUSTED = 0.25  # share of its time that a producer waits for a core because of them
CONVERTS = 0.4  # share of the producers' work from which copies and conversions characterise it
PICKLES = 0.25
STANDING = 0.2  # of their time at work: below it, they wait for room
HANDS_OVER = 0.5  # share of the training thread's waits in which it reads what is ready
WORKS = (PYTHON, NATIVE, RUNNABLE, LOCK_PYTHON)
SOME = 0.1  # of the numbers that a step is fed
WIDE = ("float64", "object")  # dtypes that no accelerator uses
# loops that get their batches from a call that is timed
HANDED = ("queue", "torch", "runner", "watch")
PREPARES = re.compile(
    r"(^|[._])(load|read|parse|prepare|preprocess|augment|collate|transforms?|normali[sz]e|crop|resize|pad|tokeni[sz]e|"
    r"to_tensors?|to_arrays?|unpack|cast|convert)(_|\d|$)"
)
CALLED = ("session", "call")  # loops that are known by the calls of their steps
REPORTS = re.compile(
    r"log|metric|callback|report|checkpoint|save|eval|valid|summar|print|write|send|push|publish|plot"
)
SENDS = ("_send", "_send_bytes", "_feed", "put")
PIPES = re.compile(r"(^|/)multiprocess(ing)?/(connection|queues|pool)\.py$")
FULL = 0.8  # share of the cores from which none is left
WASTED = 4.0  # times the size of a batch: much is read that is not used
# share of a line's time in observed bytecode, from which all of it counts: half of short pieces is
# not observed
BYTECODE = 0.35
NUMBER_S = 2e-8  # for a number in a list to become one in an array, at least
READS_LISTS = 0.3  # of the time that this takes, from the lists' lengths
ASLEEP = 0.5  # of a line's time: the rest it waits for the lock, or a core, to go on
# a generator comes in a FlatMap
MAPS = re.compile(r"^tf\.data: (?!.*FlatMap).*\b(Map|ParallelMap|MapAndBatch)\b")
BITS = re.compile(r"\d+$")  # of a dtype
MUCH = 0.15  # of a step on the cores
ON_CORES = 0.75  # of a step, on a core: it only computes
COMPUTES = 0.5  # cores that a step uses, at least, if it computes there
FAULTING = 0.1  # of the CPU time, at least, that as many page faults take
READS_NBYTES_S = 5e6  # below it a disk is not loaded


def late(evidence: Evidence) -> bool:
    """Return True if the interpreter lock is kept from threads that ask for it."""
    return evidence.gil_late_s is not None and evidence.gil_late_s > GIL_LATE_S


def serialised(evidence: Evidence, makers: ProducerProfile) -> bool:
    """Return True if several threads share one core's worth, without other waits and with cores to
    spare, while the interpreter lock is contended: short calls that release it, and want it back,
    look like native code."""
    several = makers.where == "threads" and makers.count * makers.active >= SEVERAL
    asked = evidence.gil_late_s is not None and evidence.gil_late_s > GIL_ASKED_S
    machine = evidence.machine
    spare = (
        machine.own_cpu <= ONE_CORE and machine.own_cpu + machine.other_cpu < FULL * machine.cores
    )
    return several and asked and spare and makers.native > makers.waiting


def noisy(evidence: Evidence) -> bool:
    """Return True if others use a good part of the cores."""
    machine = evidence.machine
    return machine.other_cpu + machine.steal >= NOISE * machine.cores


def outnumbered(evidence: Evidence) -> bool:
    """Return True if others have nearly all cores, and the script asks for few: everything it does
    takes long."""
    machine = evidence.machine
    return machine.other_cpu >= FULL * machine.cores and machine.runnable <= NOISE * machine.cores


def crowded_out(evidence: Evidence, makers: ProducerProfile) -> bool:
    """Return True if others keep the producers from the cores, which would be enough for them
    alone."""
    fits = evidence.machine.runnable <= evidence.machine.cores + 0.5
    return noisy(evidence) and fits and makers.share(RUNNABLE) > OUSTED


def disk(evidence: Evidence, makers: ProducerProfile) -> bool:
    """Return True for waits in state D; or for unknown waits, while much is read."""
    reads = evidence.machine.disk_read_nbytes_s > READS_NBYTES_S
    return makers.share(DISK) >= max(0.2, makers.native / 2) or (
        makers.share(DISK) >= 0.1 and reads
    )


def simulated(evidence: Evidence) -> float:
    """Return the share of the time between the calls of a loop's steps that belongs to the steps:
    lines that sleep, like a simulated accelerator; with Keras those of callbacks."""
    loop = evidence.loop
    if loop is None or loop.kind not in (*CALLED, "keras"):
        return 0.0
    between = [
        part
        for part in evidence.parts
        if part.kind == "host" or (part.kind, loop.waits) == ("input", "none")
    ]
    return sum(part.share for part in between if sleeps(part)) / (
        sum(part.share for part in between) or 1.0
    )


def sleeps(part: LoopPart) -> bool:
    """Return True if a line beside the step's call only sleeps, and does not report anything."""
    reports = part.inner is not None and REPORTS.search(part.inner.function)
    return part.kind == "host" and part.busy.get(SLEEP, 0.0) >= ASLEEP and not reports


def prepared(evidence: Evidence, waited: float) -> tuple[float, float]:
    """Return the share of the time in which the training thread prepares a batch that it got from
    others, and the share of conversions and copies in that. `waited`: the known share of waits,
    which samples count as well.

    Only what converts, or has a name of input processing, counts: any other call on a batch may be
    the step.
    """
    loop = evidence.loop
    if loop is None or loop.waits != "exact" or loop.kind not in HANDED:
        return 0.0, 0.0
    made = [part for part in evidence.parts if part.kind == "input"]
    ours = [
        part
        for part in made
        if part.copying >= CONVERTS or (part.inner and PREPARES.search(part.inner.function))
    ]
    work = sum(part.share * sum(part.busy.get(state, 0.0) for state in WORKS) for part in ours)
    share = max(0.0, min(work, sum(part.share for part in made) - waited))
    copying = sum(part.share * part.copying for part in ours)
    return share, min(1.0, copying / work) if work else 0.0


def read_nbytes(evidence: Evidence, steps_per_second: float) -> float:
    """Return bytes that are read from disks for a step."""
    return evidence.machine.disk_read_nbytes_s / max(1e-9, steps_per_second)


def used_nbytes(evidence: Evidence) -> int:
    """Return bytes of a batch, 0 if its arrays are not known."""
    leaves = evidence.loop.leaves if evidence.loop is not None else ()
    known = [(leaf, BITS.search(leaf.dtype)) for leaf in leaves if leaf.shape]
    return sum(math.prod(leaf.shape) * (int(bits[0]) // 8 if bits else 1) for leaf, bits in known)


def crowded(evidence: Evidence, makers: ProducerProfile) -> bool:
    """Return True if there are far more runnable threads than cores."""
    machine = evidence.machine
    nested = makers.count * max(evidence.pools.values(), default=1) > machine.cores and bool(
        evidence.pools
    )
    return machine.runnable >= (POOLS if nested and makers.count > 1 else CROWDED) * machine.cores


def piped(evidence: Evidence, makers: ProducerProfile) -> float:
    """Return the share of samples of workers in which they send results, or wait to do so."""
    if makers.where != "processes":
        return 0.0
    stacks = [
        pair for task in evidence.tasks if task.role == PRODUCER for pair in task.stacks.items()
    ]
    sends = sum(count for stack, count in stacks if any(_sends(place) for place in stack))
    return sends / max(1, sum(count for _, count in stacks))


def _sends(place: Place) -> bool:
    return place.function.endswith(SENDS) and PIPES.search(place.file) is not None


def handed_over(evidence: Evidence, makers: ProducerProfile) -> float:
    """Return the share of the time in which the training thread gets batches from worker processes
    that it works: it reads and unpickles them. If far more threads are runnable than there are
    cores, those keep it from one."""
    made = [part for part in evidence.parts if part.kind == "input"]
    total = sum(part.share for part in made)
    if makers.where != "processes" or not total:
        return 0.0
    if makers.known and makers.active < STANDING:  # they could do far more, and the step starves
        return 1.0
    works = [state for state in WORKS if state != RUNNABLE or not crowded(evidence, makers)]
    return (
        sum(part.share * sum(part.busy.get(state, 0.0) for state in works) for part in made) / total
    )


def at_hand(evidence: Evidence) -> bool:
    """Return True if all batches are slices of arrays in memory, which need no producer."""
    return evidence.loop is not None and evidence.loop.note.startswith(ARRAYS_NOTE)


def loaded(evidence: Evidence) -> bool:
    """Return True if a DataLoader gives the batches: its workers are processes."""
    return evidence.loop is not None and evidence.loop.kind == "torch"


def mapped(evidence: Evidence) -> bool:
    """Return True if a map of tf.data calls the user's function."""
    loop = evidence.loop
    return loop is not None and any(map(MAPS.search, (loop.name, loop.note)))


def in_graph(evidence: Evidence) -> bool:
    """Return True if a session's own threads make the batches, in Python that the graph calls."""
    session = evidence.loop is not None and evidence.loop.kind == "session"
    return session and any(
        task.role == PRODUCER and task.name == CALLED_BACK for task in evidence.tasks
    )


def converted(evidence: Evidence) -> float:
    """Return the share of the time in which the training thread converts what a session is fed,
    before the step begins."""
    loop = evidence.loop
    trainer = next((task for task in evidence.tasks if task.role == TRAINER), None)
    if loop is None or trainer is None or loop.kind != "session":
        return 0.0
    # what the thread does besides comes before: it makes the batch
    others = [part for part in evidence.parts if part.kind != "step"]
    python, native = (
        max(
            0.0,
            trainer.share(state) - sum(part.share * part.busy.get(state, 0.0) for part in others),
        )
        for state in (PYTHON, NATIVE)
    )
    inside = max(1e-9, 1.0 - sum(part.share for part in others))
    copying = min(
        1.0, max(0.0, trainer.copying - sum(part.share * part.copying for part in others)) / inside
    )
    # numbers in lists are read one by one, with the lock: a sample comes only after that, or at the
    # next call
    lists = [leaf for leaf in loop.leaves if leaf.kind in ("list", "tuple")]
    numbers = sum(math.prod(leaf.shape) for leaf in lists if min(leaf.shape, default=0) > 0)
    per_s = (
        (len(loop.steps) - 1) / max(1e-9, loop.steps[-1].begin_s - loop.steps[0].begin_s)
        if loop.steps
        else 0.0
    )
    read = numbers * NUMBER_S * per_s
    wide = sum(
        math.prod(leaf.shape) for leaf in loop.leaves if leaf.dtype in WIDE and leaf not in lists
    )
    if read < LEAST and wide <= SOME * sum(math.prod(leaf.shape) for leaf in loop.leaves):
        return copying * inside
    mostly = read >= READS_LISTS or (read >= LEAST and copying >= CONVERTS)
    return native + python * (1.0 if mostly else copying)


def given_back(evidence: Evidence, *, waits: bool) -> float:
    """Return the share of a step in which TensorFlow's threads touch memory again that they had
    returned to the system.

    tf.data's from_generator lowers the process's trim threshold; a step that is fed otherwise keeps
    its memory. If no step waits it must be much: of other steps on the cores, memory takes up to 7
    %. With an accelerator a step has its memory there, and what these threads touch is the input's.
    """
    loop = evidence.loop
    if loop is None or not loop.trims or any(gpu.busy >= LEAST for gpu in evidence.machine.gpus):
        return 0.0
    tasks = [task for task in evidence.tasks if task.role == FRAMEWORK]
    cpu_s, faults_s = (
        sum(task.cpu_s for task in tasks),
        FAULT_S * sum(task.faults for task in tasks),
    )
    share = (
        sum(task.system_s for task in tasks) / cpu_s if faults_s >= FAULTING * cpu_s > 0 else 0.0
    )
    computes = cpu_s >= COMPUTES * (evidence.end_s - evidence.start_s)
    if not waits and not (share >= MUCH and computes):
        return 0.0
    # a step that waits for something else meanwhile spends only a part of its time on a core, and
    # on memory
    watched = [
        s for s in loop.steps if not s.free and evidence.start_s <= s.begin_s <= evidence.end_s
    ]
    inside_s = sum(s.end_s - s.begin_s - s.wait_s for s in watched)
    cpu_s += sum(task.cpu_s for task in evidence.tasks if task.role == TRAINER)
    return share * min(1.0, cpu_s / max(1e-9, ON_CORES * inside_s))


def pickling(evidence: Evidence, makers: ProducerProfile) -> float:
    """Return the share of the producers' work, or of the time of those that pass it on, in
    pickling, and in sending what was pickled, with first accesses of fresh memory on the way."""
    handed = [task.pickling * (1 - task.share("empty")) for task in feeders_of(evidence)]
    made = [
        part.pickling for part in evidence.parts if part.kind == "input" and part.share >= LEAST
    ]
    return max([makers.pickling, piped(evidence, makers), *handed, *made])


def spread_of(task: Task) -> float:
    """Return over how many places its samples could be spread evenly: the inverse of Simpson's
    index of the innermost ones, without the user's line in which it sleeps."""
    counts: dict[Place, int] = {}
    for stack, count in task.stacks.items():
        if stack:
            counts[stack[-1]] = counts.get(stack[-1], 0) + count
    own = max(
        (place for place in counts if place.users), key=lambda place: counts[place], default=None
    )
    if (
        own is not None
        and task.share(SLEEP) >= LEAST
        and counts[own] >= 0.5 * task.share(SLEEP) * sum(counts.values())
    ):
        counts.pop(own)
    total = sum(counts.values())
    pairs = sum(count * (count - 1) for count in counts.values())
    return total * (total - 1) / pairs if pairs else float(total)
