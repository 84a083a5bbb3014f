"""The threads of this process: a sample of all of them at one moment, and the history of each."""

from __future__ import annotations

import _thread
import os
import sys
from collections import Counter, deque
from types import FrameType
from typing import NamedTuple

from fastfeed.probes import lock, procfs
from fastfeed.probes.places import Spot
from fastfeed.probes.procfs import Counters, DescriptorReader, ThreadFiles
from fastfeed.probes.thread_names import Names

TRACE = 50_000  # samples of the loop's thread that are kept in order
DEEP = 200  # frames
Counts = dict[str, int]  # of a module's variables: the integers


class ThreadStack(tuple[Spot, ...]):
    """A stack that equals only itself: hashing the code of all its functions takes longer than
    everything else in a sample."""

    __slots__ = ()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class Sample(NamedTuple):
    """A thread at one moment. `stack`: the innermost spot first. `holder`: it probably held the
    interpreter lock until the sampler asked for it."""

    stack: ThreadStack
    call: str
    target: str
    disk: bool
    late: bool
    holder: bool = False


class ThreadLog:
    """The history of one thread."""

    def __init__(self, tid: int, name: str) -> None:
        self.tid, self.name = tid, name
        self.foreign = not name  # not started by Python
        self.ident = 0  # 0: it never had Python frames
        self.files = ThreadFiles(os.getpid(), tid)
        self.first = self.last = Counters()
        self.looks: Counter[Sample] = Counter()
        # by sample, if Python did not start it: it has no frames in most
        self.moments: dict[int, Sample] = {}
        self.credit = 0.0  # late samples before which it held the lock
        self.wall_s = 0.0
        self.gone = False
        self._cpu_s = 0.0

    def begin(self) -> None:
        """Drop earlier samples."""
        self.looks.clear()
        self.moments.clear()
        self.first, self.credit, self.wall_s = self.last, 0.0, 0.0

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

    def count_seldom(self) -> None:
        """Read the others."""
        found = procfs.seldom(self.files.folder)
        if any(found):
            self.last = Counters(*self.last[:4], *found)

    def cpu_since(self, reader: DescriptorReader) -> float:
        """Return CPU seconds since the last call, or the last count."""
        words = self.files.read("schedstat", reader).split()
        now = int(words[0]) / 1e9 if words else 0.0
        before, self._cpu_s = self._cpu_s, now
        return now - before if before else 0.0


class ObservedThread(NamedTuple):
    """A thread's log, and a sample of it; `wants`: it wants the interpreter lock, or has got it
    meanwhile."""

    log: ThreadLog
    look: Sample
    wants: bool


