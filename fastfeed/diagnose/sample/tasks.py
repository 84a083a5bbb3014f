"""From the history of this process's threads to tasks."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import Task
from fastfeed.diagnose.sample import callee, states
from fastfeed.diagnose.sample.child_processes import works
from fastfeed.diagnose.sample.thread_log import Sample, ThreadLog
from fastfeed.probes import lock
from fastfeed.probes.places import Place, Places, Spot, without_start
from fastfeed.probes.procfs import Counters
from fastfeed.probes.pyspy import StackSamples

PLUMBING = re.compile(
    r"^(multiprocessing|concurrent|torch/utils/data|keras|tensorflow|fastfeed|joblib|queue)(/|\.py)"
)
PLUMBING_NAMES = ("QueueFeederThread", "fastfeed-", "ExecutorManager", "ThreadPoolExecutor")
# calls that release the interpreter lock
LETS_GO = callee.RELEASES | states.SLEEPS | states.SOCKETS | {"acquire", "wait", "result"}
# of its CPU: a thread with so much time in the kernel waits for memory, where it copies
FREES = 0.5
ENOUGH_LOOKS = 50  # samples of py-spy at the lock's holder
CONTENDED = 0.5  # of the samples with a known holder
COLLECTS = re.compile(r"(^|/)(concurrent/futures/_base|multiprocess(ing)?/pool)\.py$")
# what it waits in there
COLLECTS_NAMES = ("result", "as_completed", "result_iterator", "get", "next")
STILL_PER_S = 0.5  # voluntary switches: a thread below it makes no batches, or no more
STILL_CPU = 0.01
# quantile of how many threads work at once: the rest are moments at which one takes over from
# another
MOST = 0.95
WAITS = (ev.LOCK, ev.EMPTY, ev.PIPE, ev.SOCKET, ev.OTHER)  # how a trainer waits for a batch


@dataclass
class AttributionContext:
    """What turns logs into tasks: the loop's thread, the number of samples, how many of them found
    the lock held and how many cannot tell, its holders according to py-spy, and the tracebacks of
    dead threads."""

    loop: int
    samples: int
    late: int
    blind: int
    holders: StackSamples
    places: Places
    loop_tid: int = 0
    ready: float = 0.0  # see loops.py
    deaths: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    _calls: dict[Spot, str] = field(default_factory=dict)

    def called(self, spot: Spot) -> str:
        """Return what is called there."""
        if spot not in self._calls:
            self._calls[spot] = callee.callee(spot)
        return self._calls[spot]

    def state(self, look: Sample, *, trainer: bool) -> str:
        """Return the state of a thread at one moment."""
        if look.holder:  # it stood still only because the sampler took the lock
            return states.CORE
        stack = [(spot[0].co_name, spot[0].co_filename) for spot in look.stack]
        called = self.called(look.stack[0]) if look.stack else ""
        late = look.late or self.contended
        return states.state_of(
            states.ThreadView(stack, called, look.call, look.target, look.disk, late, trainer)
        )

    @property
    def contended(self) -> bool:
        """True if the lock was held in most samples that can tell: then it probably was in the
        others, too."""
        return self.late > CONTENDED * (self.samples - self.blind)

    def stack(self, look: Sample) -> tuple[Place, ...]:
        """Return the places of a sample, the outermost first."""
        return without_start(self.places.of(spot) for spot in reversed(look.stack))

    def work(self, look: Sample, *, frees: bool = False) -> str:
        """Return "copying", "pickling" or "". `frees`: the kernel, which gives and takes memory,
        has most of the thread's CPU; a copy's memory is freed with the lock held."""
        place, called = self.places.of(look.stack[0]), self.called(look.stack[0])
        if look.holder and self.lets_go(look) and not frees:
            return ""  # the code that held the lock came before
        if self.state(look, trainer=False) not in (states.CORE, ev.LOCK_PYTHON):
            return ""
        return callee.work_of(place.function, place.file, calls=(called,) if called else ())

    def lets_go(self, look: Sample) -> bool:
        """Return True if it calls something that releases the lock."""
        return self.called(look.stack[0]).rpartition(".")[2] in LETS_GO

    def held(self, log: ThreadLog, cpu: float) -> float:
        """Return the share of time for which a thread held the interpreter lock, of `cpu` on a
        core."""
        outside = self.holders.shares()
        if self.holders.looks < ENOUGH_LOOKS or not sum(outside.values()):
            return lock.held(log.credit, self.late, samples=self.samples, blind=self.blind, cpu=cpu)
        # py-spy tells which thread, and how often if the lock is held too briefly for anyone to be
        # late; it falls behind when cores are scarce, and the sampler's lateness does not
        total = max(sum(outside.values()), self.late / max(self.samples, 1))
        return min(cpu, total * outside.get(log.tid, 0.0) / sum(outside.values()))


def thread_tasks(logs: Iterable[ThreadLog], cast: AttributionContext) -> list[Task]:
    """Return one task for each thread with Python frames; one for those that Python did not start
    and that ran the user's code; one for the native pools."""
    every = [log for log in logs if log.wall_s > 0]
    python = [log for log in every if log.looks]
    foreign = [
        log for log in python if log.foreign and log.ident != cast.loop and _has_users(log, cast)
    ]
    native = [
        log
        for log in every
        if log not in python or (log.foreign and log not in foreign and log.ident != cast.loop)
    ]
    found = [task_of(log, cast) for log in python if log not in foreign and log not in native]
    known = {log.ident for log in python if log.gone}
    for ident, (name, text) in cast.deaths.items():
        if ident not in known:
            found.append(Task(name, os.getpid(), 0, ev.PRODUCER, 0.0, exit=text))
    if foreign:
        name = (
            ev.CALLED_BACK if "tensorflow" in sys.modules else "threads that Python did not start"
        )
        found.append(_merged(foreign, cast, name=name))
    return found + ([pool_of(native)] if native else [])


