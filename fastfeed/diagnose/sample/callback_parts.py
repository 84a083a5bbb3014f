"""Time that the user's callbacks take in a loop that a framework runs, such as Keras' fit."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import LoopPart
from fastfeed.diagnose.sample.slices import HOST
from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_log import MIN_SAMPLES, Sample
from fastfeed.probes.places import Place

EVENT_METHOD = re.compile(r"^on_(train_|test_|predict_)?(batch|epoch)_(begin|end)$")


def callback_parts(samples: Iterable[Sample], context: AttributionContext) -> tuple[LoopPart, ...]:
    """Return each line of the user's callbacks as a host part, with its share of the thread's time.

    If the thread released the interpreter lock voluntarily, the sample points past the code that
    held it: such samples are spread over the code that holds the lock in other samples, as in
    loops.activity_weights.
    """
    samples = [sample for sample in samples if sample.stack]
    counts: Counter[tuple[Place | None, str]] = Counter()
    late: Counter[Place | None] = Counter()
    for sample in samples:
        place = _callback(sample, context)
        if sample.holder and context.releases_lock(sample):
            late[place] += 1
        else:
            counts[place, ev.PYTHON if sample.holder else context.state(sample, trainer=True)] += 1
    held = {place: count for (place, state), count in counts.items() if state == ev.PYTHON} or late
    busy: dict[Place, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (place, state), count in counts.items():
        if place is not None:
            busy[place][state] += count / len(samples)
    for place, count in held.items():
        if place is not None:
            busy[place][ev.PYTHON] += late.total() * count / sum(held.values()) / len(samples)
    parts = [
        LoopPart(HOST, place, sum(weights.values()), context.state_shares(weights))
        for place, weights in (busy.items() if len(samples) >= MIN_SAMPLES else ())
    ]
    return tuple(sorted(parts, key=lambda part: -part.share))


def _callback(sample: Sample, context: AttributionContext) -> Place | None:
    """Return the line in a user's function that the framework calls for an event, or None."""
    called = False
    for spot in reversed(sample.stack):
        place = context.places.of(spot)
        if place.users and called:
            return place
        called = called or (not place.users and EVENT_METHOD.search(spot[0].co_name) is not None)
    return None
