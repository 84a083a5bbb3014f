"""Sampler of its own process: one thread samples all others, and runs py-spy for the children."""

from __future__ import annotations

import _thread
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set

from fastfeed.diagnose.evidence import LoopPart, MarkHint, Task
from fastfeed.diagnose.sample.children import Children
from fastfeed.diagnose.sample.iterations import SAMPLED, FetchClock, IterationTracker, sampled_loop
from fastfeed.diagnose.sample.loop_parts import loop_lines, loop_parts, mark_hint
from fastfeed.diagnose.sample.tasks import (
    AttributionContext,
    Span,
    settle_roles,
    thread_tasks,
    without_callbacks,
)
from fastfeed.diagnose.sample.thread_samples import Threads
from fastfeed.probes import lock, procfs
from fastfeed.probes.gpu import GpuSampler
from fastfeed.probes.machine_log import Machine, MachineLog
from fastfeed.probes.places import Places
from fastfeed.probes.procfs import DescriptorReader
from fastfeed.probes.pyspy import PySpy, StackSamples
from fastfeed.steps.timeline import Beats, Loop, Timeline

INTERVAL_S, MAX_INTERVAL_S = 0.02, 0.25  # between two samples
MAX_DUE = 25  # samples that one stands for at most: the machine may have been asleep
CPU_SHARE = 0.006  # of a core, for samples
COMPETING_CORES = 0.2  # of producers: below it they do not compete for cores
SPY_EVERY = 8  # samples between calls of py-spy, and between measurements of the own cost
TASK_SEARCH_S = 1.0  # least time between searches for new threads and children
SEARCH_SHARE = 0.001  # of a core, for these searches
SAMPLER_STOP_S = 5.0  # for the sampler's thread to end
LOCATE_SAMPLES = 60  # latest samples in which a loop is searched


