"""One sink on trial with one kind of producers: what every scene needs, and the findings."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastfeed.runner.runner import FeedRunner
from fastfeed.testing.guard import GONE_S, Hung, belongings, until, within
from fastfeed.testing.promises import Finding, SinkTraits
from fastfeed.testing.verdict import ReceivedElement, seen

HINTS = {
    "fast "
    "consumer": "\nA sink that needs batches beyond the one that it gives says so: SinkTraits(ahead=1)"
}
Open = Callable[[FeedRunner], Iterable[Any]]


@dataclass
class Trial:
    """A sink on trial: `open` makes the sink of a runner. `doing` is the promise that an exception
    or a hang would break now."""

    open: Open
    to_numpy: Callable[[Any], Any] | None
    traits: SinkTraits
    limit_s: float
    options: Mapping[str, Any]  # of every runner
    processes: int = 0
    doing: str = "structure"
    hung: str = ""  # what it was doing when it hung: it continues when it is unblocked
    checked: dict[str, None] = field(default_factory=dict)  # ordered, each once
    findings: list[Finding] = field(default_factory=list)
    runners: list[FeedRunner] = field(default_factory=list)  # of the present scene
    unblock: Callable[[], None] = lambda: None  # releases producers that the scene holds back
    error: BaseException | None = None  # an unexpected exception

    def play(self, scene: Callable[[Trial], None]) -> bool:
        """Run a scene under the limit; return True if the next one may follow: nothing runs after a
        hang."""
        before = belongings()
        try:
            within(self.limit_s, lambda: scene(self), unblock=self._give_up)
        except Hung as hang:
            hint = HINTS.get(self.hung, "")
            self.broken("no hang", f"while {self.hung!r} was checked, {hang}{hint}")
            return False
        except Exception as error:  # any exception of the sink where none is expected
            self.broken(self.doing, "".join(traceback.format_exception(error)).rstrip())
            self.error = error
            return False
        finally:
            self._end()
        # one wait without result is enough
        if "nothing left" not in [f.promise for f in self.findings]:
            until(lambda: belongings() <= before, GONE_S)
            self.judge("nothing left", ", ".join(sorted(belongings() - before)))
        return True

    def runner(self, source: Any, **options: Any) -> FeedRunner:
        """Return a runner with this trial's producers, for `with`."""
        made = FeedRunner(source, **{"processes": self.processes, **self.options, **options})
        self.runners.append(made)
        return made

    def take(self, iterator: Iterator[Any]) -> ReceivedElement | None:
        """Return a copy of the next element; None at the end."""
        for element in iterator:
            return self.copy(element)
        return None

    def copy(self, element: Any) -> ReceivedElement:
        """Return what an element holds now."""
        return seen(element, self.to_numpy)

    def judge(self, promise: str, happened: str) -> None:
        """Note that a promise was checked, and what happened instead, if anything did."""
        self.checked[promise] = None
        if happened:
            self.broken(promise, happened)

    def broken(self, promise: str, happened: str) -> None:
        """Note a promise that was not kept; the first time says most."""
        producers = "process producers" if self.processes else "thread producers"
        if all((f.promise, f.producers) != (promise, producers) for f in self.findings):
            self.findings.append(Finding(promise, producers, happened))

    def all_given_back(self, runner: FeedRunner) -> str:
        """Return what is still lent when no element is referenced; thread producers lend
        nothing."""
        if until(lambda: runner.snapshot().slots.lent == 0, GONE_S):
            return ""
        return f"{runner.snapshot().slots.lent} batches are still lent ({runner.snapshot().slots})"

    def _give_up(self) -> None:
        self.hung = self.doing
        self.unblock()
        self._end()

    def _end(self) -> None:
        for runner in self.runners:
            runner.stop()
        self.runners.clear()
