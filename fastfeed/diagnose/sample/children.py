"""Child processes: the resources, waits and, where py-spy has access, the stacks of each."""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Collection, Iterable

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import Task
from fastfeed.diagnose.sample import states
from fastfeed.diagnose.sample.thread_samples import ThreadLog, states_of, used_by
from fastfeed.probes import family, procfs
from fastfeed.probes.procfs import Counters, DescriptorReader
from fastfeed.probes.pyspy import PySpy, Stack, StackSamples

# Cores, and CPU seconds, of a process that produces no data: more than it needs to start.
UNRELATED_CORES, UNRELATED_CPU_S = 0.2, 0.3
MAX_SAMPLED_THREADS = 4  # threads of a child whose calls are sampled
MAX_JOB_THREADS = 32  # the same of a job that is watched from outside
MIN_PRODUCER_CORES = 0.05  # a child that is not Python but uses more produces data, too


class ChildLog:
    """History of one child process while it is observed."""

    def __init__(
        self, process: family.Descendant, *, sampled_threads: int = MAX_SAMPLED_THREADS
    ) -> None:
        self.identify(process)
        self.sampled_threads = sampled_threads
        self.threads: dict[int, ThreadLog] = {}
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
        for log in self.threads.values():
            log.begin()
        self.wall_s = 0.0
        self._silence = family.SilentProcess(self.process.pid)

    def refresh(self, reader: DescriptorReader, passed_s: float) -> None:
        """Find the threads of the process and read their counters; `passed_s`: seconds since the
        last call."""
        if self.exit:
            return
        self._targets.clear()
        pid = self.process.pid
        tids = procfs.threads_of(pid)
        if not tids:
            return self.record_end(b"")
        for tid in sorted(tids):
            if tid not in self.threads:
                self.threads[tid] = ThreadLog(tid, self.name, pid=pid)
                if len(self.threads) <= self.sampled_threads:
                    self.threads[tid].files.keep()
            self.threads[tid].count(reader)
        stat = self.threads[min(tids)].files.read("stat", reader)
        if procfs.state_char(stat) == "Z":  # its other threads are gone
            return self.record_end(stat)
        self.wall_s += passed_s

    def sample(self, reader: DescriptorReader, now_s: float) -> None:
        """Sample the first threads of the process."""
        for log in list(self.threads.values())[: 0 if self.exit else self.sampled_threads]:
            log.add(log.observe(reader, self._targets).sample, now_s, times=1)

    def record_end(self, stat: bytes) -> None:
        """Record how the process ended."""
        self.exit = family.exit_of(stat, self.process.pid)
        self.close()

    def close(self) -> None:
        """Close all files."""
        for log in self.threads.values():
            log.files.close()

    def total(self, threads: Collection[int] = ()) -> Counters:
        """Return what these threads, by default all, have used since `begin`."""
        return used_by(self.threads[tid] for tid in threads or self.threads)

    @property
    def used_s(self) -> float:
        """CPU seconds since its start."""
        return sum(log.last.cpu_s for log in self.threads.values())

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
        ended = [log for log in self.logs.values() if log.exit]
        awaited = [log for log in ended if os.path.exists(f"/proc/{log.process.pid}")]
        self._reaped_before_s = self._reaped_s + sum(log.used_s for log in awaited)
        self.logs = {pid: log for pid, log in self.logs.items() if not log.exit}
        for log in self.logs.values():
            log.begin()

    def refresh(self, passed_s: float) -> None:
        """Find new processes and read the counters of all; see ChildLog.refresh."""
        for process in self._processes():
            known = self.logs.get(process.pid)
            if known is None or known.process.start_ticks != process.start_ticks:
                threads = MAX_JOB_THREADS if process.pid == self._job else MAX_SAMPLED_THREADS
                self.logs[process.pid] = ChildLog(process, sampled_threads=threads)
            elif known.process != process:  # it was forked and has called exec since
                known.identify(process)
        for log in self.logs.values():
            log.refresh(self._reader, passed_s)
        self._reaped_s = reaped_s() if self._job is None else 0.0

    def _processes(self) -> list[family.Descendant]:
        if self._job is None:
            return family.descendants(os.getpid())
        job = family.process_of(self._job)
        return [job] * bool(job.command) + family.descendants(self._job)

    def sample(self, now_s: float) -> None:
        """Sample every process."""
        for log in self.logs.values():
            log.sample(self._reader, now_s)

    def uncounted_s(self) -> float:
        """Return the CPU seconds that no count includes.

        Children that started and ended between two counts, or ran after the last, used them.
        """
        counted_s = sum(log.used_s for log in self.logs.values() if log.exit)
        return max(0.0, self._reaped_s - self._reaped_before_s - counted_s)

    def python_pids(self) -> list[int]:
        """Return the pids of the processes that py-spy can sample."""
        return [pid for pid, log in self.logs.items() if log.process.python and not log.exit]

    def tasks(self, spy: PySpy) -> list[Task]:
        """Return one task for each process, but not for the job.

        Processes whose interpreter lock was not sampled are assumed to hold it as the others do.
        """
        share = _lock_share_of_cpu(self.logs.values(), spy)
        logs = (log for pid, log in self.logs.items() if pid != self._job)
        return [process_task(log, spy, lock_share=share) for log in logs]

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


def process_task(
    log: ChildLog,
    spy: PySpy,
    *,
    threads: Collection[int] = (),
    lock_share: float = 1.0,
) -> Task:
    """Return the task of one process, or only of some `threads` of it.

    `lock_share`: the share of its CPU time in which it is assumed to hold its interpreter lock if
    that was not sampled.
    """
    pid, wall_s = log.process.pid, log.wall_s or 1e-9
    stacks = spy.all.get(pid, StackSamples())
    holders = spy.holders.get(pid, StackSamples())
    workers = threads or working_threads(stacks, log)
    seen = [log.threads[tid] for tid in workers if tid in log.threads]
    used, count = used_by(seen), max(1, len(seen))
    cpu, queued = used.cpu_s / wall_s / count, used.queued_s / wall_s / count
    held = lock_share * cpu
    if holders.looks:
        held = sum(holders.shares().get(tid, 0.0) for tid in workers) / count
    places: Counter[Stack] = Counter()
    for tid in workers:
        places.update(stacks.seen.get(tid, {}))
    total = log.total(threads)
    produces = log.process.python or total.cpu_s > MIN_PRODUCER_CORES * wall_s
    return Task(
        name=f"{log.name} (process {pid})",
        pid=pid,
        tid=min(threads, default=pid),
        role=ev.PRODUCER if produces and not log.is_unrelated else ev.FOREIGN,
        wall_s=log.wall_s,
        cpu_s=total.cpu_s,
        queued_s=total.queued_s,
        busy=states.shares(states_of(seen), cpu=cpu, queued=queued, python=held),
        stacks=dict(places),
        exit=log.exit,
        threads=len(threads or log.threads) or 1,
        sampled=stacks.looks > 0,
    )


def working_threads(stacks: StackSamples, log: ChildLog) -> list[int]:
    """Return the threads that run the user's code, as far as stacks tell; else the main thread."""
    found = [
        tid
        for tid, samples in stacks.seen.items()
        if any(place.users for stack in samples for place in stack)
    ]
    return sorted(found) or [log.process.pid]
