"""The observed feed as the workload of a simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fastfeed.diagnose.diagnosis import MAX_RATE_ERROR, Ceiling
from fastfeed.diagnose.evidence import (
    DISK,
    FRAMEWORK,
    LOCK_PYTHON,
    PRODUCER,
    PYTHON,
    RUNNABLE,
    TRAINER,
    Evidence,
)
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.observed_feed import FeedModel
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.diagnose.judge.step_ledger import Ledger
from fastfeed.model.prediction import MAX_FITTED
from fastfeed.model.simulate import crowding
from fastfeed.model.workload import (
    BATCH_PARTS,
    INPUT_BOUND,
    LIMIT_CORES,
    LIMIT_DISK,
    LIMIT_LOCK,
    LIMIT_PRODUCERS,
    STEP_PARTS,
    Floats,
    Producers,
    Workload,
    demands,
    rows_of,
    slowness,
)
from fastfeed.probes.machine_log import MIN_OTHER_CORES, Machine

WASTEFUL_RATIO = 4.0  # bytes read / bytes of a batch from which much is read in vain
CROWDED_PER_CORE = 1.5  # runnable threads for each core from which pools lose time to each other
# Steps of an experiment. The first of each burst does not count: it still feels the wait before it.
MIN_FREE_STEPS = 4
# Times that producers may slow a step down beside its smaller share of the cores. 1.6 was measured;
# calls that only enqueue a step are tens of times as fast as the step.
MAX_SLOWED = 3.0
HEAVY_TAIL = 0.8  # share of the waiting in a tenth of the steps


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
    def fought(self) -> bool:
        """True if the loop's thread waits for the interpreter lock, or for a core that producers or
        other processes use: slow steps and pauses without a name are what they lose by it."""
        trainer, foreign = self.evidence.trainer, foreign_share(self.evidence.machine)
        if trainer is None:
            return False
        queued = trainer.queued_s / max(1e-9, trainer.wall_s)
        if self.beside is None:
            queued *= foreign
        contended = self.beside is not None and signals.lock_contended(self.evidence)
        return max(queued, contended * trainer.share(LOCK_PYTHON)) >= INPUT_BOUND

    @property
    def retouched(self) -> float:
        """Share of a step in which it touches memory again that from_generator had it return."""
        return signals.retouched_share(self.evidence, waits=self.ledger.waited >= INPUT_BOUND)

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

    @property
    def tail(self) -> bool:
        """True if few steps have nearly all waits, although batches are made ahead."""
        wait = self.ledger.wait
        if self.beside is None or not float(wait.sum()):
            return False
        most = np.sort(wait)[::-1][: max(1, len(wait) // 10)]
        return float(most.sum()) >= HEAVY_TAIL * float(wait.sum())

    @property
    def ceiling(self) -> Ceiling:
        """Seconds of a step with its input at hand."""
        free, left = self._free_steps(), 1 - self.retouched
        middle = float(np.median(self.ledger.inside))
        medians = [float(np.median(part.inside)) for part in self.ledger.blocks()]
        low, high, how = min(medians), max(medians), "the time of the steps without their waits"
        measured = len(free) >= MIN_FREE_STEPS and self.can_be_pure(float(np.median(free)))
        if not measured and not self.can_be_pure(middle):
            middle = float(self.ledger.inside.mean())  # most steps only enqueue work
            high = max(high, middle)
        if measured:
            # what lies beside the call of a step may suffer from producers as well
            each = middle / max(1e-9, float(np.median(self.ledger.inside + self.ledger.host)))
            low, middle, high = (each * float(np.quantile(free, one)) for one in (0.25, 0.5, 0.75))
            # A producer that holds the lock goes on for a while after the others have stopped.
            waits = self.fought or self.ledger.waited >= INPUT_BOUND
            middle = low if signals.lock_contended(self.evidence) and waits else middle
            how = f"measured: {len(free)} steps of the running job had their batches at hand"
        if left < 1:
            how += ", without memory that from_generator makes it return and touch again"
        return Ceiling(left * middle, left * low, high, experiment=measured, how=how)

    def can_be_pure(self, step_s: float) -> bool:
        """Return True if producers may slow such steps down to the observed ones. Shorter ones only
        enqueue their work, for which later ones wait."""
        machine = self.evidence.machine
        slower = MAX_SLOWED * max(1.0, machine.runnable / machine.cores)
        held = signals.lock_contended(self.evidence)
        return step_s > 0 and (held or step_s * slower >= float(self.ledger.inside.mean()))

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


def feed_of(observed: Observed) -> FeedModel:
    """Return the feed with costs and producers as observed."""
    evidence, ledger, producers = observed.evidence, observed.ledger, observed.beside
    told_apart = any(task.computes for task in evidence.tasks)
    native = producers is not None and producers.kind == "native"
    if native and not told_apart and ledger.starvation < INPUT_BOUND:
        # what the framework's threads compute is the step
        observed, producers = replace(observed, producers=None), None
    count = producers.count if producers is not None else 0
    in_turn = evidence.loop is not None and evidence.loop.kind == "torch"
    depth = _depth(evidence, count, in_turn=in_turn)
    starts = [mark.start_s for mark in evidence.marks if mark.kind == "epoch"]
    epochs = sum(ledger.begin[0] < start_s <= ledger.begin[-1] for start_s in starts)
    gaps_s = float(ledger.start.sum())
    steps, threads = _steps(observed)
    batches = _batches(observed)
    workload = Workload(
        _with_tail(batches, ledger, depth=depth) if observed.tail else batches,
        steps,
        max(1, evidence.machine.cores),
        depth=depth,
        ordered=observed.tail or in_turn,
        step_threads=threads,
        step_spins="torch" in evidence.pools,
        other_cpu=_wanted_by_others(evidence),
        # a DataLoader makes no batch of the next epoch ahead, whatever its workers
        epoch_batches=max(1, len(ledger) // (epochs + 1)) if gaps_s or in_turn else 0,
        epoch_start_s=gaps_s / max(1, epochs),
    )
    processes = producers is not None and producers.kind == "processes"
    feed = FeedModel(
        workload,
        Producers(1, count) if processes else Producers(count),
        converted_s=float(ledger.converted.mean()),
        retouched=observed.retouched,
        tail=observed.tail,
    )
    if observed.producers is not None:
        pickling = min(1.0, signals.pickling_share(evidence, observed.producers))
        copying = min(1 - pickling, observed.producers.copies)
        reading = max(copying * observed.producers.reading, observed.wasted * (1 - pickling))
        copying = min(copying * (1 - observed.producers.reading), 1 - pickling - reading)
        feed = replace(feed, pickling=pickling, copying=copying, reading=reading)
    # Nothing is made between epochs.
    return _reconciled(_alone(feed, observed), len(ledger) / max(1e-9, ledger.seconds - gaps_s))


def _depth(evidence: Evidence, count: int, *, in_turn: bool) -> int:
    """Return the batches that are made ahead, beside those in the producers' hands."""
    buffer = evidence.loop.buffer if evidence.loop is not None else None
    return 2 * count if buffer is None else max(0, buffer - count * in_turn)


