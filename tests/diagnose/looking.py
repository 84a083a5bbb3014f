"""Samples of a thread's stack, as the sampler takes them, taken by the thread itself."""

from __future__ import annotations

import sys

from fastfeed.diagnose.sample.tasks import AttributionContext
from fastfeed.diagnose.sample.thread_log import Sample, stack_of
from fastfeed.probes.places import Places
from fastfeed.probes.pyspy import StackSamples


class Recorder:
    """Samples the stack of its caller whenever it is called, as the sampler would."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def __call__(self, count: int, call: str = "sleep", holder: bool = False) -> None:
        stack = stack_of(sys._getframe(1))
        self.samples += [Sample(stack, call, "", False, holder, holder)] * count


def attribution(loop: int = 0) -> AttributionContext:
    return AttributionContext(loop, 100, 0, 0, StackSamples(), Places(), loop_tid=1)
