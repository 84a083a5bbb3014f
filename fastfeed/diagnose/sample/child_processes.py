"""Child processes: what each of them uses and waits for, and its stacks, if py-spy may read
them."""

from __future__ import annotations

import os
import resource
from collections import Counter, defaultdict
from collections.abc import Iterable

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import Task
from fastfeed.diagnose.sample import callee, states
from fastfeed.probes import family, procfs
from fastfeed.probes.places import Place, Places
from fastfeed.probes.procfs import Counters, DescriptorReader, ThreadFiles
from fastfeed.probes.pyspy import Spy, StackSample, StackSamples

BURNS, BURNS_S = 0.2, 0.3  # of a core, and CPU seconds: more than a start takes
SAMPLED = 4  # threads of a child that are sampled often
BUSY = 0.05  # of a core: a child that uses so much makes data, even without Python
Waits = Counter[str]


class ChildLog:
    """The history of one child."""

    def __init__(self, kin: family.Kin) -> None:
        self.kin, self.name = kin, family.name_of(kin)
        self.files: dict[int, ThreadFiles] = {}
        self.counters: dict[int, Counters] = {}
        self.first: dict[int, Counters] = {}
        self.waits: dict[int, Waits] = {}
        self.wall_s = 0.0
        self.exit = ""
        self._silence = family.Silence(kin.pid)
        self._targets: dict[int, str] = {}

    def begin(self) -> None:
        """Drop earlier observations."""
        self.first = dict(self.counters)
        self.waits = {tid: Counter() for tid in self.files}
        self.wall_s = 0.0
        self._silence = family.Silence(self.kin.pid)

    def find(self, reader: DescriptorReader, passed_s: float, *, fully: bool = True) -> None:
        """Find its threads, and read their counters (`fully`: also those that cost more)."""
        if self.exit:
            return
        self._targets.clear()
        tids = procfs.threads_of(self.kin.pid)
        if not tids:
            return self.end(b"")
        for tid in sorted(tids - self.files.keys()):
            self.files[tid] = ThreadFiles(self.kin.pid, tid)
            self.waits[tid] = Counter()
            if len(self.files) <= SAMPLED:
                self.files[tid].keep()
        for tid in tids:
            files = self.files[tid]
            stat = files.read("stat", reader)
            if procfs.state_char(stat) == "Z" and tid == self.kin.pid:
                return self.end(stat)
            now = procfs.times(stat, files.read("schedstat", reader))
            slow = (
                procfs.seldom(files.folder)
                if fully or not self.wall_s
                else self.counters.get(tid, Counters())[4:]
            )
            if now.cpu_s or now.queued_s:
                self.counters[tid] = Counters(*now[:4], *slow)
        self.wall_s += passed_s

    def look(self, reader: DescriptorReader) -> None:
        """Sample its first threads."""
        if self.exit:
            return
        for tid, files in list(self.files.items())[:SAMPLED]:
            call, first = procfs.call_of(files.read("syscall", reader))
            state = ""
            if call != procfs.RUNNING and call not in procfs.NEVER_DISK:
                stat = files.read("stat", reader)
                state = procfs.state_char(stat)
                if tid == self.kin.pid and state in ("Z", ""):
                    return self.end(stat)
            if state == "R":
                call = procfs.RUNNING
            target = self._target(first) if call in ("read", "write", "readv", "writev") else ""
            call = "sleep" if call == "select" and first == 0 else call
            seen = states.ThreadView((), None, call, target, state == "D")
            self.waits[tid][states.state_of(seen) if call else ev.OTHER] += 1

    def end(self, stat: bytes) -> None:
        """Note that it has ended."""
        self.exit = family.exit_of(stat, self.kin.pid)
        self.close()

    def close(self) -> None:
        """Close its files."""
        for files in self.files.values():
            files.close()

    def _target(self, fd: int) -> str:
        if fd not in self._targets:
            self._targets[fd] = procfs.target_of(self.kin.pid, fd)
        return self._targets[fd]

    def used(self, tid: int) -> Counters:
        """Return what a thread has used since the beginning."""
        return self.counters.get(tid, Counters()).since(self.first.get(tid, Counters()))

    def total(self) -> Counters:
        """Return what all its threads have used."""
        found = Counters()
        for tid in self.counters:
            found = found.plus(self.used(tid))
        return found

    @property
    def burns(self) -> bool:
        """True if it uses a core and makes nothing: it is no part of the training."""
        used_s = self.total().cpu_s
        return (
            not self.exit and used_s > max(BURNS_S, BURNS * self.wall_s) and self._silence.holds()
        )


