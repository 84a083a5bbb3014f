"""Child processes: the resources, waits and, where py-spy has access, the stacks of each."""

from __future__ import annotations

import os
import resource
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import Task
from fastfeed.diagnose.sample import callee, states
from fastfeed.probes import family, procfs
from fastfeed.probes.places import Place
from fastfeed.probes.procfs import Counters, DescriptorReader, ThreadFiles
from fastfeed.probes.pyspy import PySpy, StackSample, StackSamples

# Cores, and CPU seconds, of a process that produces no data: more than it needs to start.
UNRELATED_CORES, UNRELATED_CPU_S = 0.2, 0.3
MAX_SAMPLED_THREADS = 4  # threads of a child whose calls are sampled
MAX_JOB_THREADS = 32  # the same of a job that is watched from outside
MIN_PRODUCER_CORES = 0.05  # a child that is not Python but uses more produces data, too
WAITS_OF_ANY_KIND = (ev.LOCK, ev.PIPE, ev.SOCKET, ev.OTHER)  # of which some are for a queue
StateCounts = Counter[str]


class ChildLog:
    """History of one child process while it is observed."""

    def __init__(
        self, process: family.Descendant, *, sampled_threads: int = MAX_SAMPLED_THREADS
    ) -> None:
        self.identify(process)
        self.sampled_threads = sampled_threads
        self.files: dict[int, ThreadFiles] = {}
        self.counters: dict[int, Counters] = {}
        self.first: dict[int, Counters] = {}
        self.waits: dict[int, StateCounts] = {}
        self.wall_s = 0.0
        self.exit = ""
        self._silence = family.SilentProcess(process.pid)
        self._targets: dict[int, str] = {}

    def identify(self, process: family.Descendant) -> None:
        """Set what the process runs, which a call of exec changes."""
        self.process = process
        self.name = family.name_of(process)

    def begin(self) -> None:
        """Start over from the present counters."""
        self.first = dict(self.counters)
        self.waits = {tid: Counter() for tid in self.files}
        self.wall_s = 0.0
        self._silence = family.SilentProcess(self.process.pid)

    def refresh(self, reader: DescriptorReader, passed_s: float, *, fully: bool = True) -> None:
        """Find the threads of the process and read their counters.

        `passed_s`: seconds since the last call. `fully`: also read the counters that are expensive.
        """
        if self.exit:
            return
        self._targets.clear()
        tids = procfs.threads_of(self.process.pid)
        if not tids:
            return self.record_end(b"")
        for tid in sorted(tids - self.files.keys()):
            self.files[tid] = ThreadFiles(self.process.pid, tid)
            self.waits[tid] = Counter()
            if len(self.files) <= self.sampled_threads:
                self.files[tid].keep()
        for tid in tids:
            files = self.files[tid]
            stat = files.read("stat", reader)
            if procfs.state_char(stat) == "Z" and tid == self.process.pid:
                return self.record_end(stat)
            now = procfs.times(stat, files.read("schedstat", reader))
            slow = (
                procfs.slow_counters(files.folder)
                if fully or not self.wall_s
                else self.counters.get(tid, Counters())[4:]
            )
            if now.cpu_s or now.queued_s:
                self.counters[tid] = Counters(*now[:4], *slow)
        self.wall_s += passed_s

    def sample(self, reader: DescriptorReader) -> None:
        """Sample the first threads of the process."""
        if self.exit:
            return
        for tid, files in list(self.files.items())[: self.sampled_threads]:
            call, first = procfs.call_of(files.read("syscall", reader))
            state = ""
            if call != procfs.RUNNING and call not in procfs.NEVER_DISK:
                stat = files.read("stat", reader)
                state = procfs.state_char(stat)
                if tid == self.process.pid and state in ("Z", ""):
                    return self.record_end(stat)
            if state == "R":
                call = procfs.RUNNING
            target = self._target(first) if call in ("read", "write", "readv", "writev") else ""
            call = "sleep" if call == "select" and first == 0 else call
            view = states.ThreadView((), None, call, target, state == "D")
            self.waits[tid][states.state_of(view) if call else ev.OTHER] += 1

    def record_end(self, stat: bytes) -> None:
        """Record how the process ended."""
        self.exit = family.exit_of(stat, self.process.pid)
        self.close()

    def close(self) -> None:
        """Close all files."""
        for files in self.files.values():
            files.close()

    def _target(self, fd: int) -> str:
        if fd not in self._targets:
            self._targets[fd] = procfs.target_of(self.process.pid, fd)
        return self._targets[fd]

    def used(self, tid: int) -> Counters:
        """Return what a thread has used since `begin`."""
        return self.counters.get(tid, Counters()).since(self.first.get(tid, Counters()))

    def total(self, threads: Collection[int] = ()) -> Counters:
        """Return what these threads, by default all, have used since `begin`."""
        found = Counters()
        for tid in threads or self.counters:
            found = found.plus(self.used(tid))
        return found

    @property
    def is_unrelated(self) -> bool:
        """True if the process takes a core but sends no data: it is no part of the training."""
        used_s = self.total().cpu_s
        return (
            not self.exit
            and used_s > max(UNRELATED_CPU_S, UNRELATED_CORES * self.wall_s)
            and self._silence.is_silent()
        )


