"""A diagnosis: what every report shows and what the JSON file holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastfeed.diagnose.evidence import Evidence
from fastfeed.diagnose.proof import Proof

CODES = {
    "step.bound": "input keeps up; the step is the limit",
    "step.host": "Python overhead of the training loop itself",
    "input.serial": "batches are made on the training thread; nothing overlaps",
    "input.latency": "producers wait off the cores (sleep, network, remote store) and are too few",
    "input.disk": "producers wait for block I/O, or read far more bytes than they use",
    "input.gil": "producers are Python bytecode that holds the interpreter lock",
    "input.cpu": "producers are native code that fills their cores",
    "input.oversubscribed": "more runnable threads or processes than cores",
    "input.ipc": "pickling and copying between processes",
    "input.copy": "conversions and copies on the feeding path",
    "input.straggler": "the mean rate would do, but a heavy tail stalls the step",
    "input.epoch_gap": "stalls at epoch boundaries or warm-up",
    "pause.periodic": "periodic pauses that are not input",
    "external.noise": "other processes take the CPU",
    "feed.dead": "producers died or are blocked; no batches come",
}
DIAGNOSIS_SCHEMA = 1
MIN_STEPS = 20  # steps after the warm-up that a verdict needs


@dataclass(frozen=True)
class Cause:
    """A reason for lost time: its code, its share (0 to 1) of the observed wall time, and its
    evidence as sentences with numbers."""

    code: str
    share: float
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Recommendation:
    """A change, such as "make batches in 4 threads", the `knob` ("threads") and its `value`, and
    the predicted speed-up of the whole loop with its interval.

    `where`: the line of the user's to change, and `code`: what to write there, if known. It is sure
    if experiments in the running job support it; `untested`: which of them could not be made, and
    why.
    """

    change: str
    knob: str
    value: str
    predicted_speedup: float
    interval: tuple[float, float]
    why: str = ""
    where: str = ""
    code: str = ""
    untested: str = ""


@dataclass(frozen=True)
class Account:
    """A part of the watched time of the loop's thread, with two standard errors; shares 0 to 1."""

    name: str
    share: float
    error: float


@dataclass(frozen=True)
class Doubt:
    """How sure a verdict is: the share of the judgements, with the middle, the least and the
    greatest of what is known of the step, that agree with it; and the verdicts that they lead to,
    this one first, if they differ."""

    sure: float
    between: tuple[str, ...]


@dataclass(frozen=True)
class Figures:
    """The loop in numbers, without warm-up; shares 0 to 1, seconds of a step. nan if unknown."""

    steps: int
    seconds: float
    steps_per_second: float
    # quartiles over parts of equal numbers of steps, and the rate itself
    steps_per_second_range: tuple[float, float]
    step_s: float  # of compute: the period without waits and pauses
    period_s: float  # from step to step, the median
    wait_p50_s: float
    wait_p99_s: float
    starvation: float
    starvation_range: tuple[float, float]
    utilisation: float  # AU
    # of wall time: "step", "wait", "host", "pause"
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ceiling:
    """Seconds of a step with its input at hand: measured by an `experiment`, or estimated, with its
    range."""

    step_s: float
    low_s: float
    high_s: float
    experiment: bool
    how: str


@dataclass(frozen=True)
class Diagnosis:
    """The answer. `verdict` is a code of CODES, or None if `abstained` says what is missing."""

    verdict: str | None
    causes: tuple[Cause, ...]
    figures: Figures | None
    ceiling: Ceiling | None
    speedup_if_input_free: float
    speedup_range: tuple[float, float]
    recommendations: tuple[Recommendation, ...]
    abstained: str | None
    evidence: Evidence
    script: str = ""
    died: tuple[str, ...] = ()  # tracebacks or last stacks of dead or blocked producers
    may_cost: tuple[Recommendation, ...] = ()  # changes that may as well make the loop slower
    no_change: str = ""  # why no change is recommended, if none is
    doubt: Doubt | None = None
    accounts: tuple[Account, ...] = ()  # of the time of the loop's thread
    proof: Proof | None = None  # of --prove

    @property
    def lost_to_input(self) -> float:
        """Share (0 to 1) of the speed that the loop would have without any cost of its input.

        It contains the waits, and what producers take from steps that do not wait.
        """
        return 1 - 1 / max(1.0, self.speedup_if_input_free)
