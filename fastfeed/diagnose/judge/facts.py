"""The basis of advice, and the cost of a batch that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from fastfeed.diagnose.diagnosis import Ceiling, Figures
from fastfeed.diagnose.evidence import FRAMEWORK, LOCK_PYTHON, RUNNABLE, TRAINER, Evidence
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.backlog import handing_over_s
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.model.prediction import Profile

SHARED = 1.15  # native code on all cores, relative to one: they share caches and memory


@dataclass(frozen=True)
class Facts:
    """The basis of a recommendation."""

    evidence: Evidence
    rows: StepTable
    figures: Figures
    ceiling: Ceiling
    makers: ProducerProfile | None
    # the largest speed-up without any wait for input: no change of the input gains more
    limit: float = float("inf")

    @property
    def now(self) -> float:
        """Steps/s."""
        return self.figures.steps_per_second

    @property
    def rest_s(self) -> float:
        """Seconds of a step that are neither wait nor step: the loop's own Python, and pauses."""
        return float((self.rows.host + self.rows.pause).sum()) / max(1, self.figures.steps)

    @property
    def back(self) -> float:
        """Share of a step that touches memory again, because from_generator had it returned."""
        waits = self.rows.share(self.rows.wait + self.rows.boundary) >= signals.LEAST
        return signals.given_back(self.evidence, waits=waits)

    @property
    def handing_over_s(self) -> float:
        """Seconds that a step waits for a ready batch: independent of the number of producers."""
        loop = self.evidence.loop
        return handing_over_s(loop.steps, self.evidence.marks) if loop is not None else 0.0

    @property
    def most(self) -> float:
        """Steps/s with the input always at hand."""
        return 1 / max(1e-9, self.ceiling.step_s + self.rest_s)


def profile_of(facts: Facts, *, kept: bool = False) -> Profile:
    """Return the cost of a batch, from what the producers did while they made those of the steps.
    `kept`: with the present loader, and no FeedRunner: memory that from_generator makes a step
    return is still returned."""
    rows, makers = facts.rows, facts.makers
    steps, cores = max(1, facts.figures.steps), facts.evidence.machine.cores
    if makers is None:
        return Profile(0.0, 0.0, 0.0, 0.0, facts.ceiling.step_s + facts.rest_s, cores)
    if makers.where == "trainer":
        batch_s = float((rows.wait + rows.boundary).sum()) / steps
    else:
        # without the time that they wait for each other: the model has the cores and the lock
        # itself
        alone = 1 - makers.share(LOCK_PYTHON, RUNNABLE)
        batch_s = makers.count * makers.active * alone * rows.seconds / steps
    handing_over_s = facts.handing_over_s if makers.where in ("threads", "processes") else 0.0
    working = makers.python + makers.native
    # without experiments
    counted = rows.seconds / max(1e-9, facts.evidence.end_s - facts.evidence.start_s)
    cpu_s = makers.cpu_s * counted / steps if makers.cpu_s else batch_s * working
    # A thread's CPU time is counted, the rest is sampled; a process may have pools of its own. Of
    # the framework's own threads only CPU time is known: several may work as if they were one.
    batch_s = max(batch_s, cpu_s) if makers.where in ("threads", "native") else batch_s
    if signals.serialised(facts.evidence, makers):
        batch_s = cpu_s  # the rest is waiting for the lock
    cpu_s = min(batch_s, cpu_s)
    native = makers.native / working if working else 0.0
    # measured with cores to spare, it takes longer without
    shared = SHARED if facts.evidence.machine.own_cpu < signals.FULL * cores else 1.0
    back = facts.back
    step_s = facts.ceiling.step_s / max(0.05, 1 - back) if kept else facts.ceiling.step_s
    step_cpu_s = _step_cpu_s(facts, makers, steps=steps) * (1 - back * (not kept))
    return Profile(
        batch_s=batch_s,
        cpu_s=cpu_s * (1 - native + native * shared),
        gil_s=cpu_s * makers.python / working if working else 0.0,
        gil_wait_s=0.0,
        step_s=step_s + facts.rest_s + handing_over_s,
        cores=cores,
        step_cpu_s=shared * step_cpu_s,
    )


def _step_cpu_s(facts: Facts, makers: ProducerProfile, *, steps: int) -> float:
    """Return CPU seconds of a step, without what is made on its thread."""
    tasks, seconds = facts.evidence.tasks, facts.evidence.end_s - facts.evidence.start_s
    roles = (TRAINER,) if makers.where == "native" else (TRAINER, FRAMEWORK)
    cpu_s = sum(task.cpu_s for task in tasks if task.role in roles)
    own_s = makers.cpu_s if makers.where == "trainer" else 0.0
    return max(0.0, cpu_s - own_s) * facts.rows.seconds / max(1e-9, seconds) / steps
