"""Python that a framework's threads run for the step, as tf.numpy_function in a tf.function: it
makes no batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import CodeType

import numpy as np

from fastfeed.diagnose.evidence import LoopPart
from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_log import Sample, ThreadLog
from fastfeed.steps.timeline import Step

WAITS = 0.1  # of the samples: if the loop hardly waits, it does not matter what it waits for
FEW = 20  # samples
NEVER = 0.02  # of its samples


def waits_in(
    trace: Sequence[tuple[float, Sample]],
    *,
    cast: AttributionContext,
    parts: Iterable[LoopPart] = (),
    steps: Iterable[Step] = (),
) -> frozenset[int]:
    """Return the samples, by number, in which the loop waits for input: at lines of its input
    `parts`, or at the beginning of its `steps`, for their known waits. `trace`: the loop's thread
    in every sample, with its time."""
    if len(trace) != cast.samples:  # some are too old to be kept
        return frozenset()
    asks = {(part.place.file, part.place.line) for part in parts if part.kind == "input"}
    edges = np.array(
        [(one.begin_s, one.begin_s + one.wait_s) for one in steps if one.wait_s > 0]
    ).reshape(-1)
    # Odd positions among the edges lie inside a step.
    inside = np.searchsorted(edges, [now_s for now_s, _ in trace], side="right") % 2 == 1
    return frozenset(
        n for n, (_, look) in enumerate(trace) if inside[n] or _at_any(look, asks, cast=cast)
    )


def without_callbacks(
    logs: Iterable[ThreadLog], waits: frozenset[int], *, cast: AttributionContext
) -> list[ThreadLog]:
    """Return the logs without samples of threads that Python did not start, in functions that never
    run while the loop waits (`waits`, as waits_in returns): a producer works then."""
    logs = list(logs)
    if len(waits) < max(FEW, WAITS * cast.samples):
        return logs
    seen: Counter[CodeType] = Counter()
    waiting: Counter[CodeType] = Counter()
    for log in logs:
        for number, look in log.moments.items():
            function = _user_function(look, cast)
            if function is not None:
                seen[function] += 1
                waiting[function] += number in waits
    callbacks = {
        function
        for function, count in seen.items()
        if count >= FEW and waiting[function] <= NEVER * count
    }
    for log in logs if callbacks else ():
        log.moments = {
            n: look
            for n, look in log.moments.items()
            if _user_function(look, cast) not in callbacks
        }
        if log.foreign:
            kept = {
                look: count
                for look, count in log.looks.items()
                if _user_function(look, cast) not in callbacks
            }
            log.looks = Counter(kept)
    return logs


def _at_any(look: Sample, lines: set[tuple[str, int]], *, cast: AttributionContext) -> bool:
    return any((place.file, place.line) in lines for place in map(cast.places.of, look.stack))


def _user_function(look: Sample, cast: AttributionContext) -> CodeType | None:
    """Return the outermost function of the user's."""
    return next((spot[0] for spot in reversed(look.stack) if cast.places.of(spot).users), None)
