"""Changes that remove each cause: knob, value, and predicted gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.evidence import DISK, PRODUCER
from fastfeed.diagnose.judge import loop_changes, signals
from fastfeed.diagnose.judge.facts import Facts, profile_of
from fastfeed.diagnose.judge.gains import (
    SURE_SPREAD,
    UNSURE_SPREAD,
    recommend,
    speedup_if_cheaper,
    speedup_without,
)
from fastfeed.diagnose.judge.producer_count import more_producers
from fastfeed.model.prediction import INPUT_BOUND

# The cost of work among r runnable threads per core is r to this power: 6 of them cost 3 times the
# work, 7 of them 2.8 to 3.4 times, as measured.
SPIN_EXPONENT = 0.6
# Weight of that cost: the gain of four such loops was 0.3, 1, 1 and 1.1 times all that the step
# allows.
SPIN_WEIGHT = 0.25
ASSUMED_PICKLING = 0.3  # share of the producers' work, at least, that shared memory saves


def _disk(cause: Cause, facts: Facts) -> list[Recommendation]:
    producers = facts.producers
    fraction = producers.share(DISK) if producers is not None else 0.0
    read = signals.read_nbytes(facts.evidence, facts.rate)
    used = signals.batch_nbytes(facts.evidence)
    found = [_with_this_disk(one, facts) for one in more_producers(cause, facts)]
    if used and read > signals.WASTEFUL_RATIO * used and producers is not None:
        change = (
            f"read only what is used: {read / 1e6:.3g} MB are read for a batch of "
            f"{used / 1e6:.2g} MB"
        )
        # The reading function also handles the bytes that are not used: into the page cache, out of
        # it, copied.
        wasted = 1 - used / read
        function = max(fraction, producers.function_share)
        least = speedup_if_cheaper(facts, fraction * wasted)
        speedup = speedup_if_cheaper(facts, function * wasted)
        spread = (max(UNSURE_SPREAD[0], 1 - least / speedup), UNSURE_SPREAD[1])
        # Of equal changes the one that asks the disk for less comes first.
        knob = ("cache", "what is used")
        found.insert(0, recommend(change, knob, speedup=speedup, spread=spread))
    change = "keep the data in memory, or in fewer and larger files that are read in order"
    speedup = speedup_if_cheaper(facts, fraction)
    found.append(recommend(change, ("cache", "memory"), speedup=speedup, spread=UNSURE_SPREAD))
    return found


def _with_this_disk(one: Recommendation, facts: Facts) -> Recommendation:
    """Return the change with a wider interval: a disk may have no more to give.

    Its lower end follows from a disk that is busy only while a producer waits for it.
    """
    producers = facts.producers
    busy = 0.0
    if producers is not None:
        busy = producers.count * producers.active * producers.share(DISK)
    low, high = one.interval
    return replace(one, interval=(min(low, 1 / min(1.0, max(1e-3, busy))), high))


def _cpu(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return more producers as long as there are cores; then only less work helps."""
    more = more_producers(cause, facts)
    if more or signals.in_memory(facts.evidence):
        return more
    profile = profile_of(facts)
    batch_s, step_s = profile.cpu_s, profile.step_cpu_s  # they share the cores
    shared = (batch_s + step_s) / max(1e-9, 0.5 * batch_s + step_s)
    change = (
        "halve the cost of a batch (smaller images, cheaper operations, cached results), or use "
        "more cores"
    )
    speedup = min(speedup_if_cheaper(facts, 0.5), shared)
    return [recommend(change, ("work", "half"), speedup=speedup, spread=UNSURE_SPREAD)]


def _copy(cause: Cause, facts: Facts) -> list[Recommendation]:
    loop, removed = facts.evidence.loop, speedup_without(cause.share)
    retouched = signals.retouched_share(facts.evidence, waits=False)
    if facts.table.starvation < INPUT_BOUND and retouched:
        change = (
            "feed it without from_generator, which makes the process return its memory: "
            "FeedRunner(...).dataset()"
        )
        knob = ("dataset", "runner.dataset()")
        return [recommend(change, knob, speedup=removed, spread=UNSURE_SPREAD)]
    if loop is not None and "float64" in {leaf.dtype for leaf in loop.leaves}:
        knob = ("dtypes", "float32")
        change = (
            "make float32 instead of float64 (dtypes='float32' casts in the producers), without "
            "lists in between"
        )
    else:
        knob = ("dtypes", "uint8")
        change = (
            "make arrays of the final dtype once, in memory that is reused (out=); send uint8 and "
            "cast on the device"
        )
    if facts.table.share(facts.table.converted) >= signals.MIN_SHARE:
        return [recommend(change, knob, speedup=removed, spread=UNSURE_SPREAD)]
    fraction = facts.producers.copies if facts.producers is not None else 0.0
    cheaper = speedup_if_cheaper(facts, fraction)
    copies = recommend(change, knob, speedup=cheaper, spread=UNSURE_SPREAD)
    return [copies, *more_producers(cause, facts)]


