"""Observations of a running training, as values: the input of every judgement.

Nothing here reads the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from fastfeed.core.stats import Snapshot
from fastfeed.probes.machine_log import Machine
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import FASTFEED_KINDS, Loop, Mark, Step, covered

# What a thread does at one moment; samples become shares (0 to 1) with a sum of 1.
PYTHON = "python"  # on a core, in bytecode or in native code that holds the interpreter lock
NATIVE = "native"  # on a core, the interpreter lock released
LOCK_PYTHON = "gil"  # waits for the interpreter lock
RUNNABLE = "runnable"  # ready to run, without a core
DISK = "disk"  # waits for block I/O (state D)
SLEEP = "sleep"  # time.sleep, nanosleep, timers
SOCKET = "socket"  # recv, poll and select on sockets
LOCK = "lock"  # the trainer: a lock, a condition or a queue
PIPE = "pipe"  # the trainer: a pipe
FULL = "full"  # a remote producer whose next buffer is full: it could do more
EMPTY = "empty"  # a helper without work, or without room for more: a lock, a queue or a pipe
OTHER = "other"  # off the core for an unknown reason
TASK_STATES = (
    PYTHON,
    NATIVE,
    LOCK_PYTHON,
    RUNNABLE,
    DISK,
    SLEEP,
    SOCKET,
    LOCK,
    PIPE,
    FULL,
    EMPTY,
    OTHER,
)

TRAINER, PRODUCER, FEEDER, FRAMEWORK, FOREIGN = (
    "trainer",
    "producer",
    "feeder",
    "framework",
    "foreign",
)
MIN_WORK = 0.01  # share of the time below which what follows a wait for a queue is no step
HERE = "here"  # a remote producer on this machine
# name of a task: pools whose threads run the user's functions
CALLED_BACK = "Python in TensorFlow's threads"


@dataclass(frozen=True)
class DeviceGapFigures:
    """How long a fetch leaves the accelerator without work, on its own clock: the median and the
    99 % quantile in seconds, and the share of the time of all fetches."""

    fetches: int
    median_s: float
    p99_s: float
    share: float


class DeadProducer(NamedTuple):
    """A producer that has ended or is blocked; `text` says how, with a traceback or its stack."""

    name: str  # "thread reader" or "process 12"
    text: str
    exit_code: int | None = None  # of a process; a negative one is a signal
    blocked: bool = False
    time_s: float = 0.0  # when its end was seen


@dataclass(frozen=True)
class Task:
    """A thread of the trainer, or a whole child process, over the observed time.

    `role`: TRAINER (the thread of the loop), PRODUCER (makes batches), FEEDER (passes them on:
    queue feeders, pin-memory and result threads), FRAMEWORK (native pools) or FOREIGN (no part of
    the training). `busy`: shares by state. `stacks`: samples by stack, the outermost place first.
    `copying`: share of the samples in functions that convert, stack or copy arrays.
    """

    name: str
    pid: int
    tid: int
    role: str
    wall_s: float
    cpu_s: float = 0.0
    queued_s: float = 0.0  # ready to run, without a core (schedstat)
    busy: Mapping[str, float] = field(default_factory=dict)
    stacks: Mapping[tuple[Place, ...], int] = field(default_factory=dict)
    copying: float = 0.0
    # how it ended, if it did: "exit code 1", "SIGKILL", or the traceback of a thread
    exit: str = ""
    threads: int = 1  # of a child process
    # producers in one task: `busy` is that of one of them, seconds are those of all
    producers: int = 1
    sampled: bool = True  # False: its stacks could not be read
    # of a remote producer: HERE, or the node on which it runs
    node: str = ""

    def share(self, *states: str) -> float:
        """Return the share of the task's time in these states."""
        return sum(self.busy.get(state, 0.0) for state in states)

    def top(self, *, users: bool = True) -> tuple[Place, float] | None:
        """Return the innermost place with most samples and its share of them; None without samples.

        With `users`, the innermost place of the user's counts, if a stack has one.
        """
        counts: dict[Place, int] = {}
        for stack, count in self.stacks.items():
            own = [place for place in stack if place.users] if users else []
            for place in (own or list(stack))[-1:]:
                counts[place] = counts.get(place, 0) + count
        total = sum(self.stacks.values())
        best = max(counts, key=lambda place: counts[place], default=None)
        return None if best is None else (best, counts[best] / total)


@dataclass(frozen=True)
class LoopPart:
    """A place in the loop's body and its share (0 to 1) of the time of the loop's thread.

    `kind`: "input" (the source of the step's input), "step" or "host" (the rest of the loop).
    `busy` and `copying`: what the thread did meanwhile, as in Task. `inner`: the innermost place of
    the user's below it.
    """

    kind: str
    place: Place
    share: float
    busy: Mapping[str, float] = field(default_factory=dict)
    copying: float = 0.0
    inner: Place | None = None

    def share_in(self, *states: str) -> float:
        """Return the share of the loop's time that this part spends in these states."""
        return self.share * sum(self.busy.get(state, 0.0) for state in states)


