"""Predicates that distinguish causes, with the measured threshold of each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from fastfeed.diagnose.evidence import (
    CALLED_BACK,
    DISK,
    EMPTY,
    FEEDER,
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
from fastfeed.diagnose.function_names import PREPARE_NAMES, REPORT_NAMES
from fastfeed.diagnose.judge.producer_profile import PAGE_FAULT_S, ProducerProfile
from fastfeed.model.workload import INPUT_BOUND
from fastfeed.probes.lock import CONTENDED_S, LATE_S
from fastfeed.probes.machine_log import SATURATED
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import ARRAYS_NOTE, Leaf

MAX_CONVERTED = 0.98  # share of a step: the most that conversions of its input take
# Share of the time from which a loss counts. All losses are held to the threshold of starvation.
MIN_SHARE = INPUT_BOUND
SEVERAL_THREADS = 1.2  # threads at work at once
MAX_SERIAL_CORES = 1.15  # cores that threads use which wait for one lock
CROWDED_PER_CORE = 2.5  # runnable threads per core from which they are too many
NESTED_PER_CORE = 1.5  # the same if native pools multiply the producers
NOISY_SHARE = 0.25  # share of the cores that other processes use
OUSTED_SHARE = 0.25  # share of its time that a producer waits for a core because of them
MIN_DISK_SHARE = 0.2  # share of the producers' time in block I/O
MIN_LOADED_DISK_SHARE = 0.1  # the same while the disk is loaded
DISK_LOAD_NBYTES_S = 5e6  # below this rate a disk is not loaded
# Share of the producers' work from which copies and conversions characterise it.
COPYING_SHARE = 0.4
PICKLING_SHARE = 0.25  # the same for pickling
OWN_LOCK_SHARE = 0.3  # share of their time that producers wait for a lock of their own
MIN_ACTIVE = 0.2  # share of their time at work: producers below it wait for room in a buffer
HANDOVER_SHARE = 0.5  # share of the training thread's waits in which it reads what is ready
WORKING_STATES = (PYTHON, NATIVE, RUNNABLE, LOCK_PYTHON)
WIDE_DTYPES = ("float64", "object")  # dtypes that no accelerator uses
MIN_WIDE_SHARE = 0.1  # share of the fed numbers that have such a dtype
TIMED_LOOPS = ("queue", "torch", "runner", "watch")  # kinds whose call for a batch is timed
CALL_LOOPS = ("session", "call")  # kinds that are known by the calls of their steps
SEND_FUNCTIONS = ("_send", "_send_bytes", "_feed", "put")
SEND_FILES = re.compile(r"(^|/)multiprocess(ing)?/(connection|queues|pool)\.py$")
WASTEFUL_RATIO = 4.0  # bytes read / bytes of a batch from which much is read in vain
# Share of a line's time in observed bytecode from which all of the line counts as bytecode: half of
# the short pieces is not observed.
MIN_BYTECODE = 0.35
LIST_NUMBER_S = 2e-8  # seconds to convert one number of a list into one of an array, at least
LIST_READING_SHARE = 0.3  # share of the time that this takes, computed from the lists' lengths
MIN_ASLEEP = 0.5  # share of a line's time: for the rest it waits for the lock or a core
# A generator is a FlatMap, and no map of the user's.
MAP_STAGES = re.compile(r"^tf\.data: (?!.*FlatMap).*\b(Map|ParallelMap|MapAndBatch)\b")
DTYPE_BITS = re.compile(r"\d+$")
MIN_RETOUCHED = 0.15  # share of a step on the cores
COMPUTING_SHARE = 0.75  # share of its time on a core for a step that only computes
MIN_STEP_CORES = 0.5  # cores that native threads use if the steps compute on them
MIN_FAULTING = 0.1  # share of the CPU time that page faults take


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
        machine.own_cpu <= MAX_SERIAL_CORES
        and machine.own_cpu + machine.other_cpu < SATURATED * machine.cores
    )
    return several and contended and spare and producers.native > producers.waiting


def noisy(evidence: Evidence) -> bool:
    """Return True if other processes use a good part of the cores."""
    machine = evidence.machine
    return machine.other_cpu + machine.steal >= NOISY_SHARE * machine.cores


def outnumbered(evidence: Evidence) -> bool:
    """Return True if other processes use nearly all cores, and the script asks for few.

    Everything that the script does takes long then.
    """
    machine = evidence.machine
    return (
        machine.other_cpu >= SATURATED * machine.cores
        and machine.runnable <= NOISY_SHARE * machine.cores
    )


def crowded_out(evidence: Evidence, producers: ProducerProfile) -> bool:
    """Return True if other processes keep the producers from cores that would suffice for them."""
    fits = evidence.machine.runnable <= evidence.machine.cores + 0.5
    return noisy(evidence) and fits and producers.share(RUNNABLE) > OUSTED_SHARE


def waits_for_disk(evidence: Evidence, producers: ProducerProfile) -> bool:
    """Return True if the producers wait in state D, or for unknown reasons while much is read."""
    reads = evidence.machine.disk_read_nbytes_s > DISK_LOAD_NBYTES_S
    return producers.share(DISK) >= max(MIN_DISK_SHARE, producers.native / 2) or (
        producers.share(DISK) >= MIN_LOADED_DISK_SHARE and reads
    )


def simulated_share(evidence: Evidence) -> float:
    """Return the share of the time between the calls of a loop's steps that belongs to the steps.

    That is the time of lines that sleep, as a simulated accelerator does; with Keras, of callbacks
    that sleep.
    """
    loop = evidence.loop
    if loop is None or loop.kind not in (*CALL_LOOPS, "keras"):
        return 0.0
    between = [
        part
        for part in evidence.parts
        if part.kind == "host" or (part.kind, loop.waits) == ("input", "none")
    ]
    total = sum(part.share for part in between) or 1.0
    return sum(part.share for part in between if sleeps(part)) / total


def sleeps(part: LoopPart) -> bool:
    """Return True if a line beside the step's call only sleeps, without reporting anything."""
    reports = part.inner is not None and REPORT_NAMES.search(part.inner.function)
    return part.kind == "host" and part.busy.get(SLEEP, 0.0) >= MIN_ASLEEP and not reports


