"""An observer that prints its calls on stderr, in lines that begin with SAID; and scripts that run
under it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.run.launch import (
    ReportReason,
    ReportRequest,
    WatchPlan,
    run,
)
from fastfeed.steps.timeline import Loop

SAID = "fastfeed-said: "
ROOT = Path(__file__).parents[2]
DRIVER = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from tests.diagnose.observing import main; main({plan!r})"
)


class PrintingObserver:
    """Prints what a diagnosis calls it with."""

    def watch(self, context: HookLog) -> None:
        self.context = context

    def measure(self, start_s: float) -> None:
        self._say({"measure": start_s})

    def only_takes(self, loop: Loop) -> bool:
        return False

    def report(self, request: ReportRequest) -> bool:
        """Report a script without a loop only at the second request."""
        self.asked = getattr(self, "asked", 0) + (request.reason == ReportReason.STEPLESS)
        loop = request.loop
        self._say(
            {
                "report": request.reason.value,
                "loop": None if loop is None else [loop.kind, loop.where, loop.waits, loop.buffer],
                "steps": 0 if loop is None else len(loop.steps),
                "free": 0 if loop is None else sum(step.free for step in loop.steps),
                "marks": [mark.kind for mark in request.timeline.marks],
                "died": [dead.text for dead in request.died],
                "missing": request.missing,
            }
        )
        return request.reason != ReportReason.STEPLESS or self.asked == 2

    @staticmethod
    def _say(what: dict[str, Any]) -> None:
        sys.stderr.write(f"{SAID}{json.dumps(what)}\n")


def main(plan: str) -> None:
    """Run what `fastfeed diagnose -- argv` runs, in a process of its own."""
    del sys.path[0]
    sys.exit(run(sys.argv[1:], plan=WatchPlan(**json.loads(plan)), observer=PrintingObserver()))


def observed(
    *words: str, plan: WatchPlan | None = None, **options: Any
) -> tuple[int, str, str, list[dict[str, Any]]]:
    """Return the exit code, output and errors of a script under observation, and what was
    printed."""
    driver = DRIVER.format(root=str(ROOT), plan=json.dumps(asdict(plan or WatchPlan())))
    code, out, err = ended(sys.executable, "-c", driver, *words, **options)
    lines = err.splitlines(keepends=True)
    said = [json.loads(line.removeprefix(SAID)) for line in lines if line.startswith(SAID)]
    return code, out, "".join(line for line in lines if not line.startswith(SAID)), said


def ended(*command: str, **options: Any) -> tuple[int, str, str]:
    """Return the exit code, the output and the errors of a command."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, **options
    )
    return done.returncode, done.stdout, done.stderr
