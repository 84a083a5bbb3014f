"""Steps of a loop without hooks, derived from samples of its thread."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterable, Sequence

from fastfeed.diagnose.sample import loops
from fastfeed.diagnose.sample.iterations import SAMPLED
from fastfeed.diagnose.sample.loops import LocatedLoop
from fastfeed.diagnose.sample.slices import HOST, INPUT_KIND
from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_log import MIN_SAMPLES, ModuleIntegers, Sample
from fastfeed.steps.timeline import Loop, Step

MIN_SAMPLES_PER_STEP = 4  # below it, some iterations have no sample at all
MIN_REPEATED_STEPS = 20


def sampled_loop(
    trace: Iterable[tuple[float, Sample]],
    integers: Iterable[ModuleIntegers],
    *,
    context: AttributionContext,
) -> Loop | None:
    """Return the sampled loop with its steps; None if they cannot be told apart.

    The number of steps is exact if the loop counts them in a variable of the module. Otherwise
    steps are the iterations that the sampled lines show, if each has enough samples.
    """
    pairs = [(now_s, sample) for now_s, sample in trace if sample.stack]
    if len(pairs) < MIN_SAMPLES:
        return None
    found = loops.locate([sample for _, sample in pairs], context)
    if found is None or not found.kinds:
        return None
    observations = []
    for now_s, sample in pairs:
        position = loops.position_of(sample, found.code, context=context)
        known = found.classify(position) if position is not None else None
        observations.append((now_s, known[1] if known else HOST, known[0].first if known else -1))
    steps = steps_from_counter(
        [now_s for now_s, *_ in observations],
        _counter_values(integers, found),
        kinds=[kind for _, kind, _ in observations],
    )
    steps = steps or steps_from_lines(observations)
    if len(steps) < MIN_REPEATED_STEPS:
        return None
    place = found.place(context.places)
    return Loop(
        f"the loop in {place}",
        SAMPLED,
        context.loop,
        waits="modelled",
        where=f"{place.file}:{place.line}",
        steps=steps,
    )


def _counter_values(integers: Iterable[ModuleIntegers], found: LocatedLoop) -> Sequence[int | None]:
    """Return the sampled values of the variable that counts the loop's iterations, or []."""
    rows = list(integers)
    if found.code.co_name != "<module>":
        return []
    names = counter_names(found.node)
    columns = [[row.get(name) for row in rows] for name in names]
    return max(columns, key=_growth, default=[])


def counter_names(loop: ast.AST) -> list[str]:
    """Return the names that a loop counts in: its target, and variables that it adds to."""
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


def steps_from_counter(
    times: Sequence[float], values: Sequence[int | None], *, kinds: Sequence[str]
) -> list[Step]:
    """Return steps from the values of a counter that was read at `times`.

    The steps between two readings are spaced evenly. Each waits for its input for the share of all
    samples that is input.
    """
    if len(values) != len(times) or not _growth(values):
        return []
    unit = math.gcd(*(after - before for before, after in _pairs(values) if after > before))
    share = sum(kind == INPUT_KIND for kind in kinds) / len(kinds)
    steps: list[Step] = []
    begun_s = None
    last = values[0]
    for now_s, value in zip(times, values, strict=True):
        if value is None or last is None or value < last:  # the counter starts again in a new epoch
            begun_s, last = None, value
        elif value > last:
            if begun_s is not None:
                steps += _even_steps(begun_s, now_s, count=(value - last) // unit, share=share)
            begun_s, last = now_s, value
    return steps


def _even_steps(begin_s: float, end_s: float, *, count: int, share: float) -> list[Step]:
    each_s = (end_s - begin_s) / count
    starts = [begin_s + i * each_s for i in range(count)]
    return [Step(start_s, start_s + each_s, share * each_s) for start_s in starts]


def steps_from_lines(observations: Sequence[tuple[float, str, int]]) -> list[Step]:
    """Return steps from (time, kind, line) of samples; [] if some iterations may have no sample.

    An iteration begins where the line number decreases.
    """
    starts = [i for i in range(1, len(observations)) if observations[i][2] < observations[i - 1][2]]
    if len(starts) < 2 or len(observations) / len(starts) < MIN_SAMPLES_PER_STEP:
        return []
    steps = []
    for first, after in itertools.pairwise(starts):
        begin_s, end_s = observations[first][0], observations[after][0]
        waits = sum(kind == INPUT_KIND for _, kind, _ in observations[first:after])
        steps.append(Step(begin_s, end_s, (end_s - begin_s) * waits / (after - first)))
    return steps
