"""What advice follows from, and what a batch costs its producers by that."""

from __future__ import annotations

from dataclasses import dataclass

from fastfeed.diagnose.diagnosis import Ceiling, Figures
from fastfeed.diagnose.evidence import FRAMEWORK, LOCK_PYTHON, RUNNABLE, TRAINER, Evidence
from fastfeed.diagnose.figures import Rows
from fastfeed.diagnose.makers import Makers
from fastfeed.model import Profile


@dataclass(frozen=True)
class Facts:
    """What a recommendation follows from."""

    evidence: Evidence
    rows: Rows
    figures: Figures
    ceiling: Ceiling
    makers: Makers | None
    limit: float = float("inf")  # the speed-up without any wait for input, at most: no change of the input gains more

    @property
    def now(self) -> float:
        """Steps/s."""
        return self.figures.steps_per_second

    @property
    def rest_s(self) -> float:
        """Seconds a step that are neither wait nor step: the loop's own Python, and pauses."""
        return float((self.rows.host + self.rows.pause).sum()) / max(1, self.figures.steps)

    @property
    def most(self) -> float:
        """Steps/s where the input is always at hand."""
        return 1 / max(1e-9, self.ceiling.step_s + self.rest_s)


def profile_of(facts: Facts) -> Profile:
    """What a batch costs, from what the producers did while they made those of the steps."""
    rows, makers = facts.rows, facts.makers
    steps, cores = max(1, facts.figures.steps), facts.evidence.machine.cores
    if makers is None:
        return Profile(0.0, 0.0, 0.0, 0.0, facts.ceiling.step_s + facts.rest_s, cores)
    if makers.where == "trainer":
        batch_s = float((rows.wait + rows.boundary).sum()) / steps
    else:
        # Without the time in which they wait for each other: the model knows the cores and the lock itself.
        alone = 1 - makers.share(LOCK_PYTHON, RUNNABLE)
        batch_s = makers.count * makers.active * alone * rows.seconds / steps
    working = makers.python + makers.native
    cpu_s = min(batch_s, makers.cpu_s / steps if makers.cpu_s else batch_s * working)
    return Profile(
        batch_s=batch_s,
        cpu_s=cpu_s,
        gil_s=cpu_s * makers.python / working if working else 0.0,
        gil_wait_s=0.0,
        step_s=facts.ceiling.step_s + facts.rest_s,
        cores=cores,
        step_cpu_s=_step_cpu_s(facts, makers, steps=steps),
    )


def _step_cpu_s(facts: Facts, makers: Makers, *, steps: int) -> float:
    """Seconds on the cores that a step takes, without what is made on its thread."""
    tasks, seconds = facts.evidence.tasks, facts.evidence.end_s - facts.evidence.start_s
    roles = (TRAINER,) if makers.where == "native" else (TRAINER, FRAMEWORK)
    cpu_s = sum(task.cpu_s for task in tasks if task.role in roles)
    own_s = makers.cpu_s if makers.where == "trainer" else 0.0
    return max(0.0, cpu_s - own_s) * facts.rows.seconds / max(1e-9, seconds) / steps
