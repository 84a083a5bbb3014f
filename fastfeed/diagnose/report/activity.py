"""What a process did, in sentences: for reports without a verdict, and of child processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.evidence import Evidence, MarkHint, Task
from fastfeed.diagnose.report.words import STATE_WORDS, duration, percent, rate
from fastfeed.probes.lock import CONTENDED_S
from fastfeed.probes.places import Place

MAX_PLACES = 3  # of a thread
MAX_SHOWN_CHILDREN = 8
MIN_SHOWN = 0.03  # share of a thread's time


def activity(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return what the process did, and which line to mark, if there is no verdict; else ()."""
    if diagnosis.verdict is not None or diagnosis.died:
        return ()
    return tuple(_sentences(diagnosis.evidence))


def training_children(seen: Evidence) -> str:
    """Return the speeds of the child processes that train; "" if there are none."""
    if not seen.children:
        return ""
    rates = [one.steps_per_second for one in seen.children]
    parts = [f"{one.name} {rate(one.steps_per_second)}" for one in seen.children]
    left = len(parts) - MAX_SHOWN_CHILDREN
    shown = ", ".join(parts[:MAX_SHOWN_CHILDREN]) + (f" and {left} more" if left > 0 else "")
    return (
        f"{len(rates)} child {'process trains' if len(rates) == 1 else 'processes train'}, "
        f"{rate(sum(rates))} steps/s together: {shown}. The figures are those of one of them, of "
        "median speed."
    )


def _sentences(seen: Evidence) -> Iterator[str]:
    if seen.loop is not None and seen.loop.steps:
        yield _calls(seen)
    trainer = seen.trainer
    if trainer is not None:
        yield f"Its thread: {_states(trainer)}."
        yield from _places(trainer)
    threads = [task for task in seen.tasks if trainer and task.pid == trainer.pid != task.tid]
    cores = sum(task.cpu_s / task.wall_s for task in threads if task.wall_s > 0)
    if threads:
        yield f"Its {len(threads)} other threads: {cores:.1f} cores."
    machine = seen.machine
    yield (
        f"Cores: {machine.own_cpu:.1f} of {machine.cores} by the script and its processes, "
        f"{machine.other_cpu:.1f} by others."
    )
    late_s = seen.gil_late_s
    if late_s is not None:
        held = late_s > CONTENDED_S
        yield f"Interpreter lock: {f'comes after {duration(late_s)}' if held else 'free'}."
    children = [task for task in seen.tasks if trainer is None or task.pid != trainer.pid]
    for task in sorted(children, key=lambda task: -task.cpu_s)[:MAX_SHOWN_CHILDREN]:
        top = task.top()
        where = f", {percent(top[1])} in {top[0]}" if top else ""
        yield f"{task.name}: {task.cpu_s / max(task.wall_s, 1e-9):.1f} cores{where}."
    if seen.hint is not None:
        yield _hint(seen.hint)


def _calls(seen: Evidence) -> str:
    assert seen.loop is not None
    steps = [step for step in seen.loop.steps if step.begin_s >= seen.start_s] or seen.loop.steps
    lengths = sorted(step.end_s - step.begin_s for step in steps)
    span = f" ({duration(lengths[0])} to {duration(lengths[-1])})" if len(lengths) > 1 else ""
    each = duration(median(lengths))
    return f"{len(lengths)} calls or iterations of {seen.loop.name}, {each} each{span}."


def _states(task: Task) -> str:
    shown = sorted(task.busy.items(), key=lambda item: -item[1])
    words = [f"{STATE_WORDS[state]} {percent(s)}" for state, s in shown if s >= MIN_SHOWN]
    return ", ".join(words) or "not observed"


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


def _hint(hint: MarkHint) -> str:
    if hint.loops:
        return (
            f"Mark its steps: the loop at {hint.place.file}:{hint.place.line} was running for "
            f"{percent(hint.share)} of the time. Write `for batch in watch(...)` there, or "
            "`with watch.step():` around what it repeats."
        )
    return (
        f"No loop of the script's own was running: {hint.place} took {percent(hint.share)} of the "
        "time. Let it do fewer steps a call, in a loop, with `with watch.step():` around the call."
    )
