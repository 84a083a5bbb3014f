"""Looks at a thread's stack, as the sampler takes them, by the thread itself."""

from __future__ import annotations

import sys

from fastfeed.diagnose.measure.places import Places
from fastfeed.diagnose.measure.spy import Stacks
from fastfeed.diagnose.measure.tasks import Cast
from fastfeed.diagnose.measure.threads import Look, stack_of


class Recorder:
    """Takes a look at its caller's stack whenever it is called, as the sampler would."""

    def __init__(self) -> None:
        self.looks: list[Look] = []

    def __call__(self, count: int, call: str = "sleep", holder: bool = False) -> None:
        stack = stack_of(sys._getframe(1))
        self.looks += [Look(stack, call, "", False, holder, holder)] * count


def cast(loop: int = 0) -> Cast:
    return Cast(loop, 100, 0, 0, Stacks(), Places(), loop_tid=1)
