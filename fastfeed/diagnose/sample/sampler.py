"""The sampler of the process that it runs in: one thread samples all others, and asks py-spy about
child processes."""

from __future__ import annotations

import _thread
import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from fastfeed.diagnose.evidence import PRODUCER, LoopPart, Task
from fastfeed.diagnose.judge.signals import FULL
from fastfeed.diagnose.sample import loops
from fastfeed.diagnose.sample.callback_parts import callback_parts
from fastfeed.diagnose.sample.callbacks import waits_in, without_callbacks
from fastfeed.diagnose.sample.child_processes import Children
from fastfeed.diagnose.sample.iterations import SAMPLED, IterationTracker
from fastfeed.diagnose.sample.loops import parts_of
from fastfeed.diagnose.sample.pace import due_after
from fastfeed.diagnose.sample.repeats import repeated_loop
from fastfeed.diagnose.sample.tasks import AttributionContext, settled, thread_tasks
from fastfeed.diagnose.sample.thread_log import Threads
from fastfeed.probes import lock, procfs
from fastfeed.probes.gpu import Gpus
from fastfeed.probes.machine_log import Machine, MachineLog, cores
from fastfeed.probes.native_pools import pools_of
from fastfeed.probes.places import Place, Places
from fastfeed.probes.procfs import DescriptorReader
from fastfeed.probes.pyspy import Spy, StackSamples
from fastfeed.probes.thread_names import Names
from fastfeed.steps.timeline import Loop, Step, Timeline

NAP_S, LONGEST_NAP_S = 0.02, 0.25
SHARE = 0.006  # of a core, for samples
MADE = 0.2  # of a core: producers below it keep no core busy
SELDOM = 8  # samples between readings of what changes slowly
FIND_S = 1.0  # between searches for new threads and children, at least
FIND_SHARE = 0.001  # of a core, for these searches
ASKS, STEPS, FITS = "asks", "steps", "fits"
STOP_S, RECENT = 5.0, 60  # for the sampler to end; samples in which a loop is searched