def _has_users(log: ThreadLog, cast: AttributionContext) -> bool:
    return any(place.users for look in log.looks for place in cast.stack(look))


def task_of(log: ThreadLog, cast: AttributionContext) -> Task:
    """Return the task of a thread that Python knows."""
    trainer = log.ident == cast.loop
    used = log.last.since(log.first)
    cpu = used.cpu_s / log.wall_s
    counts: Counter[str] = Counter()
    for look, count in log.looks.items():
        counts[cast.state(look, trainer=trainer)] += count
    # a thread that began or ended meanwhile has no samples for a part
    busy = states.shares(
        counts, cpu=cpu, queued=used.queued_s / log.wall_s, python=cast.held(log, cpu)
    )
    task = _task([log], cast, name=log.name, used=used, busy=busy)
    return replace(
        task,
        role=ev.TRAINER if trainer else role_of(task, log.name),
        exit=exit_of(log, cast.deaths),
    )


def _merged(logs: Sequence[ThreadLog], cast: AttributionContext, *, name: str) -> Task:
    """Return one task for threads with Python frames only while they run the user's function: as
    many producers as run it at once. One that does not is idle."""
    wall_s = max(log.wall_s for log in logs)
    used = Counters()
    counts: Counter[str] = Counter()
    for log in logs:
        used = used.plus(log.last.since(log.first))
        for look, count in log.looks.items():
            counts[cast.state(look, trainer=False)] += count
    at_once = sorted(Counter(moment for log in logs for moment in log.moments).values())
    # all of them work when there is work for all
    units = at_once[int(MOST * (len(at_once) - 1))] if at_once else 1
    counts[ev.FULL] += max(cast.samples * units - sum(counts.values()), 0)
    held = sum(cast.held(log, 1.0) for log in logs)
    cpu, queued = used.cpu_s / wall_s / units, used.queued_s / wall_s / units
    task = _task(
        logs,
        cast,
        name=name,
        used=used,
        busy=states.shares(counts, cpu=cpu, queued=queued, python=held / units),
    )
    return replace(task, role=ev.PRODUCER, producers=units)


def _task(
    logs: Sequence[ThreadLog],
    cast: AttributionContext,
    *,
    name: str,
    used: Counters,
    busy: Mapping[str, float],
) -> Task:
    stacks, copying, pickling = stacks_of(logs, cast)
    return Task(
        *(name, os.getpid(), logs[0].tid, ev.PRODUCER, max(log.wall_s for log in logs)),
        **used.fields(),
        busy=busy,
        stacks=stacks,
        copying=copying,
        pickling=pickling,
    )


