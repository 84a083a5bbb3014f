"""Where a training loop's own thread spends its time: the loop is found in its stacks, its
statements in the source."""

from __future__ import annotations

import ast
import itertools
import linecache
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import LoopPart
from fastfeed.diagnose.sample import slices, states
from fastfeed.diagnose.sample.child_processes import work_of_stack
from fastfeed.diagnose.sample.iterations import LoopLines
from fastfeed.diagnose.sample.slices import Statement
from fastfeed.diagnose.sample.tasks import ENOUGH_LOOKS, AttributionContext
from fastfeed.diagnose.sample.thread_log import Sample
from fastfeed.probes.interpreter import SLOWED, SUSPENDS
from fastfeed.probes.places import Place, Places, line_of

ALWAYS = 0.97  # of the samples contain the frame of a loop
INSIDE = 0.9  # of its frame's samples are inside the loop
FEW = 20  # samples
# functions of one step, with or without a loop
ONE_STEP = re.compile(r"step$|^(forward|backward|call|update|loss\w*)$")


class At(NamedTuple):
    """The loop's frame at one moment: its line, and the function that it has called there, "" if
    unknown."""

    line: int
    below: str


class Moment(NamedTuple):
    """What a loop's thread did at one moment: `state` of evidence.py or CORE; `inner`, the
    innermost place of the user's below the loop; `work`: "copying", "pickling" or ""."""

    at: At
    state: str
    inner: Place | None
    work: str


class Found(NamedTuple):
    """A loop in the source: the function, its file (in full), and its statements with their
    kinds."""

    code: CodeType
    node: slices.Loop
    kinds: Sequence[tuple[Statement, str]]

    def kind(self, at: At) -> tuple[Statement, str] | None:
        """Return the statement of a line, and its kind: a step's arguments that are made in the
        same line are input."""
        inside = [(one, kind) for one, kind in self.kinds if one.first <= at.line <= one.last]
        if not inside:
            return None
        one, kind = min(inside, key=lambda pair: pair[0].last - pair[0].first)
        if kind == "step" and at.below in one.inner and not slices.is_step(at.below):
            kind = "input"
        return one, kind


def parts_of(
    looks: Iterable[Sample],
    cast: AttributionContext,
    *,
    where: str | None = None,
    asks: bool = True,
) -> tuple[tuple[LoopPart, ...], list[str]]:
    """Return the parts, and what could not be determined. `asks`: the line `where` requests a
    batch; else it is the step."""
    looks = [look for look in looks if look.stack]
    if len(looks) < FEW:
        return (), ["parts of the loop: too few samples of its thread"]
    found = (find(looks, cast, where=where) if where else None) or find(looks, cast)
    if found is None:
        return (), ["parts of the loop: no loop of the script's own is on its thread's stack"]
    if not found.kinds:
        return (), [
            f"parts of the loop: {_name(found, cast.places)} has no call that looks like a "
            "training step"
        ]
    _, _, line_of_get = (where or "").rpartition(":")
    here = (
        int(line_of_get)
        if line_of_get.isdigit() and found.code.co_filename.endswith(_file(where))
        else None
    )
    groups: dict[tuple[str, int], dict[Moment, float]] = defaultdict(dict)
    for moment, weight in weighted(looks, found, cast=cast).items():
        known = found.kind(moment.at)
        if known is not None:
            one, kind = known
            if kind == "host" and here is not None and one.first <= here <= one.last:
                kind = "input" if asks else "step"  # whatever else the line does with it
            groups[kind, one.first][moment] = weight
    total = sum(sum(moments.values()) for moments in groups.values())
    file, users = cast.places.file(found.code.co_filename)
    parts = []
    for (kind, line), moments in groups.items():
        place = Place(found.code.co_name, file, line, users)
        parts.append(_part(kind, place, moments=moments, total=total, ready=cast.ready))
    return tuple(sorted(parts, key=lambda part: -part.share)), []


def _file(where: str | None) -> str:
    return (where or "").rpartition(":")[0]


