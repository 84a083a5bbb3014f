"""Tasks of evidence from the observed threads of this process."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import Task
from fastfeed.diagnose.sample import callee, states
from fastfeed.diagnose.sample.child_processes import work_shares
from fastfeed.diagnose.sample.thread_log import Sample, ThreadLog
from fastfeed.probes import lock
from fastfeed.probes.places import Place, Places, Spot, without_start
from fastfeed.probes.procfs import Counters
from fastfeed.probes.pyspy import StackSamples

PLUMBING_FILES = re.compile(
    r"^(multiprocessing|concurrent|torch/utils/data|keras|tensorflow|fastfeed|joblib|queue)(/|\.py)"
)
PLUMBING_NAMES = ("QueueFeederThread", "fastfeed-", "ExecutorManager", "ThreadPoolExecutor")
# Calls that release the interpreter lock.
LOCK_RELEASING_CALLS = frozenset(("acquire", "wait", "result"))
LOCK_RELEASING_CALLS |= callee.LOCK_FREE_COPIES | states.SLEEP_CALLS | states.SOCKET_CALLS
# Of a thread's CPU time: beyond it, copies spend their time on the memory that the kernel provides.
KERNEL_SHARE = 0.5
MIN_SPY_SAMPLES = 50  # of the lock's holder, by py-spy
CONTENDED_SHARE = 0.5  # of the conclusive samples
COLLECTOR_FILES = re.compile(r"(^|/)(concurrent/futures/_base|multiprocess(ing)?/pool)\.py$")
# Functions of these files that wait for results of a pool.
COLLECTOR_FUNCTIONS = ("result", "as_completed", "result_iterator", "get", "next")
IDLE_SWITCHES_PER_S = 0.5  # voluntary switches: a thread with fewer produces no batches, or no more
IDLE_CORES = 0.01
# Quantile of the number of threads that work at once: above it are moments at which one takes over
# from another.
CONCURRENCY_QUANTILE = 0.95
# States of a trainer that waits for a batch.
TRAINER_WAITS = (ev.LOCK, ev.EMPTY, ev.PIPE, ev.SOCKET, ev.OTHER)


@dataclass
class AttributionContext:
    """Everything that turns thread logs into tasks.

    `loop`: the ident of the loop's thread, `loop_tid` its tid. `samples`: all samples; in `late`
    ones the interpreter lock was held, and `blind` ones are inconclusive. `holders`: py-spy's
    samples of the lock's holder. `deaths`: name and traceback of threads that ended with an
    exception, by tid. `computing`: native threads, by tid, that only run compiled programs, and
    `computed`: the share of the samples in which one of them had work. `queued_share`: of the time
    of the loop's thread on a core without the interpreter lock, or ready for a core, the share (0
    to 1) in which it waits for a core.
    """

    loop: int
    samples: int
    late: int
    blind: int
    holders: StackSamples
    places: Places
    loop_tid: int = 0
    queued_share: float = 0.0
    deaths: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    computing: Set[int] = frozenset()
    computed: float = 0.0
    _calls: dict[Spot, str] = field(default_factory=dict)

    def called(self, spot: Spot) -> str:
        """Return the name of the function that is called at a spot."""
        if spot not in self._calls:
            self._calls[spot] = callee.callee(spot)
        return self._calls[spot]

    def state(self, sample: Sample, *, trainer: bool) -> str:
        """Return the state of a thread in one sample."""
        if sample.holder:  # it stopped only because the sampler took the lock
            return states.CORE
        stack = [(spot[0].co_name, spot[0].co_filename) for spot in sample.stack]
        called = self.called(sample.stack[0]) if sample.stack else ""
        late = sample.late or self.contended
        return states.state_of(
            states.ThreadView(stack, called, sample.call, sample.target, sample.disk, late, trainer)
        )

    def state_shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the shares by state for the loop's thread; CORE becomes NATIVE and RUNNABLE."""
        total = sum(weights.values())
        busy = {state: weight / total for state, weight in weights.items()}
        core = busy.pop(states.CORE, 0.0)
        busy[ev.NATIVE] = busy.get(ev.NATIVE, 0.0) + core * (1.0 - self.queued_share)
        busy[ev.RUNNABLE] = core * self.queued_share
        return {state: share for state, share in busy.items() if share > 0}

    @property
    def contended(self) -> bool:
        """True if the lock was held in most conclusive samples, so probably in the others, too."""
        return self.late > CONTENDED_SHARE * (self.samples - self.blind)

    def stack(self, sample: Sample) -> tuple[Place, ...]:
        """Return the places of a sample, the outermost first."""
        return without_start(self.places.of(spot) for spot in reversed(sample.stack))

    def work(self, sample: Sample, *, in_kernel: bool = False) -> str:
        """Return COPYING, PICKLING or "".

        `in_kernel`: the kernel takes most of the thread's CPU time, to provide memory and to take
        it back; the memory of a copy is taken back with the interpreter lock held.
        """
        place = self.places.of(sample.stack[0])
        called = self.called(sample.stack[0])
        if sample.holder and self.releases_lock(sample) and not in_kernel:
            return ""  # the code that held the lock came before
        if self.state(sample, trainer=False) not in (states.CORE, ev.LOCK_PYTHON):
            return ""
        return callee.work_of(place.function, place.file, calls=(called,) if called else ())

    def releases_lock(self, sample: Sample) -> bool:
        """Return True if the thread calls a function that releases the interpreter lock."""
        return self.called(sample.stack[0]).rpartition(".")[2] in LOCK_RELEASING_CALLS

    def lock_share(self, log: ThreadLog, cpu: float) -> float:
        """Return the share of the time in which a thread held the interpreter lock.

        `cpu`: its share on a core.
        """
        outside = self.holders.shares()
        if self.holders.looks < MIN_SPY_SAMPLES or not sum(outside.values()):
            return lock.held_share(
                log.credit, self.late, samples=self.samples, blind=self.blind, cpu=cpu
            )
        # py-spy knows the holder, and how often the lock is held even if it is held too briefly to
        # make the sampler late. It falls behind when cores are scarce; the sampler's delay does
        # not.
        total = max(sum(outside.values()), self.late / max(self.samples, 1))
        return min(cpu, total * outside.get(log.tid, 0.0) / sum(outside.values()))


