"""Drawings of the page as numbers: the begin and the end of every bar, without HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fastfeed.diagnose.evidence import PRODUCER, TASK_STATES, Evidence, Task
from fastfeed.diagnose.report import words
from fastfeed.diagnose.report.bins import Bin, binned
from fastfeed.diagnose.report.flames import FlameFrame, Stacks, frames, hottest, together
from fastfeed.diagnose.report.words import duration
from fastfeed.steps.timeline import NOT_LOOP_EVENTS, Mark

BARS = 1000
MAX_BANDS = 2000
# marks with a colour
STYLES = ("epoch", "evaluation", "checkpoint", "callback", "compile", "experiment", "dead")
HEIGHT = 100.0  # of the timeline, in units of its own


class Bar(NamedTuple):
    """Steps in the timeline: x and width in milliseconds, heights in units of HEIGHT; `over`:
    longer than shown."""

    x: float
    width: float
    wait: float
    step: float
    over: bool
    free: bool
    title: str


class Band(NamedTuple):
    """A mark in the timeline."""

    x: float
    width: float
    style: str
    title: str


class MarkKind(NamedTuple):
    """A kind of marks, and how many there are."""

    name: str
    style: str
    marks: int


@dataclass(frozen=True)
class TimelineChart:
    """The timeline: `start_s` is at x = 0 and `span` is the whole width, in milliseconds; `top_s`
    is at full height."""

    bars: list[Bar]
    bands: list[Band]
    kinds: list[MarkKind]
    start_s: float
    span: float
    top_s: float
    steps: int
    put_together: int  # steps of a bar, on average


def timeline(seen: Evidence) -> TimelineChart | None:
    """Return the steps of the loop, with the warm-up if that was not longer than the observed time;
    None without steps."""
    steps = seen.loop.steps if seen.loop else []
    earliest_s = 2 * seen.start_s - seen.end_s
    bins = binned([s for s in steps if s.end_s >= earliest_s], origin_s=seen.start_s, limit=BARS)
    if not bins:
        return None
    start_s = bins[0].start_s
    span = max((bins[-1].end_s - start_s) * 1e3, 1e-3)
    top_s = _top(bins)
    marks = [m for m in seen.marks if m.kind not in NOT_LOOP_EVENTS]
    counts = Counter(mark.kind for mark in marks)
    total = sum(one.steps for one in bins)
    bands = _bands(marks, seen.start_s + start_s, span=span)
    named = [MarkKind(kind, _style(kind), count) for kind, count in counts.most_common(12)]
    if start_s < 0:
        bands.insert(0, Band(0.0, round(-start_s * 1e3, 3), "warm", "warm-up"))
        named.append(MarkKind("warm-up", "warm", 0))
    bars = _closed([_bar(one, start_s, top_s=top_s) for one in bins], span / 1000)
    return TimelineChart(
        bars, bands, named, start_s, round(span, 3), top_s, total, round(total / len(bins))
    )


def _closed(bars: list[Bar], gap: float) -> list[Bar]:
    """Return bars without gaps that are too narrow to see, where a browser would mix in a
    meaningless colour: such a bar reaches under the next one."""
    found = []
    for bar, after in pairwise(bars):
        close = after.x - bar.x - bar.width < gap
        found.append(
            bar._replace(width=round(after.x - bar.x + min(gap, after.width), 3)) if close else bar
        )
    return found + bars[-1:]


def _bands(marks: list[Mark], zero_s: float, *, span: float) -> list[Band]:
    """Return the bands; `zero_s` is at x = 0. Marks of a kind that cannot be distinguished are one
    band, and an instant is a line."""
    near_s = span / 400 / 1e3
    groups: list[list[Mark]] = []
    for mark in sorted(marks, key=lambda mark: (mark.kind, mark.start_s)):
        last = groups[-1] if groups else []
        if (
            last
            and last[-1].kind == mark.kind
            and mark.start_s - max(m.end_s for m in last[-5:]) < near_s
        ):
            last.append(mark)
        else:
            groups.append([mark])
    return [_band(group, zero_s, span=span) for group in groups[:MAX_BANDS]]


def _band(group: list[Mark], zero_s: float, *, span: float) -> Band:
    first, end_s = group[0], max(mark.end_s for mark in group)
    took_s = sum(max(0.0, mark.end_s - mark.start_s) for mark in group)
    title = f"{first.kind} {first.label}" if len(group) == 1 else f"{len(group)} times {first.kind}"
    title += f", {duration(took_s)}" if took_s > 0 else ""
    x, width = (first.start_s - zero_s) * 1e3, max((end_s - first.start_s) * 1e3, span / 600)
    return Band(round(x, 3), round(width, 3), _style(first.kind), title)


def _style(kind: str) -> str:
    return kind if kind in STYLES else "else"


def _top(bins: Sequence[Bin]) -> float:
    """Return the longest step, unless a few are so much longer that the others would be flat."""
    lengths = np.array([one.mean_s for one in bins])
    usual = float(np.quantile(lengths, 0.97)) * 1.5
    return max(min(float(lengths.max()), usual), 1e-9) * 1.05


def _bar(one: Bin, start_s: float, *, top_s: float) -> Bar:
    scale = HEIGHT / max(top_s, one.mean_s)
    many = one.steps > 1
    title = f"at {one.start_s:.2f} s: " + (
        f"{one.steps:,} steps of {duration(one.mean_s)}" if many else duration(one.mean_s)
    )
    title += f", {duration(one.wait_s)} of it waiting for input"
    title += (
        f"; the longest {duration(one.longest_s)}, the longest wait {duration(one.longest_wait_s)}"
        if many
        else ""
    )
    title += "; input at hand (experiment)" if one.free == one.steps else ""
    return Bar(
        round((one.start_s - start_s) * 1e3, 3),
        round(max((one.end_s - one.start_s) * 1e3, 1e-3), 3),
        round(one.wait_s * scale, 2),
        round((one.mean_s - one.wait_s) * scale, 2),
        one.mean_s > top_s,
        one.free == one.steps,
        title,
    )


class StateShare(NamedTuple):
    """A state of a task: its kind (of `words.STATE_KINDS`), its name, and its share of the time."""

    kind: str
    label: str
    share: float


def busy(states: Mapping[str, float]) -> list[StateShare]:
    """Return what a task did, by kind; the shares add up to at most 1."""
    order = list(dict.fromkeys(words.STATE_KINDS.values()))
    known = {state: states.get(state, 0.0) for state in TASK_STATES}
    found = [
        StateShare(words.STATE_KINDS[s], words.STATE_WORDS[s], share)
        for s, share in known.items()
        if words.known(share) and share > 0
    ]
    total = max(1.0, sum(one.share for one in found))
    found = [one._replace(share=one.share / total) for one in found]
    return sorted(found, key=lambda one: (order.index(one.kind), -one.share))


@dataclass(frozen=True)
class Flame:
    """The flame view of a task, and its hottest lines as text."""

    name: str
    samples: int
    depth: int
    frames: list[FlameFrame]
    hottest: list[tuple[str, float]]


def flames(tasks: Sequence[Task], *, limit: int) -> list[Flame]:
    """Return flames of all producers together if there are several, and of each task with samples,
    producers first."""
    sampled = [task for task in tasks if task.stacks]
    producers = [task for task in sampled if task.role == PRODUCER]
    found = (
        [_flame(f"All {len(producers)} producers", together(producers))]
        if len(producers) > 1
        else []
    )
    others = [task for task in sampled if task.role != PRODUCER]
    best = producers[: max(1, limit - len(others[:4]))]
    found += [_flame(f"{task.name} ({task.role})", task.stacks) for task in (best + others)[:limit]]
    return [flame for flame in found if flame.frames]


def _flame(name: str, stacks: Stacks) -> Flame:
    shown = frames(stacks)
    depth = max((frame.depth for frame in shown), default=0) + 1
    lines = [(str(place), share) for place, share in hottest(stacks)]
    return Flame(name, sum(stacks.values()), depth, shown, lines)
