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
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache, lru_cache
from types import CodeType
from typing import NamedTuple

from fastfeed.core.user_code import is_users_code
from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import LoopPart, MarkHint
from fastfeed.diagnose.sample import loop_statements as source
from fastfeed.diagnose.sample.copying import parsed
from fastfeed.diagnose.sample.loop_statements import HOST, INPUT_KIND, STEP, LoopNode, Statement
from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_samples import MIN_SAMPLES, Sample
from fastfeed.probes.interpreter import SUSPENDS
from fastfeed.probes.places import Place, line_of

MIN_STACK_SHARE = 0.97  # of the samples: the frame of a loop is on the stack in nearly all
NEAR_MOST = 0.9  # of the samples of the most frequent loop: an inner one is as good to mark
MOST_BY_HEAD = 0.95  # of the samples of input: what else makes some is no loss that counts
MIN_LOOP_SHARE = 0.9  # of the samples of the loop's frame: the line is inside the loop
# Functions of one step, whether or not they contain loops.
STEP_FUNCTION = re.compile(r"step$|^(forward|backward|call|update|loss\w*)$")
Kinds = Sequence[tuple[Statement, str]]
StepLines = Set[tuple[str, int]]


class LoopPosition(NamedTuple):
    """Position of a loop's frame: its line, and the Python function called there ("": none)."""

    line: int
    callee: str


class LoopLines(NamedTuple):
    """Source lines of a loop, the head first.

    `input_shares`: by line, the share (0 to 1) of its time that is input. `by_head`: the head makes
    the input, by what the loop iterates over.
    """

    code: CodeType
    numbers: range
    input_shares: Mapping[int, float]
    by_head: bool = False


class LoopActivity(NamedTuple):
    """Activity of a loop's thread at one moment: the kind and the first line of its statement, its
    state, and the innermost place in the user's code below the loop."""

    kind: str
    line: int
    state: str
    inner: Place | None
    copies: bool


class LocatedLoop(NamedTuple):
    """Loop in the source: its function, its syntax tree, and its statements with their kinds.

    `known`: a line of it, and the kind of whatever else happens there.
    """

    code: CodeType
    node: LoopNode
    kinds: Kinds
    known: tuple[int, str] = (0, HOST)

    def part_of(self, position: LoopPosition | None) -> tuple[str, int] | None:
        """Return the kind and the first line of the innermost statement at a position, or None.

        Step arguments that are computed on the step's own line are input.
        """
        line, callee = position or LoopPosition(0, "")
        inside = [(one, kind) for one, kind in self.kinds if one.first <= line <= one.last]
        if not inside:
            return None
        one, kind = min(inside, key=lambda pair: pair[0].last - pair[0].first)
        if kind == STEP and callee in one.inner and not source.is_step(callee):
            kind = INPUT_KIND
        number, known = self.known
        return (known if kind == HOST and one.first <= number <= one.last else kind), one.first

    def with_epochs(self) -> LocatedLoop:
        """Return the loop with what is made for all of its iterations, before it, as input."""
        tree = _tree_of(self.code.co_filename)
        made = source.made_before(tree, self.node, kinds=self.kinds) if tree is not None else []
        kinds = [*self.kinds, *((one, INPUT_KIND) for one in made)]
        return LocatedLoop(self.code, self.node, kinds, self.known)

    @property
    def lines(self) -> range:
        """Line numbers of the loop."""
        return range(self.node.lineno, source.last_line(self.node) + 1)

    def place(self, context: AttributionContext, line: int = 0) -> Place:
        """Return the place of a line of the loop, by default of its head."""
        code = self.code
        line = line or self.node.lineno
        return context.places.named(code.co_name, code.co_filename, line=line)


def loop_parts(
    samples: Iterable[Sample],
    context: AttributionContext,
    *,
    where: str = "",
    fetches: bool = True,
    epochs: bool = False,
) -> tuple[tuple[LoopPart, ...], list[str]]:
    """Return the parts of the loop, largest first, and what could not be determined.

    `where`: the known line of the loop, "train.py:41". `fetches`: that line fetches a batch;
    otherwise it runs the step. `epochs`: its steps contain what is made before it, as those of a
    loop without hooks do.
    """
    samples = [sample for sample in samples if sample.stack]
    if len(samples) < MIN_SAMPLES:
        return (), ["parts of the loop: too few samples of its thread"]
    lines = context.step_lines
    found = locate(samples, where=where, step_lines=lines) if where else None
    found = found or locate(samples, step_lines=lines)
    if found is None:
        return (), ["parts of the loop: no loop of the script's own is on its thread's stack"]
    if not found.kinds:
        place = found.place(context)
        return (), [f"parts of the loop: {place} has no call that looks like a training step"]
    file, _, number = where.rpartition(":")
    if number.isdigit() and found.code.co_filename.endswith(file):
        found = found._replace(known=(int(number), INPUT_KIND if fetches else STEP))
    found = found.with_epochs() if epochs else found
    groups: dict[tuple[str, int], dict[LoopActivity, float]] = defaultdict(dict)
    for one, weight in _activities(samples, found, context=context).items():
        groups[one.kind, one.line][one] = weight / len(samples)
    parts = [
        _part(found.place(context, line), activities, context=context)
        for (_, line), activities in groups.items()
    ]
    return tuple(sorted(parts, key=lambda part: -part.share)), []


