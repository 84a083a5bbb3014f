"""Timeline of a training loop, written by hooks, watched iterators and callbacks.

All times are seconds of time.perf_counter. Appending to a list is atomic, so writers need no lock;
readers copy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from fastfeed.core.status import ProducerStatus

# Kinds of marks: the time that observation added to an iteration, and an end of observation.
OBSERVING, UNOBSERVED = "observing", "unobserved"
FASTFEED_KINDS = ("experiment", OBSERVING, UNOBSERVED)  # of marks: no time of the script's own
# the label of an experiment whose steps were slower for a purpose, and do not count
DOSED = "dosed"
# kinds that describe producers or the observation itself, not events of the loop
NOT_LOOP_EVENTS = ("batch", OBSERVING, UNOBSERVED)
# the note of a loop whose batches need no producer
ARRAYS_NOTE = "arrays in memory, sliced by Keras"


class Step(NamedTuple):
    """One step, from the request for its input at `begin_s` to `end_s`, with a wait of `wait_s`.

    `free` marks a step of an experiment, whose input was taken before it. `converted_s`: seconds
    after the wait in which the thread of the loop converts the input, as a session does its feed.
    """

    begin_s: float
    end_s: float
    wait_s: float
    free: bool = False
    converted_s: float = 0.0


class Mark(NamedTuple):
    """An interval beside the steps of a loop.

    Kinds: "epoch" (begins at start_s), "start" (a loader starts its workers), "end" (a request that
    finds no more batches, in which a loader ends its workers), "evaluation", "checkpoint",
    "callback", "compile", "experiment" (time that fastfeed took), "batch" (made by the producer
    `label`), "dead", OBSERVING or UNOBSERVED.
    """

    kind: str
    start_s: float
    end_s: float
    label: str = ""


class DeviceGap(NamedTuple):
    """A fetch of the input of the step at `begin_s`, and the `seconds` for which it left the
    accelerator without work."""

    begin_s: float
    seconds: float


class Beats(NamedTuple):
    """Times of something that a loop does once in each iteration, and the files and lines of the
    user's that lead to it, the innermost first. `turns`: by file and line of a loop, when its
    iterations began; `gaps`: and what its iterator left the accelerator without work for."""

    times: Sequence[float] = ()
    lines: tuple[tuple[str, int], ...] = ()
    turns: Mapping[tuple[str, int], Sequence[float]] = MappingProxyType({})
    gaps: Mapping[tuple[str, int], Sequence[DeviceGap]] = MappingProxyType({})


class Leaf(NamedTuple):
    """One array of a batch: its path ("batch[0]"), dtype, shape, and type ("numpy.ndarray")."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    kind: str


@dataclass
class Loop:
    """A loop of steps.

    `kind`: "session", "keras", "tf.data", "torch", "runner", "queue", "watch", "call" (a repeated
    call, such as train_on_batch) or "sampled". `waits`: "exact" if the wait of each step was
    measured, "modelled" if it was derived from other observations, "none" if a step contains no
    wait for input, so that its input is made between the steps, "hidden" if it may contain waits
    that cannot be measured. `where`: the line of the loop as "train.py:41", if known. `buffer`:
    maximum number of batches made ahead, None if unknown, 0 if batches are made on the thread of
    the loop.
    """

    name: str
    kind: str
    thread: int  # threading.get_ident() of the loop
    waits: str = "exact"
    where: str = ""
    text: str = ""  # the source of that line, if known
    buffer: int | None = None
    steps: list[Step] = field(default_factory=list)
    leaves: tuple[Leaf, ...] = ()  # of a batch
    trains: bool = True  # False: its steps are known to update no variable, as an evaluation
    note: str = ""  # a remark for the reader of a report
    producers: Callable[[], list[ProducerStatus]] | None = None  # that the loop's loader names
    device_gaps: list[DeviceGap] = field(default_factory=list)  # by the accelerator's clock

    def add(self, step: Step, *, max_steps: int | None = None, waits: str | None = None) -> None:
        """Record a step; drop the older half of them if there are more than `max_steps`.

        `waits` says how the wait of the step was found, if that may have changed.
        """
        self.steps.append(step)
        self.waits = waits or self.waits
        if max_steps is not None and len(self.steps) > max_steps:
            del self.steps[: len(self.steps) // 2]
            self.device_gaps[:] = [
                gap for gap in self.device_gaps if gap.begin_s >= self.steps[0].begin_s
            ]


class Timeline:
    """The loops and marks of a process."""

    def __init__(self) -> None:
        self.loops: dict[Hashable, Loop] = {}
        self.marks: list[Mark] = []

    def loop(self, key: Hashable, *, name: str, kind: str, thread: int) -> Loop:
        """Return the loop of this key; create it if there is none."""
        return self.loops.setdefault(key, Loop(name, kind, thread))

    def main(self) -> Loop | None:
        """Return the loop that took most of the time, among those with at least two steps."""
        loops = [loop for loop in list(self.loops.values()) if len(loop.steps) > 1]
        return max(loops, key=_length, default=None)


def covered(begin: Any, end: Any, *, marks: Iterable[Mark]) -> Any:
    """Return how many seconds of each interval the marks cover; overlaps count once.

    `begin` and `end` are numbers, or float arrays of one shape, which the result has as well.
    """
    import numpy as np  # hooks need this module in scripts that may import no numpy

    found, until = np.zeros(np.shape(begin)), -np.inf
    for mark in sorted(marks, key=lambda one: one.start_s):
        since, stop = max(mark.start_s, until), mark.end_s
        if stop > since:
            found += np.maximum(np.minimum(end, stop) - np.maximum(begin, since), 0.0)
            until = stop
    return found


def _length(loop: Loop) -> float:
    return sum(step.end_s - step.begin_s for step in list(loop.steps))