def thread_tasks(logs: Iterable[ThreadLog], context: AttributionContext) -> list[Task]:
    """Return one task for each thread with Python frames.

    Threads that Python did not start are one task if they ran the user's code; otherwise they
    belong to the native pools, which are one task, too; those of compiled programs another one.
    """
    every = [log for log in logs if log.wall_s > 0]
    python = [log for log in every if log.samples]
    foreign = [
        log
        for log in python
        if log.foreign and log.ident != context.loop and _runs_user_code(log, context)
    ]
    native = [
        log
        for log in every
        if log not in python or (log.foreign and log not in foreign and log.ident != context.loop)
    ]
    named = [log for log in python if log not in foreign and log not in native]
    found = [task_of(log, context) for log in named]
    known = {log.tid for log in named}
    for tid, (name, text) in context.deaths.items():
        if tid not in known:
            found.append(Task(name, os.getpid(), tid, ev.PRODUCER, 0.0, exit=text))
    if foreign:
        name = (
            ev.CALLED_BACK if "tensorflow" in sys.modules else "threads that Python did not start"
        )
        found.append(_merged_task(foreign, context, name=name))
    computing = [log for log in native if log.tid in context.computing]
    pool = [log for log in native if log not in computing]
    found += [pool_task(pool)] if pool else []
    return found + ([computing_task(computing, context)] if computing else [])


def _runs_user_code(log: ThreadLog, context: AttributionContext) -> bool:
    return any(place.users for sample in log.samples for place in context.stack(sample))