def loop_lines(looks: Iterable[Sample], cast: AttributionContext) -> LoopLines | None:
    """Return the lines of the loop that the thread is in, and the share of each line's time that is
    input."""
    looks = [look for look in looks if look.stack]
    found = find(looks, cast) if len(looks) >= 2 * FEW else None
    if found is None or not found.kinds:
        return None
    spent: dict[tuple[int, bool], float] = defaultdict(float)
    for moment, weight in weighted(looks, found, cast=cast).items():
        known = found.kind(moment.at)
        if known is not None:
            spent[known[0].first, known[1] == "input"] += weight
    waits: dict[int, float] = {}
    # inner ones last
    for one, kind in sorted(found.kinds, key=lambda pair: pair[0].first - pair[0].last):
        total = spent[one.first, True] + spent[one.first, False]
        share = spent[one.first, True] / total if total else float(kind == "input")
        waits.update(dict.fromkeys(range(one.first, one.last + 1), share))
    lines = range(found.node.lineno, (found.node.end_lineno or found.node.lineno) + 1)
    return LoopLines(
        found.code, lines, waits, _slowed(looks, found, cast=cast) if SLOWED > 1 else {}
    )


def _slowed(looks: Sequence[Sample], found: Found, *, cast: AttributionContext) -> dict[int, float]:
    """Return by line how many times as long it takes when it is traced, which slows the bytecode of
    the loop, and of generators that it iterates over."""
    seen: Counter[int] = Counter()
    inline: Counter[int] = Counter()
    for look in looks:
        at = at_of(look, found.code, cast=cast)
        if at is not None:
            seen[at.line] += 1
            own = look.stack[0][0] is found.code or look.stack[0][0].co_flags & SUSPENDS
            inline[at.line] += bool(own and look.holder and not cast.called(look.stack[0]))
    return {line: 1 + (SLOWED - 1) * count / seen[line] for line, count in inline.items() if count}


