"""What was seen of a running training, as values: the input of every judgement. Nothing here looks
at a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastfeed.probes.machine_log import Machine
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import Loop, Mark, Step

# What a thread does at one moment, of which samples make shares (0 to 1) that add up to 1:
PYTHON = "python"  # on a core, in bytecode or in native code that holds the interpreter lock
NATIVE = "native"  # on a core, the interpreter lock released
LOCK_PYTHON = "gil"  # waits for the interpreter lock
RUNNABLE = "runnable"  # would run, and has no core
DISK = "disk"  # waits for block I/O (state D)
SLEEP = "sleep"  # time.sleep, nanosleep, timers
SOCKET = "socket"  # recv, poll and select on sockets
LOCK = "lock"  # another lock, condition or queue that is not the feed's own
PIPE = "pipe"  # a pipe
FULL = "full"  # the buffer behind it is full: it could do more
EMPTY = "empty"  # a helper that waits for work; the trainer that waits for input
OTHER = "other"  # off the core, nobody knows why
STATES = (
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
# the name of a task: pools whose threads run the user's functions
CALLED_BACK = "Python in TensorFlow's threads"


@dataclass(frozen=True)
class Task:
    """A thread of the trainer, or a whole child process, over the time that was watched.

    `role`: TRAINER (the thread of the loop), PRODUCER (makes batches), FEEDER (hands them on: queue
    feeders, pin-memory and result threads), FRAMEWORK (native pools) or FOREIGN (no part of the
    training). `busy`: shares by state. `stacks`: samples by stack, the outermost place first; for
    the flame view. `copying` and `pickling`: shares of the samples in functions that convert, stack
    or copy arrays, and that pickle or unpickle.
    """

    name: str
    pid: int
    tid: int
    role: str
    wall_s: float
    cpu_s: float = 0.0
    system_s: float = 0.0  # of cpu_s, in the kernel
    queued_s: float = 0.0  # ready to run, and no core (schedstat)
    faults: int = 0  # minor page faults
    read_nbytes: int = 0  # from block devices
    switches: int = 0  # involuntary context switches
    busy: Mapping[str, float] = field(default_factory=dict)
    stacks: Mapping[tuple[Place, ...], int] = field(default_factory=dict)
    copying: float = 0.0
    pickling: float = 0.0
    # how it ended, if it did: "exit code 1", "SIGKILL", or the traceback of a thread
    exit: str = ""
    threads: int = 1  # of a child process
    # that are one task: `busy` is what one of them does, seconds are those of all
    producers: int = 1
    sampled: bool = True  # False: its stacks could not be read

    def share(self, *states: str) -> float:
        """Of its time, the share in these states."""
        return sum(self.busy.get(state, 0.0) for state in states)

    def top(self, *, users: bool = True) -> tuple[Place, float] | None:
        """The innermost place (of the user's, if there is one) with most samples, and its share of
        them."""
        counts: dict[Place, int] = {}
        for stack, count in self.stacks.items():
            own = [place for place in stack if place.users] if users else []
            place = (own or list(stack))[-1:]
            for one in place:
                counts[one] = counts.get(one, 0) + count
        total = sum(self.stacks.values())
        best = max(counts, key=lambda place: counts[place], default=None)
        return None if best is None else (best, counts[best] / total)


@dataclass(frozen=True)
class LoopPart:
    """A share of the loop's own thread: `kind` "input" (what the step's input comes from), "step"
    or "host" (the rest of the loop), the place in the loop's body, and the share (0 to 1) of the
    loop's time; `busy`: of that, what the thread did, as in Task; `copying` and `pickling` too, and
    `inner`, the innermost place of the user's below it."""

    kind: str
    place: Place
    share: float
    busy: Mapping[str, float] = field(default_factory=dict)
    copying: float = 0.0
    pickling: float = 0.0
    inner: Place | None = None


@dataclass(frozen=True)
class Evidence:
    """All that is known when a judgement is made.

    `parts`: where the loop's thread spends its time, from samples of its stack. `gil_late_s`: by
    how much (median) a thread that asks for the interpreter lock gets it too late, and
    `gil_late_p90_s`; None: not measured. `pools`: threads of native libraries by name ("OpenCV":
    2), as the libraries say. `missing`: what could not be measured. `overhead_s`: CPU seconds that
    watching took. `first_batch_s`: from the loop's start to its first step.
    """

    loop: Loop | None
    marks: tuple[Mark, ...]
    tasks: tuple[Task, ...]
    machine: Machine
    start_s: float  # of what was watched, warm-up excluded
    end_s: float
    parts: tuple[LoopPart, ...] = ()
    gil_late_s: float | None = None
    gil_late_p90_s: float | None = None
    pools: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    overhead_s: float = 0.0
    first_batch_s: float | None = None
    warmup_s: float = 0.0
    threads: int = 1  # producers that the loop's loader has: threads or processes, where known
    # calls of the loop's thread between its steps that are parts of them, in order
    beside: tuple[Step, ...] = ()
    waiting_now_s: float = 0.0  # for so long no step has ended, at end_s
