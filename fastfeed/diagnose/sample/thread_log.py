"""Samples of all threads of this process at one moment, and the history of each thread."""

from __future__ import annotations

import _thread
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Set
from types import FrameType
from typing import NamedTuple

from fastfeed.probes import lock, procfs
from fastfeed.probes.places import Spot
from fastfeed.probes.procfs import Counters, DescriptorReader, ThreadFiles

TRACE_LENGTH = 50_000  # samples of the loop's thread that are kept in order
MAX_STACK_FRAMES = 200  # of one stack
MIN_SAMPLES = 20  # of a thread or a function, from which shares are computed
ModuleIntegers = dict[str, int]  # the integer variables of a module


class ThreadStack(tuple[Spot, ...]):
    """Stack that is equal only to itself.

    Hashing the code of all its functions takes longer than everything else about a sample.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class Sample(NamedTuple):
    """Observation of a thread at one moment.

    `stack`: the innermost spot first. `late`: the sampler got the interpreter lock too late.
    `holder`: the thread probably held the interpreter lock until the sampler asked for it.
    `computing`, of the loop's thread: threads of compiled programs had work meanwhile.
    """

    stack: ThreadStack
    call: str
    target: str
    disk: bool
    late: bool
    holder: bool = False
    computing: bool = False


class ThreadLog:
    """History of one thread while it is observed."""

    def __init__(self, tid: int, name: str) -> None:
        self.tid = tid
        self.name = name
        self.foreign = not name  # Python did not start it
        self.ident = 0  # 0: it has not had Python frames yet
        self.files = ThreadFiles(os.getpid(), tid)
        self.first = self.last = Counters()
        self.samples: Counter[Sample] = Counter()
        # By the number of the sample, for threads that Python did not start: most samples find them
        # without frames.
        self.by_number: dict[int, Sample] = {}
        self.credit = 0.0  # late samples before which it held the interpreter lock
        self.wall_s = 0.0
        self.gone = False
        self._cpu_s = 0.0

    def begin(self) -> None:
        """Start over: forget earlier samples, and count from the present counters on."""
        self.samples.clear()
        self.by_number.clear()
        self.first = self.last
        self.credit = self.wall_s = 0.0

    def used(self) -> Counters:
        """Return what the thread has used since `begin`."""
        return self.last.since(self.first)

    def identify(self, ident: int, name: str) -> None:
        """Set the ident and the name of the thread in Python."""
        self.ident, self.name, self.foreign = ident, name, not name
        self.files.keep()

    def add(self, sample: Sample, numbers: range) -> None:
        """Add a sample that stands for all these sample numbers."""
        self.samples[sample] += len(numbers)
        if self.foreign:
            self.by_number.update(dict.fromkeys(numbers, sample))

    def add_credit(self, share: float) -> None:
        """Add the probability of having held the interpreter lock before a late sample."""
        self.credit += share

    def drop(self, unwanted: Callable[[Sample], bool]) -> None:
        """Remove samples; `samples` only if Python did not start the thread."""
        self.by_number = {n: one for n, one in self.by_number.items() if not unwanted(one)}
        if self.foreign:
            self.samples = Counter({s: n for s, n in self.samples.items() if not unwanted(s)})

    def end(self, passed_s: float) -> None:
        """Record that the thread has ended within the last `passed_s` seconds."""
        self.gone = True
        self.wall_s += passed_s / 2  # the moment is unknown
        self.files.close()

    def refresh(self, reader: DescriptorReader, passed_s: float, *, fully: bool) -> None:
        """Read the counters after `passed_s` seconds; `fully`: also the expensive ones."""
        self.count(reader)
        if fully or not self.wall_s:
            self._count_slow()
        self.wall_s += passed_s

    def count(self, reader: DescriptorReader) -> None:
        """Read the counters that change quickly."""
        stat = self.files.read("stat", reader)
        if not stat:
            self.gone = True
            return
        slow = self.last[4:]
        now = procfs.times(stat, self.files.read("schedstat", reader))
        self.last = Counters(*now[:4], *slow)
        self._cpu_s = now.cpu_s

    def _count_slow(self) -> None:
        found = procfs.slow_counters(self.files.folder)
        if any(found):
            self.last = Counters(*self.last[:4], *found)

    def cpu_since(self, reader: DescriptorReader) -> float:
        """Return the seconds on a core since the last call or the last count."""
        words = self.files.read("schedstat", reader).split()
        now = int(words[0]) / 1e9 if words else 0.0
        before, self._cpu_s = self._cpu_s, now
        return now - before if before else 0.0


class ObservedThread(NamedTuple):
    """Sample of a thread, with its log.

    `wants_lock`: the thread waits for the interpreter lock, or has got it meanwhile.
    """

    log: ThreadLog
    sample: Sample
    wants_lock: bool


class Threads:
    """All threads of this process except those of the diagnosis."""

    def __init__(self, reader: DescriptorReader) -> None:
        self._reader = reader
        self.loop = 0  # ident of the loop's thread
        self.logs: dict[int, ThreadLog] = {}
        self.ours: set[int] = {0}  # tids of the diagnosis
        self.computing: Set[int] = frozenset()  # tids that only run compiled programs
        self.samples = self.late = self.blind = 0
        self.computed = 0  # samples in which one of those had work
        # of the loop's thread: time and sample
        self.trace: deque[tuple[float, Sample]] = deque(maxlen=TRACE_LENGTH)
        # of the script's module, at the samples of the trace
        self.integers: deque[ModuleIntegers] = deque(maxlen=TRACE_LENGTH)
        self._targets: dict[int, str] = {}
        # Every stack that was sampled, by the ids and offsets of its code objects.
        self._stacks: dict[tuple[int, ...], ThreadStack] = {}

    def begin(self, loop: int) -> None:
        """Start over from the present counters, and forget threads that have ended.

        `loop`: the ident of the loop's thread.
        """
        self.loop = loop
        self.refresh(0.0)
        self._stacks.clear()
        for tid in [tid for tid, log in self.logs.items() if log.gone]:
            self.logs.pop(tid)
        for log in self.logs.values():
            log.begin()
        self.samples = self.late = self.blind = self.computed = 0
        self.trace.clear()
        self.integers.clear()

    def refresh(self, passed_s: float, *, fully: bool = True) -> None:
        """Find new threads and read the counters of all.

        `passed_s`: seconds since the last call. `fully`: also read the counters that are expensive.
        """
        self._targets.clear()
        tids = procfs.threads_of("self") - self.ours
        for tid in tids - self.logs.keys():
            self.logs[tid] = ThreadLog(tid, "")
            # Native pools have dozens of threads, whose counters are read again and again.
            self.logs[tid].files.keep(procfs.COUNTER_FILES)
        for tid, log in self.logs.items():
            if tid in tids:
                log.refresh(self._reader, passed_s, fully=fully)
            elif not log.gone:
                log.end(passed_s)

    def sample(self, now_s: float, times: int = 1, *, late_s: float, queued_s: float) -> None:
        """Take a sample: where each thread with Python frames is, and what it waits for.

        The sampler woke `queued_s` late because no core was free, and `late_s` late for other
        reasons. The sample stands for the `times` at which one was due.
        """
        late = late_s > lock.LATE_S
        self.samples += times
        self.late += late * times
        self.blind += (not late and queued_s > lock.LATE_S) * times
        # All stacks come first: every file read releases the interpreter lock, and the threads that
        # wait for it run on.
        frames = sys._current_frames()
        # A frame that refers to itself would stay alive, and all others with it.
        frames.pop(_thread.get_ident(), None)
        stacks = {ident: stack_of(frame, self._stacks) for ident, frame in frames.items()}
        integers = module_integers(frames.get(self.loop))
        computes = self._computes()
        self.computed += computes * times
        observed: list[ObservedThread] = []
        for ident, frame in frames.items():
            tid = procfs.tid_of(ident)
            if tid not in self.ours:
                log = self._log(tid, ident)
                observed.append(self._observe(log, frame, stack=stacks[ident], late=late))
        if late:
            observed = self._mark_holder(observed, late_s, times=times)
        for log, sample, _ in observed:
            log.add(sample, range(self.samples - times, self.samples))
            if log.ident == self.loop:
                self.trace.extend([(now_s, sample._replace(computing=computes))] * times)
                self.integers.extend([integers] * times)

    def _mark_holder(
        self, observed: list[ObservedThread], late_s: float, *, times: int
    ) -> list[ObservedThread]:
        """Find the thread that held the interpreter lock."""
        wanting = [
            lock.LockCandidate(one.log.cpu_since(self._reader), one.wants_lock) for one in observed
        ]
        marked = []
        for one, share in zip(observed, lock.holder_likelihoods(wanting, late_s), strict=True):
            one.log.add_credit(share * times)
            marked.append(one._replace(sample=one.sample._replace(holder=share > 0.5)))
        return marked

    def _log(self, tid: int, ident: int) -> ThreadLog:
        log = self.logs.get(tid)
        if log is None:
            log = self.logs[tid] = ThreadLog(tid, "")
            log.count(self._reader)  # all that it has used falls into the observed time
        if not log.ident:
            log.identify(ident, procfs.thread_name(ident))
        return log

    def _observe(
        self, log: ThreadLog, frame: FrameType, *, stack: ThreadStack, late: bool
    ) -> ObservedThread:
        call, first = procfs.call_of(log.files.read("syscall", self._reader))
        disk = False
        target = ""
        if call != procfs.RUNNING and call not in procfs.NEVER_DISK:
            state = procfs.state_char(log.files.read("stat", self._reader))
            disk = state == "D"
            if state == "R":
                call = procfs.RUNNING
        if call in ("read", "write", "readv", "writev"):
            target = self._target(first)
        elif call == "select" and first == 0:
            call = "sleep"  # time.sleep before Python 3.11
        # The thread has moved on since: that call does not belong to its stack.
        if frame.f_lasti != stack[0][1]:
            return ObservedThread(log, Sample(stack, procfs.RUNNING, "", False, late), True)
        return ObservedThread(log, Sample(stack, call, target, disk, late), call == "futex")

    def _computes(self) -> bool:
        """Return True if a thread of compiled programs is on a core, or ready for one."""
        logs = [self.logs.get(tid) for tid in tuple(self.computing)]  # a backend may be made now
        used = (log for log in logs if log is not None and log.used().cpu_s)
        stats = (log.files.read("stat", self._reader) for log in used)
        return any(procfs.state_char(stat) == "R" for stat in stats)

    def _target(self, fd: int) -> str:
        if fd not in self._targets:
            self._targets[fd] = procfs.target_of("self", fd)
        return self._targets[fd]

    def exclude(self, tids: Iterable[int]) -> None:
        """Add threads that belong to the diagnosis."""
        self.ours.update(tids)

    def close(self) -> None:
        """Close all files."""
        for log in self.logs.values():
            log.files.close()


def stack_of(
    frame: FrameType | None, known: dict[tuple[int, ...], ThreadStack] | None = None
) -> ThreadStack:
    """Return the spots of a stack, the innermost first.

    Neither the frames nor what they hold are kept. An equal stack in `known` is returned instead of
    a new one.
    """
    found: list[Spot] = []
    key: list[int] = []
    while frame is not None and len(found) < MAX_STACK_FRAMES:
        code, offset = frame.f_code, frame.f_lasti
        found.append((code, offset))
        key += (id(code), offset)
        frame = frame.f_back
    stack = ThreadStack(found)
    return stack if known is None else known.setdefault(tuple(key), stack)


def module_integers(frame: FrameType | None) -> ModuleIntegers:
    """Return the integer variables of the script's own module if its body is on the stack.

    The variables of functions are not read, because that would keep the objects that they hold
    alive.
    """
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            names = frame.f_code.co_names
            values = ((name, frame.f_globals.get(name)) for name in names)
            return {name: value for name, value in values if type(value) is int}
        frame = frame.f_back
    return {}
