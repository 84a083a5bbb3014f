"""Samples of stacks as a flame view: a frame lies on the frame that called it, as wide as it has
samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fastfeed.diagnose.evidence import Task
from fastfeed.probes.places import Place

Stacks = Mapping[tuple[Place, ...], int]
MAX_FLAME_LEVELS = 48  # no page shows more


class FlameFrame(NamedTuple):
    """`samples` of `total` samples, of which the first is number `first`; `depth` is 0 for the
    outermost."""

    place: Place
    depth: int
    first: int
    samples: int
    total: int

    @property
    def left(self) -> float:
        """Begin of the frame, as a share of all samples."""
        return self.first / self.total

    @property
    def right(self) -> float:
        """End of the frame, at most the end of the frame below it."""
        return (self.first + self.samples) / self.total

    @property
    def width(self) -> float:
        """Its share of all samples."""
        return self.samples / self.total


@dataclass
class _Node:
    samples: int = 0
    inner: dict[Place, _Node] = field(default_factory=dict)


def frames(stacks: Stacks, *, least: float = 0.003, limit: int = 400) -> list[FlameFrame]:
    """Return the frames from the outside in, the widest first, without those below `least` of the
    samples, at most `limit`."""
    root = _tree(stacks)
    found: list[FlameFrame] = []
    level = [(root, 0)]
    depth = 0
    while level and depth < MAX_FLAME_LEVELS:
        above = []
        for node, first in level:
            for place, inner in sorted(node.inner.items(), key=lambda item: -item[1].samples):
                if inner.samples >= least * root.samples:
                    found.append(FlameFrame(place, depth, first, inner.samples, root.samples))
                    above.append((inner, first))
                first += inner.samples
        level, depth = above, depth + 1
    return found[:limit]


def _tree(stacks: Stacks) -> _Node:
    """Return the tree without the outermost frames that all samples share, unless they are the
    user's: they say nothing."""
    skip = _shared(list(stacks))
    root = _Node()
    for stack, samples in stacks.items():
        if samples <= 0 or not stack:
            continue
        node = root
        node.samples += samples
        for place in stack[skip:]:
            node = node.inner.setdefault(place, _Node())
            node.samples += samples
    return root


def _shared(stacks: list[tuple[Place, ...]]) -> int:
    shortest = min(map(len, stacks), default=0)
    for depth in range(shortest - 1):
        if stacks[0][depth].users or any(stack[depth] != stacks[0][depth] for stack in stacks):
            return depth
    return max(0, shortest - 1)


def together(tasks: Iterable[Task]) -> dict[tuple[Place, ...], int]:
    """Return the samples of several tasks as those of one."""
    total: dict[tuple[Place, ...], int] = {}
    for task in tasks:
        for stack, samples in task.stacks.items():
            total[stack] = total.get(stack, 0) + samples
    return total


def hottest(stacks: Stacks, *, limit: int = 5) -> list[tuple[Place, float]]:
    """Return the innermost places of the user's (or any, if a stack has none) by their share of the
    samples."""
    counts: dict[Place, int] = {}
    for stack, samples in stacks.items():
        own = [place for place in stack if place.users] or list(stack)
        for place in own[-1:]:
            counts[place] = counts.get(place, 0) + samples
    total = sum(counts.values())
    best = sorted(counts.items(), key=lambda item: -item[1])
    return [(place, count / total) for place, count in best[:limit] if count > 0]
