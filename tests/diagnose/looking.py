"""Samples of a thread's stack, taken by the thread itself; loops by their code."""

from __future__ import annotations

import ast
import sys
import textwrap

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample.loop_statements import LoopNode
from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_samples import Sample, stack_of
from fastfeed.probes.places import Places
from fastfeed.probes.pyspy import StackSamples


class Recorder:
    """Samples the stack of its caller whenever it is called, as the sampler would."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def __call__(self, count: int, state: str = ev.SLEEP, holder: bool = False) -> None:
        stack = stack_of(sys._getframe(1))
        self.samples += [Sample(stack, state, holder)] * count


def attribution(loop: int = 0) -> AttributionContext:
    return AttributionContext(loop, 100, 0, 0, StackSamples(), Places(), loop_tid=1)


def parsed(code: str) -> LoopNode:
    """Return the loop that some code begins with."""
    loop = ast.parse(textwrap.dedent(code).strip()).body[0]
    assert isinstance(loop, LoopNode)
    return loop
