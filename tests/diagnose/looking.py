"""Looks at a thread's stack, as the sampler takes them, by the thread itself."""

from __future__ import annotations

import sys

from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_log import Sample, stack_of
from fastfeed.probes.places import Places
from fastfeed.probes.pyspy import StackSamples


class Recorder:
    """Takes a look at its caller's stack whenever it is called, as the sampler would."""

    def __init__(self) -> None:
        self.looks: list[Sample] = []

    def __call__(self, count: int, call: str = "sleep", holder: bool = False) -> None:
        stack = stack_of(sys._getframe(1))
        self.looks += [Sample(stack, call, "", False, holder, holder)] * count


def cast(loop: int = 0) -> AttributionContext:
    return AttributionContext(loop, 100, 0, 0, StackSamples(), Places(), loop_tid=1)