def task_of(log: ThreadLog, context: AttributionContext) -> Task:
    """Return the task of a Python thread."""
    trainer = log.ident == context.loop
    used = log.used()
    cpu = used.cpu_s / log.wall_s
    counts: Counter[str] = Counter()
    for sample, count in log.samples.items():
        counts[context.state(sample, trainer=trainer)] += count
    # Empty samples: a thread that started or ended meanwhile.
    busy = states.shares(
        counts, cpu=cpu, queued=used.queued_s / log.wall_s, python=context.lock_share(log, cpu)
    )
    task = _task([log], context, name=log.name, used=used, busy=busy)
    task = replace(task, exit=context.deaths.get(log.tid, ("", ""))[1])
    return replace(task, role=ev.TRAINER if trainer else role_of(task, log.name))


def _merged_task(logs: Sequence[ThreadLog], context: AttributionContext, *, name: str) -> Task:
    """Return one task for threads that have Python frames only while they run the user's function.

    It counts as many producers as work at once; a thread without frames has nothing to do.
    """
    wall_s = max(log.wall_s for log in logs)
    used = Counters()
    counts: Counter[str] = Counter()
    for log in logs:
        used = used.plus(log.used())
        for sample, count in log.samples.items():
            counts[context.state(sample, trainer=False)] += count
    at_once = sorted(Counter(number for log in logs for number in log.by_number).values())
    # As many threads work as there is work for.
    units = at_once[int(CONCURRENCY_QUANTILE * (len(at_once) - 1))] if at_once else 1
    counts[ev.FULL] += max(context.samples * units - sum(counts.values()), 0)
    held = sum(context.lock_share(log, 1.0) for log in logs)
    cpu, queued = used.cpu_s / wall_s / units, used.queued_s / wall_s / units
    task = _task(
        logs,
        context,
        name=name,
        used=used,
        busy=states.shares(counts, cpu=cpu, queued=queued, python=held / units),
    )
    return replace(task, role=ev.PRODUCER, producers=units)


def _task(
    logs: Sequence[ThreadLog],
    context: AttributionContext,
    *,
    name: str,
    used: Counters,
    busy: Mapping[str, float],
) -> Task:
    stacks, copying, pickling = stack_weights(logs, context)
    return Task(
        *(name, os.getpid(), logs[0].tid, ev.PRODUCER, max(log.wall_s for log in logs)),
        **used.fields(),
        busy=busy,
        stacks=stacks,
        copying=copying,
        pickling=pickling,
    )


