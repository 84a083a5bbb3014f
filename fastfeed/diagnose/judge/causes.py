"""From evidence to causes: what the lost time was lost to, ranked. Pure functions; the thresholds
are those at which the classes were separate when they were measured."""

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
    TRAINER,
    Evidence,
    Task,
)
from fastfeed.diagnose.judge import sentences as shown
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.ceiling import ENOUGH, free_steps
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.diagnose.judge.overhead import between, host_share, in_lines
from fastfeed.diagnose.judge.producer_profile import ProducerProfile

TAIL = 0.8  # of the waiting in a tenth of the steps: a heavy tail
# of the time: a smaller loss that is no wait for input does not come before a step with nearly all
# of the time
OUTRANKS = 0.1
# of the time: a certain gain comes before a step, or before apparent overhead
STARVED = 0.25
# intervals between pauses, and their relative spread, that are no coincidence
INTERVALS, EVEN = 3, 0.25
IDLE = 0.3  # producers that wait for room for this share of the time could do more


@dataclass(frozen=True)
class TimeLoss:
    """Shares (0 to 1) of the time by what it was lost to, independent of who makes the batches."""

    steady: float  # waits that are the same for most steps
    tail: float  # waits of a few steps
    boundary: float  # at the start of epochs
    pause: float
    host: float
    lock: float  # the step itself waits for the interpreter lock
    converted: float  # before the step, on the loop's thread
    copies: bool  # that consists of conversions and copies
    queued: float  # the step itself waits for a core
    # the step takes longer than with its producers at rest, according to an experiment
    beside: float
    given_back: float  # the step touches memory again that it need not have returned


def causes_of(
    evidence: Evidence, rows: StepTable, *, makers: ProducerProfile | None
) -> tuple[Cause, ...]:
    """Return the causes, the one with the largest share first; none if nothing is known."""
    if not len(rows.period):
        return ()
    losses = losses_of(evidence, rows, makers=makers)
    found = [
        *_on_the_time_axis(losses, rows, makers=makers),
        *_of_the_step(evidence, losses, makers=makers),
    ]
    if losses.steady >= signals.LEAST and makers is not None:
        found = [*_of_input(evidence, losses, makers=makers), *found]
    found = _strongest_of_each(found)
    lost = 1.0 - losses.steady - losses.tail - losses.boundary - losses.pause
    bound = Cause("step.bound", max(0.0, lost - losses.host), shown.step(rows))
    if losses.host >= signals.LEAST:
        found.append(Cause("step.host", losses.host, shown.host(evidence, rows)))
    # the parts of a step are inferred, its lack of input is measured
    second = rows.starvation >= STARVED and losses.host > between(evidence, rows)
    found.sort(key=lambda cause: (second and cause.code == "step.host", -cause.share))
    starved = rows.starvation >= signals.LEAST
    theirs = [
        one for one in found if one.share >= OUTRANKS or (starved and one.code.startswith("input."))
    ]
    hosts = losses.host > bound.share or in_lines(evidence) >= STARVED
    if any(one.code != "step.host" for one in theirs) or hosts:
        return tuple(found)
    return (bound, *found)


def _on_the_time_axis(
    losses: TimeLoss, rows: StepTable, *, makers: ProducerProfile | None
) -> list[Cause]:
    """Return the causes that follow from when the time is lost."""
    found = []
    if losses.tail >= signals.LEAST:
        found.append(Cause("input.straggler", losses.tail, shown.straggling(rows, makers)))
    if losses.boundary >= signals.LEAST:
        found.append(Cause("input.epoch_gap", losses.boundary, shown.gaps(rows)))
    if losses.pause >= signals.LEAST:
        found.append(Cause("pause.periodic", losses.pause, shown.pauses(rows)))
    return found


def _of_the_step(
    evidence: Evidence, losses: TimeLoss, *, makers: ProducerProfile | None
) -> list[Cause]:
    """Return what slows the step itself: others on the cores, and producers that hold the lock or
    take the cores."""
    found = []
    if losses.queued >= signals.LEAST and signals.noisy(evidence):
        found.append(Cause("external.noise", losses.queued, shown.noise(evidence)))
    elif (
        max(losses.queued, losses.beside) >= signals.LEAST
        and makers is not None
        and makers.where != "trainer"
    ):
        if losses.beside > losses.queued and makers.copies >= signals.CONVERTS:
            found.append(Cause("input.copy", losses.beside, shown.copies(evidence, makers)))
        else:
            code = "input.oversubscribed" if signals.crowded(evidence, makers) else "input.cpu"
            found.append(
                Cause(code, max(losses.queued, losses.beside), shown.cores(evidence, makers))
            )
    if losses.converted >= signals.LEAST:
        copies = losses.copies
        code = "input.copy" if copies else "input.serial"
        found.append(Cause(code, losses.converted, shown.converted(evidence, losses.converted)))
    if losses.given_back >= signals.MUCH:
        found.append(Cause("input.copy", losses.given_back, shown.given_back(evidence)))
    if losses.lock >= signals.LEAST and makers is not None and makers.where == "threads":
        found.append(Cause("input.gil", losses.lock, shown.lock(evidence, makers)))
    return found