class Children:
    """All child processes that may produce data: those of this process, or a `job` that is watched
    from outside, and its children."""

    def __init__(self, reader: DescriptorReader, *, job: int | None = None) -> None:
        self._reader = reader
        self._job = job
        self.logs: dict[int, ChildLog] = {}
        self._reaped_s = self._reaped_before_s = 0.0  # see reaped_s

    def begin(self) -> None:
        """Start over from the present counters, and forget processes that have ended."""
        self.refresh(0.0)
        awaited = [
            log for pid, log in self.logs.items() if log.exit and os.path.exists(f"/proc/{pid}")
        ]
        self.logs = {pid: log for pid, log in self.logs.items() if not log.exit}
        self._reaped_before_s = self._reaped_s + sum(
            used.cpu_s for log in awaited for used in log.counters.values()
        )
        for log in self.logs.values():
            log.begin()

    def refresh(self, passed_s: float, *, fully: bool = True) -> None:
        """Find new processes and read the counters of all; see ChildLog.refresh."""
        for process in self._processes():
            known = self.logs.get(process.pid)
            if known is None or known.process.start_ticks != process.start_ticks:
                threads = MAX_JOB_THREADS if process.pid == self._job else MAX_SAMPLED_THREADS
                self.logs[process.pid] = ChildLog(process, sampled_threads=threads)
            elif known.process != process:  # it was forked and has called exec since
                known.identify(process)
        for log in self.logs.values():
            log.refresh(self._reader, passed_s, fully=fully)
        self._reaped_s = reaped_s() if self._job is None else 0.0

    def _processes(self) -> list[family.Descendant]:
        if self._job is None:
            return family.descendants(os.getpid())
        job = family.process_of(self._job)
        return [job] * bool(job.command) + family.descendants(self._job)

    def sample(self) -> None:
        """Sample every process."""
        for log in self.logs.values():
            log.sample(self._reader)

    def uncounted_s(self) -> float:
        """Return the CPU seconds that no count includes.

        Children that started and ended between two counts, or ran after the last, used them.
        """
        counted_s = sum(
            used.cpu_s for log in self.logs.values() if log.exit for used in log.counters.values()
        )
        return max(0.0, self._reaped_s - self._reaped_before_s - counted_s)

    def python_pids(self) -> list[int]:
        """Return the pids of the processes that py-spy can sample."""
        return [pid for pid, log in self.logs.items() if log.process.python and not log.exit]

    def tasks(self, spy: PySpy) -> list[Task]:
        """Return one task for each process, but not for the job.

        Processes whose interpreter lock was not sampled are assumed to hold it as the others do,
        and those whose stacks were not sampled to wait for the same things. What no count includes
        was used by those that have ended.
        """
        lock_share = _lock_share_of_cpu(self.logs.values(), spy)
        lost = self._lost_cores()
        return waiting_alike(
            process_task(log, spy, lock_share=lock_share, lost=lost)
            for log in self.logs.values()
            if log.process.pid != self._job
        )

    def _lost_cores(self) -> float:
        """Return the cores that each process that has ended has used uncounted."""
        wall_s = sum(log.wall_s for log in self.logs.values() if log.exit)
        return self.uncounted_s() / wall_s if wall_s else 0.0

    def close(self) -> None:
        """Close all files."""
        for log in self.logs.values():
            log.close()


