"""Tasks of evidence from the observed threads of this process."""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import CodeType

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import Task
from fastfeed.diagnose.sample import states
from fastfeed.diagnose.sample.copying import copies
from fastfeed.diagnose.sample.thread_samples import (
    MIN_SAMPLES,
    Sample,
    ThreadLog,
    states_of,
    used_by,
)
from fastfeed.probes import lock
from fastfeed.probes.places import Place, Places, Spot, without_start
from fastfeed.probes.pyspy import Stack, StackSamples

MIN_SPY_SAMPLES = 50  # of the lock's holder, by py-spy
# What a thread waits in that collects the results of a pool.
POOL_FILES = re.compile(r"(^|/)(concurrent/futures/_base|multiprocess(ing)?/pool)\.py$")
IDLE_RUNS_PER_S = 0.5  # a thread that gets a core less often produces no batches, or no more
IDLE_CORES = 0.01
# States of a trainer that waits for a batch.
TRAINER_WAITS = (ev.LOCK, ev.PIPE, ev.SOCKET, ev.OTHER)
MIN_WAITING_SHARE = 0.1  # of the time: a loop that hardly waits needs no distinction
MAX_CALLBACK_SHARE = 0.02  # of a callback's samples that may lie in the loop's waits
Span = tuple[float, float]  # of time


@dataclass
class AttributionContext:
    """Everything that turns thread logs into tasks.

    `loop`: the ident of the loop's thread, `loop_tid` its tid. `samples`: all samples; in `late`
    ones the interpreter lock was held, and `blind` ones are inconclusive. `holders`: py-spy's
    samples of the lock's holder. `deaths`: name and traceback of threads that ended with an
    exception, by tid. `queued_share`: of the time of the loop's thread on a core without the
    interpreter lock, or ready for a core, the share (0 to 1) in which it waits for a core.
    `step_lines`: files and lines in which a model is trained.
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
    step_lines: Set[tuple[str, int]] = frozenset()
    _copies: dict[Spot, bool] = field(default_factory=dict)

    def copies(self, sample: Sample) -> bool:
        """Return True if a thread is at work in a conversion, or in a copy of arrays."""
        if not sample.stack or sample.released or sample.state not in (states.CORE, ev.LOCK_PYTHON):
            return False
        spot = sample.stack[0]
        if spot not in self._copies:
            self._copies[spot] = copies(spot)
        return self._copies[spot]

    def state_shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the shares by state for the loop's thread; CORE becomes NATIVE and RUNNABLE."""
        total = sum(weights.values())
        busy = {state: weight / total for state, weight in weights.items()}
        core = busy.pop(states.CORE, 0.0)
        busy[ev.NATIVE] = busy.get(ev.NATIVE, 0.0) + core * (1.0 - self.queued_share)
        busy[ev.RUNNABLE] = core * self.queued_share
        return {state: share for state, share in busy.items() if share > 0}

    def stack(self, sample: Sample) -> Stack:
        """Return the places of a sample, the outermost first."""
        return without_start(self.places.of(spot) for spot in reversed(sample.stack))

    def function_of_user(self, sample: Sample) -> CodeType | None:
        """Return the outermost of the user's functions on the stack."""
        return next((s[0] for s in reversed(sample.stack) if self.places.of(s).users), None)

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
    belong to the native pools, which are one task, too.
    """
    every = [log for log in logs if log.wall_s > 0]
    named = [log for log in every if log.samples and (log.name or log.ident == context.loop)]
    others = [log for log in every if log not in named]
    foreign = [log for log in others if any(map(context.function_of_user, log.samples))]
    pool = [log for log in others if log not in foreign]
    found = [_thread_task(log, context) for log in named]
    known = {log.tid for log in named}
    for tid, (name, text) in context.deaths.items():
        if tid not in known:
            found.append(Task(name, os.getpid(), tid, ev.PRODUCER, 0.0, exit=text))
    if foreign:
        found.append(_foreign_task(foreign, context))
    if pool:
        one = _task(pool, Counter({ev.EMPTY: 1}), units=len(pool))
        found.append(replace(one, name="native threads", role=ev.FRAMEWORK, threads=len(pool)))
    return found


def _thread_task(log: ThreadLog, context: AttributionContext) -> Task:
    """Return the task of a Python thread.

    It is a producer if it runs the user's code. A thread that died is one, too, wherever the few
    samples of it were taken.
    """
    trainer = log.ident == context.loop
    held = context.lock_share(log, log.used().cpu_s / log.wall_s)
    task = _task([log], states_of([log]), held=held, helper=not trainer)
    died = context.deaths.get(log.tid, ("", ""))[1]
    stacks, copying = stack_weights([log], context)
    role = ev.TRAINER if trainer else role_of(stacks, died=bool(died))
    return replace(task, name=log.name, role=role, stacks=stacks, copying=copying, exit=died)


def role_of(stacks: Iterable[Sequence[Place]], *, died: bool = False) -> str:
    """Return PRODUCER for a thread that runs the user's code or has died, otherwise FOREIGN."""
    users = any(place.users for stack in stacks for place in stack)
    return ev.PRODUCER if users or died else ev.FOREIGN


def _foreign_task(logs: Sequence[ThreadLog], context: AttributionContext) -> Task:
    """Return one task for threads that have Python frames only while they run the user's function.

    It counts as many producers as are at work at a time; a thread without frames has nothing to do.
    """
    counts = states_of(logs)
    moments = {when for log in logs for when, _ in log.moments}
    units = max(1, round(counts.total() / max(1, len(moments))))
    counts[ev.EMPTY] += max(context.samples * units - counts.total(), 0)
    held = sum(context.lock_share(log, 1.0) for log in logs) / units
    stacks, copying = stack_weights(logs, context)
    name = "threads that Python did not start"
    if "tensorflow" in sys.modules:
        name = ev.CALLED_BACK
    task = _task(logs, counts, units=units, held=held)
    return replace(task, name=name, stacks=stacks, copying=copying, producers=units)


