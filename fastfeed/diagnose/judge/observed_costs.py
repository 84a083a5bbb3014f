"""The costs of the feed as it was observed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastfeed.diagnose.diagnosis import Ceiling
from fastfeed.diagnose.evidence import (
    DISK,
    FRAMEWORK,
    LOCK_PYTHON,
    NATIVE,
    PRODUCER,
    PYTHON,
    RUNNABLE,
    TRAINER,
    Evidence,
)
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.feed_costs import FeedCosts
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.diagnose.judge.step_ledger import Ledger
from fastfeed.model.simulate import crowding
from fastfeed.model.workload import CONTENTION, INPUT_BOUND, LIMIT_STEP, Producers
from fastfeed.probes.machine_log import SATURATED, Machine

WASTEFUL_RATIO = 4.0  # bytes read / bytes of a batch from which much is read in vain
# Steps of an experiment. The first of each burst does not count: it still feels the wait before it.
MIN_FREE_STEPS = 4


@dataclass(frozen=True)
class Observed:
    """What is known of a feed: evidence, the ledger of its steps, and its producers."""

    evidence: Evidence
    ledger: Ledger
    producers: ProducerProfile | None

    @property
    def counted(self) -> float:
        """Share of the sampled time in steps that count; the rest are experiments."""
        trainer = self.evidence.trainer
        sampled_s = trainer.wall_s if trainer is not None else self.evidence.seconds
        return self.ledger.seconds / max(1e-9, sampled_s)

    @property
    def beside(self) -> ProducerProfile | None:
        """The producers that work beside the training thread; None without any."""
        found = self.producers
        return None if found is None or found.kind == "trainer" else found

    @property
    def locked_s(self) -> float:
        """Seconds that the loop's thread waits for the interpreter lock in a step."""
        trainer = self.evidence.trainer
        if trainer is None or not signals.lock_contended(self.evidence):
            return 0.0
        made = sum(part.share_in(LOCK_PYTHON) for part in self.evidence.parts_of("input"))
        share = max(0.0, trainer.share(LOCK_PYTHON) - made)
        return min(share * self.ledger.seconds, float(self.ledger.inside.sum())) / len(self.ledger)

    @property
    def wasted(self) -> float:
        """Share of the producers' work for bytes that are read from disks and not used."""
        producers, used = self.producers, signals.batch_nbytes(self.evidence)
        rate = len(self.ledger) / self.ledger.seconds
        read = self.evidence.machine.disk_read_nbytes_s / rate
        if not used or read <= WASTEFUL_RATIO * used or producers is None:
            return 0.0
        # The reading function also handles these bytes: into the page cache, out of it, copied.
        return max(producers.share(DISK), producers.function_share) * (1 - used / read)

    def slopes(self, core: float, lock: float) -> tuple[float, float]:
        """Return the share of a step by which another busy core, and a held lock, prolong it: as
        measured, or these."""
        found = {"cores": core, "lock": lock}
        for one in reversed(self.evidence.interventions):  # the least dose comes first
            if one.effect is not None:
                found[one.kind] = max(0.0, one.effect / one.dose)
        return found["cores"], found["lock"]

    @property
    def tail(self) -> bool:
        """True if few steps have nearly all waits, although batches are made ahead."""
        wait = self.ledger.wait
        if self.beside is None or not float(wait.sum()):
            return False
        most = np.sort(wait)[::-1][: max(1, len(wait) // 10)]
        return float(most.sum()) >= signals.MOST * float(wait.sum())

    @property
    def ceiling(self) -> Ceiling:
        """Seconds of a step with its input at hand."""
        free, middle = self._free_steps(), float(np.median(self.ledger.inside))
        if len(free) < MIN_FREE_STEPS or not any(free):
            medians = [float(np.median(part.inside)) for part in self.ledger.blocks()]
            how = "the time of the steps without their waits"
            return Ceiling(middle, min(medians), max(medians), experiment=False, how=how)
        # what lies beside the call of a step may suffer from producers as well
        each = middle / max(1e-9, float(np.median(self.ledger.inside + self.ledger.host)))
        low, middle, high = (each * float(np.quantile(free, one)) for one in (0.25, 0.5, 0.75))
        how = f"measured: {len(free)} steps of the running job had their batches at hand"
        return Ceiling(middle, low, high, experiment=True, how=how)

    def _free_steps(self) -> list[float]:
        """Return the seconds from step to step in experiments, without waits and conversions."""
        loop = self.evidence.loop
        steps = list(loop.steps) if loop is not None else []
        waits = loop is not None and loop.waits != "none"
        less_s = float(np.median(self.ledger.converted)) + self._beside_s
        rows = zip(steps, steps[1:], steps[2:], strict=False)
        pairs = [(b, c) for a, b, c in rows if a.free and b.free]
        return [max(0.0, c.begin_s - b.begin_s - b.wait_s * waits - less_s) for b, c in pairs]

    @property
    def _beside_s(self) -> float:
        """Seconds of input that is made between two calls of a step, as in a usual step."""
        none = self.evidence.loop is not None and self.evidence.loop.waits == "none"
        return float(np.median(self.ledger.wait)) * none


def feed_of(observed: Observed, *, step_s: float) -> FeedCosts:
    """Return the feed with costs and producers as observed; `step_s`: seconds of a step with its
    input at hand, see `Observed.ceiling`."""
    evidence, ledger, producers = observed.evidence, observed.ledger, observed.beside
    native = producers is not None and producers.kind == "native"
    most_s = (1 - INPUT_BOUND) * float(ledger.inside.mean())
    faster = observed.ceiling.experiment and observed.ceiling.step_s < most_s
    if native and ledger.starvation < INPUT_BOUND and not faster:
        # what the framework's threads compute is the step
        observed, producers = replace(observed, producers=None), None
    machine, made = evidence.machine, _batch(observed)
    count = producers.count if producers is not None else 0
    processes = producers is not None and producers.kind == "processes"
    found = replace(
        _step(observed, step_s, core_s=made["lock"] + made["native"], lock_s=made["lock"]),
        **made,
        start=float(ledger.start.mean()),
        epoch=_steps_of_epoch(evidence, ledger),
        pause=float(ledger.pause.mean()),
        converted=float(ledger.converted.mean()),
        producers=Producers(1, count) if processes else Producers(count),
        cores=max(1, machine.cores),
        others=machine.other_cpu + machine.steal,
        **_shares(observed),
    )
    waits = producers is not None and producers.known and not observed.tail
    found = _reconciled(
        found, ledger, waits=waits, full=machine.own_cpu >= SATURATED * machine.cores
    )
    rest_s = max(0.0, ledger.seconds / len(ledger) - found.period)
    if observed.tail:
        return replace(found, late=rest_s)
    return replace(found, unexplained=rest_s)


def _steps_of_epoch(evidence: Evidence, ledger: Ledger) -> float:
    """Return the steps of an epoch whose batches are not made before it begins, as by a DataLoader
    whatever its workers; infinite if they are."""
    if evidence.loop is None or evidence.loop.kind != "torch":
        return float("inf")
    starts = [mark.start_s for mark in evidence.marks if mark.kind == "epoch"]
    epochs = 1 + sum(bool(ledger.begin[0] < one <= ledger.begin[-1]) for one in starts)
    return len(ledger) / epochs


def _reconciled(feed: FeedCosts, ledger: Ledger, *, waits: bool, full: bool) -> FeedCosts:
    """Return the feed with the observed time from step to step.

    If steps wait, the producers are the limit: then samples and counters give the proportions of a
    batch, and its size follows from the time between two. No resource is busy for longer than that.
    """
    steady_s = ledger.seconds / len(ledger) - feed.pause - feed.start
    waited_s = float(ledger.wait.mean()) - feed.handover
    queues = feed.queued * (1 - feed.foreign[1]) >= INPUT_BOUND * feed.batch
    waits = waits and waited_s >= INPUT_BOUND * steady_s
    work_s = steady_s * feed.cores - feed.step_cpu - feed.lock
    if waits and full and queues and work_s > feed.native > 0:  # the cores are the limit
        feed = feed.batches(native=work_s / feed.native)
        room_s = steady_s * feed.producers.count - (feed.batch - feed.queued)
        feed = replace(feed, queued=min(feed.queued, max(0.0, room_s)))
    made_s = max([0.0, *(s for name, s in feed.demands.items() if name != LIMIT_STEP)])
    if made_s and (made_s > steady_s or waits):
        feed = feed.batches(steady_s / made_s)
    return feed


def _step(observed: Observed, step_s: float, *, core_s: float, lock_s: float) -> FeedCosts:
    """Return the costs of a step with its input at hand, and what it loses beside producers whose
    batches take `core_s` on a core, of which `lock_s` with the interpreter lock."""
    ledger, alone = observed.ledger, observed.beside is None
    median_s, mean_s = float(np.median(ledger.inside)), max(1e-9, float(ledger.inside.mean()))
    if observed.ceiling.experiment:  # steps of a burst are means, too
        median_s = float(np.median([part.inside.mean() for part in ledger.blocks()]))
    pure = min(1.0, step_s / median_s) if median_s else 1.0
    # Slow steps stay slow with any input, unless they lose their time to producers.
    usual_s = max(1e-9, median_s if pure < 1 - INPUT_BOUND else mean_s)
    host_s = float(ledger.host.mean())
    python_s, cpu_s, queued_s = _work_of_step(observed)
    queued_s *= min(usual_s / max(1e-9, cpu_s + queued_s), 1.0)
    # the CPU time of pauses, of input on its thread, and of spinning threads is none of such a step
    cpu_s = min(cpu_s, observed.evidence.machine.cores * pure * (usual_s + host_s))
    away = foreign_share(observed.evidence.machine)
    by_lock, by_cores = observed.locked_s, queued_s * (1 - away)
    by_cores *= core_s / max(1e-9, core_s + cpu_s)
    if observed.ceiling.experiment:
        slower_s = max(0.0, mean_s + host_s - pure * (usual_s + host_s))
    else:  # it waits for what producers have, if there are any beside it
        slower_s = 0.0 if alone else min(by_lock + by_cores, usual_s)
        pure *= 1 - slower_s / (usual_s + host_s)
    each = CONTENTION / max(1, observed.evidence.machine.cores - 1)  # it is that of all others
    slowed = observed.slopes(each * min(1.0, cpu_s / usual_s), 1.0)
    if not alone and core_s:
        known = by_lock + by_cores
        of_lock = by_lock / known if known else lock_s / core_s
        each_s = slower_s / core_s, slower_s / max(1e-9, lock_s)
        slowed = (1 - of_lock) * each_s[0], of_lock * each_s[1] * (lock_s > 0)
    return FeedCosts(
        pure * usual_s,
        pure * host_s,
        step_lock=min(python_s, pure * (usual_s + host_s)),
        step_cpu=cpu_s,
        slowed=slowed[0],
        held=slowed[1],
        foreign=(away * queued_s / usual_s, away),
    )


def _shares(observed: Observed) -> dict[str, Any]:
    """Return the parts of a batch's work that its own knobs remove."""
    evidence, producers = observed.evidence, observed.producers
    if producers is None:
        return {}
    reading = observed.wasted
    copying = min(producers.copying, 1 - reading)
    machine, threads = evidence.machine, [t.threads - 1 for t in evidence.tasks_of(PRODUCER)]
    pool = max([1, *evidence.pools.values(), *threads])
    crowded = machine.runnable > machine.cores and pool > 1
    lost = 1 - 1 / crowding(machine.runnable / machine.cores)
    return {
        "copying": copying,
        "reading": reading,
        "crowded": lost * (crowded and observed.beside is not None),
    }


def foreign_share(machine: Machine) -> float:
    """Return the share of the script's waits for a core that other processes cause: their share of
    the work that keeps the cores busy; none if there are cores for both."""
    others = machine.other_cpu + machine.steal
    fits = machine.runnable + others <= machine.cores
    return 0.0 if fits else others / max(1e-9, others + machine.own_cpu)


def _work_of_step(observed: Observed) -> tuple[float, float, float]:
    """Return seconds of bytecode, of CPU, and without a core for a step, without batches made on
    its thread."""
    evidence, producers, steps = observed.evidence, observed.producers, len(observed.ledger)
    trainer, kind = evidence.trainer, producers.kind if producers is not None else ""
    roles = (TRAINER,) if kind == "native" else (TRAINER, FRAMEWORK)
    tasks = [task for task in evidence.tasks if task.role in roles]
    cpu_s = sum(task.cpu_s for task in tasks)
    if producers is not None and kind == "trainer":
        cpu_s -= producers.cpu_s
    queued_s = sum(task.queued_s for task in tasks)
    python = trainer.share(PYTHON) if trainer is not None else 0.0
    python -= sum(part.share_in(PYTHON) for part in evidence.parts_of("input"))
    each = observed.counted / steps
    return (
        max(0.0, python) * observed.ledger.seconds / steps,
        max(0.0, cpu_s) * each,
        max(0.0, queued_s) * each,
    )


def _batch(observed: Observed) -> dict[str, Any]:
    """Return the seconds of a batch: what it costs its producer, and the training thread."""
    evidence, ledger, producers = observed.evidence, observed.ledger, observed.producers
    steps, waited_s = len(ledger), float(ledger.wait.mean())
    if producers is None or not producers.known:
        return {"wait": waited_s, "lock": 0.0, "native": 0.0}
    python = producers.share(PYTHON)
    working = python + producers.share(NATIVE)
    alone = max(1e-9, 1 - producers.share(LOCK_PYTHON))
    if producers.kind == "trainer":
        batch_s = waited_s
    else:
        batch_s = producers.count * producers.active * alone * ledger.seconds / steps
    cpu_s = producers.cpu_s * observed.counted / steps if producers.cpu_s else batch_s * working
    # The CPU time of threads is counted, all else is sampled; a process may have pools of its own.
    # Of the framework's threads only the CPU time is known: several may seem to work as one.
    if producers.kind in ("threads", "native"):
        batch_s = max(batch_s, cpu_s)
    cpu_s = min(batch_s, cpu_s)
    lock_s = cpu_s * python / working if working else 0.0
    off_s = batch_s - cpu_s
    if signals.serialised(evidence, producers):  # the rest is waiting for the lock
        off_s, lock_s = 0.0, cpu_s
    if producers.away:  # on cores of their own
        off_s, cpu_s, lock_s = batch_s, 0.0, 0.0
    off = producers.waiting + producers.share(DISK, RUNNABLE)
    disk_s, queued_s = (off_s * producers.share(s) / off if off else 0.0 for s in (DISK, RUNNABLE))
    return {
        "wait": max(0.0, off_s - disk_s - queued_s),
        "queued": queued_s,
        "disk": disk_s,
        "lock": lock_s,
        "native": max(0.0, cpu_s - lock_s),
        "reader": min(_reader_s(evidence), ledger.seconds / steps),
        "handover": signals.handover_share(evidence, producers, waited=ledger.waited) * waited_s,
    }


def _reader_s(evidence: Evidence) -> float:
    """Return the seconds for which a batch is read from an iterator that all producers share."""
    feed = evidence.feed
    if feed is None or not feed.one_reader:
        return 0.0
    return feed.produced.read_s / max(1, feed.produced.batches)