def _strongest_of_each(found: list[Cause]) -> list[Cause]:
    """Return one cause for each code: its losses add up, in waits and in slower steps, with the
    first one's words."""
    totals: dict[str, Cause] = {}
    for cause in found:
        if cause.code in totals:
            one = totals[cause.code]
            totals[cause.code] = Cause(cause.code, min(1.0, one.share + cause.share), one.evidence)
        else:
            totals[cause.code] = cause
    return list(totals.values())


def losses_of(evidence: Evidence, rows: StepTable, *, makers: ProducerProfile | None) -> TimeLoss:
    """Return the lost time by its position on the time axis."""
    wait = rows.share(rows.wait)
    tail = _tail(rows, makers)
    trainer = next((task for task in evidence.tasks if task.role == TRAINER), None)
    running = max(0.0, 1.0 - rows.share(rows.wait + rows.boundary))
    lock = min(running, trainer.share(LOCK_PYTHON)) if trainer and signals.late(evidence) else 0.0
    queued = _queued(evidence, trainer, running=running)
    # If threads fight for the lock, or others for the cores, steps with an unnamed pause were the
    # losers.
    fought = lock >= signals.LEAST
    ousted = (
        not fought and queued >= signals.LEAST and signals.noisy(evidence) and not _in_time(rows)
    )
    unnamed = sum(length for _, length, what in rows.pauses if not what) / max(1e-9, rows.seconds)
    unnamed = min(unnamed, rows.share(rows.pause)) if fought or ousted else 0.0
    prepared = signals.prepared(evidence, rows.share(rows.wait + rows.boundary))
    return TimeLoss(
        steady=wait - tail,
        tail=tail,
        boundary=rows.share(rows.boundary),
        pause=rows.share(rows.pause) - unnamed,
        host=host_share(evidence, rows, trainer=trainer),
        lock=max(lock, unnamed) if fought else lock,
        converted=rows.share(rows.converted),
        copies=signals.converted(evidence) >= signals.LEAST or prepared[1] >= signals.CONVERTS,
        queued=max(queued, unnamed) if ousted else queued,
        beside=0.0
        if fought or 1.0 - running >= signals.LEAST
        else _beside(evidence, rows, makers=makers),
        # If steps wait, that is more than it costs them, and it disappears with the same change.
        given_back=signals.given_back(evidence, waits=False) * running
        if 1.0 - running < signals.LEAST
        else 0.0,
    )


def _in_time(rows: StepTable) -> bool:
    """Return True if the pauses come at equal intervals."""
    between = np.diff([at for at, _, _ in rows.pauses])
    return len(between) >= INTERVALS and float(np.std(between)) <= EVEN * float(np.mean(between))


def _queued(evidence: Evidence, trainer: Task | None, *, running: float) -> float:
    """Return how long the step itself waits for a core, without the waits while the loop's thread
    makes its input."""
    if trainer is None or not trainer.wall_s:
        return 0.0
    made = sum(
        part.share * part.busy.get(RUNNABLE, 0.0) for part in evidence.parts if part.kind == "input"
    )
    pools = [task for task in evidence.tasks if task.role == FRAMEWORK]
    cpu_s, queued_s = sum(task.cpu_s for task in pools), sum(task.queued_s for task in pools)
    inside = 0.0  # waits of its native threads for a core
    if signals.noisy(evidence) and cpu_s:
        inside = running * queued_s / (queued_s + cpu_s) * cpu_s / (cpu_s + trainer.cpu_s)
    return min(running, max(inside, trainer.queued_s / trainer.wall_s - made))


def to_producers(evidence: Evidence, losses: TimeLoss, *, makers: ProducerProfile | None) -> float:
    """Return the part of the step's waits for a core that is due to the script's own producers."""
    machine = evidence.machine
    if makers is None or makers.where == "trainer" or not machine.own_cpu:
        return 0.0
    return max(
        losses.beside, losses.queued * machine.own_cpu / (machine.own_cpu + machine.other_cpu)
    )


