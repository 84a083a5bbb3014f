"""A collector and a publisher that print on stderr, in lines that begin with SAID, how a diagnosis
calls them; and scripts that run under it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from fastfeed.diagnose.evidence import Evidence
from fastfeed.diagnose.evidence_file import Recording
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.run.launch import Launch
from fastfeed.diagnose.run.lifecycle import Lifecycle, WatchPlan
from fastfeed.diagnose.run.script import Script
from fastfeed.probes.machine_log import Machine
from fastfeed.steps.timeline import Loop

SAID = "fastfeed-said: "
ROOT = Path(__file__).parents[2]
DRIVER = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from tests.diagnose.observing import main; main({plan!r})"
)


class Printing:
    """A collector without samples, which finds a loop in them at the second search; and the
    publisher of what it collects."""

    searches = 0

    def watch(self, log: HookLog) -> None:
        """There is nothing to start."""

    def measure(self) -> None:
        self._say({"measure": True})

    def search(self, now_s: float) -> None:
        """There is nothing to search in."""

    def sees_loop(self) -> bool:
        self.searches += 1
        return self.searches > 1

    def only_takes(self, loop: Loop) -> bool:
        return False

    def evidence(self, life: Lifecycle) -> Evidence:
        marks, missing = tuple(life.log.timeline.marks), tuple(life.log.missing)
        times = life.start_s, time.perf_counter()
        return Evidence(life.seen_loop, marks, (), Machine(1), *times, missing=missing)

    def stop(self) -> None:
        self._say({"stop": True})

    def report(self, recording: Recording, *, rank: int | None = None) -> None:
        found = recording.evidence
        loop, steps = found.loop, found.loop.steps if found.loop else []
        self._say(
            {
                "report": recording.script,
                "loop": None if loop is None else [loop.kind, loop.where, loop.waits, loop.buffer],
                "steps": len(steps),
                "marks": [mark.kind for mark in found.marks],
                "died": [dead.text for dead in recording.died],
                "missing": found.missing,
                "short": found.short,
            }
        )

    @staticmethod
    def _say(what: dict[str, Any]) -> None:
        sys.stderr.write(f"{SAID}{json.dumps(what)}\n")


def launched(words: list[str], plan: WatchPlan, *, printing: Printing) -> tuple[Launch, Script]:
    """Return what `fastfeed diagnose -- words` launches, with this collector and publisher."""
    script, both = Script(words), cast(Any, printing)
    return Launch(script, plan=plan, publisher=both, collector=both), script


def main(plan: str) -> None:
    """Run what `fastfeed diagnose -- argv` runs, in a process of its own."""
    del sys.path[0]
    launch, script = launched(sys.argv[1:], WatchPlan(**json.loads(plan)), printing=Printing())
    sys.exit(launch.run(script.run))


def observed(
    *words: str, plan: WatchPlan | None = None, **options: Any
) -> tuple[int, str, str, list[dict[str, Any]]]:
    """Return the exit code, output and errors of a script under observation, and what was
    printed beside them."""
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