def _part(
    place: Place, activities: Mapping[LoopActivity, float], *, context: AttributionContext
) -> LoopPart:
    share = sum(activities.values())
    busy: dict[str, float] = defaultdict(float)
    inner: dict[Place | None, float] = defaultdict(float)
    for one, weight in activities.items():
        inner[one.inner] += weight
        busy[one.state] += weight
    copying = sum(weight for one, weight in activities.items() if one.copies) / share
    best = max(inner, key=lambda one: inner[one])
    kind = next(iter(activities)).kind
    return LoopPart(kind, place, share, context.state_shares(busy), copying, inner=best)


def _activities(
    samples: Sequence[Sample], found: LocatedLoop, *, context: AttributionContext
) -> dict[LoopActivity, float]:
    """Return the number of samples by activity of the loop.

    If the thread released the interpreter lock by itself, the sample points past the code that held
    it: such samples are spread over the activities that hold the lock in other samples.
    """
    counts: dict[LoopActivity, float] = defaultdict(float)
    released: dict[LoopActivity, float] = defaultdict(float)
    part_of = cache(found.part_of)  # there are few positions
    for sample in samples:
        part = part_of(position_of(sample, found.code))
        if part is not None:
            below = itertools.takewhile(lambda spot: spot[0] is not found.code, sample.stack)
            inner = next((place for place in map(context.places.of, below) if place.users), None)
            state = ev.PYTHON if sample.holder else sample.state
            one = LoopActivity(*part, state, inner, context.copies(sample))
            (released if sample.released else counts)[one] += 1
    holding = {one: n for one, n in counts.items() if one.state == ev.PYTHON} or released
    total = sum(holding.values())
    for one, count in list(holding.items()):
        counts[one] += sum(released.values()) * count / total
    return counts


def loop_lines(samples: Iterable[Sample], context: AttributionContext) -> LoopLines | None:
    """Return the lines of the loop that the thread is in, with the share of each that is input."""
    samples = [sample for sample in samples if sample.stack]
    enough = len(samples) >= 2 * MIN_SAMPLES
    found = locate(samples, step_lines=context.step_lines) if enough else None
    if found is None or not found.kinds:
        return None
    spent: dict[tuple[int, bool], float] = defaultdict(float)
    for activity, weight in _activities(samples, found, context=context).items():
        spent[activity.line, activity.kind == INPUT_KIND] += weight
    input_shares: dict[int, float] = {}
    # Inner statements come last and override outer ones.
    for one, kind in sorted(found.kinds, key=lambda pair: pair[0].first - pair[0].last):
        total = spent[one.first, True] + spent[one.first, False]
        share = spent[one.first, True] / total if total else float(kind == INPUT_KIND)
        input_shares.update(dict.fromkeys(range(one.first, one.last + 1), share))
    made = {line: weight for (line, is_input), weight in spent.items() if is_input}
    by_head = made_by_head(made, found.node.lineno)
    return LoopLines(found.code, found.lines, input_shares, by_head)


def made_by_head(made: Mapping[int, float], head: int) -> bool:
    """Return True if the head of a loop makes its input; `made`: weights of samples by line."""
    return 0 < MOST_BY_HEAD * sum(made.values()) <= made.get(head, 0.0)


def mark_hint(samples: Sequence[Sample], context: AttributionContext) -> MarkHint | None:
    """Return the line to mark: the loop that has input or steps, else the innermost one that is on
    the stack most of the time.

    Without a loop of the user's own, it is the call that takes most of it.
    """
    found = locate(samples, step_lines=context.step_lines)
    if found is not None and _tells(found.kinds):
        inside = [position_of(sample, found.code) is not None for sample in samples]
        return MarkHint(found.place(context), sum(inside) / len(inside), True)
    loops: Counter[Place] = Counter()
    calls: Counter[Place] = Counter()
    depths: dict[Place, int] = {}
    total = 0
    for sample in samples:
        total += 1
        places = [(spot, context.places.of(spot)) for spot in sample.stack]
        users = [(spot[0], place) for spot, place in places if place.users]
        calls.update(place for _, place in users[:1])
        around = [
            place._replace(line=one.lineno)
            for code, place in users
            for one in reversed(_loops_of(code))
            if one.lineno <= place.line <= source.last_line(one)
        ]
        depths.update({place: len(around) - i for i, place in enumerate(around)})
        loops.update(set(around))
    most = loops or calls
    if not most:
        return None
    near = [place for place in most if most[place] >= NEAR_MOST * max(most.values())]
    best = max(near, key=lambda place: (depths.get(place, 0), most[place]))
    return MarkHint(best, most[best] / total, bool(loops))


