"""Hooks installed for a while, on a clock that tests turn, with experiments that tests order."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from fastfeed.diagnose.hooks.experiments import BurstInput, Experiments
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.steps.timeline import Loop, Timeline


class Clock:
    """Stands in for a hook's `time`, which the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Every(Experiments):
    """Experiments: a burst at each `n`-th step of hooks that make their own."""

    def __init__(self, log: HookLog, n: int) -> None:
        super().__init__(log)
        self.n, self.asked, self.bursts = n, 0, 0

    def is_due(self, loop: Loop) -> bool:
        self.asked += 1
        return self.asked % self.n == 0

    def burst(self, source: BurstInput) -> None:
        self.bursts += 1
        self.plan(0.0, 600.0)
        super().burst(source)
        self._log.due_s = 0.0

    def await_full(self, source: BurstInput, *, until_s: float) -> None:
        """Wait for queues; what the others have is there."""
        if source.is_full() is not None:
            super().await_full(source, until_s=until_s)

    def run(self, steps: Any, get: Any) -> None:
        """Run loops without experiments of the hooks."""


@contextlib.contextmanager
def watched(module: str, *hooks: str, every: int = 0) -> Iterator[HookLog]:
    """The hooks of a module are in place; afterwards nothing may have failed in them."""
    log = HookLog(Timeline())
    if every:
        log.experiments, log.due_s = Every(log, every), 0.0
    found = importlib.import_module(module)
    undos = [
        importlib.import_module(f"fastfeed.diagnose.hooks.{hook}").install(found, log)
        for hook in hooks
    ]
    try:
        yield log
    finally:
        for undo in undos:
            undo()
    assert log.missing == []
    assert log.waiting == {}


def loops(log: HookLog, kind: str) -> list[Loop]:
    """The loops of a kind."""
    return [loop for loop in log.timeline.loops.values() if loop.kind == kind]


def kinds(log: HookLog) -> set[str]:
    """Return the kinds of the marks."""
    return {mark.kind for mark in log.timeline.marks}
