"""What a training loop did, step by step, as hooks, watched iterators and callbacks record it.

All times are seconds of time.perf_counter. Appending to a list is atomic, so that writers need no
lock; readers copy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

# Kinds of marks: time that observing added to an iteration, and iterations that were not observed.
LOOKING, UNSEEN = "looking", "unseen"
# marks of producers and of the diagnosis, which are no events of the loop
OF_PARTS = ("batch", LOOKING, UNSEEN)
ARRAYS = "arrays in memory, sliced by Keras"  # the note of a loop whose batches need no producer


class Step(NamedTuple):
    """One step: it asked for its input at `begin_s`, waited for `wait_s` and ended at `end_s`.
    `free`: it belongs to an experiment, its input was at hand."""

    begin_s: float
    end_s: float
    wait_s: float
    free: bool = False


class Mark(NamedTuple):
    """Something beside the steps of a loop: "epoch" (begins at start_s), "evaluation",
    "checkpoint", "callback", "compile", "experiment" (time that the diagnosis takes), "batch" (made
    by the producer that `label` names), "dead", LOOKING or UNSEEN."""

    kind: str
    start_s: float
    end_s: float
    label: str = ""


class Leaf(NamedTuple):
    """One array of a batch: its path (as "batch[0]"), dtype, shape and type ("numpy.ndarray")."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    kind: str


@dataclass
class Loop:
    """A loop that makes steps.

    `kind`: "session", "keras", "tf.data", "torch", "runner", "queue", "watch", "call" (a repeated
    call, such as train_on_batch) or "sampled". `waits`: "exact" if the wait of each step was
    measured, "modelled" if it follows from other observations, "none" if a step contains no wait
    for input, so that its input is made between the steps, "hidden" if it may contain waits that
    cannot be measured. `where`: the line of the loop, as "train.py:41", if it is known. `buffer`:
    batches that are made ahead at most, None if unknown, 0 if batches are made on the thread of the
    loop. `trims`: TensorFlow's from_generator was used, which makes the process return free memory
    at once.
    """

    name: str
    kind: str
    thread: int  # threading.get_ident() of the loop
    waits: str = "exact"
    where: str = ""
    buffer: int | None = None
    steps: list[Step] = field(default_factory=list)
    leaves: tuple[Leaf, ...] = ()  # of a batch
    trims: bool = False
    note: str = ""  # for the reader of a report
    tells: Callable[[], str] | None = None  # a note that is made when it is read


class Timeline:
    """The loops and marks of a process."""

    def __init__(self) -> None:
        self.loops: dict[Hashable, Loop] = {}
        self.marks: list[Mark] = []
        self.trims = False  # see Loop

    def loop(self, key: Hashable, *, name: str, kind: str, thread: int) -> Loop:
        """Return the loop of this key, a new one if there is none."""
        return self.loops.setdefault(key, Loop(name, kind, thread))

    def main(self) -> Loop | None:
        """Return the loop that took most of the time, with at least two steps."""
        loops = [loop for loop in list(self.loops.values()) if len(loop.steps) > 1]
        return max(loops, key=_length, default=None)


def _length(loop: Loop) -> float:
    return sum(step.end_s - step.begin_s for step in list(loop.steps))
