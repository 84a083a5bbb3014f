"""Parts of a training loop, and the time that its thread spends in each.

The loop is found in the stacks of its thread, and its parts in its source.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import LoopPart, MarkHint
from fastfeed.diagnose.sample import callee, slices
from fastfeed.diagnose.sample.child_processes import work_of_stack
from fastfeed.diagnose.sample.iterations import LoopLines
from fastfeed.diagnose.sample.slices import HOST, INPUT_KIND, STEP, Statement
from fastfeed.diagnose.sample.tasks import MIN_SPY_SAMPLES, AttributionContext
from fastfeed.diagnose.sample.thread_log import MIN_SAMPLES, Sample
from fastfeed.probes.interpreter import SUSPENDS
from fastfeed.probes.places import Place, Places, line_of

MIN_STACK_SHARE = 0.97  # of the samples: the frame of a loop is on the stack in nearly all
NEAR_MOST = 0.9  # of the samples of the most frequent loop: an inner one is as good to mark
MIN_LOOP_SHARE = 0.9  # of the samples of the loop's frame: the line is inside the loop
# Functions of one step, whether or not they contain loops.
STEP_FUNCTION = re.compile(r"step$|^(forward|backward|call|update|loss\w*)$")


class LoopPosition(NamedTuple):
    """Position of a loop's frame: its line, and the function called there ("" if unknown)."""

    line: int
    callee: str


class LoopActivity(NamedTuple):
    """Activity of a loop's thread at one moment.

    `state`: a state of evidence.py or CORE. `inner`: the innermost place in the user's code below
    the loop. `work`: COPYING, PICKLING or "".
    """

    position: LoopPosition
    state: str
    inner: Place | None
    work: str


class LocatedLoop(NamedTuple):
    """Loop in the source: its function, its syntax tree, and its statements with their kinds.

    `known`: a line of it, and the kind of whatever else happens there.
    """

    code: CodeType
    node: slices.LoopNode
    kinds: Sequence[tuple[Statement, str]]
    known: tuple[int, str] = (0, HOST)

    def classify(self, position: LoopPosition) -> tuple[Statement, str] | None:
        """Return the innermost statement at a position with its kind, or None outside of all.

        Step arguments that are computed on the step's own line are input.
        """
        inside = [(one, kind) for one, kind in self.kinds if one.first <= position.line <= one.last]
        if not inside:
            return None
        one, kind = min(inside, key=lambda pair: pair[0].last - pair[0].first)
        if kind == STEP and position.callee in one.inner and not slices.is_step(position.callee):
            kind = INPUT_KIND
        return one, kind

    def part_of(self, position: LoopPosition | None) -> tuple[str, int] | None:
        """Return the kind and the first line of the statement at a position, or None."""
        found = self.classify(position) if position is not None else None
        if found is None:
            return None
        (one, kind), (line, known) = found, self.known
        return (known if kind == HOST and one.first <= line <= one.last else kind), one.first

    @property
    def lines(self) -> range:
        """Line numbers of the loop."""
        return range(self.node.lineno, slices.last_line(self.node) + 1)

    def place(self, places: Places, line: int = 0) -> Place:
        """Return the place of a line of the loop, by default of its head."""
        code = self.code
        return places.named(code.co_name, code.co_filename, line=line or self.node.lineno)


def loop_parts(
    samples: Iterable[Sample],
    context: AttributionContext,
    *,
    where: str | None = None,
    fetches: bool = True,
) -> tuple[tuple[LoopPart, ...], list[str]]:
    """Return the parts of the loop, largest first, and what could not be determined.

    `where`: the known line of the loop, "train.py:41". `fetches`: that line fetches a batch;
    otherwise it runs the step.
    """
    samples = [sample for sample in samples if sample.stack]
    if len(samples) < MIN_SAMPLES:
        return (), ["parts of the loop: too few samples of its thread"]
    found = (locate(samples, context, where=where) if where else None) or locate(samples, context)
    if found is None:
        return (), ["parts of the loop: no loop of the script's own is on its thread's stack"]
    if not found.kinds:
        place = found.place(context.places)
        return (), [f"parts of the loop: {place} has no call that looks like a training step"]
    file, _, line = (where or "").rpartition(":")
    if line.isdigit() and found.code.co_filename.endswith(file):
        found = found._replace(known=(int(line), INPUT_KIND if fetches else STEP))
    groups: dict[tuple[str, int], dict[LoopActivity, float]] = defaultdict(dict)
    for activity, weight in activity_weights(samples, found, context=context).items():
        key = found.part_of(activity.position)
        if key is not None:
            groups[key][activity] = weight
    total = sum(sum(activities.values()) for activities in groups.values())
    # The thread may do something else for a part of the time, such as an evaluation.
    positions = [position_of(sample, found.code, context=context) for sample in samples]
    scale = sum(map(bool, positions)) / len(samples) / total if total else 0.0
    computing: dict[tuple[str, int] | None, list[bool]] = defaultdict(list)
    for position, sample in zip(positions, samples, strict=True):
        computing[found.part_of(position)].append(sample.computing)
    parts = []
    for key, activities in groups.items():
        if not any(activities.values()):  # of the samples that py-spy's replace
            continue
        place = found.place(context.places, key[1])
        part = _part(key[0], place, activities=activities, context=context)
        seen = computing[key]
        together = sum(seen) / max(1, len(seen))
        parts.append(replace(part, share=part.share * scale, computing=together))
    return tuple(sorted(parts, key=lambda part: -part.share)), []


