"""Recommended number of producers: threads or worker processes, by the model of a feed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastfeed.diagnose.diagnosis import Cause, Recommendation
from fastfeed.diagnose.evidence import LOCK
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.facts import Facts, profile_of
from fastfeed.diagnose.judge.gains import MIN_GAIN, UNSURE_SPREAD, recommend, speedup_without
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.model.prediction import SPREAD_ALONE, Prediction, Producers, Profile, predict
from fastfeed.probes.machine_log import SATURATED

TRIED_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
NEAR_BEST = 0.95  # share of the best rate: more producers are not worth it
# CPU time of a batch if threads compete for the interpreter lock: 1.07 to 1.27 times were measured.
CONTENTION_COST = 1.15
# Wait of a step for a ready batch of a DataLoader's worker: 1.4 to 3.7 ms were measured.
LOADER_HANDOVER_S = 2.5e-3


@dataclass(frozen=True)
class _Change:
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

    def of(self, count: int) -> Producers:
        """Return that many producers of this kind."""
        return Producers(1, count) if self.processes else Producers(count)


def more_producers(cause: Cause, facts: Facts) -> list[Recommendation]:
    """Return the number of threads, or of processes if the lock is held, that gains something."""
    prepared = facts.table.share(facts.table.converted)
    waited = facts.table.share(facts.table.wait)
    if cause.code == "input.serial" and prepared >= max(signals.MIN_SHARE, waited):
        change = "prepare batches in the producers, ahead of the step, not on the training thread"
        speedup = min(speedup_without(prepared), facts.max_rate / facts.rate)
        knob = ("threads", str(facts.evidence.threads))
        return [recommend(change, knob, speedup=speedup, spread=UNSURE_SPREAD)]
    change_of = _change(cause, facts)
    return _best_count(facts, change_of) if change_of is not None else []


def _change(cause: Cause, facts: Facts) -> _Change | None:
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
    return _Change(producers, processes=processes, held=held, loader=loader)


def _best_count(facts: Facts, change: _Change) -> list[Recommendation]:
    """Return the smallest number near the best rate, if it gains something."""
    producers, rate = change.producers, facts.rate
    profile = _profile(facts, change)
    most = TRIED_COUNTS[-1]
    if change.processes:
        most = profile.cores if change.held else 4 * profile.cores
    predicted = {n: predict(profile, change.of(n)) for n in TRIED_COUNTS if n <= most}
    if change.same and signals.noisy(facts.evidence):
        # The model gives all cores to the script. Its rate for the present number of producers
        # shows what other processes take, which more producers do not gain.
        rate = max(rate, predict(profile, change.of(producers.count)).rate)
    best = max(one.rate for one in predicted.values())
    count = next(n for n, one in predicted.items() if one.rate >= NEAR_BEST * best)
    speedup = predicted[count].rate / rate
    if predicted[count].rate < MIN_GAIN * rate or (change.same and count <= producers.count):
        return []
    knob, text = _described(facts, change, count=count)
    why = _reason(change, _limits(predicted, count, rate=rate))
    return [recommend(text, (knob, str(count)), speedup=speedup, spread=SPREAD_ALONE, why=why)]


def _profile(facts: Facts, change: _Change) -> Profile:
    """Return the cost of a batch and a step with the recommended kind of producers."""
    several = change.producers.count > 1
    profile = profile_of(facts, kept=change.same and several)
    if change.held and change.producers.kind == "threads" and several:
        parts = (profile.batch_s, profile.cpu_s, profile.gil_s)
        batch_s, cpu_s, gil_s = (part / CONTENTION_COST for part in parts)
        profile = replace(profile, batch_s=batch_s, cpu_s=cpu_s, gil_s=gil_s)
    if change.loader:
        profile = replace(profile, step_s=profile.step_s + LOADER_HANDOVER_S)
    return profile


def _reason(change: _Change, limits: str) -> str:
    """Return why that number, and why processes if threads cannot help."""
    producers = change.producers
    if change.held and producers.kind != "processes":
        limits = (
            f"threads cannot help: {producers.python:.0%} of the work holds the interpreter lock "
            f"or waits for it; {limits}"
        )
    if producers.share(LOCK) >= signals.OWN_LOCK_SHARE:
        limits += "; this holds only if the producers stop waiting for a lock of their own"
    return limits


def _limits(predicted: dict[int, Prediction], count: int, *, rate: float) -> str:
    """Return the gain of fewer producers, and the limit with that number."""
    limit = f"with {count} the limit is {predicted[count].limit}, and more gain nothing"
    fewer = [n for n in predicted if n < count and predicted[n].rate >= MIN_GAIN * rate]
    if not fewer:
        return limit
    give = "gives" if fewer[-1] == 1 else "give"
    return f"{fewer[-1]} {give} {predicted[fewer[-1]].rate / rate:.1f}x, {limit}"


def _described(facts: Facts, change: _Change, *, count: int) -> tuple[str, str]:
    """Return the knob for that number of producers, and the change in words."""
    producers, evidence = change.producers, facts.evidence
    knob = "processes" if change.processes else "threads"
    if producers.kind == "native":
        parallel = "let tf.data work in parallel: num_parallel_calls=tf.data.AUTOTUNE, and prefetch"
        return "num_parallel_calls", parallel
    mapped = producers.in_framework or signals.mapped_by_tf_data(evidence)
    if producers.kind == "threads" and not change.processes and mapped:
        pool = _pool(facts, "options.threading.private_threadpool_size", count=count)
        return "num_parallel_calls", f"num_parallel_calls {producers.count} -> {count}{pool}"
    if not change.ahead or producers.kind == "processes":
        pool = ""
        if signals.produced_in_graph(evidence) and not change.processes:
            pool = _pool(facts, "ConfigProto.inter_op_parallelism_threads", count=count)
        return knob, f"{knob} {producers.count} -> {count}{pool}"
    noun = "worker process" if change.processes else "thread"
    plural = ("es" if change.processes else "s") if count > 1 else ""
    ahead = "" if change.processes else ", ahead of the step"
    workers = f" (num_workers={count})" if signals.from_data_loader(evidence) else ""
    return knob, f"make the batches in {count} {noun}{plural}{ahead}{workers}"


def _pool(facts: Facts, option: str, *, count: int) -> str:
    """Return the size of a thread pool that the change needs, if any.

    Python that blocks occupies a thread of a pool that has one thread for each core, however many
    calls are requested.
    """
    return f" and {option}={count}" if count > facts.evidence.machine.cores else ""