def _part(
    kind: str, place: Place, *, moments: dict[Moment, float], total: float, ready: float
) -> LoopPart:
    """Return the part. `ready`: of the time on a core without the lock, or ready for one, the share
    that it waits."""
    weight = sum(moments.values())
    busy: dict[str, float] = defaultdict(float)
    inner: dict[Place | None, float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for moment, one in moments.items():
        inner[moment.inner] += one
        work[moment.work] += one / weight
        if moment.state == states.CORE:
            busy[ev.NATIVE] += one / weight * (1.0 - ready)
            busy[ev.RUNNABLE] += one / weight * ready
        else:
            busy[moment.state] += one / weight
    best = max(inner, key=lambda one: inner[one])
    known = {state: share for state, share in busy.items() if share > 0}
    return LoopPart(kind, place, weight / total, known, work["copying"], work["pickling"], best)


def _name(found: Found, places: Places) -> str:
    return str(
        Place(found.code.co_name, places.file(found.code.co_filename)[0], found.node.lineno, True)
    )


def at_of(look: Sample, code: CodeType, *, cast: AttributionContext) -> At | None:
    """Return where the loop's frame is; None if it is not on the stack."""
    for i, spot in enumerate(look.stack):
        if spot[0] is code:
            below = look.stack[i - 1][0].co_name if i else cast.called(spot).rpartition(".")[2]
            return At(line_of(spot), below)
    return None


def weighted(
    looks: Sequence[Sample], found: Found, *, cast: AttributionContext
) -> dict[Moment, float]:
    """Return samples by what the thread did. For moments at which it held the interpreter lock, use
    those of py-spy, if there are enough: see tasks.stacks_of. If the thread released the lock
    voluntarily, the sample points past the code that held it: it counts like the samples that hold
    the lock elsewhere."""
    weights: dict[Moment, float] = defaultdict(float)
    too_late: dict[Moment, float] = defaultdict(float)
    outside = _outside(found, cast)
    held = sum(outside.values()) / cast.holders.looks if outside else 0.0
    inside = [look for look in looks if not (outside and look.holder)] or list(looks)
    for look in inside:
        at = at_of(look, found.code, cast=cast)
        if at is not None:
            state = ev.PYTHON if look.holder else cast.state(look, trainer=True)
            below = itertools.takewhile(lambda spot: spot[0] is not found.code, look.stack)
            inner = next((place for place in map(cast.places.of, below) if place.users), None)
            into = too_late if look.holder and cast.lets_go(look) else weights
            into[Moment(at, state, inner, cast.work(look))] += (1.0 - held) / len(inside)
    holding = {
        moment: weight for moment, weight in weights.items() if moment.state == ev.PYTHON
    } or too_late
    for moment, weight in list(holding.items()):
        weights[moment] += sum(too_late.values()) * weight / sum(holding.values())
    for moment, count in outside.items():
        weights[moment] += count / cast.holders.looks
    return weights


def _outside(found: Found, cast: AttributionContext) -> Counter[Moment]:
    """Return what the loop does in py-spy's samples of the lock's holder."""
    result: Counter[Moment] = Counter()
    if cast.holders.looks < ENOUGH_LOOKS or cast.loop_tid not in cast.holders.seen:
        return result
    file = cast.places.file(found.code.co_filename)[0]
    lines = range(found.node.lineno, (found.node.end_lineno or found.node.lineno) + 1)
    for stack, count in cast.holders.seen[cast.loop_tid].items():
        names = [place.function.rpartition(".")[2] for place in stack.places]
        here = [
            i for i, place in enumerate(stack.places) if place.file == file and place.line in lines
        ]
        here = [i for i in here if names[i] == found.code.co_name]
        if here:
            below = stack.places[here[-1] + 1 :]
            inner = next((place for place in reversed(below) if place.users), None)
            at = At(stack.places[here[-1]].line, names[here[-1] + 1] if below else "")
            result[Moment(at, ev.PYTHON, inner, work_of_stack(stack))] += count
    return result


def find(
    looks: Sequence[Sample], cast: AttributionContext, *, where: str | None = None
) -> Found | None:
    """Return the innermost loop that the thread is in all the time, in a function of the user's;
    with `where` the loop at that line, if there is one."""
    on_stack: Counter[CodeType] = Counter()
    for look in looks:
        on_stack.update({spot[0] for spot in look.stack})
    order = {spot[0]: i for look in looks[-1:] for i, spot in reversed(list(enumerate(look.stack)))}
    always = [code for code, count in on_stack.items() if count >= ALWAYS * len(looks)]
    always = [
        code
        for code in always
        if cast.places.file(code.co_filename)[1] and not ONE_STEP.search(code.co_name)
    ]
    for code in sorted(always, key=lambda code: order.get(code, len(order))):
        found = _loop_of(code, looks, cast=cast, where=where)
        if found is not None:
            return found
    return None


def _loop_of(
    code: CodeType, looks: Sequence[Sample], *, cast: AttributionContext, where: str | None
) -> Found | None:
    tree = _parsed(code.co_filename)
    if tree is None:
        return None
    numbers = [line for _, _, line in code.co_lines() if line]
    loops = slices.loops_in(tree, min(numbers), last=max(numbers))
    counts = Counter(
        at.line for at in (at_of(look, code, cast=cast) for look in looks) if at is not None
    )
    total = sum(counts.values())
    if where is not None:
        file, _, line = where.rpartition(":")
        if os.path.basename(file) != os.path.basename(code.co_filename) or not line.isdigit():
            return None
        loops = [loop for loop in loops if loop.lineno <= int(line) <= (loop.end_lineno or 0)]
    around = [loop for loop in reversed(loops) if _inside(loop, counts) >= INSIDE * total]
    if len(around) > 1 and slices.repeats(around[0]) and not slices.counts(around[1]):
        around = around[1:]  # it is the step of the loop around it
    return Found(code, around[0], slices.kinds(around[0])) if around else None


def _inside(loop: slices.Loop, counts: Counter[int]) -> int:
    return sum(
        count for line, count in counts.items() if loop.lineno <= line <= (loop.end_lineno or 0)
    )


@lru_cache(16)
def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