def mark_hint(samples: Iterable[Sample], context: AttributionContext) -> MarkHint | None:
    """Return the line to mark: the innermost loop that is on the stack most of the time.

    Without a loop of the user's own, it is the call that takes most of it.
    """
    loops: Counter[Place] = Counter()
    calls: Counter[Place] = Counter()
    depths: dict[Place, int] = {}
    total = 0
    for sample in samples:
        total += 1
        places = [(spot, context.places.of(spot)) for spot in sample.stack]
        users = [(spot[0], place) for spot, place in places if place.users]
        calls.update(place for _, place in users[:1])
        around = [one for code, place in users for one in _loops_around(code, place)]
        depths.update({place: len(around) - i for i, place in enumerate(around)})
        loops.update(set(around))
    found = loops or calls
    if not found:
        return None
    near = [place for place in found if found[place] >= NEAR_MOST * max(found.values())]
    best = max(near, key=lambda place: (depths.get(place, 0), found[place]))
    return MarkHint(best, found[best] / total, bool(loops))


def _loops_around(code: CodeType, place: Place) -> list[Place]:
    """Return the loops of a function around a line of it, the innermost first."""
    tree = _tree_of(code.co_filename)
    numbers = [line for _, _, line in code.co_lines() if line]
    loops = slices.loops_in(tree, min(numbers), last=max(numbers)) if tree else []
    around = [one for one in loops if one.lineno <= place.line <= slices.last_line(one)]
    return [place._replace(line=one.lineno) for one in reversed(around)]


def loop_lines(samples: Iterable[Sample], context: AttributionContext) -> LoopLines | None:
    """Return the lines of the loop that the thread is in, with the share of each that is input."""
    samples = [sample for sample in samples if sample.stack]
    found = locate(samples, context) if len(samples) >= 2 * MIN_SAMPLES else None
    if found is None or not found.kinds:
        return None
    spent: dict[tuple[int, bool], float] = defaultdict(float)
    for activity, weight in activity_weights(samples, found, context=context).items():
        known = found.classify(activity.position)
        if known is not None:
            spent[known[0].first, known[1] == INPUT_KIND] += weight
    input_shares: dict[int, float] = {}
    # Inner statements come last and override outer ones.
    for one, kind in sorted(found.kinds, key=lambda pair: pair[0].first - pair[0].last):
        total = spent[one.first, True] + spent[one.first, False]
        share = spent[one.first, True] / total if total else float(kind == INPUT_KIND)
        input_shares.update(dict.fromkeys(range(one.first, one.last + 1), share))
    return LoopLines(found.code, found.lines, input_shares)