class Sampler:
    """Samples its process from `start` to `stop`.

    Results are about the time since `begin`, the end of the warm-up.

    `loop`: threading.get_ident() of the training loop's thread, None for the main thread.
    `program`: the path of py-spy, None to search for it, "" for none. `threading` does not know the
    sampler's own thread, so a script that counts its threads counts as before.
    """

    def __init__(self, loop: int | None = None, *, program: str | None = None) -> None:
        self.loop = loop or threading.main_thread().ident or 0
        self._reader = DescriptorReader()
        self._places = Places()
        self._threads = Threads(self._reader)
        self._children = Children(self._reader)
        self._machine = MachineLog()
        self._gpus = GpuSampler()
        self._program = program
        self._spy = PySpy(self._places, program="")
        self._mutex = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._delays: list[float] = []
        self._searched_s = self._begun_s = time.perf_counter()
        # CPU seconds of one sample, and of the searches since the own cost was last measured.
        self._cost_s = self._searching_s = 0.0
        self._pause_s = TASK_SEARCH_S
        self._used_s = self._used_before_s = 0.0
        # CPU seconds of the process: at the last search, and at the beginning.
        self._process_s = self._process_before_s = 0.0
        self._ours: Set[int] = frozenset()
        self._deaths: Mapping[int, tuple[str, str]] = {}
        self._step_lines: Set[tuple[str, int]] = frozenset()
        self._failure = ""
        self._undetermined: list[str] = []

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def observe(
        self,
        *,
        ours: Set[int],
        deaths: Mapping[int, tuple[str, str]],
        step_lines: Set[tuple[str, int]] = frozenset(),
    ) -> None:
        """Set live views of the threads that belong to the diagnosis, by ident, of deaths, and of
        the lines of steps: see AttributionContext."""
        self._ours = ours
        self._deaths = deaths
        self._step_lines = step_lines

    def start(self) -> None:
        """Start sampling."""
        self._spy = PySpy(self._places, program=self._program)
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """Stop within a sample; results stay available."""
        with contextlib.suppress(RuntimeError):
            self.refresh()
        self._stopping.set()
        self._ended.wait(SAMPLER_STOP_S)
        self._spy.stop()
        self._gpus.stop()
        self._threads.close()
        self._children.close()

    def begin(self, loop: int | None = None, *, asking: bool = True) -> None:
        """Forget all earlier samples.

        `loop`: the ident of the loop's thread, if it has changed. `asking`: start over with py-spy,
        too; it is of little use while a script starts.
        """
        with self._mutex:
            self.loop = loop or self.loop
            self._used_before_s = self._used_s
            self._process_before_s = time.process_time()
            self._threads.begin(self.loop)
            self._searched_s = time.perf_counter()
            for one in (self._children, self._machine, self._gpus):
                one.begin()
            if asking:
                self._spy.begin()
            self._delays.clear()
            self._begun_s = time.perf_counter()

    def tasks(self, waits: Sequence[Span] = ()) -> tuple[Task, ...]:
        """Return tasks: the threads of this process, its native pools, and its child processes.

        `waits`: when the loop waits for input, as far as that is known.
        """
        self.refresh()
        with self._mutex:
            context, logs = self._attribution(), self._threads.logs
            known = without_callbacks(logs.values(), waits, context=context)
            found = thread_tasks(known, context) + self._children.tasks(self._spy)
            return tuple(settle_roles(found, logs))

    def machine(self) -> Machine:
        """Return the use of the machine."""
        self.refresh()
        with self._mutex:
            ours_s = self._used_s - self._used_before_s
            own_s = self._process_s - self._process_before_s - ours_s  # of all threads
            used = [(0.0, log.used().queued_s) for log in self._threads.logs.values()]
            used += [(max(0.0, own_s) + self._children.uncounted_s(), 0.0)]
            ours = [log for log in self._children.logs.values() if not log.is_unrelated]
            used += [log.total()[:2] for log in ours]
            own = {os.getpid(), *(log.process.pid for log in ours)}
            names = {pid: log.name for pid, log in self._children.logs.items()}
            return self._machine.machine(used, own=own, gpus=self._gpus.means(), names=names)

    def lock_delays(self) -> tuple[float | None, float | None]:
        """Return the median and the 90 % quantile of the seconds until the sampler gets the GIL."""
        with self._mutex:
            return lock.quantile(self._delays, 0.5), lock.quantile(self._delays, 0.9)

    @property
    def producers_compete(self) -> bool:
        """True if producers use the cores, caches and memory beside the loop."""
        self.refresh()
        with self._mutex:
            logs = [log for log in self._threads.logs.values() if log.wall_s]
            threads = [log for log in logs if log.ident and log.ident != self.loop]
            producers = sum(log.used().cpu_s / log.wall_s for log in threads)
            children = sum(
                log.total().cpu_s / log.wall_s
                for log in self._children.logs.values()
                if log.wall_s and not log.is_unrelated
            )
            return producers + children >= COMPETING_CORES

    def parts(
        self,
        where: str = "",
        *,
        since_s: float = 0.0,
        fetches: bool = True,
        epochs: bool = False,
    ) -> tuple[LoopPart, ...]:
        """Return the parts of the loop.

        `since_s`: when the loop began, so that earlier samples are ignored. For the rest see
        `loop_parts`.
        """
        with self._mutex:
            samples = [sample for now_s, sample in self._threads.trace if now_s >= since_s]
            found, self._undetermined = loop_parts(
                samples, self._attribution(), where=where, fetches=fetches, epochs=epochs
            )
            return found

    def sampled_loop(self, beats_of: Callable[[int], Beats]) -> Loop | None:
        """Return the loop of a script without hooks, if its steps can be told apart: by the beats
        of its thread, or by samples."""
        with self._mutex:
            trace, context = list(self._threads.trace), self._attribution()
            # the time before the loop is no part of it
            latest = (trace[len(trace) - len(trace) // part :] for part in (1, 2, 4, 8))
            beats = beats_of(context.loop)
            found = (sampled_loop(one, context=context, beats=beats) for one in latest)
            return next((loop for loop in found if loop is not None), None)

    def mark_hint(self) -> MarkHint | None:
        """Return the line to mark if no steps are seen; None without samples."""
        with self._mutex:
            return mark_hint([one for _, one in self._threads.trace], self._attribution())

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self._threads.samples

    def track_iterations(self, timeline: Timeline, device: FetchClock) -> IterationTracker | None:
        """Return a tracker of that loop's iterations, which is not started yet, or None."""
        with self._mutex:
            # Before its loop, a script reads its data for seconds or minutes.
            samples = [sample for _, sample in list(self._threads.trace)[-LOCATE_SAMPLES:]]
            found = loop_lines(samples, self._attribution())
            if found is None:
                return None
            code = found.code
            place = self._places.named(code.co_name, code.co_filename, line=found.numbers.start)
            loop = timeline.loop(
                (SAMPLED, code), name=f"the loop in {place}", kind=SAMPLED, thread=self.loop
            )
            loop.where = f"{place.file}:{place.line}"
            return IterationTracker(timeline, loop, lines=found, device=device)

    @property
    def missing(self) -> tuple[str, ...]:
        """Measurements that failed, each with its reason."""
        with self._mutex:
            texts = self._spy.missing(self._children.python_pids()) + self._undetermined
            schedstat, syscall = procfs.readable(os.getpid(), os.getpid())
            if not schedstat:
                texts.append("scheduling delay: /proc/self/task/*/schedstat cannot be read")
            if not syscall:
                texts.append(
                    "system calls: /proc/self/task/*/syscall cannot be read, so it is unknown what "
                    "threads wait for"
                )
            return tuple(filter(None, [*texts, self._gpus.missing, self._failure]))

    @property
    def overhead_s(self) -> float:
        """CPU seconds that the sampler and py-spy have used."""
        with self._mutex:
            return self._used_s - self._used_before_s + self._spy.cpu_s

    def refresh(self) -> None:
        """Update the counters."""
        with self._mutex:
            if not self._stopping.is_set():
                self._refresh()

    def _attribution(self) -> AttributionContext:
        threads, tid = self._threads, procfs.tid_of(self.loop)
        holders = self._spy.holders.get(os.getpid(), StackSamples())
        log = threads.logs.get(tid)
        queued_share = 0.0
        if log is not None:
            used = log.used()
            held = sum(holders.seen[tid].values()) / max(holders.looks, 1)
            native_s = used.cpu_s - log.wall_s * held
            queued_share = used.queued_s / (max(native_s, 0.0) + used.queued_s + 1e-9)
        return AttributionContext(
            self.loop,
            *(threads.samples, threads.late, threads.blind),
            holders,
            self._places,
            *(tid, queued_share, self._deaths),
            step_lines=frozenset(self._step_lines),
        )

    def _refresh(self) -> None:
        now_s = time.perf_counter()
        self._process_s = time.process_time()
        for one in (self._threads, self._children):
            one.refresh(now_s - self._searched_s)
        self._searched_s = now_s

    def _run(self) -> None:
        self._threads.exclude([threading.get_native_id()])
        try:
            self._sample_repeatedly()
        except Exception as error:  # the script must go on without the sampler
            self._failure = f"samples: the sampler stopped with {error!r}"
        finally:
            self._ended.set()

    def _sample_repeatedly(self) -> None:
        rng = random.Random(0)  # not the script's own generator
        count, begun_s = 0, self._begun_s
        due_s = time.perf_counter()
        with contextlib.closing(lock.LockDelay(self._reader)) as delay:
            while not self._stopping.is_set():
                interval_s = min(max(INTERVAL_S, self._cost_s / CPU_SHARE), MAX_INTERVAL_S)
                late_s, queued_s = delay.sleep(due_s)
                woke_s = time.perf_counter()
                due_s, times = next_due(due_s, woke_s, interval_s=interval_s, rng=rng)
                with self._mutex:
                    if begun_s == self._begun_s:
                        self._take_sample(woke_s, times, late_s=late_s, queued_s=queued_s)
                    else:  # samples that were due while begin() held the mutex do not count
                        begun_s, due_s = self._begun_s, time.perf_counter()
                count += 1
                if count % SPY_EVERY == 0:
                    used_s = time.thread_time()
                    spent_s = used_s - self._used_s - self._searching_s
                    self._cost_s += 0.3 * (spent_s / SPY_EVERY - self._cost_s)
                    self._used_s, self._searching_s = used_s, 0.0

    def _take_sample(self, now_s: float, times: int, *, late_s: float, queued_s: float) -> None:
        self._delays.append(max(late_s, 0.0))
        self._threads.exclude(map(procfs.tid_of, set(self._ours)))
        self._threads.sample(now_s, times, late_s=late_s, queued_s=queued_s)
        self._children.sample(now_s)
        if now_s - self._searched_s > self._pause_s:
            begun_s = time.thread_time()
            self._refresh()
            self._gpus.sample({os.getpid(), *self._children.logs})
            self._searching_s += time.thread_time() - begun_s  # _pause_s paces the searches
            self._pause_s = max(TASK_SEARCH_S, (time.thread_time() - begun_s) / SEARCH_SHARE)
        if len(self._delays) % SPY_EVERY == 0:
            self._spy.poll(self._children.python_pids())


def next_due(
    due_s: float, now_s: float, *, interval_s: float, rng: random.Random
) -> tuple[float, int]:
    """Return when the next sample is due, and how many were due until now.

    The sample that is taken now stands for all of them. A sample succeeds when the holder of the
    interpreter lock releases it. Samples at a fixed interval after that would always hit the same
    phase of a loop whose phases have constant lengths, so the interval is random.
    """
    count = 0
    while due_s <= now_s and count < MAX_DUE:
        due_s += interval_s * (0.5 + rng.random())
        count += 1
    return max(due_s, now_s), count