def _steps(observed: Observed) -> tuple[Floats, float]:
    """Return rows of steps with their input at hand, and the threads that compute one."""
    evidence, ledger = observed.evidence, observed.ledger
    median_s = float(np.median(ledger.inside))
    host = ledger.host
    pure = observed.ceiling.step_s / max(1e-9, median_s * (1 - observed.retouched))
    # Slow steps stay slow with any input, unless they lose their time to producers.
    lost = pure < 1 - INPUT_BOUND or (observed.fought and observed.can_be_pure(median_s))
    inside = np.full(len(ledger), median_s) if lost else ledger.inside
    inside, host = inside * min(1.0, pure), host * min(1.0, pure)
    mean_s, host_s = max(1e-9, float(inside.mean())), float(host.mean())
    python_s, cpu_s, queued_s = _work_of_step(observed)
    lock_s = min(mean_s, max(0.0, python_s - host_s))
    native_s = max(0.0, cpu_s - lock_s - host_s)
    # The simulation adds what a step loses to other processes, which get as much as it does: it is
    # left out here.
    foreign_s = queued_s * foreign_share(evidence.machine)
    ready_s = native_s + min(foreign_s, native_s * evidence.machine.other_cpu)
    threads = max(1.0, min(ready_s / max(1e-9, mean_s - lock_s), evidence.machine.cores))
    scale = min(1.0, threads * (mean_s - lock_s) / max(1e-9, ready_s))
    off_s = mean_s - lock_s - scale * ready_s / threads
    shares = np.array([off_s, scale * native_s, lock_s]) / mean_s
    accelerator, native, lock = np.outer(np.maximum(shares, 0.0), inside)
    lines = evidence.parts_of("host")
    share = sum(part.share for part in lines)
    held = sum(part.share_in(PYTHON) for part in lines) / share if share else 1.0
    costs = {"accelerator": accelerator + (1 - held) * host, "native": native, "lock": lock}
    return rows_of(STEP_PARTS, **costs, host=held * host, pause=ledger.pause), threads


