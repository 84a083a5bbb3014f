"""The work of the user's callbacks in a loop that a framework runs, such as Keras' fit."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import LoopPart
from fastfeed.diagnose.sample import states
from fastfeed.diagnose.sample.loops import FEW
from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_log import Sample
from fastfeed.probes.places import Place

EVENT = re.compile(r"^on_(train_|test_|predict_)?(batch|epoch)_(begin|end)$")


def callback_parts(looks: Iterable[Sample], cast: AttributionContext) -> tuple[LoopPart, ...]:
    """Return each line of the callbacks with its share of the thread's time; all are host work.

    If the thread released the interpreter lock voluntarily, the sample points past the code that
    held it: it counts like the samples that hold the lock elsewhere, as in loops.weighted.
    """
    looks = [look for look in looks if look.stack]
    counts: Counter[tuple[Place | None, str]] = Counter()
    late: Counter[Place | None] = Counter()
    for look in looks:
        place = _callback(look, cast)
        if look.holder and cast.lets_go(look):
            late[place] += 1
        else:
            counts[place, ev.PYTHON if look.holder else cast.state(look, trainer=True)] += 1
    held = {place: count for (place, state), count in counts.items() if state == ev.PYTHON} or late
    busy: dict[Place, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (place, state), count in counts.items():
        if place is not None:
            busy[place][state] += count / len(looks)
    for place, count in held.items():
        if place is not None:
            busy[place][ev.PYTHON] += late.total() * count / sum(held.values()) / len(looks)
    parts = (
        [_part(place, shares, ready=cast.ready) for place, shares in busy.items()]
        if len(looks) >= FEW
        else []
    )
    return tuple(sorted(parts, key=lambda part: -part.share))


def _part(place: Place, shares: dict[str, float], *, ready: float) -> LoopPart:
    """Return the part. `ready`: of the time on a core without the lock, or ready for one, the share
    that it waits."""
    total = sum(shares.values())
    busy = {state: share / total for state, share in shares.items() if state != states.CORE}
    core = shares.get(states.CORE, 0.0) / total
    if core:
        busy |= {
            ev.NATIVE: busy.get(ev.NATIVE, 0.0) + core * (1 - ready),
            ev.RUNNABLE: core * ready,
        }
    return LoopPart("host", place, total, busy)


def _callback(look: Sample, cast: AttributionContext) -> Place | None:
    """Return the line of the user's function that the framework calls for an event; None outside of
    one."""
    called = False
    for spot in reversed(look.stack):
        place = cast.places.of(spot)
        if place.users and called:
            return place
        called = called or (not place.users and EVENT.search(spot[0].co_name) is not None)
    return None