def reaped_s() -> float:
    """Return the CPU seconds of all children that have ended and been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _lock_share_of_cpu(logs: Iterable[ChildLog], spy: PySpy) -> float:
    """Return the share of CPU time in which sampled processes hold their interpreter locks.

    It is 1.0 if none was sampled.
    """
    sampled = [
        log for log in logs if log.wall_s and spy.holders.get(log.process.pid, StackSamples()).looks
    ]
    cpu = sum(log.total().cpu_s / log.wall_s for log in sampled)
    held = sum(sum(spy.holders[log.process.pid].shares().values()) for log in sampled)
    return min(held / cpu, 1.0) if cpu else 1.0


def waiting_alike(tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks; the producers whose stacks were not sampled have nothing to do for the same
    share of their waits as those whose stacks were."""
    found = list(tasks)
    sampled = [task for task in found if task.sampled and task.role == ev.PRODUCER]
    idle_s = sum(task.wall_s * task.share(ev.EMPTY, ev.FULL) for task in sampled)
    waits_s = sum(task.wall_s * task.share(*WAITS_OF_ANY_KIND) for task in sampled)
    idle = idle_s / (idle_s + waits_s) if idle_s else 0.0
    return [task if task.sampled else _idle_for(task, idle) for task in found]


def _idle_for(task: Task, idle: float) -> Task:
    waits = {state: task.share(state) for state in WAITS_OF_ANY_KIND}
    left = {state: (1 - idle) * share for state, share in waits.items()}
    empty = task.share(ev.EMPTY) + idle * sum(waits.values())
    busy = {**task.busy, **left, ev.EMPTY: empty}
    return replace(task, busy={state: share for state, share in busy.items() if share > 0})


def process_task(
    log: ChildLog,
    spy: PySpy,
    *,
    threads: Collection[int] = (),
    lock_share: float = 1.0,
    lost: float = 0.0,
) -> Task:
    """Return the task of one process, or only of some `threads` of it.

    `lock_share`: the share of its user CPU time in which it is assumed to hold its interpreter lock
    if that was not sampled. `lost`: cores that it has used uncounted, if it has ended.
    """
    pid, lost = log.process.pid, lost if log.exit else 0.0
    stacks = spy.all.get(pid, StackSamples())
    holders = spy.holders.get(pid, StackSamples())
    workers = threads or working_threads(stacks, log)
    wall_s = log.wall_s or 1e-9
    held = holders.shares()
    samples = sum((stacks.seen.get(tid, Counter()) for tid in workers), Counter[StackSample]())
    busy: dict[str, float] = defaultdict(float)
    for tid in workers:
        used = log.used(tid)
        cpu = used.cpu_s / wall_s + lost / len(workers)
        counts = add_buffer_waits(
            log.waits.get(tid, Counter()), stacks.seen.get(tid, Counter()), cpu=cpu
        )
        python = (
            held.get(tid, 0.0) if holders.looks else lock_share * (cpu - used.system_s / wall_s)
        )
        for state, share in states.shares(
            counts, cpu=cpu, queued=used.queued_s / wall_s, python=python
        ).items():
            busy[state] += share / len(workers)
    total = log.total(threads).plus(Counters(cpu_s=lost * wall_s))
    copying, pickling = work_shares(samples)
    produces = log.process.python or total.cpu_s > MIN_PRODUCER_CORES * wall_s
    role = ev.PRODUCER if produces and not log.is_unrelated else ev.FOREIGN
    return Task(
        *(f"{log.name} (process {pid})", pid, min(threads, default=pid), role, log.wall_s),
        **total.fields(),
        busy=dict(busy),
        stacks=dict(_count_places(samples)),
        copying=copying,
        pickling=pickling,
        exit=log.exit,
        threads=len(threads or log.counters) or 1,
        sampled=stacks.looks > 0,
    )


