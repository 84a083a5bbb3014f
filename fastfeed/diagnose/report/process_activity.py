"""What a process did, in sentences: for reports without a verdict, and of child processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence import (
    EMPTY,
    FRAMEWORK,
    LOCK,
    PYTHON,
    TRAINER,
    Evidence,
    MarkHint,
    Task,
)
from fastfeed.diagnose.report.words import STATE_WORDS, duration, percent, rate, size
from fastfeed.probes.lock import CONTENDED_S
from fastfeed.probes.machine_log import Machine
from fastfeed.probes.places import Place

MAX_PLACES = 3  # of a thread
MAX_SHOWN_CHILDREN = 8
MIN_SHOWN = 0.03  # share of a thread's time
MIN_READY_SHARE = 0.5  # of a wait: native threads work meanwhile, or are ready to


def activity(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return what the process did, and which line to mark, if there is no verdict; else ()."""
    if diagnosis.verdict is not None or diagnosis.died:
        return ()
    return tuple(_sentences(diagnosis.evidence))


def training_children(seen: Evidence) -> str:
    """Return the speeds of the child processes that train; "" if there are none."""
    if not seen.children:
        return ""
    parts = [f"{one.name} {rate(one.steps_per_second)}" for one in seen.children]
    left = len(parts) - MAX_SHOWN_CHILDREN
    parts[MAX_SHOWN_CHILDREN:] = [f"{left} more"] if left > 0 else []
    train = "process trains" if len(seen.children) == 1 else "processes train"
    total = rate(sum(one.steps_per_second for one in seen.children))
    return (
        f"{len(seen.children)} child {train}, {total} steps/s together: {', '.join(parts)}. "
        "The figures are those of one of them, of median speed."
    )


def _sentences(seen: Evidence) -> Iterator[str]:
    if seen.loop is not None and seen.loop.steps:
        yield _calls(seen)
    trainer, machine = seen.trainer, seen.machine
    if trainer is not None:
        yield f"Its thread: {_states(seen, trainer)}."
        yield from _places(trainer)
        threads = [task for task in seen.tasks if task.pid == trainer.pid != task.tid]
        if threads:
            yield f"Its other threads ({len(threads)}): {_cores(threads):.1f} cores."
    yield (
        f"Cores: {machine.own_cpu:.1f} of {machine.cores} by the script and its processes, "
        f"{machine.other_cpu:.1f} by others."
    )
    if seen.gil_late_s is not None:
        late = f"comes after {duration(seen.gil_late_s)}"
        yield f"Interpreter lock: {late if seen.gil_late_s > CONTENDED_S else 'free'}."
    elif trainer is not None:  # watched from outside
        held = sum(task.share(PYTHON) for task in seen.tasks if task.pid == trainer.pid)
        yield f"Interpreter lock: held for {percent(min(1.0, held))} of the time."
    yield from _devices(seen.machine)
    children = [task for task in seen.tasks if trainer is None or task.pid != trainer.pid]
    for task in sorted(children, key=lambda task: -task.cpu_s)[:MAX_SHOWN_CHILDREN]:
        top = task.top()
        where = f", {percent(top[1])} in {top[0]}" if top else ""
        yield f"{task.name}: {_cores([task]):.1f} cores{where}."
    if seen.hint is not None:
        yield _hint(seen.hint, whole=seen.loop is not None and seen.loop.waits == "hidden")


def _devices(machine: Machine) -> Iterator[str]:
    """Yield what the disks, the network and the accelerators of the machine do."""
    disk = (
        f"{size(machine.disk_read_nbytes_s)}/s read, {size(machine.disk_write_nbytes_s)}/s written"
    )
    yield f"Disk: {disk}. Network: {size(machine.net_nbytes_s)}/s."
    for gpu in machine.gpus:
        of_others = ", not used by the job" if gpu.own is False else ""
        yield f"{gpu.name}: busy {percent(gpu.busy)}, memory {percent(gpu.memory)}{of_others}."


def _cores(tasks: list[Task]) -> float:
    """Return the cores that tasks use."""
    return sum(task.cpu_s / task.wall_s for task in tasks if task.wall_s > 0)


def _calls(seen: Evidence) -> str:
    assert seen.loop is not None
    steps = [step for step in seen.loop.steps if step.begin_s >= seen.start_s] or seen.loop.steps
    lengths = sorted(step.end_s - step.begin_s for step in steps)
    span = f" ({duration(lengths[0])} to {duration(lengths[-1])})" if len(lengths) > 1 else ""
    each = duration(median(lengths))
    return f"Calls or iterations of {seen.loop.name}: {len(lengths)}, {each} each{span}."


def _states(seen: Evidence, task: Task) -> str:
    """Return what a thread does; one that waits for native threads which work waits for no lock."""
    words = dict(STATE_WORDS)
    ready_s = sum(one.cpu_s + one.queued_s for one in seen.tasks_of(FRAMEWORK))
    if ready_s >= MIN_READY_SHARE * task.share(LOCK) * task.wall_s:
        words[LOCK] = "waits for the framework's threads"
    words[EMPTY] = "waits for input" if task.role == TRAINER else words[EMPTY]
    shown = sorted(task.busy.items(), key=lambda item: -item[1])
    return ", ".join(f"{words[state]} {percent(s)}" for state, s in shown if s >= MIN_SHOWN) or (
        "not observed"
    )


def _places(task: Task) -> Iterator[str]:
    """Yield the user's lines that take most of a thread's time, and what they call."""
    counts: Counter[tuple[Place, Place]] = Counter()
    for stack, count in task.stacks.items():
        own = [place for place in stack if place.users] or list(stack)
        if own:
            counts[own[-1], stack[-1]] += count
    total = sum(task.stacks.values())
    for (own_place, inner), count in counts.most_common(MAX_PLACES):
        if count >= MIN_SHOWN * total:
            below = "" if inner == own_place else f", in {inner}"
            yield f"{percent(count / total)} of its time: {own_place}{below}."


def _hint(hint: MarkHint, *, whole: bool) -> str:
    """Return which line to mark. `whole`: what the loop repeats is a call with many steps."""
    fewer = "do fewer steps a call, in a loop, with `with watch.step():` around the call."
    line, share = f"{hint.place.file}:{hint.place.line}", percent(hint.share)
    if not hint.loops:
        return (
            f"No loop of the script's own was running: {hint.place} took {share} of the time. Let "
            f"it {fewer}"
        )
    if whole:
        return f"The loop at {line} has a call that takes its batches itself. Let it {fewer}"
    return (
        f"Mark its steps: the loop at {line} was running for {share} of the time. Write `for batch "
        "in watch(...)` there, or `with watch.step():` around what it repeats."
    )
