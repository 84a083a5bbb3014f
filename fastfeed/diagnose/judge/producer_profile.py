"""Profile of the producers: their number, and the activities that take their time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fastfeed.diagnose.evidence import (
    EMPTY,
    FRAMEWORK,
    FULL,
    HERE,
    LOCK,
    LOCK_PYTHON,
    NATIVE,
    OTHER,
    PIPE,
    PRODUCER,
    PYTHON,
    RUNNABLE,
    SLEEP,
    SOCKET,
    TASK_STATES,
    Evidence,
    LoopPart,
    Task,
)
from fastfeed.probes.places import Place

# The thread of the loop itself, threads, worker processes, or threads of the framework.
ProducerKind = Literal["trainer", "threads", "processes", "native"]
IDLE_STATES = (FULL, EMPTY)
WAITING_STATES = (SLEEP, SOCKET, PIPE, LOCK, OTHER)
OWN_LOOPS = ("watch", "sampled", "call", "runner")  # kinds whose input the thread may make itself
MIN_NATIVE_CORES = 0.05  # native threads that use less make no batches


@dataclass(frozen=True)
class ProducerProfile:
    """The producers of a loop, summed up.

    `busy`: shares by state while they make batches, with a sum of 1. `active`: the share of their
    time in which they do; for the rest they wait for room in a buffer. Seconds are those of all
    producers in the whole observed time.
    """

    kind: ProducerKind
    count: int
    busy: Mapping[str, float] = field(default_factory=dict)
    active: float = 1.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    copying: float = 0.0
    place: Place | None = None  # the line with most of their time
    place_share: float = 0.0
    in_framework: bool = False  # several calls at once, in threads of tf.data
    # share of the samples with a line of the user's that lie in the place's function, or below it
    function_share: float = 0.0
    remote: int = 0  # how many of them are actors, on any node
    away: bool = False  # on nodes that are not this machine

    @property
    def known(self) -> bool:
        """True if any of their activities is known."""
        return bool(self.busy)

    def share(self, *states: str) -> float:
        """Return the share of these states in the time in which they make batches."""
        return sum(self.busy.get(state, 0.0) for state in states)

    @property
    def python(self) -> float:
        """Share in bytecode, or waiting for the interpreter lock."""
        return self.share(PYTHON, LOCK_PYTHON)

    @property
    def native(self) -> float:
        """Share in native code without the interpreter lock, or waiting for a core."""
        return self.share(NATIVE, RUNNABLE)

    @property
    def waiting(self) -> float:
        """Share of waits off the cores, except for the disk."""
        return self.share(*WAITING_STATES)


def producer_profile_of(evidence: Evidence) -> ProducerProfile | None:
    """Return the profile of the producers; None if nothing was observed that makes batches."""
    inputs, loop = evidence.parts_of("input"), evidence.loop
    tasks = evidence.tasks_of(PRODUCER)
    if tasks:
        return _of_tasks(evidence, tasks)
    serial = loop is not None and (loop.waits == "none" or loop.buffer == 0)
    if inputs and loop is not None and (serial or loop.kind in OWN_LOOPS):
        return _of_trainer(evidence, inputs)
    # If the steps contain no wait, the framework's threads do not make batches but use them.
    return _of_framework(evidence) if loop is None or loop.waits != "none" else None


def _of_trainer(evidence: Evidence, inputs: list[LoopPart]) -> ProducerProfile:
    trainer = evidence.trainer
    total = sum(part.share for part in inputs) or 1.0
    weights = [part.share / total for part in inputs]
    busy = _mean([part.busy for part in inputs], weights)
    if not busy and trainer is not None:
        busy = _active(trainer.busy)
    top = max(inputs, key=lambda part: part.share)
    seconds = total * evidence.seconds
    return ProducerProfile(
        "trainer",
        1,
        busy,
        cpu_s=seconds * sum(busy.get(s, 0.0) for s in (PYTHON, NATIVE)),
        queued_s=seconds * busy.get(RUNNABLE, 0.0),
        copying=sum(p.copying * w for p, w in zip(inputs, weights, strict=True)),
        place=top.inner or top.place,
        place_share=top.share / total,
    )


def _of_tasks(evidence: Evidence, tasks: list[Task]) -> ProducerProfile:
    trainer = evidence.trainer
    trainer_pid = trainer.pid if trainer is not None else None
    threads = [task for task in tasks if task.pid == trainer_pid and not task.node]
    children = [task for task in tasks if task.pid != trainer_pid and not task.node]
    if threads and children:  # one passes on what the other makes
        idle = min(children, threads, key=lambda found: sum(task.cpu_s for task in found))
        tasks = [task for task in tasks if task not in idle]
        threads = [task for task in threads if task in tasks]
    walls = [task.producers * task.wall_s for task in tasks]
    weights = [
        wall_s * max(1e-6, 1 - task.share(*IDLE_STATES))
        for task, wall_s in zip(tasks, walls, strict=True)
    ]
    total = sum(weights) or 1.0
    busy = _mean([_active(task.busy) for task in tasks], [w / total for w in weights])
    tops = [(task.top(), weight) for task, weight in zip(tasks, weights, strict=True)]
    sampled = [(top, weight) for top, weight in tops if top is not None]
    (place, place_share), _ = max(sampled, key=lambda pair: pair[1], default=((None, 0.0), 0.0))
    return ProducerProfile(
        "threads" if threads else "processes",
        _at_once(evidence, tasks),
        busy,
        active=total / (sum(walls) or 1.0) if total > 1e-6 else 0.0,
        cpu_s=sum(task.cpu_s for task in tasks),
        queued_s=sum(task.queued_s for task in tasks),
        copying=sum(t.copying * w for t, w in zip(tasks, weights, strict=True)) / total,
        place=place,
        place_share=place_share,
        function_share=_within(tasks, place) if place is not None else 0.0,
        in_framework=any(task.producers > 1 for task in tasks),
        remote=sum(task.producers for task in tasks if task.node),
        away=all(task.node not in ("", HERE) for task in tasks),
    )


def _at_once(evidence: Evidence, tasks: list[Task]) -> int:
    """Return how many producers there are at a time: each epoch may bring new ones."""
    here = sum(task.producers for task in tasks if not task.exit)
    longest_s = max(1e-9, *(task.wall_s for task in evidence.tasks))
    mean = sum(task.producers * task.wall_s for task in tasks) / longest_s
    return max(1, here, min(round(mean), sum(task.producers for task in tasks)))


def _within(tasks: list[Task], place: Place) -> float:
    """Return the share of the samples with a line of the user's that lie in the function of a
    place, or below it."""
    function, inside, total = place[:2], 0, 0
    for task in tasks:
        for stack, count in task.stacks.items():
            if any(one.users for one in stack):
                total += count
                inside += count * any(one[:2] == function for one in stack)
    return inside / max(1, total)


def _of_framework(evidence: Evidence) -> ProducerProfile | None:
    """Return the profile of the framework's threads: only their CPU time is known."""
    tasks = evidence.tasks_of(FRAMEWORK)
    cpu_s = sum(task.cpu_s for task in tasks)
    if not tasks or evidence.seconds <= 0 or cpu_s < MIN_NATIVE_CORES * evidence.seconds:
        return None
    return ProducerProfile(
        "native",
        len(tasks),
        {NATIVE: 1.0},
        cpu_s=cpu_s,
        queued_s=sum(task.queued_s for task in tasks),
    )


def _active(busy: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of the time without waits for room or for work."""
    active = {state: share for state, share in busy.items() if state not in IDLE_STATES}
    total = sum(active.values())
    return {state: share / total for state, share in active.items()} if total > 0 else {}


def _mean(all_busy: Iterable[Mapping[str, float]], weights: Iterable[float]) -> dict[str, float]:
    """Return the weighted mean of shares by state."""
    found: dict[str, float] = {}
    for busy, weight in zip(all_busy, weights, strict=True):
        for state, share in busy.items():
            found[state] = found.get(state, 0.0) + weight * share
    total = sum(found.values())
    return (
        {state: found[state] / total for state in TASK_STATES if state in found}
        if total > 0
        else {}
    )
