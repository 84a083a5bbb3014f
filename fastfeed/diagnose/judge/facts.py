"""The basis of recommendations, and the cost of a batch that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from fastfeed.diagnose.diagnosis import Ceiling, Figures
from fastfeed.diagnose.evidence import FRAMEWORK, LOCK_PYTHON, RUNNABLE, TRAINER, Evidence
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.backlog import handover_s
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.model.prediction import INPUT_BOUND, Profile
from fastfeed.probes.machine_log import SATURATED

SHARED_CORES_COST = 1.15  # native code on all cores, relative to one: they share caches and memory


@dataclass(frozen=True)
class Facts:
    """The basis of a recommendation."""

    evidence: Evidence
    table: StepTable
    figures: Figures
    ceiling: Ceiling
    producers: ProducerProfile | None
    # with the input always at hand; no change of the input gains more
    max_speedup: float = float("inf")

    @property
    def rate(self) -> float:
        """Steps/s of the loop as it is."""
        return self.figures.steps_per_second

    @property
    def max_rate(self) -> float:
        """Steps/s with the input always at hand."""
        return 1 / max(1e-9, self.ceiling.step_s + self.other_s)

    @property
    def other_s(self) -> float:
        """Seconds per step that are neither wait nor step: the loop's own Python, and pauses."""
        return float((self.table.host + self.table.pause).sum()) / max(1, self.figures.steps)

    @property
    def retouched(self) -> float:
        """Share of a step in which it touches memory again that from_generator had it return."""
        waits = self.table.waited >= INPUT_BOUND
        return signals.retouched_share(self.evidence, waits=waits)

    @property
    def handover_s(self) -> float:
        """Seconds that a step waits for a ready batch, with any number of producers."""
        loop = self.evidence.loop
        return handover_s(loop.steps, self.evidence.marks) if loop is not None else 0.0


def profile_of(facts: Facts, *, kept: bool = False) -> Profile:
    """Return the cost of a batch, from what the producers did during the counted steps.

    `kept`: the loader stays, so that steps go on touching the memory that from_generator makes them
    return.
    """
    producers = facts.producers
    steps, cores = max(1, facts.figures.steps), facts.evidence.machine.cores
    if producers is None:
        return Profile(0.0, 0.0, 0.0, 0.0, facts.ceiling.step_s + facts.other_s, cores)
    batch_s, cpu_s = _batch_costs(facts, producers, steps=steps)
    working = producers.python + producers.native
    native = producers.native / working if working else 0.0
    # What was measured with free cores takes longer without.
    spare = facts.evidence.machine.own_cpu < SATURATED * cores
    shared = SHARED_CORES_COST if spare else 1.0
    step_s, step_cpu_s = facts.ceiling.step_s, _step_cpu_s(facts, producers, steps=steps)
    if kept:
        step_s /= max(0.05, 1 - facts.retouched)
    else:
        step_cpu_s *= 1 - facts.retouched
    handover_s = facts.handover_s if producers.kind in ("threads", "processes") else 0.0
    return Profile(
        batch_s=batch_s,
        cpu_s=cpu_s * (1 - native + native * shared),
        gil_s=cpu_s * producers.python / working if working else 0.0,
        gil_wait_s=0.0,
        step_s=step_s + facts.other_s + handover_s,
        cores=cores,
        step_cpu_s=shared * step_cpu_s,
    )


def _batch_costs(facts: Facts, producers: ProducerProfile, *, steps: int) -> tuple[float, float]:
    """Return the wall and the CPU seconds of a batch in a producer."""
    table = facts.table
    if producers.kind == "trainer":
        batch_s = float((table.wait + table.boundary).sum()) / steps
    else:
        # Waits for each other do not count: the model has the cores and the lock itself.
        alone = 1 - producers.share(LOCK_PYTHON, RUNNABLE)
        batch_s = producers.count * producers.active * alone * table.seconds / steps
    counted = table.seconds / max(1e-9, facts.evidence.seconds)  # the time without experiments
    working = producers.python + producers.native
    cpu_s = producers.cpu_s * counted / steps if producers.cpu_s else batch_s * working
    # The CPU time of threads is counted, all else is sampled; a process may have pools of its own.
    # Of the framework's threads only the CPU time is known: several may seem to work as one.
    if producers.kind in ("threads", "native"):
        batch_s = max(batch_s, cpu_s)
    if signals.serialised(facts.evidence, producers):
        batch_s = cpu_s  # the rest is waiting for the lock
    return batch_s, min(batch_s, cpu_s)


def _step_cpu_s(facts: Facts, producers: ProducerProfile, *, steps: int) -> float:
    """Return the CPU seconds of a step, without batches that are made on its thread."""
    roles = (TRAINER,) if producers.kind == "native" else (TRAINER, FRAMEWORK)
    cpu_s = sum(task.cpu_s for task in facts.evidence.tasks if task.role in roles)
    if producers.kind == "trainer":
        cpu_s = max(0.0, cpu_s - producers.cpu_s)
    return cpu_s * facts.table.seconds / max(1e-9, facts.evidence.seconds) / steps
