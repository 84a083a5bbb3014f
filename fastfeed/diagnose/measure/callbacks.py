"""Python that a framework's threads run for the step, as tf.numpy_function in a tf.function: it makes no batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import CodeType

from fastfeed.diagnose.evidence import Part
from fastfeed.diagnose.measure.tasks import Cast
from fastfeed.diagnose.measure.threads import Look, ThreadLog

WAITS = 0.1  # of the samples: where the loop hardly waits, it does not matter who keeps it waiting
FEW = 20  # samples
NEVER = 0.02  # of its samples


def without_callbacks(
    logs: Iterable[ThreadLog], trace: Sequence[Look], *, cast: Cast, parts: Iterable[Part] = ()
) -> list[ThreadLog]:
    """The logs; threads that Python did not start have no looks at functions that never run while the loop is in those
    of its `parts` that are input: whoever makes a batch is at work then. `trace`: the loop's thread in every sample."""
    logs = list(logs)
    asks = {(part.place.file, part.place.line) for part in parts if part.kind == "input"}
    if not asks or len(trace) != cast.samples:  # too long ago for all of them to be kept
        return logs
    waits = {number for number, look in enumerate(trace) if _at_any(look, asks, cast=cast)}
    if len(waits) < max(FEW, WAITS * len(trace)):
        return logs
    seen: Counter[CodeType] = Counter()
    waiting: Counter[CodeType] = Counter()
    for log in logs:
        for number, look in log.moments.items():
            function = _user_function(look, cast)
            if function is not None:
                seen[function] += 1
                waiting[function] += number in waits
    callbacks = {function for function, count in seen.items() if count >= FEW and waiting[function] <= NEVER * count}
    for log in logs if callbacks else ():
        log.moments = {n: look for n, look in log.moments.items() if _user_function(look, cast) not in callbacks}
        if log.foreign:
            kept = {look: count for look, count in log.looks.items() if _user_function(look, cast) not in callbacks}
            log.looks = Counter(kept)
    return logs


def _at_any(look: Look, lines: set[tuple[str, int]], *, cast: Cast) -> bool:
    return any((place.file, place.line) in lines for place in map(cast.places.of, look.stack))


def _user_function(look: Look, cast: Cast) -> CodeType | None:
    """The outermost function of the user's."""
    return next((spot[0] for spot in reversed(look.stack) if cast.places.of(spot).users), None)
