"""The lines of code that take most of the time of the trainer and of its producers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fastfeed.diagnose.evidence import PRODUCER, TRAINER, Evidence
from fastfeed.probes.places import Place

MAX_LINES = 6  # of a role
MIN_LINE = 0.01  # share of the time
Seen = tuple[Place, float, Mapping[str, float]]  # a line, its weight, what its thread does


def hottest_lines(seen: Evidence) -> list[dict[str, Any]]:
    """Return the lines of the trainer, then those of all producers, the hottest first.

    `share`: of the time of the trainer's thread, or of all producers. `busy`: what the trainer does
    in the line. Producers are sampled without their state: what those of the line do in general.
    """
    parts: list[Seen] = [(p.inner or p.place, p.share, p.busy) for p in seen.parts]
    return [
        *_ranked(TRAINER, parts or list(_sampled(seen, TRAINER)), whole=1.0 if parts else 0.0),
        *_ranked(PRODUCER, list(_sampled(seen, PRODUCER))),
    ]


def _sampled(seen: Evidence, role: str) -> Iterator[Seen]:
    """Yield the innermost line of the user's in each stack, or any in a stack without one."""
    for task in seen.tasks_of(role):
        for stack, samples in task.stacks.items():
            own = [place for place in stack if place.users] or list(stack)
            yield from ((place, float(samples), task.busy) for place in own[-1:])


def _ranked(role: str, lines: list[Seen], *, whole: float = 0.0) -> Iterator[dict[str, Any]]:
    weights: defaultdict[Place, float] = defaultdict(float)
    states: defaultdict[Place, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for place, weight, busy in lines:
        weights[place] += weight
        for state, share in busy.items():
            states[place][state] += weight * share
    whole = whole or sum(weights.values())
    for place in sorted(weights, key=lambda one: -weights[one])[:MAX_LINES]:
        if (weight := weights[place]) > MIN_LINE * whole:
            busy = {state: one / weight for state, one in states[place].items()}
            yield {"role": role, "place": str(place), "share": weight / whole, "busy": busy}
