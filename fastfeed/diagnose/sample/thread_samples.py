"""History of each thread of a process, and samples of all threads of this one at one moment."""

from __future__ import annotations

import _thread
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from types import FrameType
from typing import NamedTuple

from fastfeed.diagnose.sample.states import CORE, SOCKET_CALLS, STREAM_CALLS, state_of
from fastfeed.probes import lock, procfs
from fastfeed.probes.places import Spot
from fastfeed.probes.procfs import Counters, DescriptorReader, ThreadFiles

TRACE_LENGTH = 50_000  # samples of the loop's thread that are kept in order
MAX_STACK_FRAMES = 200  # of one stack
ANY_SOCKET = -1  # in place of a descriptor: "pipe" if all of them are to other processes here
MIN_SAMPLES = 20  # of a thread or a function, from which shares are computed


class ThreadStack(tuple[Spot, ...]):
    """Stack that is equal only to itself.

    Hashing the code of all its functions takes longer than everything else about a sample.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


NO_STACK = ThreadStack()


class Sample(NamedTuple):
    """Observation of a thread at one moment.

    `stack`: the innermost spot first. `holder`: the thread probably held the interpreter lock until
    the sampler asked for it. `released`: it has let the lock go by itself since, in a system call:
    the code that held the lock came before its stack.
    """

    stack: ThreadStack
    state: str
    holder: bool = False
    released: bool = False


class ThreadMoment(NamedTuple):
    """Sample of a thread, with its log. `cpu_s`: since the last one. `wants_gil`: the thread waits
    for the interpreter lock, or has got it meanwhile."""

    log: ThreadLog
    sample: Sample
    cpu_s: float
    wants_gil: bool


class ThreadLog:
    """History of one thread of a process while it is observed."""

    def __init__(self, tid: int, name: str = "", *, pid: int | None = None) -> None:
        self.tid = tid
        self.name = name  # "": Python did not start it, as far as is known
        self.ident = 0  # 0: it has not had Python frames yet
        self.pid = pid or os.getpid()
        self.files = ThreadFiles(self.pid, tid)
        self.first = self.last = Counters()
        self.samples: Counter[Sample] = Counter()
        # Times and samples of threads that Python did not start: most moments find them without
        # frames.
        self.moments: list[tuple[float, Sample]] = []
        self.credit = 0.0  # late samples before which it held the interpreter lock
        self.wall_s = 0.0
        self.gone = False

    def begin(self) -> None:
        """Start over: forget earlier samples, and count from the present counters on."""
        self.samples.clear()
        self.moments.clear()
        self.first = self.last
        self.credit = self.wall_s = 0.0

    def used(self) -> Counters:
        """Return what the thread has used since `begin`."""
        return self.last.since(self.first)

    def identify(self, ident: int, name: str) -> None:
        """Set the ident and the name of the thread in Python."""
        self.ident, self.name = ident, name
        self.files.keep()

    def add(self, sample: Sample, now_s: float, *, times: int) -> None:
        """Add a sample that stands for as many."""
        self.samples[sample] += times
        if not self.name:
            self.moments += [(now_s, sample)] * times

    def add_credit(self, share: float) -> None:
        """Add the probability of having held the interpreter lock before a late sample."""
        self.credit += share

    def drop(self, unwanted: Callable[[Sample], bool]) -> None:
        """Remove samples of a thread that Python did not start."""
        if not self.name:
            self.moments = [(when, one) for when, one in self.moments if not unwanted(one)]
            self.samples = Counter({s: n for s, n in self.samples.items() if not unwanted(s)})

    def end(self, passed_s: float) -> None:
        """Record that the thread has ended within the last `passed_s` seconds."""
        self.gone = True
        self.wall_s += passed_s / 2  # the moment is unknown
        self.files.close()

    def refresh(self, reader: DescriptorReader, passed_s: float) -> None:
        """Read the counters after `passed_s` seconds."""
        self.count(reader)
        self.wall_s += passed_s

    def count(self, reader: DescriptorReader) -> float:
        """Read the counters; return the CPU seconds since they were read last, 0 the first time."""
        schedstat = self.files.read("schedstat", reader)
        now = procfs.times(b"" if schedstat else self.files.read("stat", reader), schedstat)
        before_s = self.last.cpu_s
        self.last = now if any(now) else self.last
        return self.last.cpu_s - before_s if before_s else 0.0

    def observe(
        self,
        reader: DescriptorReader,
        targets: dict[int, str],
        *,
        stack: ThreadStack = NO_STACK,
        late: bool = False,
        frame: FrameType | None = None,
    ) -> ThreadMoment:
        """Return what the thread waits for at this moment.

        `targets`: the known kinds of the process's descriptors. `frame`: the innermost one of
        `stack`; a thread that has moved on by then does not wait in that call.
        """
        cpu_s = self.count(reader)
        call, first = procfs.call_of(self.files.read("syscall", reader))
        disk, target = False, ""
        if call != procfs.RUNNING and call not in procfs.NEVER_DISK:
            state = procfs.state_char(self.files.read("stat", reader))
            disk = state == "D"
            call = procfs.RUNNING if state == "R" else call
        if call == "select" and first == 0:
            call = "sleep"  # time.sleep before Python 3.11
        if call in STREAM_CALLS:
            if first not in targets:
                targets[first] = procfs.target_of(self.pid, first)
            target = targets[first]
        if target == "socket" or call in SOCKET_CALLS:
            # A call that waits for several files does not tell of what kind they are.
            if ANY_SOCKET not in targets:
                network = procfs.has_internet_sockets(self.pid)
                targets[ANY_SOCKET] = "socket" if network else "pipe"
            target = targets[ANY_SOCKET]
        if frame is not None and frame.f_lasti != stack[0][1]:
            return ThreadMoment(self, Sample(stack, CORE), cpu_s, wants_gil=True)
        # A child has other addresses, unless it was forked; few wait for their own lock.
        wants_gil = call == "futex" and first in lock.runtime_addresses()
        found = state_of(call, target=target, disk=disk, wants_gil=wants_gil, late=late)
        return ThreadMoment(self, Sample(stack, found), cpu_s, wants_gil)


class Threads:
    """All threads of this process except those of the diagnosis."""

    def __init__(self, reader: DescriptorReader) -> None:
        self._reader = reader
        self.loop = 0  # ident of the loop's thread
        self.logs: dict[int, ThreadLog] = {}
        self.ours: set[int] = {0}  # tids of the diagnosis
        self.samples = self.late = self.blind = 0
        # of the loop's thread: time and sample
        self.trace: deque[tuple[float, Sample]] = deque(maxlen=TRACE_LENGTH)
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
        self.logs = {tid: log for tid, log in self.logs.items() if not log.gone}
        for log in self.logs.values():
            log.begin()
        self.samples = self.late = self.blind = 0
        self.trace.clear()

    def refresh(self, passed_s: float) -> None:
        """Find new threads, and read the counters of all after `passed_s` seconds."""
        self._targets.clear()
        tids = procfs.threads_of("self") - self.ours
        for tid in tids - self.logs.keys():
            self.logs[tid] = ThreadLog(tid)
            # Native pools have dozens of threads, whose counters are read again and again.
            self.logs[tid].files.keep(procfs.COUNTER_FILES)
        for tid, log in self.logs.items():
            if tid in tids:
                log.refresh(self._reader, passed_s)
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
        # All stacks come first: every file read may release the interpreter lock, and the threads
        # that wait for it run on.
        frames = sys._current_frames()
        # A frame that refers to itself would stay alive, and all others with it.
        frames.pop(_thread.get_ident(), None)
        stacks = {ident: stack_of(frame, self._stacks) for ident, frame in frames.items()}
        observed: list[ThreadMoment] = []
        for ident, frame in frames.items():
            tid = procfs.tid_of(ident)
            if tid not in self.ours:
                log = self._log(tid, ident)
                observed.append(
                    log.observe(
                        self._reader,
                        self._targets,
                        stack=stacks[ident],
                        late=late,
                        frame=frame,
                    )
                )
        if late:
            observed = self._mark_holder(observed, late_s, times=times)
        for log, sample, *_ in observed:
            log.add(sample, now_s, times=times)
            if log.ident == self.loop:
                self.trace.extend([(now_s, sample)] * times)

    def _log(self, tid: int, ident: int) -> ThreadLog:
        log = self.logs.get(tid)
        if log is None:
            log = self.logs[tid] = ThreadLog(tid)
            log.count(self._reader)  # all that it has used falls into the observed time
        if not log.ident:
            log.identify(ident, procfs.thread_name(ident))
        return log

    def _mark_holder(
        self, observed: list[ThreadMoment], late_s: float, *, times: int
    ) -> list[ThreadMoment]:
        """Find the thread that held the interpreter lock."""
        wanting = [lock.LockCandidate(one.cpu_s, one.wants_gil) for one in observed]
        marked = []
        for one, share in zip(observed, lock.holder_likelihoods(wanting, late_s), strict=True):
            one.log.add_credit(share * times)
            if share > 0.5:  # it stopped only because the sampler took the lock
                off = not one.wants_gil and one.sample.state != CORE
                one = one._replace(sample=Sample(one.sample.stack, CORE, True, off))
            marked.append(one)
        return marked

    def exclude(self, tids: Iterable[int]) -> None:
        """Add threads that belong to the diagnosis."""
        self.ours.update(tids)

    def close(self) -> None:
        """Close all files."""
        for log in self.logs.values():
            log.files.close()


def used_by(logs: Iterable[ThreadLog]) -> Counters:
    """Return what all these threads have used."""
    used = Counters()
    for log in logs:
        used = used.plus(log.used())
    return used


def states_of(logs: Iterable[ThreadLog]) -> Counter[str]:
    """Return the samples of all these threads by state."""
    counts: Counter[str] = Counter()
    for log in logs:
        for sample, count in log.samples.items():
            counts[sample.state] += count
    return counts


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
