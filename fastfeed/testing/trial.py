"""One sink on trial with one kind of producers: shared helpers of the scenes, and the findings."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastfeed.runner.runner import FeedRunner
from fastfeed.testing.guard import CLEANUP_LIMIT_S, Hung, resources, run_within, until
from fastfeed.testing.promises import Finding, SinkTraits
from fastfeed.testing.verdict import ReceivedElement, received

HANG_HINTS = {
    "fast consumer": (
        "\nIf the sink needs batches beyond the one that it hands out, declare SinkTraits(ahead=1)"
    )
}
Open = Callable[[FeedRunner], Iterable[Any]]


@dataclass
class Trial:
    """State of the battery for one sink; `open` makes the sink of a runner.

    `current` is the promise that an exception or a hang would break now.
    """

    open: Open
    to_numpy: Callable[[Any], Any] | None
    traits: SinkTraits
    limit_s: float
    options: Mapping[str, Any]  # of every runner
    processes: int = 0
    current: str = "structure"
    # `current` at the time of the hang, because the scene continues once it is unblocked
    hung: str = ""
    checked: dict[str, None] = field(default_factory=dict)  # used as an ordered set
    findings: list[Finding] = field(default_factory=list)
    runners: list[FeedRunner] = field(default_factory=list)  # of the running scene
    unblock: Callable[[], None] = lambda: None  # releases producers that the scene blocks
    error: BaseException | None = None  # an unexpected exception

    def use_processes(self, count: int) -> None:
        """Use so many worker processes, or producer threads for 0, in the next scenes."""
        self.processes = count

    def begin(self, promise: str) -> None:
        """Set the promise that the scene checks now."""
        self.current = promise

    def unblock_with(self, unblock: Callable[[], None]) -> None:
        """Set what releases the producers that the scene blocks."""
        self.unblock = unblock

    def play(self, scene: Callable[[Trial], None]) -> bool:
        """Run a scene under the limit; return True if the next one may follow.

        No scene can run after a hang.
        """
        before = resources()
        try:
            run_within(self.limit_s, lambda: scene(self), unblock=self._give_up)
        except Hung as hang:
            hint = HANG_HINTS.get(self.hung, "")
            self.add_finding("no hang", f"while checking {self.hung!r}: {hang}{hint}")
            return False
        except Exception as error:  # the sink raised where no error was due
            self.add_finding(self.current, "".join(traceback.format_exception(error)).rstrip())
            self.error = error
            return False
        finally:
            self._end()
        if "nothing left" not in [f.promise for f in self.findings]:  # once is enough
            until(lambda: resources() <= before, CLEANUP_LIMIT_S)
            self.judge("nothing left", ", ".join(sorted(resources() - before)))
        return True

    def runner(self, source: Any, **options: Any) -> FeedRunner:
        """Return a runner with this trial's producers, for `with`."""
        runner = FeedRunner(source, **{"processes": self.processes, **self.options, **options})
        self.runners.append(runner)
        return runner

    def take(self, iterator: Iterator[Any]) -> ReceivedElement | None:
        """Return a copy of the next element, or None at the end."""
        for element in iterator:
            return self.copy(element)
        return None

    def copy(self, element: Any) -> ReceivedElement:
        """Return a copy of an element's current content."""
        return received(element, self.to_numpy)

    def judge(self, promise: str, happened: str) -> None:
        """Note that a promise was checked, and what happened instead, if it was broken."""
        self.checked[promise] = None
        if happened:
            self.add_finding(promise, happened)

    def add_finding(self, promise: str, happened: str) -> None:
        """Note a broken promise; only its first failure is kept, which is the most informative."""
        producers = "process producers" if self.processes else "thread producers"
        if all((f.promise, f.producers) != (promise, producers) for f in self.findings):
            self.findings.append(Finding(promise, producers, happened))

    def still_lent(self, runner: FeedRunner) -> str:
        """Describe the batches that are still lent although all elements are gone, if any.

        Producer threads lend no memory.
        """
        if until(lambda: runner.snapshot().slots.lent == 0, CLEANUP_LIMIT_S):
            return ""
        return f"{runner.snapshot().slots.lent} batches are still lent ({runner.snapshot().slots})"

    def _give_up(self) -> None:
        self.hung = self.current
        self.unblock()
        self._end()

    def _end(self) -> None:
        for runner in self.runners:
            runner.stop()
        self.runners.clear()
