"""Python that a framework's threads run for the step, and that produces no batches.

An example is tf.numpy_function in a tf.function.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from types import CodeType

from fastfeed.diagnose.evidence import LoopPart
from fastfeed.diagnose.sample.slices import INPUT_KIND
from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_log import MIN_SAMPLES, Sample, ThreadLog
from fastfeed.steps.timeline import Step

MIN_WAITING_SHARE = 0.1  # of the samples: a loop that hardly waits needs no distinction
MAX_CALLBACK_SHARE = 0.02  # of a callback's samples that may fall into the loop's waits


def waiting_samples(
    trace: Sequence[tuple[float, Sample]],
    *,
    context: AttributionContext,
    parts: Iterable[LoopPart] = (),
    steps: Iterable[Step] = (),
) -> frozenset[int]:
    """Return the numbers of the samples in which the loop waits for input.

    That is at lines of its input `parts`, and during the known waits at the beginning of its
    `steps`. `trace`: the time and the sample of the loop's thread, for every sample; the result is
    empty if the trace no longer holds all of them.
    """
    if len(trace) != context.samples:  # the oldest samples are gone
        return frozenset()
    input_lines = {(part.place.file, part.place.line) for part in parts if part.kind == INPUT_KIND}
    waits = [one for one in steps if one.wait_s > 0]
    edges = [edge for one in waits for edge in (one.begin_s, one.begin_s + one.wait_s)]
    # Odd positions among the edges lie between the two edges of a wait.
    return frozenset(
        n
        for n, (now_s, sample) in enumerate(trace)
        if bisect_right(edges, now_s) % 2 or _is_at_line(sample, input_lines, context=context)
    )


def drop_callbacks(
    logs: Iterable[ThreadLog], waits: frozenset[int], *, context: AttributionContext
) -> list[ThreadLog]:
    """Return the logs without the samples of callbacks, for threads that Python did not start.

    A function that never runs in the samples `waits`, in which the loop waits for input, produces
    no batches: a producer works at those moments.
    """
    logs = list(logs)
    if len(waits) < max(MIN_SAMPLES, MIN_WAITING_SHARE * context.samples):
        return logs
    counts: Counter[CodeType] = Counter()
    waiting: Counter[CodeType] = Counter()
    for log in logs:
        for number, sample in log.by_number.items():
            function = _user_function(sample, context)
            if function is not None:
                counts[function] += 1
                waiting[function] += number in waits
    callbacks = {
        function
        for function, count in counts.items()
        if count >= MIN_SAMPLES and waiting[function] <= MAX_CALLBACK_SHARE * count
    }
    for log in logs if callbacks else ():
        log.drop(lambda sample: _user_function(sample, context) in callbacks)
    return logs


def _is_at_line(
    sample: Sample, lines: set[tuple[str, int]], *, context: AttributionContext
) -> bool:
    return any((place.file, place.line) in lines for place in map(context.places.of, sample.stack))


def _user_function(sample: Sample, context: AttributionContext) -> CodeType | None:
    """Return the outermost of the user's functions on the stack."""
    return next((spot[0] for spot in reversed(sample.stack) if context.places.of(spot).users), None)