class Children:
    """All child processes that may make data."""

    def __init__(self, reader: DescriptorReader) -> None:
        self._reader = reader
        self.logs: dict[int, ChildLog] = {}
        self._reaped_s = self._reaped_before_s = 0.0  # see reaped_s

    def begin(self) -> None:
        """Begin to count; children that have ended are dropped."""
        self.find(0.0)
        awaited = [
            log for pid, log in self.logs.items() if log.exit and os.path.exists(f"/proc/{pid}")
        ]
        self.logs = {pid: log for pid, log in self.logs.items() if not log.exit}
        self._reaped_before_s = self._reaped_s + sum(
            used.cpu_s for log in awaited for used in log.counters.values()
        )
        for log in self.logs.values():
            log.begin()

    def find(self, passed_s: float, *, fully: bool = True) -> None:
        """Find new ones, and read the counters of all (`fully`: also those that cost more)."""
        for kin in family.descendants(os.getpid()):
            known = self.logs.get(kin.pid)
            if known is None or known.kin.born != kin.born:
                self.logs[kin.pid] = ChildLog(kin)
            elif known.kin != kin:  # it was forked, and then executed
                known.kin, known.name = kin, family.name_of(kin)
        for log in self.logs.values():
            log.find(self._reader, passed_s, fully=fully)
        self._reaped_s = reaped_s()

    def look(self) -> None:
        """Sample each."""
        for log in self.logs.values():
            log.look(self._reader)

    def lost_s(self) -> float:
        """Return CPU seconds that were not counted: of children that lived between two samples, or
        after the last."""
        counted_s = sum(
            used.cpu_s for log in self.logs.values() if log.exit for used in log.counters.values()
        )
        return max(0.0, self._reaped_s - self._reaped_before_s - counted_s)

    def pythons(self) -> list[int]:
        """Return the children that py-spy can read."""
        return [pid for pid, log in self.logs.items() if log.kin.python and not log.exit]

    def tasks(self, spy: Spy, places: Places) -> list[Task]:
        """Return one task for each child; those whose lock was not sampled are assumed to be like
        the others."""
        alike = _held_of_cpu(self.logs.values(), spy)
        return [task_of(log, spy, places=places, alike=alike) for log in self.logs.values()]

    def close(self) -> None:
        """Close all files."""
        for log in self.logs.values():
            log.close()


def reaped_s() -> float:
    """Return CPU seconds of all children that have ended and were awaited, from their births on."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _held_of_cpu(logs: Iterable[ChildLog], spy: Spy) -> float:
    """Return the share of their CPU time for which the children held their locks; user time, if
    that was not sampled."""
    looked = [
        log for log in logs if log.wall_s and spy.holders.get(log.kin.pid, StackSamples()).looks
    ]
    cpu = sum(log.total().cpu_s / log.wall_s for log in looked)
    held = sum(sum(spy.holders[log.kin.pid].shares().values()) for log in looked)
    return min(held / cpu, 1.0) if cpu else 1.0


def task_of(log: ChildLog, spy: Spy, *, places: Places, alike: float = 1.0) -> Task:
    """Return the task of one child; `alike`: the share of its CPU for which it held its lock, if
    that was not sampled."""
    stacks, holders = (
        spy.all.get(log.kin.pid, StackSamples()),
        spy.holders.get(log.kin.pid, StackSamples()),
    )
    workers = working(stacks, log)
    wall_s = log.wall_s or 1e-9
    held = holders.shares()
    seen: Counter[StackSample] = sum(
        (stacks.seen[tid] for tid in workers if tid in stacks.seen), Counter()
    )
    busy: dict[str, float] = defaultdict(float)
    for tid in workers:
        used = log.used(tid)
        cpu = used.cpu_s / wall_s
        counts = with_buffers(
            log.waits.get(tid, Counter()), stacks.seen.get(tid, Counter()), cpu=cpu
        )
        python = held.get(tid, 0.0) if holders.looks else alike * (cpu - used.system_s / wall_s)
        for state, share in states.shares(
            counts, cpu=cpu, queued=used.queued_s / wall_s, python=python
        ).items():
            busy[state] += share / len(workers)
    total = log.total()
    copying, pickling = works(seen)
    makes = log.kin.python or total.cpu_s > BUSY * wall_s
    role = ev.PRODUCER if makes and not log.burns else ev.FOREIGN
    name, pid = f"{log.name} (process {log.kin.pid})", log.kin.pid
    return Task(
        *(name, pid, pid, role, log.wall_s),
        **total.fields(),
        busy=dict(busy),
        stacks=dict(_folded(seen)),
        copying=copying,
        pickling=pickling,
        exit=log.exit,
        threads=len(log.counters) or 1,
        sampled=stacks.looks > 0,
    )


def working(stacks: StackSamples, log: ChildLog) -> list[int]:
    """Return the threads that run the user's code and do not only wait for work; else the one that
    uses most CPU, except those that pass results to other processes."""
    found = [tid for tid, seen in stacks.seen.items() if any(_works(stack) for stack in seen)]
    serve = {tid for tid, seen in stacks.seen.items() if any(_serves(stack) for stack in seen)}
    busiest = max(
        log.counters.keys() - serve, key=lambda tid: log.used(tid).cpu_s, default=log.kin.pid
    )
    return sorted(found) or [busiest]


def _works(stack: StackSample) -> bool:
    """Return True unless the stack has no place of the user's, or waits for work below it."""
    return any(place.users for place in stack.places)


