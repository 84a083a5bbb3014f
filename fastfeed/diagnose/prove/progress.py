"""What a proof does now, on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fastfeed.jobs.drawing import Terminal


class ProveProgress(Progress):
    """A bar of the time that is spent of the budget, with what runs now; a line for each run where
    there is no terminal."""

    def __init__(self, budget_s: float) -> None:
        console = Terminal(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._begin_s = time.monotonic()
        self._budget_s = budget_s
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._shown = self.add_task("", total=budget_s)
        self.start()

    def tell(self, what: str) -> None:
        """Say what runs now."""
        self.update(self._shown, description=f"trying: {what[:60]}")
        if self.disable:
            spent_s = time.monotonic() - self._begin_s
            self.console.print(f"{spent_s:4.0f} of {self._budget_s:.0f} s: {what}", soft_wrap=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar as it is now."""
        for task in self.tasks:
            task.completed = min(self._budget_s, time.monotonic() - self._begin_s)
        yield from super().get_renderables()

    def close(self) -> None:
        """Remove the bar."""
        self.stop()
