"""What a training loop did, step by step, as those write it down who see it: hooks, watched
iterators, callbacks.

All times are seconds of time.perf_counter. Appending to a list is atomic, so that writers need no
lock; readers copy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

# Kinds of marks: so much longer a turn of a loop took because somebody looked at it; and nobody
# looked at its turns.
LOOKING, UNSEEN = "looking", "unseen"
# what tells of producers and of ourselves, and is no event of the loop's
OF_PARTS = ("batch", LOOKING, UNSEEN)
ARRAYS = "arrays in memory, sliced by Keras"  # the note of a loop whose batches nobody has to make


class Step(NamedTuple):
    """One step: it began to ask for its input at `begin_s`, of its time until `end_s` it waited for
    `wait_s`, and it was one of an experiment's, its input at hand already, where `free`."""

    begin_s: float
    end_s: float
    wait_s: float
    free: bool = False


class Mark(NamedTuple):
    """Something beside the steps of a loop: "epoch" (begins at start_s), "evaluation",
    "checkpoint", "callback", "compile", "experiment" (time that is ours), "batch" (made by a
    producer, whom `label` names), "dead", LOOKING or UNSEEN."""

    kind: str
    start_s: float
    end_s: float
    label: str = ""


class Leaf(NamedTuple):
    """One array of a batch: where it is (as "batch[0]"), its dtype, its shape, and its type
    ("numpy.ndarray")."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    kind: str


@dataclass
class Loop:
    """A loop that makes steps.

    `kind`: "session", "keras", "tf.data", "torch", "runner", "queue", "watch", "call" (a call that
    is repeated, such as train_on_batch) or "sampled". `waits`: "exact" where each step's wait was
    measured, "modelled" where it follows from what else was seen, "none" where a step contains no
    wait for input, so that its input is made between the steps, "hidden" where it may contain waits
    that nobody could measure. `where`: "train.py:41", the line of the loop, where it is known.
    `buffer`: batches that are made ahead at most, None where nobody knows, 0 where batches are made
    on the thread of the loop. `trims`: TensorFlow's from_generator was used, which has the process
    give free memory back at once.
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
    note: str = ""  # what the reader of a report should know
    tells: Callable[[], str] | None = None  # the same, of the moment when it is asked


class Timeline:
    """The loops and marks of a process."""

    def __init__(self) -> None:
        self.loops: dict[Hashable, Loop] = {}
        self.marks: list[Mark] = []
        self.trims = False  # see Loop

    def loop(self, key: Hashable, *, name: str, kind: str, thread: int) -> Loop:
        """The loop of this key, a new one if there is none."""
        return self.loops.setdefault(key, Loop(name, kind, thread))

    def main(self) -> Loop | None:
        """The loop that took most of the time, with at least two steps."""
        loops = [loop for loop in list(self.loops.values()) if len(loop.steps) > 1]
        return max(loops, key=_length, default=None)


def _length(loop: Loop) -> float:
    return sum(step.end_s - step.begin_s for step in list(loop.steps))
