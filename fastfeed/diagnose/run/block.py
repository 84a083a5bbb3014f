"""Diagnosis of a block of a script or notebook: `with fastfeed.diagnose() as report`."""

from __future__ import annotations

import io
import sys
from html import escape
from pathlib import Path
from typing import Any

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.run.launch import Launch
from fastfeed.diagnose.run.lifecycle import WatchPlan
from fastfeed.diagnose.run.publisher import Publisher
from fastfeed.diagnose.run.script import in_feed
from fastfeed.errors import StateError
from fastfeed.steps.recorder import site_of

NEVER_DEAD_S = 1e9  # a process that goes on after the block is not ended because its feed is dead
PAGE_FRAME = 'style="width:100%;height:800px;border:0" sandbox=""'  # in a notebook


class BlockDiagnosis:
    """Diagnosis of what runs in a `with` block, finished when the block has ended.

    `print(report)` shows what `fastfeed diagnose` prints, a notebook shows the page, `json()` has
    the values of `--json`. The first `seconds` from the first step on are observed, of which
    `warmup` are not measured; the rest of the block runs as without a diagnosis. An exception
    passes through the block. Raise OptionError for a bad option.
    """

    def __init__(
        self, *, seconds: float = 20.0, warmup: float = 2.0, experiments: bool = True
    ) -> None:
        self._plan = WatchPlan(seconds, warmup, experiments=experiments, dead_s=NEVER_DEAD_S)
        self._found: Diagnosis | None = None
        self.name = ""  # of the block, in the report
        self.crashed = self.crashed_in_feed = False

    def __enter__(self) -> BlockDiagnosis:
        """Install the hooks. Raise OptionError if this process is under diagnosis already."""
        self.name = site_of(sys._getframe(1))
        launch = Launch(self, plan=self._plan, publisher=Publisher(self._keep))
        launch.begin()
        self._launch = launch
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.crashed = error is not None
        # Ctrl-C comes while the loop waits, and ends the producers, too
        self.crashed_in_feed = isinstance(error, Exception) and in_feed(error)
        try:
            self._launch.finish()
        finally:
            self._launch.close()

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis. Raise StateError while there is none."""
        if self._found is None:
            raise StateError("there is no diagnosis yet: it is finished when the block has ended")
        return self._found

    def json(self) -> dict[str, Any]:
        """Return the values of `fastfeed diagnose --json`. Raise StateError as `diagnosis` does."""
        from fastfeed.diagnose.report.json import json_of

        return json_of(self.diagnosis)

    def __str__(self) -> str:
        from fastfeed.diagnose.report.terminal import WIDEST, render
        from fastfeed.jobs.drawing import Terminal

        if self._found is None:
            return f"{type(self).__name__} without a report: it is made when the block has ended"
        text = io.StringIO()
        Terminal(file=text, width=WIDEST, color_system=None).print(render(self._found), crop=False)
        return text.getvalue().rstrip("\n")

    def _repr_html_(self) -> str | None:
        """Return the page in a frame, for a notebook; None, for the text, while there is none."""
        from fastfeed.diagnose.report.html import text_of as page_of

        if self._found is None:
            return None
        page = "".join(page_of(self._found))
        return f'<iframe srcdoc="{escape(page)}" {PAGE_FRAME}></iframe>'

    def _keep(self, diagnosis: Diagnosis, written: list[Path]) -> None:
        self._found = diagnosis
