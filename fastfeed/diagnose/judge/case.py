"""Everything that is known of a training when its causes are judged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fastfeed.diagnose.diagnosis import Figures, Recommendation
from fastfeed.diagnose.evidence import Evidence
from fastfeed.diagnose.judge.feed_costs import Change, FeedCosts
from fastfeed.diagnose.judge.host import host_share
from fastfeed.diagnose.judge.knobs import step_cost
from fastfeed.diagnose.judge.observed_costs import Observed
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.diagnose.judge.step_ledger import Ledger
from fastfeed.probes.machine_log import SATURATED

# Error of the formulas, beside that of what was measured: nine tenths of the recorded scripts whose
# own rounds agree lie within it.
GAIN_ERROR = 0.15
NO_EXPERIMENT = "no experiment in a running job can make this change"
EXPERIMENTS = {
    "burst": "steps with their batches at hand",
    "cores": "one more busy core",
    "lock": "another thread that holds the interpreter lock",
}


@dataclass(frozen=True)
class Case:
    """The basis of causes and recommendations: what was observed, and the costs that follow, in the
    middle, the least and the greatest of what is known."""

    observed: Observed
    figures: Figures
    feeds: tuple[FeedCosts, FeedCosts, FeedCosts]

    @property
    def feed(self) -> FeedCosts:
        """The feed as it is."""
        return self.feeds[0]

    def gain(self, *changes: Change) -> tuple[float, tuple[float, float]]:
        """Return the speed-up by the first change, and its interval.

        Further changes say how little and how much the first one may be."""
        found = [feed.period / one(feed).period for one in changes for feed in self.feeds]
        return found[0], (min(found) * (1 - GAIN_ERROR), max(found) * (1 + GAIN_ERROR))

    @property
    def evidence(self) -> Evidence:
        """Everything that was seen."""
        return self.observed.evidence

    @property
    def ledger(self) -> Ledger:
        """The accounts of the steps."""
        return self.observed.ledger

    @property
    def producers(self) -> ProducerProfile | None:
        """What makes the batches; None if nothing was seen that does."""
        return self.observed.producers

    @property
    def made_by(self) -> ProducerProfile:
        """The producers; without any, ones that do nothing known."""
        return self.producers or ProducerProfile("trainer", 0)

    @property
    def full(self) -> bool:
        """True if the script uses all cores."""
        machine = self.evidence.machine
        return machine.own_cpu >= SATURATED * machine.cores

    @property
    def held(self) -> bool:
        """True if bytecode of the producers is a matter of the interpreter lock.

        Each worker process has a lock of its own: if they fill the cores, cores are missing.
        """
        return not (self.made_by.kind == "processes" and self.full)

    @property
    def loop_kind(self) -> str:
        """The kind of the loop, see `Loop`."""
        return self.evidence.loop.kind if self.evidence.loop is not None else ""

    @cached_property
    def host(self) -> float:
        """Share of the time that the loop's own Python takes."""
        return host_share(self.evidence, self.ledger)

    @cached_property
    def producer_changes(self) -> dict[bool, list[Recommendation]]:
        """Changes of the number of producers that were tried, by whether the lock holds them: one
        decision, which several causes lead to."""
        return {}

    def untested(self, *kinds: str) -> str:
        """Return which of these experiments are missing, and why; "" if all were made."""
        notes = {one.kind: one.note for one in self.evidence.interventions if one.effect is None}
        known = {one.kind for one in self.evidence.interventions if one.effect is not None}
        # where nothing is made beside the step, each one shows what it takes
        alone = self.observed.beside is None
        known |= {"burst"} if alone or self.observed.ceiling.experiment else set()
        missing = [(EXPERIMENTS[kind], notes.get(kind)) for kind in kinds if kind not in known]
        return "; ".join(f"{name}: {why or 'not measured'}" for name, why in missing)

    def without(self, share: float) -> Change:
        """Return the change that takes this share of the loop's time from its steps."""
        removed_s = share * self.ledger.seconds / max(1, len(self.ledger))
        step_s = float((self.ledger.inside + self.ledger.host).mean())
        return step_cost(max(0.0, 1 - removed_s / max(1e-9, step_s)))

    def recommend(
        self,
        text: str,
        knob: tuple[str, str],
        *changes: Change,
        why: str = "",
        adds_work: bool = False,
        untested: str = NO_EXPERIMENT,
    ) -> Recommendation:
        """Return a change of the feed with its gain; further changes are its least and greatest
        effect. Only one that adds work, such as more producers, may lose."""
        speedup, (low, high) = self.gain(*changes)
        least = 0.0 if adds_work else 1.0
        interval = max(least, low), high
        return Recommendation(text, *knob, max(least, speedup), interval, why, untested=untested)