def stack_weights(
    logs: Sequence[ThreadLog], context: AttributionContext
) -> tuple[dict[tuple[Place, ...], int], float, float]:
    """Return the samples by stack, and the shares that copy and pickle.

    The sampler gets the interpreter lock when its holder releases it, so it rarely finds a holder
    inside the code that holds the lock. If py-spy has sampled the holders from outside, its samples
    replace these.
    """
    samples: Counter[Sample] = Counter()
    for log in logs:
        samples.update(log.samples)
    total = sum(samples.values())
    outside = sum(
        (context.holders.seen[log.tid] for log in logs if log.tid in context.holders.seen),
        Counter(),
    )
    enough = context.holders.looks >= MIN_SPY_SAMPLES and sum(outside.values()) > 0
    share = min(sum(outside.values()) / context.holders.looks / len(logs), 1.0) if enough else 0.0
    inside = {
        sample: count for sample, count in samples.items() if not (enough and sample.holder)
    } or dict(samples)
    used = [log.used() for log in logs]
    in_kernel = (
        sum(one.system_s for one in used) >= KERNEL_SHARE * sum(one.cpu_s for one in used) > 0
    )
    scale = total * (1.0 - share) / (sum(inside.values()) or 1)
    weights: dict[tuple[Place, ...], float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for sample, count in inside.items():
        weights[context.stack(sample)] += count * scale
        work[context.work(sample, in_kernel=in_kernel)] += count * scale
    if enough:
        scale = total * share / sum(outside.values())
        for stack, count in outside.items():
            weights[stack.places] += count * scale
        copying, pickling = work_shares(outside)
        work[callee.COPYING] += copying * total * share
        work[callee.PICKLING] += pickling * total * share
    kept = {
        stack: max(round(weight), 1) for stack, weight in weights.items() if stack and weight >= 0.5
    }
    return kept, work[callee.COPYING] / (total or 1), work[callee.PICKLING] / (total or 1)


def computing_task(logs: Sequence[ThreadLog], context: AttributionContext) -> Task:
    """Return the threads of compiled programs as one task: it works while any of them does."""
    busy = {ev.NATIVE: context.computed, ev.EMPTY: 1 - context.computed}
    task = replace(pool_task(logs), name="threads of compiled programs", computes=True)
    return replace(task, busy={state: share for state, share in busy.items() if share > 0})


def pool_task(logs: Sequence[ThreadLog]) -> Task:
    """Return all native threads as one task with the sum of their counters."""
    used = Counters()
    for log in logs:
        used = used.plus(log.used())
    wall_s = max(log.wall_s for log in logs)
    count = len(logs)
    cpu, queued = used.cpu_s / wall_s / count, used.queued_s / wall_s / count
    return Task(
        *("native threads", os.getpid(), logs[0].tid, ev.FRAMEWORK, wall_s),
        **used.fields(),
        busy=states.shares({ev.EMPTY: 1}, cpu=cpu, queued=queued, python=0.0),
        threads=count,
    )


def role_of(task: Task, name: str) -> str:
    """Return PRODUCER if the task runs the user's code, FEEDER for plumbing, otherwise FOREIGN.

    A thread that died is a PRODUCER, wherever the few samples of it were taken.
    """
    if task.exit or any(place.users for stack in task.stacks for place in stack):
        return ev.PRODUCER
    plumbing = any(PLUMBING_FILES.search(place.file) for stack in task.stacks for place in stack)
    return ev.FEEDER if plumbing or name.startswith(PLUMBING_NAMES) else ev.FOREIGN


def settle_roles(found: Sequence[Task], logs: Mapping[int, ThreadLog]) -> list[Task]:
    """Return the tasks with their final roles.

    Threads that run the user's code but stay idle (heartbeats, a main thread that joins) are
    FOREIGN. The exception: if every thread is idle and the trainer waits, such a thread may be a
    producer that hangs. A thread that collects results of other producers is a FEEDER.
    """
    found = _demote_collectors(found)
    producers = [task for task in found if task.role == ev.PRODUCER]
    idle = [task for task in producers if task.tid in logs and _is_idle(task, logs[task.tid])]
    trainer = next((task for task in found if task.role == ev.TRAINER), None)
    hangs = trainer is not None and trainer.share(*TRAINER_WAITS) > 0.5
    if hangs and not any(task not in idle and not task.exit for task in producers):
        return list(found)
    return [replace(task, role=ev.FOREIGN) if task in idle else task for task in found]


def _demote_collectors(found: Sequence[Task]) -> list[Task]:
    """Return the tasks; producers that mostly wait for a pool of others become feeders."""
    producers = [task for task in found if task.role == ev.PRODUCER]
    collectors = [task for task in producers if _is_collector(task)]
    if len(collectors) == len(producers):
        return list(found)
    return [replace(task, role=ev.FEEDER) if task in collectors else task for task in found]


def _is_collector(task: Task) -> bool:
    total = sum(task.stacks.values())
    waits = sum(count for stack, count in task.stacks.items() if any(map(_waits_for_pool, stack)))
    return waits > 0.5 * total * (1.0 - task.share(ev.FULL)) and waits > 0


def _waits_for_pool(place: Place) -> bool:
    return (
        place.function.rpartition(".")[2] in COLLECTOR_FUNCTIONS
        and COLLECTOR_FILES.search(place.file) is not None
    )


def _is_idle(task: Task, log: ThreadLog) -> bool:
    used = log.used()
    if task.exit or task.share(ev.FULL) > 0.5:  # only a producer waits for room in a buffer
        return False
    return used.yields < IDLE_SWITCHES_PER_S * task.wall_s and task.cpu_s < IDLE_CORES * task.wall_s