class Sampler:
    """Samples from `start` to `stop`; its results are about the time since `begin`, the end of the
    warm-up.

    `loop`: threading.get_ident() of the training loop's thread, the main thread's if None.
    `program`: py-spy's path, found by itself if None, "" for none. Its own thread is unknown to
    `threading`, so that a script which counts its threads gets the same number.
    """

    def __init__(self, loop: int | None = None, *, program: str | None = None) -> None:
        self.loop = loop or threading.main_thread().ident or 0
        self._reader, self._names, self._places = DescriptorReader(), Names(), Places()
        self._threads = Threads(self._reader, self._names)
        self._children, self._machine, self._gpus = Children(self._reader), MachineLog(), Gpus()
        self._program = program
        self._spy = Spy(self._places, program="")
        self._mutex = threading.Lock()
        self._over, self._ended = threading.Event(), threading.Event()
        self._late: list[float] = []
        self._found_s = self._begun_s = time.perf_counter()
        # of a sample; of searches for new threads, since samples were counted
        self._cost_s = self._finding_s = 0.0
        self._pause_s = FIND_S
        self._used_s = self._used_before_s = 0.0
        # when threads were counted, and at the beginning
        self._process_s = self._process_before_s = 0.0
        # idents of threads beside the sampler's that are no part of the script
        self.ours: Set[int] = set()
        self.deaths: Mapping[int, tuple[str, str]] = {}  # see Context.deaths
        self._broken = ""
        self._unclear: list[str] = []

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to sample."""
        self._spy = Spy(self._places, program=self._program)
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """End within a sample; the results stay available."""
        with contextlib.suppress(RuntimeError):
            self.refresh()
        self._over.set()
        self._ended.wait(STOP_S)
        self._spy.stop()
        self._gpus.stop()
        self._threads.close()
        self._children.close()

    def begin(self, *, asking: bool = True) -> None:
        """Drop earlier samples. `asking`: use py-spy, too, which has little to report while a
        script starts."""
        with self._mutex:
            self._threads.loop = self.loop
            # when the threads' seconds are counted: searching for processes takes longer
            self._used_before_s, self._process_before_s = self._used_s, time.process_time()
            self._threads.begin()
            self._found_s = time.perf_counter()
            for one in (self._children, self._machine, self._gpus):
                one.begin()
            if asking:
                self._spy.begin()
            self._late.clear()
            self._begun_s = time.perf_counter()

    def tasks(
        self, parts: Iterable[LoopPart] = (), *, steps: Iterable[Step] = ()
    ) -> tuple[Task, ...]:
        """Return the threads of this process, its native pools as one, and its child processes; see
        waits_in."""
        self.refresh()
        with self._mutex:
            cast, logs = self._cast(), self._threads.logs.values()
            waits = waits_in(list(self._threads.trace), cast=cast, parts=parts, steps=steps)
            own = self._with_lost(thread_tasks(without_callbacks(logs, waits, cast=cast), cast))
            return tuple(
                settled(own + self._children.tasks(self._spy, self._places), self._threads.logs)
            )

    def _with_lost(self, own: list[Task]) -> list[Task]:
        """Return the tasks; CPU seconds that were not counted belong to producers that have ended,
        if there are any."""
        logs = self._threads.logs
        ended = [
            task
            for task in own
            if task.role == PRODUCER and task.tid in logs and logs[task.tid].gone
        ]
        each_s = self._lost_s() / max(1, len(ended))
        return [replace(task, cpu_s=task.cpu_s + each_s) if task in ended else task for task in own]

    def _lost_s(self) -> float:
        """Return CPU seconds of this process that no thread was seen to spend: of threads that
        ended between two counts."""
        counted_s = sum(log.last.since(log.first).cpu_s for log in self._threads.logs.values())
        ours_s = self._used_s - self._used_before_s
        return max(0.0, self._process_s - self._process_before_s - counted_s - ours_s)

    def machine(self) -> Machine:
        """Return the use of the machine."""
        self.refresh()
        with self._mutex:
            used = [log.last.since(log.first)[:2] for log in self._threads.logs.values()]
            used += [(self._lost_s() + self._children.lost_s(), 0.0)]
            ours = [log for log in self._children.logs.values() if not log.burns]
            used += [log.total()[:2] for log in ours]
            own = {os.getpid(), *(log.kin.pid for log in ours)}
            names = {pid: log.name for pid, log in self._children.logs.items()}
            return self._machine.machine(used, own=own, gpus=self._gpus.gpus(), names=names)

    def lock(self) -> tuple[float | None, float | None]:
        """Return the delay of the sampler at the interpreter lock: the median and the 90 %
        quantile."""
        with self._mutex:
            return lock.quantile(self._late, 0.5), lock.quantile(self._late, 0.9)

    @property
    def full(self) -> bool:
        """True if the script uses nearly all cores, and its producers a part of that."""
        self.refresh()
        with self._mutex:
            logs = [log for log in self._threads.logs.values() if log.wall_s]
            own = {log.tid: log.last.since(log.first).cpu_s / log.wall_s for log in logs}
            made = sum(own[log.tid] for log in logs if log.ident and log.ident != self.loop)
            workers = [log for log in self._children.logs.values() if log.wall_s and not log.burns]
            children = [log.total().cpu_s / log.wall_s for log in workers]
            return (
                made + sum(children) >= MADE and sum(own.values()) + sum(children) >= FULL * cores()
            )

    def pools(self) -> Mapping[str, int]:
        """Return threads that native libraries use for a call, as they report."""
        return pools_of(sys.modules)

    def parts(
        self, where: str | None = None, *, since_s: float = 0.0, how: str = ASKS
    ) -> tuple[LoopPart, ...]:
        """Return where the loop's thread spends its time. `where`: "train.py:41", if known, the
        line that ASKS for a batch, takes the STEPS or has a framework do both (FITS); `since_s`:
        when it began, if something was done before."""
        with self._mutex:
            looks, cast = (
                [look for now_s, look in self._threads.trace if now_s >= since_s],
                self._cast(),
            )
            found = callback_parts(looks, cast) if how == FITS else ()
            if not found:
                found, self._unclear = parts_of(looks, cast, where=where, asks=how != STEPS)
            return found

    def repeated(self) -> Loop | None:
        """Return the loop of a script without a hook, with the steps that samples show; else
        None."""
        with self._mutex:
            trace, counts, cast = (
                list(self._threads.trace),
                list(self._threads.counts),
                self._cast(),
            )
            for part in (1, 2, 4, 8):  # what came before the loop is no part of it
                first = len(trace) - len(trace) // part
                found = repeated_loop(trace[first:], counts[first:], cast=cast)
                if found is not None:
                    return found
            return None

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self._threads.samples

    def turning(self, timeline: Timeline) -> IterationTracker | None:
        """Return a tracker of that loop's iterations; None if there is no loop."""
        with self._mutex:
            # only the latest: before its loop a script reads its data, for seconds or minutes
            looks, cast = [look for _, look in list(self._threads.trace)[-RECENT:]], self._cast()
            found = loops.loop_lines(looks, cast)
            if found is None:
                return None
            file, users = self._places.file(found.code.co_filename)
            place = Place(found.code.co_name, file, found.lines.start, users)
            loop = timeline.loop(
                ("sampled", found.code), name=f"the loop in {place}", kind=SAMPLED, thread=self.loop
            )
            loop.where = f"{file}:{found.lines.start}"
            return IterationTracker(timeline, loop, of=found)

    @property
    def missing(self) -> tuple[str, ...]:
        """What could not be measured, and why."""
        with self._mutex:
            texts = self._spy.missing(self._children.pythons()) + self._unclear
            schedstat, syscall = procfs.readable(os.getpid(), os.getpid())
            if not schedstat:
                texts.append("scheduling delay: /proc/self/task/*/schedstat cannot be read")
            if not syscall:
                texts.append(
                    "system calls: /proc/self/task/*/syscall cannot be read, waits are told by "
                    "stacks"
                )
            return tuple(filter(None, [*texts, self._gpus.missing, self._broken]))

    @property
    def overhead_s(self) -> float:
        """CPU seconds of the sampler, and of py-spy."""
        with self._mutex:
            return self._used_s - self._used_before_s + self._spy.cpu_s

    def refresh(self) -> None:
        """Update the counters."""
        with self._mutex:
            if not self._over.is_set():
                self._find()

    def _cast(self) -> AttributionContext:
        threads, tid = self._threads, self._names.tid(self.loop)
        holders = self._spy.holders.get(os.getpid(), StackSamples())
        log = threads.logs.get(tid)
        ready = 0.0
        if log is not None:
            used = log.last.since(log.first)
            native_s = used.cpu_s - log.wall_s * sum(holders.seen[tid].values()) / max(
                holders.looks, 1
            )
            ready = used.queued_s / (max(native_s, 0.0) + used.queued_s + 1e-9)
        counts = threads.samples, threads.late, threads.blind
        return AttributionContext(
            self.loop, *counts, holders, self._places, tid, ready, self.deaths
        )

    def _find(self, *, fully: bool = True) -> None:
        now_s = time.perf_counter()
        self._process_s = time.process_time()
        self._threads.find(now_s - self._found_s, fully=fully)
        self._children.find(now_s - self._found_s, fully=fully)
        self._found_s = now_s

    def _run(self) -> None:
        self._threads.ours.add(threading.get_native_id())
        try:
            self._sample()
        except Exception as error:  # the script goes on without the sampler
            self._broken = f"samples: the sampler broke off with {error!r}"
        finally:
            self._ended.set()

    def _sample(self) -> None:
        schedstat = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        own = os.open(schedstat, os.O_RDONLY | os.O_CLOEXEC) if os.path.exists(schedstat) else -1
        chance = random.Random(0)  # the script's own generator is not touched
        count, begun_s, due_s, queued_s = (
            0,
            self._begun_s,
            time.perf_counter(),
            self._reader.queued_s(own),
        )
        try:
            while not self._over.is_set():
                nap_s = min(max(NAP_S, self._cost_s / SHARE), LONGEST_NAP_S)
                asleep_s, before_s = time.perf_counter(), queued_s
                time.sleep(max(0.0, due_s - asleep_s))
                woke_s, queued_s = time.perf_counter(), self._reader.queued_s(own)
                late_s, waited_s = woke_s - max(due_s, asleep_s), queued_s - before_s
                due_s, times = due_after(due_s, woke_s, nap_s=nap_s, chance=chance)
                with self._mutex:
                    if begun_s == self._begun_s:
                        self._look(woke_s, times, late_s=late_s - waited_s, queued_s=waited_s)
                    else:  # what was due while begin() had the mutex is dropped
                        begun_s, due_s = self._begun_s, time.perf_counter()
                count += 1
                if count % SELDOM == 0:
                    used_s = time.thread_time()
                    spent_s, self._finding_s = used_s - self._used_s - self._finding_s, 0.0
                    self._cost_s += 0.3 * (spent_s / SELDOM - self._cost_s)
                    self._used_s = used_s
        finally:
            if own >= 0:
                os.close(own)

    def _look(self, now_s: float, times: int, *, late_s: float, queued_s: float) -> None:
        self._late.append(max(late_s, 0.0))
        self._threads.ours |= {self._names.tid(ident) for ident in set(self.ours)}
        self._threads.look(now_s, times, late_s=late_s, queued_s=queued_s)
        self._children.look()
        if now_s - self._found_s > self._pause_s:
            begun_s = time.thread_time()
            self._find(fully=False)
            self._gpus.look()
            self._finding_s += time.thread_time() - begun_s  # it has its own pace
            self._pause_s = max(FIND_S, (time.thread_time() - begun_s) / FIND_SHARE)
        if len(self._late) % SELDOM == 0:
            self._spy.look(self._children.pythons())
