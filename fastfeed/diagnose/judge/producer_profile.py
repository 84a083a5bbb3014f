"""The producers of the batches, and what they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fastfeed.diagnose.evidence import (
    EMPTY,
    FEEDER,
    FRAMEWORK,
    FULL,
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
    STATES,
    TRAINER,
    Evidence,
    LoopPart,
    Task,
)
from fastfeed.probes.places import Place

IDLE = (FULL, EMPTY)
WAITING = (SLEEP, SOCKET, PIPE, LOCK, OTHER)
LITTLE = 0.05  # of a core: native threads below it make no batches
FAULT_S = 1.5e-6  # first access of a page


@dataclass(frozen=True)
class ProducerProfile:
    """The producers of a loop as one. `where`: "trainer" (its own thread), "threads", "processes"
    or "native" (threads of the framework). `busy`: what they do while they make batches, shares
    with a sum of 1; `active`: the share of their time for that, the rest being spent waiting for
    room; seconds over all of them, and of the whole time."""

    where: str
    count: int
    busy: Mapping[str, float] = field(default_factory=dict)
    active: float = 1.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    copying: float = 0.0
    pickling: float = 0.0
    faulting: float = 0.0  # share of their CPU seconds for first accesses of pages
    place: Place | None = None
    place_share: float = 0.0
    in_framework: bool = False  # they are threads of tf.data, several at once
    # of the samples in lines of the user's, those in the place's function, or below it
    function_share: float = 0.0

    @property
    def known(self) -> bool:
        """True if anything is known of what they do."""
        return bool(self.busy)

    def share(self, *states: str) -> float:
        """Return the share of the time in which they make batches."""
        return sum(self.busy.get(state, 0.0) for state in states)

    @property
    def python(self) -> float:
        """Share in bytecode, or waiting for its lock."""
        return self.share(PYTHON, LOCK_PYTHON)

    @property
    def native(self) -> float:
        """Share on a core, or waiting for one, the interpreter lock released."""
        return self.share(NATIVE, RUNNABLE)

    @property
    def copies(self) -> float:
        """Share in conversions and copies, or in first accesses of the memory for them."""
        return max(self.copying, self.faulting * (1.0 - self.waiting))

    @property
    def waiting(self) -> float:
        """Share off the cores, without the disk."""
        return self.share(*WAITING)


def makers_of(evidence: Evidence) -> ProducerProfile | None:
    """Return the profile; None if there is nothing that could make batches."""
    made = [part for part in evidence.parts if part.kind == "input"]
    tasks = [task for task in evidence.tasks if task.role == PRODUCER]
    loop = evidence.loop
    serial = loop is not None and (loop.waits == "none" or loop.buffer == 0)
    if serial and made and not tasks:
        return _trainer(evidence, made)
    if tasks:
        own = next((task.pid for task in evidence.tasks if task.role == TRAINER), None)
        return _producers(tasks, own=own)
    # the framework's threads make nothing between the steps: they take the batches
    native = _native(evidence) if loop is None or loop.waits != "none" else None
    own = loop is not None and loop.kind in ("watch", "sampled", "call", "runner")
    return _trainer(evidence, made) if made and own else native


def _trainer(evidence: Evidence, made: list[LoopPart]) -> ProducerProfile:
    total = sum(part.share for part in made) or 1.0
    weights = [part.share / total for part in made]
    busy = _mean([part.busy for part in made], weights)
    if not busy:
        busy = _active(next((t.busy for t in evidence.tasks if t.role == TRAINER), {}))
    top = max(made, key=lambda part: part.share)
    task = next((t for t in evidence.tasks if t.role == TRAINER), None)
    seconds = total * (evidence.end_s - evidence.start_s)
    return ProducerProfile(
        "trainer",
        1,
        busy,
        cpu_s=seconds * sum(busy.get(s, 0.0) for s in (PYTHON, NATIVE)),
        queued_s=seconds * busy.get(RUNNABLE, 0.0),
        copying=sum(p.copying * w for p, w in zip(made, weights, strict=True)),
        pickling=sum(p.pickling * w for p, w in zip(made, weights, strict=True)),
        faulting=_faulting([task] if task is not None else []),
        place=top.inner or top.place,
        place_share=top.share / total,
    )


def _producers(tasks: list[Task], *, own: int | None) -> ProducerProfile:
    where = "threads" if any(task.pid == own for task in tasks) else "processes"
    weights = [task.producers * task.wall_s * max(1e-6, 1 - task.share(*IDLE)) for task in tasks]
    total = sum(weights) or 1.0
    busy = _mean([_active(task.busy) for task in tasks], [w / total for w in weights])
    walls = sum(task.producers * task.wall_s for task in tasks) or 1.0
    tops = [(task.top(), weight) for task, weight in zip(tasks, weights, strict=True)]
    best = max(
        ((top, weight) for top, weight in tops if top), key=lambda pair: pair[1], default=None
    )
    return ProducerProfile(
        where,
        sum(task.producers for task in tasks),
        busy,
        active=total / walls if total > 1e-6 else 0.0,
        cpu_s=sum(task.cpu_s for task in tasks),
        queued_s=sum(task.queued_s for task in tasks),
        copying=sum(t.copying * w for t, w in zip(tasks, weights, strict=True)) / total,
        pickling=sum(t.pickling * w for t, w in zip(tasks, weights, strict=True)) / total,
        faulting=_faulting(tasks),
        place=best[0][0] if best else None,
        place_share=best[0][1] if best else 0.0,
        function_share=_within(tasks, best[0][0]) if best else 0.0,
        in_framework=any(task.producers > 1 for task in tasks),
    )


def _within(tasks: list[Task], place: Place) -> float:
    """Return the share of samples in the function of a place, or below it, of those in the user's
    lines."""
    stacks = [
        (stack, count)
        for task in tasks
        for stack, count in task.stacks.items()
        if any(p.users for p in stack)
    ]
    function = place[:2]
    found = sum(count for stack, count in stacks if any(one[:2] == function for one in stack))
    return found / max(1, sum(count for _, count in stacks))


def _native(evidence: Evidence) -> ProducerProfile | None:
    """Return threads of the framework: only their CPU time is known."""
    tasks = [task for task in evidence.tasks if task.role == FRAMEWORK]
    seconds = evidence.end_s - evidence.start_s
    cpu_s = sum(task.cpu_s for task in tasks)
    if not tasks or seconds <= 0 or cpu_s < LITTLE * seconds:
        return None
    return ProducerProfile(
        "native",
        len(tasks),
        {NATIVE: 1.0},
        cpu_s=cpu_s,
        queued_s=sum(task.queued_s for task in tasks),
    )


def feeders_of(evidence: Evidence) -> list[Task]:
    """Return the tasks that pass batches on."""
    return [task for task in evidence.tasks if task.role == FEEDER]


def _active(busy: Mapping[str, float]) -> dict[str, float]:
    """Return the shares without the time that is spent waiting for room or for work."""
    rest = sum(share for state, share in busy.items() if state not in IDLE)
    return (
        {state: share / rest for state, share in busy.items() if state not in IDLE}
        if rest > 0
        else {}
    )


def _mean(all_busy: Iterable[Mapping[str, float]], weights: Iterable[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for busy, weight in zip(all_busy, weights, strict=True):
        for state, share in busy.items():
            found[state] = found.get(state, 0.0) + weight * share
    total = sum(found.values())
    return {state: found[state] / total for state in STATES if state in found} if total > 0 else {}


def _faulting(tasks: list[Task]) -> float:
    """Return the share of page faults, if most of their time is the kernel's and page faults
    explain it."""
    cpu_s, system_s = sum(t.cpu_s for t in tasks), sum(t.system_s for t in tasks)
    faults_s = FAULT_S * sum(t.faults for t in tasks)
    if cpu_s <= 0 or system_s < 0.5 * cpu_s:
        return 0.0
    return min(1.0, system_s / cpu_s) if faults_s > 0.2 * cpu_s else 0.0
