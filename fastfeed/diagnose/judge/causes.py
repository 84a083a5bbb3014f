"""From evidence to causes: what the lost time was lost to, ranked.

The thresholds are those that separated the classes in measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastfeed.diagnose.diagnosis import Cause
from fastfeed.diagnose.evidence import (
    DISK,
    FRAMEWORK,
    LOCK_PYTHON,
    RUNNABLE,
    Evidence,
    Task,
)
from fastfeed.diagnose.judge import sentences, signals
from fastfeed.diagnose.judge.ceiling import MIN_FREE_STEPS, free_steps
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.diagnose.judge.overhead import between_steps, host_share, in_host_lines
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.model.workload import INPUT_BOUND
from fastfeed.probes.machine_log import SATURATED

HEAVY_TAIL = 0.8  # share of the waiting in a tenth of the steps
# Share of the time from which a loss that is no wait for input outranks a step with nearly all of
# the time.
MIN_OUTRANKING = 0.1
# Share of the time from which a measured loss outranks the step, or what only looks like overhead.
CERTAIN_LOSS = 0.25
MIN_INTERVALS = 3  # intervals between pauses, and
REGULAR_SPREAD = 0.25  # their relative spread, that are no coincidence
IDLE_SHARE = 0.3  # share of the time: producers that wait that long for room could produce more


@dataclass(frozen=True)
class TimeLoss:
    """Shares (0 to 1) of the lost time by its reason, for any kind of producers."""

    steady: float  # waits that are the same for most steps
    tail: float  # waits of a few steps
    boundary: float  # at the start of epochs
    pause: float
    host: float
    lock: float  # the step itself waits for the interpreter lock
    converted: float  # the loop's thread processes a batch before its step
    copies: bool  # True if this processing consists of conversions and copies
    queued: float  # the step itself waits for a core
    slowdown: float  # the step takes longer than in an experiment with idle producers
    retouched: float  # the step touches memory again that it need not have returned


def causes_of(
    evidence: Evidence, table: StepTable, *, producers: ProducerProfile | None
) -> tuple[Cause, ...]:
    """Return the causes, the one with the largest share first; none if nothing is known."""
    if not len(table.period):
        return ()
    loss = time_loss_of(evidence, table, producers=producers)
    found = [
        *_on_the_time_axis(loss, table, producers=producers),
        *_of_the_step(evidence, loss, producers=producers),
    ]
    if loss.steady >= signals.MIN_SHARE and producers is not None:
        found = [*_of_input(evidence, loss, producers=producers), *found]
    found = _strongest_of_each(found)
    lost = 1.0 - loss.steady - loss.tail - loss.boundary - loss.pause
    bound = Cause("step.bound", max(0.0, lost - loss.host), sentences.step(table))
    if loss.host >= signals.MIN_SHARE:
        found.append(Cause("step.host", loss.host, sentences.host(evidence, table)))
    # The parts of a step are inferred, its lack of input is measured.
    inferred = table.starvation >= CERTAIN_LOSS and loss.host > between_steps(evidence, table)
    found.sort(key=lambda cause: (inferred and cause.code == "step.host", -cause.share))
    starved = table.starvation >= INPUT_BOUND
    outranked = loss.host > bound.share or in_host_lines(evidence) >= CERTAIN_LOSS
    for cause in found:
        counts = cause.share >= MIN_OUTRANKING or (starved and cause.code.startswith("input."))
        outranked |= counts and cause.code != "step.host"
    return tuple(found) if outranked else (bound, *found)


def _on_the_time_axis(
    loss: TimeLoss, table: StepTable, *, producers: ProducerProfile | None
) -> list[Cause]:
    """Return the causes that follow from when the time is lost."""
    found = []
    if loss.tail >= signals.MIN_SHARE:
        found.append(Cause("input.straggler", loss.tail, sentences.straggling(table, producers)))
    if loss.boundary >= signals.MIN_SHARE:
        found.append(Cause("input.epoch_gap", loss.boundary, sentences.gaps(table)))
    if loss.pause >= signals.MIN_SHARE:
        found.append(Cause("pause.periodic", loss.pause, sentences.pauses(table)))
    return found


def _of_the_step(
    evidence: Evidence, loss: TimeLoss, *, producers: ProducerProfile | None
) -> list[Cause]:
    """Return the causes that slow the step itself.

    These are other processes on the cores, and producers that hold the lock or use the cores.
    """
    found = []
    threads = producers if producers is not None and producers.kind == "threads" else None
    held = threads is not None and threads.python >= threads.native
    lock = max(loss.lock, loss.slowdown) if held else loss.lock
    slowed = loss.queued if held else max(loss.queued, loss.slowdown)
    if loss.queued >= signals.MIN_SHARE and signals.noisy(evidence):
        found.append(Cause("external.noise", loss.queued, sentences.noise(evidence)))
    elif slowed >= signals.MIN_SHARE and producers is not None and producers.kind != "trainer":
        if loss.slowdown > loss.queued and producers.copies >= signals.COPYING_SHARE:
            found.append(Cause("input.copy", slowed, sentences.copies(evidence, producers)))
        else:
            crowded = signals.oversubscribed(evidence, producers)
            code = "input.oversubscribed" if crowded else "input.cpu"
            found.append(Cause(code, slowed, sentences.cores(evidence, producers)))
    if loss.converted >= signals.MIN_SHARE:
        code = "input.copy" if loss.copies else "input.serial"
        found.append(Cause(code, loss.converted, sentences.converted(evidence, loss.converted)))
    if loss.retouched >= signals.MIN_RETOUCHED:
        found.append(Cause("input.copy", loss.retouched, sentences.retouched(evidence)))
    if lock >= signals.MIN_SHARE and threads is not None:
        found.append(Cause("input.gil", lock, sentences.lock(evidence, threads)))
    return found


def _strongest_of_each(found: list[Cause]) -> list[Cause]:
    """Return one cause for each code, with the sum of its shares and the first one's evidence.

    The same cause may lose time in waits and in slower steps.
    """
    totals: dict[str, Cause] = {}
    for cause in found:
        if cause.code in totals:
            one = totals[cause.code]
            totals[cause.code] = Cause(cause.code, min(1.0, one.share + cause.share), one.evidence)
        else:
            totals[cause.code] = cause
    return list(totals.values())


def time_loss_of(
    evidence: Evidence, table: StepTable, *, producers: ProducerProfile | None
) -> TimeLoss:
    """Return the lost time by its reason."""
    wait = table.share(table.wait)
    tail = _tail(table, producers)
    trainer = evidence.trainer
    running = max(0.0, 1.0 - table.waited)
    lock = (
        min(running, trainer.share(LOCK_PYTHON))
        if trainer and signals.lock_contended(evidence)
        else 0.0
    )
    queued = _queued(evidence, trainer, running=running)
    # If threads compete for the lock, or other processes for the cores, a step with an unnamed
    # pause is one that lost.
    fought = lock >= signals.MIN_SHARE
    noisy = queued >= signals.MIN_SHARE and signals.noisy(evidence)
    ousted = noisy and not fought and not _at_equal_intervals(table)
    unnamed = table.unnamed_s / max(1e-9, table.seconds)
    unnamed = min(unnamed, table.share(table.pause)) if fought or ousted else 0.0
    waits = 1.0 - running >= signals.MIN_SHARE
    _, copying = signals.preparation(evidence, table.waited)
    # If steps wait, the wait exceeds what this memory costs them, and the same change removes both.
    retouched = 0.0 if waits else signals.retouched_share(evidence, waits=False) * running
    return TimeLoss(
        steady=wait - tail,
        tail=tail,
        boundary=table.share(table.boundary),
        pause=table.share(table.pause) - unnamed,
        host=host_share(evidence, table, trainer=trainer),
        lock=max(lock, unnamed) if fought else lock,
        converted=table.share(table.converted),
        copies=signals.conversion_share(evidence) >= signals.MIN_SHARE
        or copying >= signals.COPYING_SHARE,
        queued=max(queued, unnamed) if ousted else queued,
        slowdown=0.0 if fought or waits else _slowdown(evidence, table, producers=producers),
        retouched=retouched,
    )


def _at_equal_intervals(table: StepTable) -> bool:
    """Return True if the pauses come at equal intervals."""
    between = np.diff([start_s for start_s, _, _ in table.pauses])
    if len(between) < MIN_INTERVALS:
        return False
    return float(np.std(between)) <= REGULAR_SPREAD * float(np.mean(between))


def _queued(evidence: Evidence, trainer: Task | None, *, running: float) -> float:
    """Return the share of the time in which the step itself waits for a core.

    Waits while the loop's thread makes its input do not count.
    """
    if trainer is None or not trainer.wall_s:
        return 0.0
    made = sum(part.share_in(RUNNABLE) for part in evidence.parts_of("input"))
    pools = evidence.tasks_of(FRAMEWORK)
    cpu_s, queued_s = sum(task.cpu_s for task in pools), sum(task.queued_s for task in pools)
    inside = 0.0  # waits of its native threads for a core
    if signals.noisy(evidence) and cpu_s:
        inside = running * queued_s / (queued_s + cpu_s) * cpu_s / (cpu_s + trainer.cpu_s)
    return min(running, max(inside, trainer.queued_s / trainer.wall_s - made))


def contention_of(
    evidence: Evidence, loss: TimeLoss, *, producers: ProducerProfile | None
) -> float:
    """Return the part of the step's waits for a core that is due to the script's own producers."""
    machine = evidence.machine
    if producers is None or producers.kind == "trainer" or not machine.own_cpu:
        return 0.0
    return max(loss.slowdown, loss.queued * machine.own_cpu / (machine.own_cpu + machine.other_cpu))


def _slowdown(evidence: Evidence, table: StepTable, *, producers: ProducerProfile | None) -> float:
    """Return the share of the time that steps without waits lose to producers beside them.

    They share the cores, the caches and the memory. The slowest free steps must be faster, too.
    """
    if producers is None or producers.kind == "trainer" or signals.noisy(evidence):
        return 0.0
    free = free_steps(evidence, converted_s=float(np.median(table.converted)))
    usual_s = float(np.median(table.inside))
    if len(free) < MIN_FREE_STEPS or np.quantile(free, 0.75) >= usual_s:
        return 0.0
    return (usual_s - float(np.median(free))) * len(table.period) / table.seconds


def _tail(table: StepTable, producers: ProducerProfile | None) -> float:
    """Return the share of waits, if few steps have them and batches are made ahead; else 0.

    A producer's tail alone is no worse than its mean, and producers with time to spare would be
    fast enough.
    """
    if producers is None or producers.kind == "trainer" or not len(table.wait):
        return 0.0
    total = float(table.wait.sum())
    most = np.sort(table.wait)[::-1][: max(1, len(table.wait) // 10)]
    heavy = total > 0 and float(most.sum()) >= HEAVY_TAIL * total
    # While the loop waits a producer works, which may be all that was sampled of them.
    idle = not producers.known or 1 - producers.active >= IDLE_SHARE * (1 - table.share(table.wait))
    return table.share(table.wait) if heavy and idle else 0.0


def _of_input(evidence: Evidence, loss: TimeLoss, *, producers: ProducerProfile) -> list[Cause]:
    """Return the causes of steady waits: what the producers spend their time on."""
    code, texts = _bottleneck(evidence, producers)
    if producers.kind != "trainer":
        found = [Cause(code, loss.steady, texts)] if code else []
        if code == "external.noise":  # and the cause that would be left without the noise
            under, texts = _bottleneck(evidence, producers, alone=True)
            share = loss.steady * max(0.01, 1 - producers.share(RUNNABLE))
            found.append(Cause(under, share, texts))
        return found
    found = [Cause("input.serial", loss.steady, sentences.serial(producers, loss.steady))]
    if code:
        found.append(Cause(code, loss.steady * _explained(code, producers), texts))
    return found


def _bottleneck(
    evidence: Evidence, producers: ProducerProfile, *, alone: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return the code of what slows the producers and its evidence; "" if nothing is known of them.

    With `alone`, noise of other processes does not count.
    """
    if not producers.known:
        return "", ()
    processes = producers.kind == "processes"
    # Each process has a lock of its own: if processes fill the cores, cores are missing, no lock.
    full = processes and evidence.machine.own_cpu >= SATURATED * evidence.machine.cores
    pickling = signals.pickling_share(evidence, producers) >= signals.PICKLING_SHARE
    handover = signals.handover_share(evidence, producers) >= signals.HANDOVER_SHARE
    outnumbered = processes and not alone and signals.outnumbered(evidence)
    crowded_out = not alone and signals.crowded_out(evidence, producers)
    python = producers.python >= max(producers.native, producers.waiting) and not full
    waiting = producers.native + full * producers.python < producers.waiting
    checks: tuple[tuple[bool, str, Callable[[Evidence, ProducerProfile], tuple[str, ...]]], ...] = (
        (pickling, "input.ipc", sentences.ipc),
        (outnumbered, "external.noise", sentences.noise_beside),
        (handover, "input.ipc", sentences.ipc),
        (crowded_out, "external.noise", sentences.noise_beside),
        (signals.waits_for_disk(evidence, producers), "input.disk", sentences.disks),
        (producers.copies >= signals.COPYING_SHARE, "input.copy", sentences.copies),
        (python, "input.gil", sentences.lock),
        (signals.serialised(evidence, producers), "input.gil", sentences.lock),
        (waiting, "input.latency", sentences.latency),
        (signals.oversubscribed(evidence, producers), "input.oversubscribed", sentences.cores),
    )
    for holds, code, show in checks:
        if holds:
            return code, show(evidence, producers)
    return "input.cpu", sentences.cores(evidence, producers)


def _explained(code: str, producers: ProducerProfile) -> float:
    """Return the part of a training thread's work that a code explains.

    It is always less than all of it, so that the code ranks behind input.serial.
    """
    parts = {
        "input.latency": producers.waiting,
        "input.gil": producers.python,
        "input.disk": producers.share(DISK),
        "input.copy": producers.copies,
        "input.ipc": producers.pickling,
    }
    return min(0.99, parts.get(code, producers.native))