def _task(
    logs: Sequence[ThreadLog],
    counts: Mapping[str, float],
    *,
    units: int = 1,
    held: float = 0.0,
    helper: bool = True,
) -> Task:
    """Return a producer with the counters of these threads; `counts`: their samples by state,
    `held`: the share of the time with the interpreter lock of one of `units`."""
    used, wall_s = used_by(logs), max(log.wall_s for log in logs)
    cpu, queued = used.cpu_s / wall_s / units, used.queued_s / wall_s / units
    busy = states.shares(counts, cpu=cpu, queued=queued, python=held, helper=helper)
    times = (wall_s, used.cpu_s, used.queued_s)
    return Task("", os.getpid(), logs[0].tid, ev.PRODUCER, *times, busy=busy)


def stack_weights(
    logs: Sequence[ThreadLog], context: AttributionContext
) -> tuple[dict[Stack, int], float]:
    """Return the samples by stack, and the share that copies.

    The sampler gets the interpreter lock when its holder releases it, so it rarely finds a holder
    inside the code that holds the lock. If py-spy has sampled the holders from outside, its samples
    replace these.
    """
    samples: Counter[Sample] = Counter()
    outside: Counter[Stack] = Counter()
    for log in logs:
        samples.update(log.samples)
        outside.update(context.holders.seen.get(log.tid, {}))
    total = samples.total()
    enough = context.holders.looks >= MIN_SPY_SAMPLES and outside.total() > 0
    share = min(outside.total() / context.holders.looks / len(logs), 1.0) if enough else 0.0
    inside = {one: n for one, n in samples.items() if not (enough and one.holder)} or samples
    scale = total * (1.0 - share) / (sum(inside.values()) or 1)
    weights: dict[Stack, float] = defaultdict(float)
    for sample, count in inside.items():
        weights[context.stack(sample)] += count * scale
    for stack, count in outside.items() if enough else ():
        weights[stack] += count * total * share / outside.total()
    copying = sum(count for sample, count in samples.items() if context.copies(sample))
    kept = {stack: max(round(n), 1) for stack, n in weights.items() if stack and n >= 0.5}
    return kept, copying / (total or 1)


def without_callbacks(
    logs: Iterable[ThreadLog], waits: Sequence[Span], *, context: AttributionContext
) -> list[ThreadLog]:
    """Return the logs without the samples of callbacks, for threads that Python did not start.

    `waits`: when the loop waits for input, in order. A function that never runs then makes no
    batches, as a tf.numpy_function in the step: a producer works at those moments.
    """
    logs = list(logs)
    waited_s = sum(end_s - begin_s for begin_s, end_s in waits)
    if not waits or waited_s < MIN_WAITING_SHARE * (waits[-1][1] - waits[0][0]):
        return logs
    edges = [edge for span in waits for edge in span]
    foreign = [log for log in logs if not log.name and log.ident != context.loop]
    counts: Counter[CodeType | None] = Counter()
    waiting: Counter[CodeType | None] = Counter()
    for log in foreign:
        for when, sample in log.moments:
            function = context.function_of_user(sample)
            counts[function] += 1
            # Odd positions among the edges lie between the two edges of a wait.
            waiting[function] += bisect_right(edges, when) % 2
    callbacks = {
        function
        for function, count in counts.items()
        if count >= MIN_SAMPLES and waiting[function] <= MAX_CALLBACK_SHARE * count
    }
    for log in foreign if callbacks else ():
        log.drop(lambda sample: context.function_of_user(sample) in callbacks)
    return logs


def settle_roles(found: Sequence[Task], logs: Mapping[int, ThreadLog]) -> list[Task]:
    """Return the tasks with their final roles.

    Threads that run the user's code but stay idle (heartbeats, a main thread that joins) are
    FOREIGN. The exception: if every thread is idle and the trainer waits, such a thread may be a
    producer that hangs. A thread that collects results of other producers is a FEEDER.
    """
    producers = [task for task in found if task.role == ev.PRODUCER]
    collectors = [task for task in producers if _collects(task)]
    if len(collectors) < len(producers):
        found = [replace(one, role=ev.FEEDER) if one in collectors else one for one in found]
        producers = [task for task in producers if task not in collectors]
    idle = [task for task in producers if task.tid in logs and _is_idle(task, logs[task.tid])]
    trainer = next((task for task in found if task.role == ev.TRAINER), None)
    hangs = trainer is not None and trainer.share(*TRAINER_WAITS) > 0.5
    if hangs and not any(task not in idle and not task.exit for task in producers):
        return list(found)
    return [replace(task, role=ev.FOREIGN) if task in idle else task for task in found]


def _collects(task: Task) -> bool:
    """Return True if the user's code of a thread waits for a pool longer than it works."""
    waits = 0
    for stack, count in task.stacks.items():
        last = max((i for i, place in enumerate(stack) if place.users), default=len(stack))
        waits += count * any(POOL_FILES.search(place.file) for place in stack[last + 1 :])
    return waits > sum(task.stacks.values()) * (1 - task.share(ev.EMPTY))


def _is_idle(task: Task, log: ThreadLog) -> bool:
    seldom = log.used().runs < IDLE_RUNS_PER_S * task.wall_s
    return not task.exit and seldom and task.cpu_s < IDLE_CORES * task.wall_s