def preparation(evidence: Evidence, waited: float) -> tuple[float, float]:
    """Return the share of the time in which the training thread prepares batches that it received,
    and the share of conversions and copies in that.

    `waited` is the known share of waits, which samples contain as well. Only conversions and
    functions with a name of input processing count: any other call on a batch may be the step.
    """
    loop = evidence.loop
    if loop is None or loop.waits != "exact" or loop.kind not in TIMED_LOOPS:
        return 0.0, 0.0
    inputs = evidence.parts_of("input")
    prepares = [
        part
        for part in inputs
        if part.copying >= COPYING_SHARE
        or (part.inner and PREPARE_NAMES.search(part.inner.function))
    ]
    work = sum(part.share_in(*WORKING_STATES) for part in prepares)
    share = max(0.0, min(work, sum(part.share for part in inputs) - waited))
    copying = sum(part.share * part.copying for part in prepares)
    return share, min(1.0, copying / work) if work else 0.0


def read_nbytes(evidence: Evidence, steps_per_second: float) -> float:
    """Return the bytes that are read from disks for one step."""
    return evidence.machine.disk_read_nbytes_s / max(1e-9, steps_per_second)


def batch_nbytes(evidence: Evidence) -> int:
    """Return the bytes of a batch, 0 if its arrays are not known."""
    leaves = evidence.loop.leaves if evidence.loop is not None else ()
    known = [(leaf, DTYPE_BITS.search(leaf.dtype)) for leaf in leaves if leaf.shape]
    return sum(math.prod(leaf.shape) * (int(bits[0]) // 8 if bits else 1) for leaf, bits in known)


def oversubscribed(evidence: Evidence, producers: ProducerProfile) -> bool:
    """Return True if there are far more runnable threads than cores."""
    machine = evidence.machine
    largest_pool = max(evidence.pools.values(), default=0)
    nested = producers.count > 1 and producers.count * largest_pool > machine.cores
    return machine.runnable >= (NESTED_PER_CORE if nested else CROWDED_PER_CORE) * machine.cores


def sending_share(evidence: Evidence, producers: ProducerProfile) -> float:
    """Return the share of the workers' samples in which they send batches, or wait to do so."""
    if producers.kind != "processes":
        return 0.0
    stacks = [pair for task in evidence.tasks_of(PRODUCER) for pair in task.stacks.items()]
    sends = sum(count for stack, count in stacks if any(_sends(place) for place in stack))
    return sends / max(1, sum(count for _, count in stacks))


def _sends(place: Place) -> bool:
    return place.function.endswith(SEND_FUNCTIONS) and SEND_FILES.search(place.file) is not None


def handover_share(evidence: Evidence, producers: ProducerProfile) -> float:
    """Return the share of the training thread's waits for worker processes in which it works.

    It reads and unpickles batches then. Time without a core counts, unless the workers themselves
    oversubscribe the cores.
    """
    inputs = evidence.parts_of("input")
    total = sum(part.share for part in inputs)
    if producers.kind != "processes" or not total:
        return 0.0
    if producers.known and producers.active < MIN_ACTIVE:  # they could produce far more
        return 1.0
    crowded = oversubscribed(evidence, producers)
    working = [state for state in WORKING_STATES if not (crowded and state == RUNNABLE)]
    return sum(part.share_in(*working) for part in inputs) / total


def in_memory(evidence: Evidence) -> bool:
    """Return True if all batches are slices of arrays in memory, which need no producer."""
    return evidence.loop is not None and evidence.loop.note.startswith(ARRAYS_NOTE)


def from_data_loader(evidence: Evidence) -> bool:
    """Return True if a DataLoader delivers the batches: its workers are processes."""
    return evidence.loop is not None and evidence.loop.kind == "torch"


def mapped_by_tf_data(evidence: Evidence) -> bool:
    """Return True if a map of tf.data calls the user's function."""
    loop = evidence.loop
    return loop is not None and any(map(MAP_STAGES.search, (loop.name, loop.note)))


def produced_in_graph(evidence: Evidence) -> bool:
    """Return True if a session's own threads make the batches, in Python that the graph calls."""
    session = evidence.loop is not None and evidence.loop.kind == "session"
    return session and any(task.name == CALLED_BACK for task in evidence.tasks_of(PRODUCER))


def conversion_share(evidence: Evidence) -> float:
    """Return the share of the time in which the training thread converts the feed of a session.

    The conversion lies inside Session.run, before the step begins.
    """
    loop = evidence.loop
    trainer = evidence.trainer
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
    reading = (
        LIST_NUMBER_S * rate * _numbers(leaf for leaf in lists if min(leaf.shape, default=0) > 0)
    )
    if reading < MIN_SHARE and _numbers(wide) <= MIN_WIDE_SHARE * _numbers(loop.leaves):
        return copying * inside
    mostly = reading >= LIST_READING_SHARE or (reading >= MIN_SHARE and copying >= COPYING_SHARE)
    return native + python * (1.0 if mostly else copying)


def _numbers(leaves: Iterable[Leaf]) -> int:
    return sum(math.prod(leaf.shape) for leaf in leaves)


def retouched_share(evidence: Evidence, *, waits: bool) -> float:
    """Return the share of a step in which it touches memory again that it returned to the system.

    tf.data's from_generator lowers the process's trim threshold; with any other feed a step keeps
    its memory. If no step waits the share must be large, because page faults take up to 7 % of
    other steps on the cores. A step on an accelerator has its memory there, and what TensorFlow's
    threads touch belongs to the input.
    """
    loop = evidence.loop
    if loop is None or not loop.trims:
        return 0.0
    if any(gpu.busy >= MIN_SHARE for gpu in evidence.machine.gpus):
        return 0.0
    tasks, share = evidence.tasks_of(FRAMEWORK), 0.0
    cpu_s = sum(task.cpu_s for task in tasks)
    if PAGE_FAULT_S * sum(task.faults for task in tasks) >= MIN_FAULTING * cpu_s > 0:
        share = sum(task.system_s for task in tasks) / cpu_s
    computes = cpu_s >= MIN_STEP_CORES * evidence.seconds
    if not waits and not (share >= MIN_RETOUCHED and computes):
        return 0.0
    # A step that waits for something else meanwhile spends only a part of its time on memory.
    inside_s = sum(
        step.end_s - step.begin_s - step.wait_s
        for step in loop.steps
        if not step.free and evidence.start_s <= step.begin_s <= evidence.end_s
    )
    cpu_s += sum(task.cpu_s for task in evidence.tasks_of(TRAINER))
    return share * min(1.0, cpu_s / max(1e-9, COMPUTING_SHARE * inside_s))


def pickling_share(evidence: Evidence, producers: ProducerProfile) -> float:
    """Return the share of the work in pickling and sending: of the producers, of the feeders, or of
    the training thread.

    First accesses of fresh memory on the way count as sending.
    """
    fed = [task.pickling * (1 - task.share(EMPTY)) for task in evidence.tasks_of(FEEDER)]
    read = [part.pickling for part in evidence.parts_of("input") if part.share >= MIN_SHARE]
    return max([producers.pickling, sending_share(evidence, producers), *fed, *read])


def place_diversity(task: Task) -> float:
    """Return the number of places that the samples of a task are spread over.

    This is the inverse of Simpson's index of the innermost places, without the user's line in which
    the task sleeps.
    """
    counts: dict[Place, int] = {}
    for stack, count in task.stacks.items():
        if stack:
            counts[stack[-1]] = counts.get(stack[-1], 0) + count
    users = [place for place in counts if place.users]
    if users and task.share(SLEEP) >= MIN_SHARE:
        top = max(users, key=lambda place: counts[place])
        if counts[top] >= 0.5 * task.share(SLEEP) * sum(counts.values()):
            counts.pop(top)
    total = sum(counts.values())
    pairs = sum(count * (count - 1) for count in counts.values())
    return total * (total - 1) / pairs if pairs else float(total)