def _part(
    kind: str, place: Place, *, activities: dict[LoopActivity, float], context: AttributionContext
) -> LoopPart:
    """Return one part of the loop; its share is a weight."""
    weight = sum(activities.values())
    states: dict[str, float] = defaultdict(float)
    inner: dict[Place | None, float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for activity, one in activities.items():
        inner[activity.inner] += one
        work[activity.work] += one / weight
        states[activity.state] += one
    best = max(inner, key=lambda one: inner[one])
    busy = context.state_shares(states)
    return LoopPart(kind, place, weight, busy, work[callee.COPYING], work[callee.PICKLING], best)


def position_of(
    sample: Sample, code: CodeType, *, context: AttributionContext
) -> LoopPosition | None:
    """Return the position of the loop's frame; None if it is not on the stack."""
    for i, spot in enumerate(sample.stack):
        if spot[0] is code:
            called = sample.stack[i - 1][0] if i else None
            if called is None:
                below = context.called(spot).rpartition(".")[2]
            else:  # a generator goes on because the loop asks for its next value
                below = "next" if called.co_flags & SUSPENDS else called.co_name
            return LoopPosition(line_of(spot), below)
    return None


def activity_weights(
    samples: Sequence[Sample], found: LocatedLoop, *, context: AttributionContext
) -> dict[LoopActivity, float]:
    """Return the share of the samples for each activity of the loop.

    py-spy's samples, if there are enough, replace those in which the thread held the interpreter
    lock: see tasks.stack_weights. If the thread released the lock voluntarily, the sample points
    past the code that held it: such samples are spread over the activities that hold the lock in
    other samples.
    """
    weights: dict[LoopActivity, float] = defaultdict(float)
    released: dict[LoopActivity, float] = defaultdict(float)
    spied = _spied_activities(found, context)
    held = sum(spied.values()) / context.holders.looks if spied else 0.0
    inside = [sample for sample in samples if not (spied and sample.holder)] or list(samples)
    each = (1.0 - held) / len(inside)
    for sample in inside:
        position = position_of(sample, found.code, context=context)
        if position is not None:
            state = ev.PYTHON if sample.holder else context.state(sample, trainer=True)
            below = itertools.takewhile(lambda spot: spot[0] is not found.code, sample.stack)
            inner = next((place for place in map(context.places.of, below) if place.users), None)
            into = released if sample.holder and context.releases_lock(sample) else weights
            into[LoopActivity(position, state, inner, context.work(sample))] += each
    holding = {
        activity: weight for activity, weight in weights.items() if activity.state == ev.PYTHON
    } or released
    held_s = sum(holding.values())
    for activity, weight in list(holding.items()) if held_s else ():
        weights[activity] += sum(released.values()) * weight / held_s
    for activity, count in spied.items():
        weights[activity] += count / context.holders.looks
    return weights


def _spied_activities(found: LocatedLoop, context: AttributionContext) -> Counter[LoopActivity]:
    """Return the activities of the loop in py-spy's samples of the lock's holder."""
    result: Counter[LoopActivity] = Counter()
    if context.holders.looks < MIN_SPY_SAMPLES or context.loop_tid not in context.holders.seen:
        return result
    file = context.places.file(found.code.co_filename)
    for stack, count in context.holders.seen[context.loop_tid].items():
        names = [place.function.rpartition(".")[2] for place in stack.places]
        here = [
            i
            for i, place in enumerate(stack.places)
            if place.file == file and place.line in found.lines and names[i] == found.code.co_name
        ]
        if here:
            below = stack.places[here[-1] + 1 :]
            inner = next((place for place in reversed(below) if place.users), None)
            callee_name = names[here[-1] + 1] if below else ""
            position = LoopPosition(stack.places[here[-1]].line, callee_name)
            result[LoopActivity(position, ev.PYTHON, inner, work_of_stack(stack))] += count
    return result


def locate(
    samples: Sequence[Sample], context: AttributionContext, *, where: str | None = None
) -> LocatedLoop | None:
    """Return the innermost loop of the user's code that the thread is in all the time, or None.

    `where`: the innermost loop around that line, "train.py:41", however much of the time it takes.
    """
    on_stack: Counter[CodeType] = Counter()
    for sample in samples:
        on_stack.update({spot[0] for spot in sample.stack})
    depths = reversed(list(enumerate(samples[-1].stack if samples else ())))
    order = {spot[0]: depth for depth, spot in depths}
    candidates = [
        code
        for code, count in on_stack.items()
        if (where is not None or count >= MIN_STACK_SHARE * len(samples))
        and is_users_code(code)
        and not STEP_FUNCTION.search(code.co_name)
    ]
    for code in sorted(candidates, key=lambda code: order.get(code, len(order))):
        found = _locate_in(code, samples, context=context, where=where)
        if found is not None:
            return found
    return None


def _locate_in(
    code: CodeType, samples: Sequence[Sample], *, context: AttributionContext, where: str | None
) -> LocatedLoop | None:
    tree = _tree_of(code.co_filename)
    if tree is None:
        return None
    numbers = [line for _, _, line in code.co_lines() if line]
    loops = slices.loops_in(tree, min(numbers), last=max(numbers))
    counts = Counter(
        position.line
        for position in (position_of(sample, code, context=context) for sample in samples)
        if position is not None
    )
    total = sum(counts.values())
    if where is not None:
        file, _, line = where.rpartition(":")
        if os.path.basename(file) != os.path.basename(code.co_filename) or not line.isdigit():
            return None
        loops = [loop for loop in loops if loop.lineno <= int(line) <= slices.last_line(loop)]
    least = 1.0 if where is not None else MIN_LOOP_SHARE * total
    around = [loop for loop in reversed(loops) if _samples_inside(loop, counts) >= least]
    if (
        len(around) > 1
        and slices.is_plain_repetition(around[0])
        and not slices.counts_only(around[1])
    ):
        around = around[1:]  # it is the step of the loop around it
    if not around:
        return None
    loop = slices.loop_of_batches(around[0])
    return LocatedLoop(code, loop, slices.classify(loop))


def _samples_inside(loop: slices.LoopNode, counts: Counter[int]) -> int:
    return sum(n for line, n in counts.items() if loop.lineno <= line <= slices.last_line(loop))


@lru_cache(16)
def _tree_of(file: str) -> ast.AST | None:
    tree = callee.parsed("".join(linecache.getlines(file)))
    return tree and slices.name_by_role(tree)