def _ipc(cause: Cause, facts: Facts) -> list[Recommendation]:
    producers, evidence = facts.producers, facts.evidence
    count, pickling, handover = evidence.machine.cores, ASSUMED_PICKLING, 0.0
    if producers is not None:
        count = producers.count
        pickling = max(ASSUMED_PICKLING, signals.pickling_share(evidence, producers))
        handover = signals.handover_share(evidence, producers)
    speedup = speedup_if_cheaper(facts, pickling)
    if handover >= signals.HANDOVER_SHARE:  # the producers have time to spare
        speedup = min(speedup_without(cause.share), facts.max_rate / facts.rate)
    change = (
        "pass batches through shared memory instead of pickling them: "
        f"FeedRunner(..., processes={count})"
    )
    knob = ("transport", "shared memory")
    return [recommend(change, knob, speedup=speedup, spread=UNSURE_SPREAD)]


def _oversubscribed(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return fewer threads of native pools in each producer, and fewer producers.

    Pools in many producers keep each other from the cores. More producers than cores alone cost
    little.
    """
    machine, producers, pools = facts.evidence.machine, facts.producers, list(facts.evidence.pools)
    if not pools and any(task.threads > 2 for task in facts.evidence.tasks_of(PRODUCER)):
        pools = ["native libraries"]
    most, speedup, spread = facts.max_rate / facts.rate, 1.05, UNSURE_SPREAD
    if pools:
        # Pools that wait for each other in many small parts lose far more than their number says,
        # usually all that the step leaves them.
        least = min(most, max(1.0, machine.runnable / machine.cores) ** SPIN_EXPONENT)
        speedup = least**SPIN_WEIGHT * most ** (1 - SPIN_WEIGHT)
        low = 1 - (1 - UNSURE_SPREAD[0]) * least / speedup
        spread = (low, max(UNSURE_SPREAD[1], most / speedup - 1))
    found = []
    for name in pools:
        knob = ("cv2.setNumThreads", "0") if name == "OpenCV" else ("OMP_NUM_THREADS", "1")
        change = f"use one thread for {name} in each producer: {'='.join(knob)}"
        found.append(recommend(change, knob, speedup=speedup, spread=spread))
    if producers is None or producers.kind not in ("threads", "processes"):
        return found
    if producers.count > machine.cores:
        change = f"lower {producers.kind} to {machine.cores}: there are more producers than cores"
        knob = (producers.kind, str(machine.cores))
        found.append(recommend(change, knob, speedup=speedup, spread=spread))
    return found


def _straggler(cause: Cause, facts: Facts) -> list[Recommendation]:
    change = (
        "deliver ready batches first (order='any'), or make more batches ahead (memory=, a larger "
        "prefetch)"
    )
    if facts.producers is not None and facts.producers.in_framework:
        change = (
            "deliver ready batches first (options.deterministic = False), or make more batches "
            "ahead (prefetch)"
        )
    speedup = speedup_without(cause.share)
    return [recommend(change, ("order", "any"), speedup=speedup, spread=SURE_SPREAD)]


def _epoch_gap(cause: Cause, facts: Facts) -> list[Recommendation]:
    change = (
        "keep the workers between epochs (persistent_workers=True; a FeedRunner makes the next "
        "epoch ahead)"
    )
    speedup = speedup_without(cause.share)
    return [recommend(change, ("epochs", "warm workers"), speedup=speedup, spread=SURE_SPREAD)]


def nothing(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return no change: the code has none."""
    return []


BY_CODE: dict[str, Callable[[Cause, Facts], list[Recommendation]]] = {
    "input.serial": more_producers,
    "input.latency": more_producers,
    "input.gil": more_producers,
    "input.cpu": _cpu,
    "input.disk": _disk,
    "input.copy": _copy,
    "input.ipc": _ipc,
    "input.oversubscribed": _oversubscribed,
    "input.straggler": _straggler,
    "input.epoch_gap": _epoch_gap,
    "pause.periodic": loop_changes.pause,
    "external.noise": loop_changes.noise,
    "step.host": loop_changes.host,
}
