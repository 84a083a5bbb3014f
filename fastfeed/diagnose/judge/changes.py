"""Changes that remove each cause: knob, value, and predicted gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.evidence import DISK, PRODUCER
from fastfeed.diagnose.judge import loop_changes, signals
from fastfeed.diagnose.judge.facts import Facts
from fastfeed.diagnose.judge.observed_feed import FeedModel
from fastfeed.diagnose.judge.producer_count import more_producers
from fastfeed.model.workload import INPUT_BOUND, Producers


def _disk(cause: Cause, facts: Facts) -> list[Recommendation]:
    producers = facts.producers
    read = signals.read_nbytes(facts.evidence, facts.figures.steps_per_second)
    used = signals.batch_nbytes(facts.evidence)
    found = more_producers(cause, facts)
    if used and read > signals.WASTEFUL_RATIO * used and producers is not None:
        change = (
            f"read only what is used: {read / 1e6:.3g} MB are read for a batch of "
            f"{used / 1e6:.2g} MB"
        )
        # The reading function also handles the bytes that are not used: into the page cache, out of
        # it, copied.
        wasted = 1 - used / read
        function = max(producers.share(DISK), producers.function_share)
        # Of equal changes the one that asks the disk for less comes first.
        one = facts.recommend(
            change,
            ("cache", "what is used"),
            lambda feed: feed.batch(1 - function * wasted),
            lambda feed: feed.batch(disk=1 - wasted),
        )
        found.insert(0, one)
    change = "keep the data in memory, or in fewer and larger files that are read in order"
    one = facts.recommend(change, ("cache", "memory"), lambda feed: feed.batch(disk=0.0))
    return [*found, one]


def _cpu(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return more producers as long as there are cores; then only less work helps."""
    more = more_producers(cause, facts)
    if more or signals.in_memory(facts.evidence):
        return more
    change = (
        "halve the cost of a batch (smaller images, cheaper operations, cached results), or use "
        "more cores"
    )
    return [facts.recommend(change, ("work", "half"), lambda feed: feed.batch(0.5))]


def _copy(cause: Cause, facts: Facts) -> list[Recommendation]:
    loop = facts.evidence.loop
    retouched = signals.retouched_share(facts.evidence, waits=False)
    if facts.table.starvation < INPUT_BOUND and retouched:
        change = (
            "feed it without from_generator, which makes the process return its memory: "
            "FeedRunner(...).dataset()"
        )
        knob = ("dataset", "runner.dataset()")
        return [facts.recommend(change, knob, FeedModel.reloaded)]
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
    copies = facts.producers.copies if facts.producers is not None else 0.0
    one = facts.recommend(change, knob, lambda feed: feed.batch(1 - copies, handover=0.0))
    converted = facts.table.share(facts.table.converted) >= signals.MIN_SHARE
    return [one] if converted else [one, *more_producers(cause, facts)]


def _ipc(cause: Cause, facts: Facts) -> list[Recommendation]:
    producers, evidence = facts.producers, facts.evidence
    count, pickling = evidence.machine.cores, 0.0
    if producers is not None:
        count, pickling = producers.count, signals.pickling_share(evidence, producers)
    change = (
        "pass batches through shared memory instead of pickling them: "
        f"FeedRunner(..., processes={count})"
    )
    knob = ("transport", "shared memory")
    return [facts.recommend(change, knob, lambda feed: feed.batch(1 - pickling, handover=0.0))]


def _oversubscribed(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return fewer threads of native pools in each producer, and fewer producers.

    Pools in many producers keep each other from the cores. More producers than cores alone cost
    little.
    """
    machine, producers, pools = facts.evidence.machine, facts.producers, list(facts.evidence.pools)
    if not pools and any(task.threads > 2 for task in facts.evidence.tasks_of(PRODUCER)):
        pools = ["native libraries"]
    found = []
    for name in pools:
        knob = ("cv2.setNumThreads", "0") if name == "OpenCV" else ("OMP_NUM_THREADS", "1")
        change = f"use one thread for {name} in each producer: {'='.join(knob)}"
        found.append(facts.recommend(change, knob, lambda feed: feed.with_(pool=1.0)))
    if producers is None or producers.kind not in ("threads", "processes"):
        return found
    if producers.count > machine.cores:
        change = f"lower {producers.kind} to {machine.cores}: there are more producers than cores"
        knob = (producers.kind, str(machine.cores))
        found.append(facts.recommend(change, knob, _one_for_each_core))
    return found


def _one_for_each_core(feed: FeedModel) -> FeedModel:
    cores = feed.workload.cores
    fewer = Producers(1, cores) if feed.producers.processes else Producers(cores)
    return replace(feed, producers=fewer)


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
    return [facts.recommend(change, ("order", "any"), lambda feed: feed.with_(ordered=False))]


def _epoch_gap(cause: Cause, facts: Facts) -> list[Recommendation]:
    change = (
        "keep the workers between epochs (persistent_workers=True; a FeedRunner makes the next "
        "epoch ahead)"
    )
    knob = ("epochs", "warm workers")
    return [facts.recommend(change, knob, lambda feed: feed.with_(epoch_batches=0))]


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
