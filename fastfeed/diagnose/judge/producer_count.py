"""Recommended number of producers: threads or worker processes, by the model of a feed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.evidence import DISK, LOCK
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.facts import MIN_GAIN, Facts
from fastfeed.diagnose.judge.observed_feed import Change, FeedModel
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.model.workload import BATCH_PARTS, Outcome, Producers, fed_by, rows_of
from fastfeed.probes.machine_log import SATURATED

TRIED_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
NEAR_BEST = 0.95  # share of the best rate: more producers are not worth it
# Wait of a step for a ready batch of a DataLoader's worker: 1.4 to 3.7 ms were measured.
LOADER_HANDOVER_S = 2.5e-3


@dataclass(frozen=True)
class _Kind:
    """A kind of producers to recommend, and its relation to those that exist."""

    producers: ProducerProfile
    processes: bool  # worker processes, not threads
    held: bool  # the producers hold the interpreter lock
    loader: bool  # a DataLoader that makes its batches on the training thread

    @property
    def same(self) -> bool:
        """True if the change keeps the kind of the producers."""
        return self.producers.kind == ("processes" if self.processes else "threads")

    @property
    def ahead(self) -> bool:
        """True if no producer works ahead of the step without the change."""
        return self.producers.kind == "trainer" or self.held

    def of(self, count: int) -> Change:
        """Return the change to that many producers of this kind."""
        producers = Producers(1, count) if self.processes else Producers(count)
        taken_s = LOADER_HANDOVER_S * self.loader

        def change(feed: FeedModel) -> FeedModel:
            workload = feed.workload if self.same else fed_by(feed.workload, producers)
            batches = workload.batches + rows_of(BATCH_PARTS, handover=taken_s)
            found = FeedModel(replace(workload, batches=batches), producers, feed.retouched)
            return found if self.same and self.producers.count > 1 else found.reloaded()

        return change


def more_producers(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return the number of threads, or of processes if the lock is held, that gains something."""
    prepared = facts.table.share(facts.table.converted)
    waited = facts.table.share(facts.table.wait)
    if cause.code == "input.serial" and prepared >= max(signals.MIN_SHARE, waited):
        change = "prepare batches in the producers, ahead of the step, not on the training thread"
        knob = ("threads", str(facts.evidence.threads))
        return [facts.recommend(change, knob, lambda feed: feed.batch(handover=0.0))]
    kind = _kind(cause, facts)
    return _best_count(facts, kind) if kind is not None else []


def _kind(cause: Cause, facts: Facts) -> _Kind | None:
    """Return the kind of producers that helps; None if no number of producers does."""
    producers, machine = facts.producers, facts.evidence.machine
    if producers is None or not producers.known:
        return None
    full = machine.own_cpu >= SATURATED * machine.cores
    if producers.kind == "native" and (full or signals.in_memory(facts.evidence)):
        return None
    python = producers.python >= max(producers.native, producers.waiting)
    held = cause.code == "input.gil" or (cause.code == "input.serial" and python)
    loader = producers.kind == "trainer" and signals.from_data_loader(facts.evidence)
    processes = held or loader or producers.kind == "processes"
    return _Kind(producers, processes=processes, held=held, loader=loader)


def _best_count(facts: Facts, kind: _Kind) -> list[Recommendation]:
    """Return the smallest number near the best rate, if it gains something."""
    producers, now = kind.producers, facts.feed.now
    most = TRIED_COUNTS[-1]
    if kind.processes:
        most = now.workload.cores if kind.held else 4 * now.workload.cores
    outcomes = {n: kind.of(n)(now).run() for n in TRIED_COUNTS if n <= most}
    best = max(one.rate for one in outcomes.values())
    count = next(n for n, one in outcomes.items() if one.rate >= NEAR_BEST * best)
    same = kind.same and count <= producers.count
    if outcomes[count].rate < MIN_GAIN * facts.feed.rate or same:
        return []
    knob, text = _described(facts, kind, count=count)
    why = _reason(kind, _limits(outcomes, count, rate=facts.feed.rate))
    change = kind.of(count)
    # A disk may have no more to give.
    disks = max(1.0, producers.count * producers.active * producers.share(DISK))
    least = [lambda feed: change(feed).with_(disks=disks)] * bool(producers.share(DISK))
    return [facts.recommend(text, (knob, str(count)), change, *least, why=why)]


def _reason(kind: _Kind, limits: str) -> str:
    """Return why that number, and why processes if threads cannot help."""
    producers = kind.producers
    if kind.held and producers.kind != "processes":
        limits = (
            f"threads cannot help: {producers.python:.0%} of the work holds the interpreter lock "
            f"or waits for it; {limits}"
        )
    if producers.share(LOCK) >= signals.OWN_LOCK_SHARE:
        limits += "; this holds only if the producers stop waiting for a lock of their own"
    return limits


def _limits(outcomes: dict[int, Outcome], count: int, *, rate: float) -> str:
    """Return the gain of fewer producers, and the limit with that number."""
    limit = f"with {count} the limit is {outcomes[count].limit}, and more gain nothing"
    fewer = [n for n in outcomes if n < count and outcomes[n].rate >= MIN_GAIN * rate]
    if not fewer:
        return limit
    give = "gives" if fewer[-1] == 1 else "give"
    return f"{fewer[-1]} {give} {outcomes[fewer[-1]].rate / rate:.1f}x, {limit}"


def _described(facts: Facts, kind: _Kind, *, count: int) -> tuple[str, str]:
    """Return the knob for that number of producers, and the change in words."""
    producers, evidence = kind.producers, facts.evidence
    knob = "processes" if kind.processes else "threads"
    if producers.kind == "native":
        parallel = "let tf.data work in parallel: num_parallel_calls=tf.data.AUTOTUNE, and prefetch"
        return "num_parallel_calls", parallel
    mapped = producers.in_framework or signals.mapped_by_tf_data(evidence)
    if producers.kind == "threads" and not kind.processes and mapped:
        pool = _pool(facts, "options.threading.private_threadpool_size", count=count)
        return "num_parallel_calls", f"num_parallel_calls {producers.count} -> {count}{pool}"
    if not kind.ahead or producers.kind == "processes":
        pool = ""
        if signals.produced_in_graph(evidence) and not kind.processes:
            pool = _pool(facts, "ConfigProto.inter_op_parallelism_threads", count=count)
        return knob, f"{knob} {producers.count} -> {count}{pool}"
    noun = "worker process" if kind.processes else "thread"
    plural = ("es" if kind.processes else "s") if count > 1 else ""
    ahead = "" if kind.processes else ", ahead of the step"
    workers = f" (num_workers={count})" if signals.from_data_loader(evidence) else ""
    return knob, f"make the batches in {count} {noun}{plural}{ahead}{workers}"


def _pool(facts: Facts, option: str, *, count: int) -> str:
    """Return the size of a thread pool that the change needs, if any.

    Python that blocks occupies a thread of a pool that has one thread for each core, however many
    calls are requested.
    """
    return f" and {option}={count}" if count > facts.evidence.machine.cores else ""
