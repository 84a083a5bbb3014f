"""Simulation of a feed by discrete events.

Producers and the training thread are tasks. Each goes through the parts of its work on one resource
after the other. All tasks on a resource share it equally (processor sharing), as threads share
cores, and as threads of one process share their interpreter lock.

General engines (SimPy, Ciw) serve whole customers in turn. To share a resource with them, each task
on it must be interrupted and scheduled again whenever their number changes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain

import numpy as np

from fastfeed.model.workload import (
    INPUT_BOUND,
    LIMIT_CORES,
    LIMIT_DISK,
    LIMIT_LOCK,
    LIMIT_PRODUCERS,
    LIMIT_STEP,
    Outcome,
    Producers,
    Workload,
    demands,
    slowness,
    width,
)

# A pool of native threads waits for its slowest thread: with r runnable threads for each core, its
# work takes r to this power times as long. Measured: 3 times with 6, 2.8 to 3.4 times with 7.
POOL_EXPONENT = 0.6
# A thread that releases the interpreter lock for less time gets it back before another one wakes.
# Measured: a thread wakes 0.1 to 0.2 ms after it was signalled.
WAKE_S = 2e-4
# Of a step between its turns. More cost time: with 14 to 40 turns they changed no rate by over 2 %.
MAX_PIECES = 12
TINY_S = 1e-9  # shorter parts are left out

Part = tuple[int, float, float]  # resource, seconds of work in one thread, threads
# IN_NATIVE, IN_POOL and IN_PYTHON are on a core, where only native code suffers from other work.
# ON_LOCK is the first of the locks, whose holders are on a core, too.
OFF_CORE, ON_DISK, IN_NATIVE, IN_POOL, IN_PYTHON, IN_TURN, ON_LOCK = range(7)
MARK = -1  # the end of a wait, which needs no resource
TAKEN_PART: Part = (MARK, 0.0, 0.0)
HANDED_PART: Part = (OFF_CORE, TINY_S, 0.0)


def simulate(
    workload: Workload,
    producers: Producers,
    *,
    steps: int = 2000,
    warmup: int | None = None,
    seed: int = 0,
) -> Outcome:
    """Return the speed and the waits of a training with these producers.

    `steps` are simulated; the first ones, `warmup` or as many as fill the buffer, do not count. If
    more rows were observed, as many are drawn from all over the time.
    """
    if warmup is None:
        warmup = min(steps // 4, producers.count + workload.depth)
    rng = random.Random(seed)
    feed = _Feed(_thinned(workload, steps, rng=rng), producers, rng=rng)
    ends, waits = [0.0], []
    for end_s, wait_s in feed.run():
        ends.append(end_s)
        waits.append(wait_s)
        if len(waits) == steps:
            break
    counted = np.array(waits[warmup:])
    seconds = max(ends[-1] - ends[warmup], TINY_S)
    starvation = min(1.0, float(counted.sum()) / seconds)
    needed = demands(workload, producers)
    # A short run may take more batches than are made in it, which no long run can.
    rate = len(counted) / seconds
    if warmup:
        rate = min(rate, 1 / max(TINY_S, *needed.values()))
    busy = {name: min(1.0, rate * one) for name, one in needed.items()}
    p50, p99 = np.percentile(counted, (50, 99))
    limit = _limit(workload, busy, starvation=starvation)
    return Outcome(rate, starvation, float(p50), float(p99), limit, busy)


def _thinned(workload: Workload, steps: int, *, rng: random.Random) -> Workload:
    """Return the workload with at most so many rows, in their order."""
    found = []
    for rows in (workload.batches, workload.steps):
        few = min(steps, len(rows))
        found.append(rows[sorted(rng.sample(range(len(rows)), few))] if few < len(rows) else rows)
    return replace(workload, batches=found[0], steps=found[1])


def _limit(workload: Workload, busy: dict[str, float], *, starvation: float) -> str:
    """Return the limit in words: the step, a full resource, or what makes the buffer run empty."""
    if starvation < INPUT_BOUND and busy[LIMIT_STEP] >= 1 - INPUT_BOUND:
        return LIMIT_STEP
    name = max((LIMIT_LOCK, LIMIT_CORES, LIMIT_DISK, LIMIT_PRODUCERS), key=lambda one: busy[one])
    if busy[name] >= 1 - INPUT_BOUND or starvation < INPUT_BOUND:
        return name
    uneven = workload.batches.sum(axis=1)
    if workload.depth and len(uneven) > 1 and uneven.std() > uneven.mean() / 2:
        return "the slow batches" if not workload.ordered else "the order of the batches"
    return name


class _Resource:
    """Tasks on one resource, by the work that is done for each task when it ends."""

    __slots__ = ("done", "speed", "tasks")

    def __init__(self) -> None:
        self.speed = 1.0
        self.done = 0.0
        self.tasks: list[tuple[float, int]] = []


class _Feed:
    """A feed and its training at one moment."""

    def __init__(self, workload: Workload, producers: Producers, *, rng: random.Random) -> None:
        self._workload, self._rng, self._now = workload, rng, 0.0
        self._threads = producers.threads
        self._many_locks = producers.processes > 0
        self._trainer = producers.count  # the number of its task; producers come before
        in_trainer = not producers.processes
        locks = 1 if in_trainer else producers.processes * (producers.threads > 1)
        self._resources = [_Resource() for _ in range(ON_LOCK + locks)]
        shared = in_trainer and producers.count > 0
        self._batches = _batch_parts(workload, locked=locks > 0 and producers.count > 0)
        self._turn: tuple[Part, ...] = ((IN_TURN, 1.0, 0.0),) if shared else ()
        self._steps = _step_parts(workload, shared=shared)
        self._buffer = BatchBuffer(workload)
        self._first = rng.randrange(len(workload.batches) * len(workload.steps))
        self._numbers = [0] * producers.count  # of each producer's batch
        self._parts: list[Iterator[Part]] = [iter(())] * (producers.count + 1)
        self._threads_on = [0.0] * (producers.count + 1)  # the cores, by task
        self._runnable = 0.0  # threads on the cores that hold no lock
        self._idle = list(range(producers.count))
        self._asked_s = self._wait_s = 0.0
        # at least the time in which every producer makes one batch
        self._cycle_s = producers.count * max(demands(workload, producers).values())

    def run(self) -> Iterator[tuple[float, float]]:
        """Yield the end and the wait of each step, in seconds."""
        step = 0
        self._ask(step)
        while True:
            task = self._end_of_part()
            if self._enter(task):
                continue
            if task == self._trainer:
                yield self._now, self._wait_s
                step += 1
                self._ask(step)
            else:
                if self._buffer.put(self._numbers[task], task):
                    self._idle.append(task)
                self._settle()

    def _ask(self, step: int) -> None:
        """Let the training ask for its next batch."""
        self._parts[self._trainer] = iter(self._row(self._steps, step))
        self._asked_s = self._now
        if self._trainer == 0:  # it makes its batches itself
            self._take(self._row(self._batches, step))
            return
        self._buffer.asked = True
        self._settle()

    def _row(self, rows: list[tuple[Part, ...]], number: int) -> tuple[Part, ...]:
        return rows[(self._first + number) % len(rows)]

    def _take(self, making: tuple[Part, ...]) -> None:
        if self._now > self._asked_s:  # it slept, and wants the lock back
            making = (*self._turn, *making)
        self._parts[self._trainer] = chain(making, (TAKEN_PART,), self._parts[self._trainer])
        self._enter(self._trainer)

    def _settle(self) -> None:
        """Pass on a batch, and let free producers begin their next ones."""
        taken, free = self._buffer.take()
        self._idle += free
        while self._idle:
            self._begin(self._idle.pop(), self._buffer.give())
        if taken:
            self._take((HANDED_PART,))

    def _begin(self, producer: int, number: int) -> None:
        self._numbers[producer] = number
        parts = self._row(self._batches, number)
        if number < self._trainer:  # producers that begin together do not stay together
            parts = ((OFF_CORE, self._rng.random() * self._cycle_s, 0.0), *parts)
        self._parts[producer] = iter(parts)
        self._enter(producer)

    def _enter(self, task: int) -> bool:
        """Begin the next part of a task; return False if there is none."""
        for number, work_s, threads in self._parts[task]:
            if number == MARK:
                self._wait_s = self._now - self._asked_s
                continue
            if number == IN_TURN:
                work_s *= self._turn_s()
                if not work_s:
                    continue
            elif number == ON_LOCK and task != self._trainer:
                number += task // self._threads * self._many_locks
            resource = self._resources[number]
            self._threads_on[task] = threads
            self._runnable += threads
            heappush(resource.tasks, (resource.done + work_s, task))
            return True
        return False

    def _turn_s(self) -> float:
        """Return the seconds until the training thread gets the interpreter lock.

        Every `turn_s` one of the threads that want the lock gets it, by chance. Those that have
        finished want it no more.
        """
        lock = self._resources[ON_LOCK]
        rivals = len(lock.tasks)
        if rivals < 2:
            return rivals * self._workload.turn_s
        turns = math.log(1 - self._rng.random()) // math.log(1 - 1 / rivals)
        left_s = sum(end - lock.done for end, _ in lock.tasks)
        return min((1 + turns) * self._workload.turn_s, left_s)

    def _end_of_part(self) -> int:
        """Go on to the next end of a part; return its task."""
        self._set_speeds()
        busy = [resource for resource in self._resources if resource.tasks]
        least, ending = math.inf, busy[0]
        for resource in busy:
            left_s = (resource.tasks[0][0] - resource.done) / resource.speed
            if left_s < least:
                least, ending = left_s, resource
        self._now += least
        for resource in busy:
            resource.done += least * resource.speed
        ending.done, task = heappop(ending.tasks)
        if self._threads_on[task]:
            self._runnable -= self._threads_on[task]
            self._threads_on[task] = 0.0
        return task

    def _set_speeds(self) -> None:
        """Share the cores, the locks and the disk."""
        workload, (_, disk, native, pools, python, turn, *locks) = self._workload, self._resources
        held = [lock for lock in locks if lock.tasks]
        runnable, crowd = self._runnable + len(held), 1.0
        if pools.tasks:
            crowd = crowding(runnable / workload.cores)
            # threads of a pool sleep until the slowest one is done
            waiting = self._threads_on[self._trainer] * (1 - 1 / crowd)
            runnable -= min(waiting, max(0.0, self._threads_on[self._trainer] - 1))
        share = workload.cores / runnable if runnable > workload.cores else 1.0
        native.speed, python.speed = share / slowness(workload, runnable), share
        pools.speed = native.speed / crowd
        for lock in held:
            lock.speed = share / len(lock.tasks)
        if turn.tasks and not locks[0].tasks:  # nobody else wants the lock any more
            turn.tasks = [(turn.done, self._trainer)]
        if disk.tasks:
            disk.speed = min(1.0, workload.disks / len(disk.tasks))


def _batch_parts(workload: Workload, *, locked: bool) -> list[tuple[Part, ...]]:
    """Return for each batch what its producer does; `locked`: its threads share locks."""
    found = []
    for wait_s, disk_s, lock_s, native_s in workload.batches.tolist():
        if locked and lock_s > WAKE_S:
            kept = [part for part in (wait_s, disk_s, native_s) if part < WAKE_S]
            lock_s += sum(kept)
            wait_s, disk_s, native_s = (x * (x >= WAKE_S) for x in (wait_s, disk_s, native_s))
        off: list[Part] = [(OFF_CORE, wait_s, 0.0), (ON_DISK, disk_s, 0.0)]
        native = _native(native_s, threads=1.0)
        found.append(_long_enough([*off, _python(lock_s, shared=locked), native]))
    return found


def _python(seconds: float, *, shared: bool) -> Part:
    """Return bytecode, with a lock that others want, too, if it is shared."""
    return (ON_LOCK, seconds, 0.0) if shared else (IN_PYTHON, seconds, 1.0)


def _native(seconds: float, *, threads: float) -> Part:
    """Return native code of one thread, or of each thread of a pool."""
    return (IN_POOL if threads > 1 else IN_NATIVE, seconds, threads)


def _step_parts(workload: Workload, *, shared: bool) -> list[tuple[Part, ...]]:
    """Return for each step what the training thread does."""
    threads = width(workload, workload.step_threads)
    # the cost of a step alone contains what its own threads cost each other
    alone = slowness(workload, threads) * threads
    turns = workload.turns if shared else 0.0
    pieces = max(1, min(math.ceil(turns), MAX_PIECES))  # each ends with turns at the lock
    found = []
    for accelerator_s, native_s, lock_s in workload.steps.tolist():
        piece = [
            _python(lock_s / pieces, shared=shared),
            _native(native_s / alone / pieces, threads=threads),
            (OFF_CORE, accelerator_s / pieces, 0.0),
            (IN_TURN, turns / pieces, 0.0),
        ]
        found.append(_long_enough(piece * pieces))
    return found


def crowding(runnable_per_core: float) -> float:
    """Return how many times as long the work of a pool takes among so many runnable threads."""
    return float(max(1.0, runnable_per_core) ** POOL_EXPONENT)


def _long_enough(parts: list[Part]) -> tuple[Part, ...]:
    return tuple(part for part in parts if part[1] > TINY_S) or ((OFF_CORE, TINY_S, 0.0),)


class BatchBuffer:
    """Batches between producers and training: their order and their room."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._given = 0  # items to producers
        self.taken = 0  # batches to the training
        self._ready = 0  # batches that may leave
        self._early: list[int] = []  # numbers of batches behind one that is not made yet
        self._blocked: list[tuple[int, int]] = []  # numbers without room, and their producers
        self.asked = False

    def give(self) -> int:
        """Return the number of the next item."""
        self._given += 1
        return self._given - 1

    def put(self, number: int, producer: int) -> bool:
        """Take a batch, and return True; without room for it let its producer wait."""
        if not self._has_room(number):
            heappush(self._blocked, (number, producer))
            return False
        if not self._workload.ordered:
            self._ready += 1
            return True
        heappush(self._early, number)
        while self._early and self._early[0] == self.taken + self._ready:
            heappop(self._early)
            self._ready += 1
        return True

    def take(self) -> tuple[bool, list[int]]:
        """Return True if the training gets the batch that it asks for, and the producers that go
        on."""
        if not self.asked:
            return False, []
        free = [] if self._ready else self._retry()
        if not self._ready:
            return False, free
        self.asked = False
        self.taken += 1
        self._ready -= 1
        if self._ready <= self._workload.refill * self._workload.depth:
            free += self._retry()
        return True, free

    def _retry(self) -> list[int]:
        """Let producers that wait for room try again; return those that go on."""
        free = []
        while self._blocked and self._has_room(self._blocked[0][0]):
            number, producer = heappop(self._blocked)
            self.put(number, producer)
            free.append(producer)
        return free

    def _has_room(self, number: int) -> bool:
        workload, next_one = self._workload, self.taken + self._ready
        if self.asked and not self._ready and (not workload.ordered or number == next_one):
            return True
        if self._ready >= workload.depth:
            return False
        return not workload.ordered or number < self.taken + workload.depth + workload.early
