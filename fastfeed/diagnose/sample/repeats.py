"""The steps of a loop without a hook, reconstructed from samples of its thread."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterable, Sequence

from fastfeed.diagnose.sample import loops
from fastfeed.diagnose.sample.loops import Found
from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_log import Counts, Sample
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import Loop, Step

PER_STEP = 4  # samples of a step at least, to count iterations one by one
FEW = 20  # steps


def repeated_loop(
    trace: Iterable[tuple[float, Sample]], counts: Iterable[Counts], *, cast: AttributionContext
) -> Loop | None:
    """Return the loop with its steps: exact in number if the loop counts them in a variable of the
    module, else by the iterations in the samples, if each has enough of them; otherwise None."""
    pairs = [(now_s, look) for now_s, look in trace if look.stack]
    if len(pairs) < loops.FEW:
        return None
    found = loops.find([look for _, look in pairs], cast)
    if found is None or not found.kinds:
        return None
    moments = []
    for now_s, look in pairs:
        at = loops.at_of(look, found.code, cast=cast)
        known = found.kind(at) if at is not None else None
        moments.append((now_s, known[1] if known else "host", known[0].first if known else -1))
    steps = counted(
        [now_s for now_s, *_ in moments],
        _column(counts, found),
        kinds=[kind for _, kind, _ in moments],
    )
    steps = steps or turns(moments)
    if len(steps) < FEW:
        return None
    file, users = cast.places.file(found.code.co_filename)
    place = Place(found.code.co_name, file, found.node.lineno, users)
    name = f"the loop in {place}"
    return Loop(
        name,
        "sampled",
        cast.loop,
        waits="modelled",
        where=f"{file}:{found.node.lineno}",
        steps=steps,
    )


def _column(counts: Iterable[Counts], found: Found) -> Sequence[int | None]:
    """Return the values of the variable that counts the loop's iterations; [] if there is none."""
    rows = list(counts)
    if found.code.co_name != "<module>":
        return []
    names = counters_of(found.node)
    columns = [[row.get(name) for row in rows] for name in names]
    return max(columns, key=_growth, default=[])


def counters_of(loop: ast.AST) -> list[str]:
    """Return the names that a loop counts: its target, or what it adds a number to."""
    names = []
    targets = [loop.target] if isinstance(loop, ast.For) else []
    for target in targets:
        first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        if isinstance(first, ast.Name):
            names.append(first.id)
    for node in getattr(loop, "body", ()):
        if (
            isinstance(node, ast.AugAssign)
            and isinstance(node.op, ast.Add)
            and isinstance(node.target, ast.Name)
        ):
            names.append(node.target.id)
    return names


def _growth(values: Sequence[int | None]) -> int:
    return sum(after > before for before, after in _pairs(values))


def _pairs(values: Sequence[int | None]) -> list[tuple[int, int]]:
    return [(a, b) for a, b in itertools.pairwise(values) if a is not None and b is not None]


def counted(
    times: Sequence[float], values: Sequence[int | None], *, kinds: Sequence[str]
) -> list[Step]:
    """Return steps from a counter that was read at `times`: those between two readings are spread
    evenly, and wait for input for the share of the samples that is input."""
    if len(values) != len(times) or not _growth(values):
        return []
    unit = math.gcd(*(after - before for before, after in _pairs(values) if after > before))
    share = sum(kind == "input" for kind in kinds) / len(kinds)
    steps: list[Step] = []
    begun_s = None
    last = values[0]
    for now_s, value in zip(times, values, strict=True):
        if value is None or last is None or value < last:  # a new epoch starts to count
            begun_s, last = None, value
        elif value > last:
            if begun_s is not None:
                steps += _even(begun_s, now_s, count=(value - last) // unit, share=share)
            begun_s, last = now_s, value
    return steps


def _even(begin_s: float, end_s: float, *, count: int, share: float) -> list[Step]:
    each_s = (end_s - begin_s) / count
    starts = [begin_s + i * each_s for i in range(count)]
    return [Step(start_s, start_s + each_s, share * each_s) for start_s in starts]


def turns(moments: Sequence[tuple[float, str, int]]) -> list[Step]:
    """Return steps from (time, kind, line) of samples: an iteration begins where the line number
    decreases; [] if iterations have so few samples that some must have been missed."""
    starts = [i for i in range(1, len(moments)) if moments[i][2] < moments[i - 1][2]]
    if len(starts) < 2 or len(moments) / len(starts) < PER_STEP:
        return []
    steps = []
    for first, after in itertools.pairwise(starts):
        begin_s, end_s = moments[first][0], moments[after][0]
        waits = sum(kind == "input" for _, kind, _ in moments[first:after])
        steps.append(Step(begin_s, end_s, (end_s - begin_s) * waits / (after - first)))
    return steps