class Threads:
    """All threads of this process except those of the diagnosis."""

    def __init__(self, reader: DescriptorReader, names: Names) -> None:
        self._reader, self._names = reader, names
        self.loop = 0  # the ident of the loop's thread
        self.logs: dict[int, ThreadLog] = {}
        self.ours: set[int] = {0}  # tids
        self.samples = self.late = self.blind = 0
        self.trace: deque[tuple[float, Sample]] = deque(maxlen=TRACE)  # of the loop's thread
        self.counts: deque[Counts] = deque(maxlen=TRACE)  # of the script's module, beside the trace
        self._targets: dict[int, str] = {}
        # all that were seen, by the ids of their code objects
        self._stacks: dict[tuple[int, ...], ThreadStack] = {}

    def begin(self) -> None:
        """Begin to count; threads that have ended are dropped."""
        self.find(0.0)
        self._stacks.clear()
        for tid in [tid for tid, log in self.logs.items() if log.gone]:
            self.logs.pop(tid)
        for log in self.logs.values():
            log.begin()
        self.samples = self.late = self.blind = 0
        self.trace.clear()
        self.counts.clear()

    def find(self, passed_s: float, *, fully: bool = True) -> None:
        """Find new threads, and read the counters of all (`fully`: also those that cost more);
        `passed_s` since the last time."""
        self._targets.clear()
        tids = procfs.threads_of("self") - self.ours
        for tid in tids - self.logs.keys():
            self.logs[tid] = ThreadLog(tid, "")
            # native pools have dozens, and are counted repeatedly
            self.logs[tid].files.keep(procfs.COUNTERS)
        for tid, log in self.logs.items():
            if tid in tids:
                log.count(self._reader)
                if fully or not log.wall_s:
                    log.count_seldom()
                log.wall_s += passed_s
            elif not log.gone:
                log.gone = True
                log.wall_s += passed_s / 2  # its start was not observed
                log.files.close()

    def look(self, now_s: float, times: int = 1, *, late_s: float, queued_s: float) -> None:
        """Take a sample: the position of each thread with Python frames, and what it waits for. The
        sampler came `queued_s` late for lack of a core, and `late_s` for other reasons; it stands
        for `times` samples that were due."""
        late = late_s > lock.LATE_S
        self.samples += times
        self.late += late * times
        self.blind += (not late and queued_s > lock.LATE_S) * times
        # All stacks first: reading a file releases the interpreter lock, and other threads go on.
        frames = sys._current_frames()
        # a frame that references itself would be kept, and all others with it
        frames.pop(_thread.get_ident(), None)
        stacks = {ident: stack_of(frame, self._stacks) for ident, frame in frames.items()}
        counts = counts_of(frames.get(self.loop))
        seen: list[ObservedThread] = []
        for ident, frame in frames.items():
            tid = self._names.tid(ident)
            if tid not in self.ours:
                log = self._log(tid, ident)
                seen.append(self._seen(log, frame, stack=stacks[ident], late=late))
        if late:
            seen = self._blame(seen, late_s, times=times)
        for log, look, _ in seen:
            log.looks[look] += times
            if log.foreign:
                log.moments.update(dict.fromkeys(range(self.samples - times, self.samples), look))
            if log.ident == self.loop:
                self.trace.extend([(now_s, look)] * times)
                self.counts.extend([counts] * times)

    def _blame(
        self, seen: list[ObservedThread], late_s: float, *, times: int
    ) -> list[ObservedThread]:
        """Find the holder of the interpreter lock."""
        wanting = [lock.Wanting(now.log.cpu_since(self._reader), now.wants) for now in seen]
        shares = lock.holders(wanting, late_s)
        for now, share in zip(seen, shares, strict=True):
            now.log.credit += share * times
        blamed = zip(seen, shares, strict=True)
        return [now._replace(look=now.look._replace(holder=share > 0.5)) for now, share in blamed]

    def _log(self, tid: int, ident: int) -> ThreadLog:
        log = self.logs.get(tid)
        if log is None:
            log = self.logs[tid] = ThreadLog(tid, "")
            log.count(self._reader)  # all that it has used belongs to the observed time
        if not log.ident:
            log.files.keep()
            log.ident, log.name = ident, self._names.name(ident)
            log.foreign = not log.name
        return log

    def _seen(
        self, log: ThreadLog, frame: FrameType, *, stack: ThreadStack, late: bool
    ) -> ObservedThread:
        call, first = procfs.call_of(log.files.read("syscall", self._reader))
        disk, target = False, ""
        if call != procfs.RUNNING and call not in procfs.NEVER_DISK:
            state = procfs.state_char(log.files.read("stat", self._reader))
            disk = state == "D"
            if state == "R":
                call = procfs.RUNNING
        if call in ("read", "write", "readv", "writev"):
            target = self._target(first)
        elif call == "select" and first == 0:
            call = "sleep"  # how time.sleep was implemented before Python 3.11
        # it has gone on meanwhile: the call does not belong to its stack
        if frame.f_lasti != stack[0][1]:
            return ObservedThread(log, Sample(stack, procfs.RUNNING, "", False, late), True)
        return ObservedThread(log, Sample(stack, call, target, disk, late), call == "futex")

    def _target(self, fd: int) -> str:
        if fd not in self._targets:
            self._targets[fd] = procfs.target_of("self", fd)
        return self._targets[fd]

    def close(self) -> None:
        """Close all files."""
        for log in self.logs.values():
            log.files.close()


def stack_of(
    frame: FrameType | None, known: dict[tuple[int, ...], ThreadStack] | None = None
) -> ThreadStack:
    """Return the spots of a stack, the innermost first, without keeping frames or their variables.
    One that is `known` is returned again."""
    found: list[Spot] = []
    key: list[int] = []
    while frame is not None and len(found) < DEEP:
        code, offset = frame.f_code, frame.f_lasti
        found.append((code, offset))
        key += (id(code), offset)
        frame = frame.f_back
    stack = ThreadStack(found)
    return stack if known is None else known.setdefault(tuple(key), stack)


def counts_of(frame: FrameType | None) -> Counts:
    """Return the integers of the script's own module, if its body is on the stack; variables of
    functions are not read, because that would keep them alive."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            names = frame.f_code.co_names
            values = ((name, frame.f_globals.get(name)) for name in names)
            return {name: value for name, value in values if type(value) is int}
        frame = frame.f_back
    return {}
