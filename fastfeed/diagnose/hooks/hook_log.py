"""The log that all hooks of a diagnosis share."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from fastfeed.steps.recorder import StepLog, StepRecorder
from fastfeed.steps.timeline import Loop, Timeline


class Bursts(Protocol):
    """Steps that get batches which were taken ahead; see `Experiments`."""

    def plan(self, start_s: float, end_s: float) -> None:
        """Plan the bursts over the measured time."""

    def is_due(self, loop: Loop) -> bool:
        """Return True if a burst of this loop is due."""

    def end_burst(self, seconds: float) -> None:
        """Note the end of a burst."""

    def run(self, steps: StepRecorder, get: Callable[[], Any]) -> None:
        """Take batches ahead, if it is worthwhile."""


class HookLog(StepLog):
    """The log of a diagnosis, and other reports of its hooks.

    Once `active` is False, a hook only calls the original. It registers its thread in `waiting`
    around a call that may wait for input. `missing`: what could not be measured, for the report.
    `died`: unexpected ends of the script's threads and processes: when, and a text.
    """

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(timeline)
        self.experiments: Bursts | None = None
        self.main: Loop | None = None  # the loop that is diagnosed, as far as is known
        self.missing: list[str] = []
        self.died: list[tuple[float, str]] = []
        # of threads, by threading.get_ident(): name and traceback
        self.deaths: dict[int, tuple[str, str]] = {}
        # threads whose input comes from other threads or processes
        self.elsewhere: set[int] = set()
        self.ours: set[int] = set()  # threads of the diagnosis itself
        # How many experiments are worthwhile although the loop does not wait: producers may hold
        # the lock, or take the cores.
        self.contended: Callable[[], int] = lambda: 0
        self._broken: set[str] = set()

    def failed(self, what: str, error: BaseException | str) -> None:
        """Note that a hook failed, once for each `what`; the script is not affected."""
        if what not in self._broken:
            self._broken.add(what)
            kind = "" if isinstance(error, str) else f"{type(error).__name__}: "
            self.missing.append(f"{what}: {kind}{error}")

    def saw_death(self, text: str) -> None:
        """Note the unexpected end of a thread or a process."""
        if self.active:
            self.died.append((perf_counter(), text))

    def experiment(self, steps: StepRecorder, take: Callable[[], Any]) -> None:
        if self.experiments is not None:
            self.experiments.run(steps, take)