def stacks_of(
    logs: Sequence[ThreadLog], cast: AttributionContext
) -> tuple[dict[tuple[Place, ...], int], float, float]:
    """Return the samples by stack, and the shares that copy and pickle.

    The sampler gets the lock when its holder releases it, so that it finds a holder too seldom
    inside the code that holds the lock. If py-spy has sampled the holders from outside, its samples
    replace these moments.
    """
    looks: Counter[Sample] = Counter()
    for log in logs:
        looks.update(log.looks)
    total = sum(looks.values())
    outside = sum(
        (cast.holders.seen[log.tid] for log in logs if log.tid in cast.holders.seen), Counter()
    )
    enough = cast.holders.looks >= ENOUGH_LOOKS and sum(outside.values()) > 0
    share = min(sum(outside.values()) / cast.holders.looks / len(logs), 1.0) if enough else 0.0
    inside = {look: count for look, count in looks.items() if not (enough and look.holder)} or dict(
        looks
    )
    used = [log.last.since(log.first) for log in logs]
    frees = sum(one.system_s for one in used) >= FREES * sum(one.cpu_s for one in used) > 0
    scale = total * (1.0 - share) / (sum(inside.values()) or 1)
    weights: dict[tuple[Place, ...], float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for look, count in inside.items():
        weights[cast.stack(look)] += count * scale
        work[cast.work(look, frees=frees)] += count * scale
    if enough:
        scale = total * share / sum(outside.values())
        for stack, count in outside.items():
            weights[stack.places] += count * scale
        copying, pickling = works(outside)
        work["copying"] += copying * total * share
        work["pickling"] += pickling * total * share
    kept = {
        stack: max(round(weight), 1) for stack, weight in weights.items() if stack and weight >= 0.5
    }
    return kept, work["copying"] / (total or 1), work["pickling"] / (total or 1)


def pool_of(logs: Sequence[ThreadLog]) -> Task:
    """Return all native threads as one task with their total CPU."""
    used = Counters()
    for log in logs:
        used = used.plus(log.last.since(log.first))
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
    """Return PRODUCER if the user's code runs, FEEDER for known plumbing, else FOREIGN."""
    if any(place.users for stack in task.stacks for place in stack):
        return ev.PRODUCER
    plumbing = any(PLUMBING.search(place.file) for stack in task.stacks for place in stack)
    return ev.FEEDER if plumbing or name.startswith(PLUMBING_NAMES) else ev.FOREIGN


def exit_of(log: ThreadLog, deaths: Mapping[int, tuple[str, str]]) -> str:
    """Return the traceback of a thread that died of one; idents are reused, so that living threads
    have none."""
    return deaths.get(log.ident, ("", ""))[1] if log.gone else ""


def settled(found: Sequence[Task], logs: Mapping[int, ThreadLog]) -> list[Task]:
    """Return the tasks with their final roles. Threads that run the user's code and never move
    (heartbeats, a main thread that joins) are FOREIGN, unless none moves and the trainer waits:
    then such a thread may be the producer that hangs. One that collects the results of others is a
    FEEDER."""
    found = _handed_on(found)
    made = [task for task in found if task.role == ev.PRODUCER]
    still = [task for task in made if task.tid in logs and _still(task, logs[task.tid])]
    trainer = next((task for task in found if task.role == ev.TRAINER), None)
    hangs = trainer is not None and trainer.share(*WAITS) > 0.5
    if hangs and not any(task not in still and not task.exit for task in made):
        return list(found)
    return [replace(task, role=ev.FOREIGN) if task in still else task for task in found]


def _handed_on(found: Sequence[Task]) -> list[Task]:
    """Return the tasks; of several producers, those that mostly wait for a pool of others are
    none."""
    made = [task for task in found if task.role == ev.PRODUCER]
    collect = [task for task in made if _collects(task)]
    if len(collect) == len(made):
        return list(found)
    return [replace(task, role=ev.FEEDER) if task in collect else task for task in found]


def _collects(task: Task) -> bool:
    total = sum(task.stacks.values())
    waits = sum(count for stack, count in task.stacks.items() if any(map(_asks_pool, stack)))
    return waits > 0.5 * total * (1.0 - task.share(ev.FULL)) and waits > 0


def _asks_pool(place: Place) -> bool:
    return (
        place.function.rpartition(".")[2] in COLLECTS_NAMES
        and COLLECTS.search(place.file) is not None
    )


def _still(task: Task, log: ThreadLog) -> bool:
    used = log.last.since(log.first)
    if task.exit or task.share(ev.FULL) > 0.5:  # only a producer has a buffer after it
        return False
    return used.yields < STILL_PER_S * task.wall_s and task.cpu_s < STILL_CPU * task.wall_s