def _serves(stack: StackSample) -> bool:
    """Return True for a thread that serves descriptors of results: tensors of torch in shared
    memory travel so."""
    return any(place.file.endswith("multiprocessing/resource_sharer.py") for place in stack.places)


def with_buffers(waits: Waits, seen: Counter[StackSample], *, cpu: float) -> dict[str, float]:
    """Return the samples off the core by state. If stacks show for how much of the time the thread
    waited in a queue, that part is EMPTY or FULL, and no longer LOCK, PIPE or SOCKET."""
    looks = sum(seen.values())
    off: dict[str, float] = defaultdict(float)
    off.update((state, count) for state, count in waits.items() if state != states.CORE)
    total = sum(off.values())
    if not looks or not total or cpu >= 1.0:
        return off
    moved: Counter[str] = Counter()
    sockets = False
    for stack, count in seen.items():
        state = states.buffer_state(
            states.ThreadView(stack_names(stack), call="futex", called=_one_call(stack))
        )
        if state:
            moved[state] += count
        sockets |= not state and states.in_socket(stack_names(stack))
    for state, count in moved.items():
        room = count / looks / (1.0 - cpu) * total
        for source in (ev.LOCK, ev.PIPE, ev.SOCKET, ev.OTHER):
            taken = min(room, off[source])
            off[source] -= taken
            off[state] += taken
            room -= taken
    # pipes between processes may be sockets: fewer of their samples are left
    if moved and not sockets:
        off[max(moved, key=lambda state: moved[state])] += off.pop(ev.SOCKET, 0.0)
    return off


def stack_names(stack: StackSample) -> list[tuple[str, str]]:
    """Return (function, file), the innermost first."""
    return [(place.function, place.file) for place in reversed(stack.places)]


def _one_call(stack: StackSample) -> str | None:
    calls = callee.calls_at(stack.file, stack.places[-1].line) if stack.places else ()
    return calls[0] if len(calls) == 1 else None


def works(seen: Counter[StackSample]) -> tuple[float, float]:
    """Return the shares of samples that copy, and that pickle."""
    found: Counter[str] = Counter()
    for stack, count in seen.items():
        found[work_of_stack(stack)] += count
    total = sum(seen.values()) or 1
    return found["copying"] / total, found["pickling"] / total


def work_of_stack(stack: StackSample) -> str:
    """Return "copying", "pickling" or "", by the innermost function and the calls on its line."""
    if not stack.places:
        return ""
    last = stack.places[-1]
    return callee.work_of(last.function, last.file, calls=callee.calls_at(stack.file, last.line))


def _folded(seen: Counter[StackSample]) -> Counter[tuple[Place, ...]]:
    found: Counter[tuple[Place, ...]] = Counter()
    for stack, count in seen.items():
        found[stack.places] += count
    return found