def _wanted_by_others(evidence: Evidence) -> float:
    """Return the cores that other processes want, of which only is known what they got.

    All threads that want one of n cores get the same share. If the script's own r threads get only
    the share 1 - q of what they want, there are n / (1 - q) - r others.
    """
    machine = evidence.machine
    got = machine.other_cpu + machine.steal
    fits = machine.runnable + got <= machine.cores
    # The difference of two large numbers is no measure.
    crowded = machine.runnable > CROWDED_PER_CORE * machine.cores
    if fits or crowded or got < MIN_OTHER_CORES:
        return got
    cpu_s = sum(task.cpu_s for task in evidence.tasks)
    queued_s = sum(task.queued_s for task in evidence.tasks)
    wanted = machine.cores * (1 + queued_s / max(1e-9, cpu_s)) - machine.runnable
    return min(max(got, wanted), MAX_FITTED * machine.cores)


def foreign_share(machine: Machine) -> float:
    """Return the share of the script's waits for a core that other processes cause; none if there
    are cores for both.

    Without them it would wait with all threads that are more than there are cores.
    """
    waiting = machine.runnable - machine.own_cpu
    if waiting <= 0 or machine.runnable + machine.other_cpu <= machine.cores:
        return 0.0
    return 1 - min(1.0, max(0.0, machine.runnable - machine.cores) / waiting)


def _work_of_step(observed: Observed) -> tuple[float, float, float]:
    """Return seconds of bytecode, of CPU, and without a core for a step, without batches made on
    its thread."""
    evidence, producers, steps = observed.evidence, observed.producers, len(observed.ledger)
    trainer, kind = evidence.trainer, producers.kind if producers is not None else ""
    roles = (TRAINER,) if kind == "native" else (TRAINER, FRAMEWORK)
    tasks = [task for task in evidence.tasks if task.role in roles or task.computes]
    cpu_s = sum(task.cpu_s for task in tasks)
    if producers is not None and kind == "trainer":
        cpu_s -= producers.cpu_s
    queued_s = sum(task.queued_s for task in tasks)
    python = trainer.share(PYTHON) if trainer is not None else 0.0
    python -= sum(part.share_in(PYTHON) for part in evidence.parts_of("input"))
    each = observed.counted / steps
    return (
        python * observed.ledger.seconds / steps,
        max(0.0, cpu_s) * each,
        max(0.0, queued_s) * each,
    )


