"""A proof: what changes of a script gain, measured against the original."""

from __future__ import annotations

from dataclasses import dataclass

Interval = tuple[float, float]
# What the batches of a changed script are, the best first.
SAME, OTHER_ORDER, OTHER_DRAWS = "same batches", "other order", "other random draws"
UNKNOWN, DIFFERENT = "batches not compared", "other batches"
WORDS = (SAME, OTHER_ORDER, OTHER_DRAWS, UNKNOWN, DIFFERENT)
SAME_RECORDS = WORDS[: WORDS.index(OTHER_DRAWS)]  # of batches that hold the same records
# Functions of a seed, by their module.
SEEDERS = {
    "numpy.random": ("seed", "default_rng"),
    "torch": ("manual_seed",),
    "tensorflow.random": ("set_seed",),
    "tensorflow.compat.v1": ("set_random_seed",),
    "jax.random": ("PRNGKey", "key"),
}
SEEDED_KINDS = ("Random", "RandomState")  # classes of the standard library and of NumPy


@dataclass(frozen=True)
class Tried:
    """A change that ran against the script as it was then.

    `speedup` is None without figures; `why` says then why there are none, else why the change was
    not kept. `batches`: what its batches are, compared with those before: one of WORDS, and
    `differs` says what differs. `predicted`: of the advice that it follows.
    """

    title: str
    speedup: float | None
    interval: Interval | None
    runs: int
    kept: bool
    why: str = ""
    batches: str = ""
    differs: str = ""
    loss: str = ""
    knob: str = ""  # of the advice
    predicted: float | None = None
    predicted_interval: Interval | None = None


@dataclass(frozen=True)
class Proof:
    """The changes that gain together, as a unified `diff` ("" if none does), and everything that
    was tried. Rates are in steps/s. `waiting`: the share of its steps' time in which the changed
    script still waits for input; None if that was not seen."""

    before: float
    after: float
    speedup: float
    interval: Interval
    batches: str  # of the whole change, compared with the original
    diff: str
    tried: tuple[Tried, ...]
    untried: tuple[str, ...]  # what could not be tried, and why
    seconds: float  # that it took
    waiting: float | None = None

    @property
    def sentence(self) -> str:
        """What was proven, in one sentence."""
        if not self.diff:
            rate = f"{self.before:.3g} steps/s as it is"
            for one in self.tried:
                if one.speedup is not None and one.interval is not None and one.interval[0] > 1:
                    return f"Nothing is proven: {rate}; {one.title}, {one.speedup:.2f}x: {one.why}"
            return (
                f"Nothing that was tried gains beyond the spread of its runs: {rate}"
                if self.tried
                else "No change of this script could be tried"
            )
        low, high = self.interval
        return (
            f"{self.before:.3g} to {self.after:.3g} steps/s, {self.speedup:.2f}x ({low:.2f} to "
            f"{high:.2f}), {self.batches}{self._left}"
        )

    @property
    def _left(self) -> str:
        if self.waiting is None:
            return ""
        return f"; it still waits for input for {100 * self.waiting:.0f} % of the time"