def position_of(sample: Sample, code: CodeType) -> LoopPosition | None:
    """Return the position of the loop's frame; None if it is not on the stack."""
    for i, spot in enumerate(sample.stack):
        if spot[0] is code:
            called = sample.stack[i - 1][0] if i else None
            if called is None:
                return LoopPosition(line_of(spot), "")
            # a generator goes on because the loop asks for its next value
            name = "next" if called.co_flags & SUSPENDS else called.co_name
            return LoopPosition(line_of(spot), name)
    return None


def locate(
    samples: Sequence[Sample], *, where: str = "", step_lines: StepLines = frozenset()
) -> LocatedLoop | None:
    """Return the innermost loop of the user's code that the thread is in all the time, or None.

    `where`: the innermost loop around that line, "train.py:41", however much of the time it takes.
    `step_lines`: files and lines that are known to belong to steps. The loop of a generator that
    makes no step is the input of the loop around it.
    """
    on_stack: Counter[CodeType] = Counter()
    for sample in samples:
        on_stack.update({spot[0] for spot in sample.stack})
    order = [spot[0] for spot in samples[-1].stack] if samples else []
    candidates = [
        code
        for code, count in on_stack.items()
        if (where or count >= MIN_STACK_SHARE * len(samples))
        and is_users_code(code)
        and not STEP_FUNCTION.search(code.co_name)
    ]
    candidates.sort(key=lambda code: order.index(code) if code in order else len(order))
    found = []
    for code in candidates:
        trained = {line for file, line in step_lines if file == code.co_filename}
        one = _locate_in(code, samples, where=where, trained=trained)
        if one is not None and (where or not _only_yields(one, trained)):
            return one
        found += [one] if one is not None else []
    return next(iter(found), None)


def _only_yields(found: LocatedLoop, trained: Set[int]) -> bool:
    """Return True for the loop of a generator without a step that is known as one."""
    known = any(
        kind == STEP
        and (source.is_named_step(one) or any(one.first <= n <= one.last for n in trained))
        for one, kind in found.kinds
    )
    return bool(found.code.co_flags & SUSPENDS) and not known


def _locate_in(
    code: CodeType, samples: Sequence[Sample], *, where: str, trained: Set[int]
) -> LocatedLoop | None:
    positions = [position_of(sample, code) for sample in samples]
    spent: dict[int, float] = defaultdict(float)
    for position in positions:
        if position is not None:
            spent[position.line] += 1 / len(samples)
    loops, least = _loops_of(code), MIN_LOOP_SHARE * sum(spent.values())
    if where:
        file, _, line = where.rpartition(":")
        if os.path.basename(file) != os.path.basename(code.co_filename) or not line.isdigit():
            return None
        loops = [loop for loop in loops if loop.lineno <= int(line) <= source.last_line(loop)]
        least = 1 / len(samples)

    def inside(loop: LoopNode) -> float:
        return sum(n for at, n in spent.items() if loop.lineno <= at <= source.last_line(loop))

    around = [
        (loop, source.classify(loop, spent, trained=trained))
        for loop in loops
        if inside(loop) >= least
    ]
    around.reverse()
    # one without input, and without a step that has a name, may be a part of the step around it
    telling = [pair for pair in around if _tells(pair[1])] or [pair for pair in around if pair[1]]
    chosen = (telling or around)[:1]
    return (
        LocatedLoop(code, *_of_batches(*chosen[0], spent=spent, trained=trained))
        if chosen
        else None
    )


def _tells(kinds: Kinds) -> bool:
    return any(
        kind == INPUT_KIND or (kind == STEP and any(map(source.is_step, one.calls)))
        for one, kind in kinds
    )


def _of_batches(
    loop: LoopNode, kinds: Kinds, *, spent: Mapping[int, float], trained: Set[int]
) -> tuple[LoopNode, Kinds]:
    """Return the loop itself, or a loop inside it that has all its steps and takes their input: the
    outer one counts epochs, and what else it does, as an evaluation, is no step."""
    steps = [one for one, kind in kinds if kind == STEP]
    inner = source.loops_in(loop, loop.lineno + 1, last=source.last_line(loop))
    for one in inner if steps else ():
        found = source.classify(one, spent, trained=trained)
        if any(kind == INPUT_KIND for _, kind in found) and all(
            one.lineno < step.first <= source.last_line(one) for step in steps
        ):
            return _of_batches(one, found, spent=spent, trained=trained)
    return loop, kinds


def _loops_of(code: CodeType) -> list[LoopNode]:
    """Return the loops of a function, the outer ones first."""
    numbers = [line for _, _, line in code.co_lines() if line]
    tree = _tree_of(code.co_filename)
    return source.loops_in(tree, min(numbers), last=max(numbers)) if tree and numbers else []


@lru_cache(16)
def _tree_of(file: str) -> ast.AST | None:
    return parsed("".join(linecache.getlines(file)))