def _beside(evidence: Evidence, rows: StepTable, *, makers: ProducerProfile | None) -> float:
    """Return what steps that do not wait lose to producers beside them when all cores are busy:
    they share the cores, their caches and the memory."""
    machine = evidence.machine
    if (
        makers is None
        or makers.where == "trainer"
        or machine.own_cpu < signals.FULL * machine.cores
    ):
        return 0.0
    free = free_steps(evidence, converted_s=float(np.median(rows.converted)))
    if len(free) < ENOUGH or signals.noisy(evidence):
        return 0.0
    lost_s = float(np.median(rows.inside)) - float(np.median(free))
    return max(0.0, lost_s * len(rows.period) / rows.seconds)


def _tail(rows: StepTable, makers: ProducerProfile | None) -> float:
    """Return the share of waits that few steps have, if batches are made ahead: a producer's tail
    alone is no worse than its mean, and producers with time to spare would be fast enough."""
    if makers is None or makers.where == "trainer" or not len(rows.wait):
        return 0.0
    total = float(rows.wait.sum())
    most = np.sort(rows.wait)[::-1][: max(1, len(rows.wait) // 10)]
    heavy = total > 0 and float(most.sum()) >= TAIL * total
    # while the loop waits something works, which may be all that is seen of the producers
    idle = not makers.known or 1 - makers.active >= IDLE * (1 - rows.share(rows.wait))
    return rows.share(rows.wait) if heavy and idle else 0.0


def _of_input(evidence: Evidence, losses: TimeLoss, *, makers: ProducerProfile) -> list[Cause]:
    """Return what the producers of the batches wait for."""
    code, texts = _kind(evidence, makers)
    if makers.where != "trainer":
        found = [Cause(code, losses.steady, texts)] if code else []
        if code == "external.noise":  # and what they would be slow at, alone
            under, texts = _kind(evidence, makers, alone=True)
            found.append(Cause(under, losses.steady * max(0.01, 1 - makers.share(RUNNABLE)), texts))
        return found
    serial = (
        f"batches are made on the training thread{shown.at(makers)}: {losses.steady:.0%} of the "
        "time nothing else runs",
    )
    found = [Cause("input.serial", losses.steady, serial)]
    if code:
        # the cause behind it
        found.append(Cause(code, losses.steady * _under(code, makers), texts))
    return found


def _kind(
    evidence: Evidence, makers: ProducerProfile, *, alone: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return the code of what the producers are slow at (or would be, `alone` on the machine); ""
    if nothing is known of what they do."""
    if not makers.known:
        return "", ()
    # processes have one lock each: if they fill the cores, the cores are what is missing
    full = (
        makers.where == "processes"
        and evidence.machine.own_cpu >= signals.FULL * evidence.machine.cores
    )
    checks: tuple[tuple[bool, str, Callable[[Evidence, ProducerProfile], tuple[str, ...]]], ...] = (
        (signals.pickling(evidence, makers) >= signals.PICKLES, "input.ipc", shown.ipc),
        (
            not alone and signals.outnumbered(evidence) and makers.where == "processes",
            "external.noise",
            shown.noise_of,
        ),
        (signals.handed_over(evidence, makers) >= signals.HANDS_OVER, "input.ipc", shown.ipc),
        (not alone and signals.crowded_out(evidence, makers), "external.noise", shown.noise_of),
        (signals.disk(evidence, makers), "input.disk", shown.disks),
        (makers.copies >= signals.CONVERTS, "input.copy", shown.copies),
        (makers.python >= max(makers.native, makers.waiting) and not full, "input.gil", shown.lock),
        (signals.serialised(evidence, makers), "input.gil", shown.lock),
        (makers.native + full * makers.python < makers.waiting, "input.latency", shown.latency),
        (signals.crowded(evidence, makers), "input.oversubscribed", shown.cores),
    )
    for holds, code, show in checks:
        if holds:
            return code, show(evidence, makers)
    return "input.cpu", shown.cores(evidence, makers)


def _under(code: str, makers: ProducerProfile) -> float:
    """Return the part of the work of a training thread that a code explains: less than all of it,
    so it comes second."""
    parts = {
        "input.latency": makers.waiting,
        "input.gil": makers.python,
        "input.disk": makers.share(DISK),
        "input.copy": makers.copies,
        "input.ipc": makers.pickling,
    }
    return min(0.99, parts.get(code, makers.native))