def working_threads(stacks: StackSamples, log: ChildLog) -> list[int]:
    """Return the threads that run the user's code and do not merely wait for work.

    If there are none: the thread that uses most CPU, except those that hand batches to other
    processes.
    """
    found = [tid for tid, samples in stacks.seen.items() if any(map(_runs_user_code, samples))]
    sharers = {tid for tid, samples in stacks.seen.items() if any(map(_is_sharer, samples))}
    busiest = max(
        log.counters.keys() - sharers, key=lambda tid: log.used(tid).cpu_s, default=log.process.pid
    )
    return sorted(found) or [busiest]


def _runs_user_code(stack: StackSample) -> bool:
    """Return True if a stack is in the user's code; stacks of idle helper threads are not."""
    return any(place.users for place in stack.places)


def _is_sharer(stack: StackSample) -> bool:
    """Return True if a thread hands out file descriptors, as torch does for shared memory."""
    return any(place.file.endswith("multiprocessing/resource_sharer.py") for place in stack.places)


def add_buffer_waits(
    waits: StateCounts, samples: Counter[StackSample], *, cpu: float
) -> dict[str, float]:
    """Return the samples off the core by state, with waits in queues as EMPTY or FULL.

    The stacks tell for which share of the time the thread waited in a queue; that share is taken
    from LOCK, PIPE, SOCKET and OTHER. `cpu`: the share of the time on a core.
    """
    sampled = sum(samples.values())
    off: dict[str, float] = defaultdict(float)
    off.update((state, count) for state, count in waits.items() if state != states.CORE)
    total = sum(off.values())
    if not sampled or not total or cpu >= 1.0:
        return off
    moved: Counter[str] = Counter()
    sockets = False
    for stack, count in samples.items():
        state = states.buffer_state(
            states.ThreadView(stack_names(stack), call="futex", called=_one_call(stack))
        )
        if state:
            moved[state] += count
        sockets |= not state and states.may_be_socket(stack_names(stack))
    for state, count in moved.items():
        room = count / sampled / (1.0 - cpu) * total
        for source in WAITS_OF_ANY_KIND:
            taken = min(room, off[source])
            off[source] -= taken
            off[state] += taken
            room -= taken
    # Pipes between processes may be sockets. A rest remains, as stacks are sampled less often.
    if moved and not sockets:
        off[max(moved, key=lambda state: moved[state])] += off.pop(ev.SOCKET, 0.0)
    return off


def stack_names(stack: StackSample) -> list[tuple[str, str]]:
    """Return (function, file) of each frame, the innermost first."""
    return [(place.function, place.file) for place in reversed(stack.places)]


def _one_call(stack: StackSample) -> str | None:
    calls = callee.calls_at(stack.file, stack.places[-1].line) if stack.places else ()
    return calls[0] if len(calls) == 1 else None


def work_shares(samples: Counter[StackSample]) -> tuple[float, float]:
    """Return the shares of the samples that copy arrays and that pickle."""
    found: Counter[str] = Counter()
    for stack, count in samples.items():
        found[work_of_stack(stack)] += count
    total = sum(samples.values()) or 1
    return found[callee.COPYING] / total, found[callee.PICKLING] / total


def work_of_stack(stack: StackSample) -> str:
    """Return the kind of work of a stack's innermost function or line; see callee.work_of."""
    if not stack.places:
        return ""
    last = stack.places[-1]
    return callee.work_of(last.function, last.file, calls=callee.calls_at(stack.file, last.line))


def _count_places(samples: Counter[StackSample]) -> Counter[tuple[Place, ...]]:
    found: Counter[tuple[Place, ...]] = Counter()
    for stack, count in samples.items():
        found[stack.places] += count
    return found