class MarkHint(NamedTuple):
    """Line of the user's to mark with `watch` where no step is seen, and the share (0 to 1) of the
    time in which it was on the stack; `loops`: it is a loop, and no single call."""

    place: Place
    share: float
    loops: bool


@dataclass(frozen=True)
class ChildRate:
    """Steps of a child process that trains."""

    name: str
    steps: int
    steps_per_second: float


@dataclass(frozen=True)
class Intervention:
    """How a loop answers to something that is done to it for short blocks of steps.

    Kinds and their `dose`: "cores" (number of processes that keep a core busy), "lock" (share of
    the time for which another thread holds the interpreter lock), "delay" (of each step, as a share
    of the time from step to step), "producers" (share of the time for which the worker processes
    are stopped). `effect`: how much longer it is from step to step, as a share, with its 95 %
    `interval`; both are None if it was not measured, and `note` says why. `cost_s`: seconds that
    the loop lost.
    """

    kind: str
    dose: float
    effect: float | None = None
    interval: tuple[float, float] | None = None
    cost_s: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Evidence:
    """Everything that is known when a judgement is made.

    `parts`: where the loop's thread spends its time, from samples of its stack. `gil_late_s`: the
    median delay of a thread that asks for the interpreter lock, and `gil_late_p90_s`; None: not
    measured. `pools`: threads of native libraries by name ("OpenCV": 2), as the libraries report
    them. `missing`: what could not be measured. `overhead_s`: CPU seconds of the diagnosis.
    `first_batch_s`: from the loop's start to its first step. `children`: the processes that train,
    if the script itself does not; all else is about the loop of one of them, of median speed.
    `stepless`: why no step can have been seen, and `short`: why the watch was too short for advice;
    empty if it is not so.
    """

    loop: Loop | None
    marks: tuple[Mark, ...]
    tasks: tuple[Task, ...]
    machine: Machine
    start_s: float  # of the observed time, without warm-up
    end_s: float
    parts: tuple[LoopPart, ...] = ()
    gil_late_s: float | None = None
    gil_late_p90_s: float | None = None
    pools: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    overhead_s: float = 0.0
    first_batch_s: float | None = None
    warmup_s: float = 0.0
    threads: int = 1  # producers of the loop's loader: threads or processes, if known
    # calls of the loop's thread between its steps that are parts of them, in order
    beside: tuple[Step, ...] = ()
    waiting_now_s: float = 0.0  # time without the end of a step, at end_s
    hint: MarkHint | None = None  # if too few steps were seen
    children: tuple[ChildRate, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    stepless: str = ""
    short: str = ""
    feed: Snapshot | None = None  # of the FeedRunner, if there is one, since its start

    @property
    def seconds(self) -> float:
        """The observed time, without warm-up."""
        return self.end_s - self.start_s

    @property
    def trainer(self) -> Task | None:
        """The thread of the loop; None if it was not observed."""
        return next(iter(self.tasks_of(TRAINER)), None)

    def tasks_of(self, role: str) -> list[Task]:
        """Return the tasks with a role."""
        return [task for task in self.tasks if task.role == role]

    @property
    def device_gap(self) -> DeviceGapFigures | None:
        """What the accelerator's own clock says of the fetches; None if it was not read.

        Where it is known, its share is the starvation of the accelerator. The host waits for more
        than that: while it waits, the accelerator may still compute the steps before. Experiments
        are left out: they fetch as well, at another speed.
        """
        first_s, last_s, loop = self.start_s, self.end_s, self.loop or Loop("", "", 0)
        own = [mark for mark in self.marks if mark.kind in FASTFEED_KINDS]
        gaps = [
            gap
            for gap in loop.device_gaps
            if first_s <= gap.begin_s <= last_s
            if not any(mark.start_s <= gap.begin_s < mark.end_s for mark in own)
        ]
        steps = [step for step in loop.steps if first_s <= step.begin_s <= last_s]
        if not gaps or not steps:
            return None
        first_s, last_s = steps[0].begin_s, steps[-1].end_s
        own_s = float(covered(first_s, last_s, marks=own))
        period_s = max(1e-9, last_s - first_s - own_s) / len(steps)
        ordered = sorted(gap.seconds for gap in gaps)
        p99_s = ordered[int(0.99 * (len(ordered) - 1))]
        share = min(1.0, sum(ordered) / len(gaps) / period_s)
        return DeviceGapFigures(len(gaps), median(ordered), p99_s, share)

    def parts_of(self, kind: str) -> list[LoopPart]:
        """Return the parts of the loop of a kind."""
        return [part for part in self.parts if part.kind == kind]