def _batches(observed: Observed) -> Floats:
    """Return rows of batches: what each costs its producer, and the training thread."""
    evidence, ledger, producers = observed.evidence, observed.ledger, observed.producers
    steps, waited_s = len(ledger), float(ledger.wait.mean())
    converted_s = float(ledger.converted.mean())
    if producers is None or not producers.known:
        return rows_of(BATCH_PARTS, wait=ledger.wait, handover=converted_s)
    working = producers.python + producers.native
    alone = max(1e-9, 1 - producers.share(LOCK_PYTHON, RUNNABLE))
    shape = np.ones(1)
    if producers.kind == "trainer":
        batch_s, shape = waited_s, ledger.wait / max(1e-9, waited_s)
    else:
        batch_s = producers.count * producers.active * alone * ledger.seconds / steps
    cpu_s = producers.cpu_s * observed.counted / steps if producers.cpu_s else batch_s * working
    # The CPU time of threads is counted, all else is sampled; a process may have pools of its own.
    # Of the framework's threads only the CPU time is known: several may seem to work as one.
    if producers.kind in ("threads", "native"):
        batch_s = max(batch_s, cpu_s)
    cpu_s = min(batch_s, cpu_s)
    lock_s = cpu_s * producers.python / working if working else 0.0
    off_s = batch_s - cpu_s
    if signals.serialised(evidence, producers):  # the rest is waiting for the lock
        off_s, lock_s = 0.0, cpu_s
    if producers.away:  # on cores of their own
        off_s, cpu_s, lock_s = batch_s, 0.0, 0.0
    off = producers.waiting + producers.share(DISK)
    disk_s = off_s * producers.share(DISK) / off if off else 0.0
    costs = {
        "wait": max(0.0, off_s - disk_s),
        "disk": disk_s,
        "lock": lock_s,
        "native": max(0.0, cpu_s - lock_s),
    }
    taken_s = signals.handover_share(evidence, producers) * waited_s
    scaled = {part: seconds * shape for part, seconds in costs.items()}
    return rows_of(BATCH_PARTS, **scaled, handover=converted_s + taken_s)


def _with_tail(batches: Floats, ledger: Ledger, *, depth: int) -> Floats:
    """Return batches of which a few are slow: the step uses up the buffer, and then waits."""
    usual_s, step_s = float(np.median(ledger.wait)), float(np.median(ledger.inside))
    late_s = np.where(ledger.wait > 2 * usual_s, ledger.wait + depth * step_s, 0.0)
    slow = rows_of(BATCH_PARTS, wait=late_s)
    found: Floats = np.maximum(batches - slow.mean(axis=0), 0.0) + slow
    return found


def _alone(feed: FeedModel, observed: Observed) -> FeedModel:
    """Return the feed with what batches cost alone: they were measured beside other work."""
    evidence, machine = observed.evidence, observed.evidence.machine
    native = 1 / slowness(feed.workload, machine.own_cpu)
    threads = [task.threads - 1 for task in evidence.tasks_of(PRODUCER)]
    pool = max([1, *evidence.pools.values(), *threads])
    slower = crowding(machine.runnable / feed.workload.cores)
    crowded = machine.runnable >= CROWDED_PER_CORE * machine.cores
    if observed.beside is not None and pool > 1 and crowded:
        native /= slower
        feed = replace(feed.with_(pool=float(pool)), crowded=1 - 1 / slower)
    return feed.batch(native=native)


def _reconciled(feed: FeedModel, rate: float) -> FeedModel:
    """Return the feed with costs that allow the observed steps/s.

    No resource was busy for more than all of the time: what counters and samples say beyond that is
    their error.
    """
    for resource, parts in (
        (LIMIT_LOCK, ("lock",)),
        (LIMIT_CORES, ("lock", "native")),
        (LIMIT_PRODUCERS, BATCH_PARTS),
        (LIMIT_DISK, ("disk",)),
    ):
        use = rate * demands(feed.workload, feed.producers)[resource]
        if use > 1:
            feed = feed.batch(**dict.fromkeys(parts, 1 / use))
        if use > 1 + MAX_RATE_ERROR:
            feed = replace(feed, overcounted=(*feed.overcounted, resource))
    return feed
