"""Runs of a script in copies of its folder, each in a session of its own: what one says."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from fastfeed.diagnose.evidence_file import Recording, read_evidence
from fastfeed.diagnose.patches.call_site import CallSite
from fastfeed.diagnose.patches.source_file import Edit
from fastfeed.diagnose.prove.digests import COMPARED_BATCHES, Digests
from fastfeed.diagnose.prove.gains import NO_PACE, Pace, pace_of
from fastfeed.diagnose.prove.own_files import OwnFiles
from fastfeed.diagnose.prove.process_session import run_session
from fastfeed.diagnose.prove.trial_run import (
    BATCHES,
    CALLS,
    DIAGNOSE,
    EVIDENCE,
    RATE,
    RESULT,
)
from fastfeed.diagnose.prove.workspace import Run, Workspace
from fastfeed.diagnose.prove.write_guard import WriteGuard
from fastfeed.errors import OptionError

# The working folder may hold one that is called fastfeed, such as a clone. The first entry becomes
# the folder of the script.
RUN_MAIN = (
    "import os, sys; sys.path[0] = os.devnull; "
    "from fastfeed.diagnose.prove.trial_run import main; main()"
)
LEAST_STEPS = 5  # that give a rate
OUTPUT = "output.log"
ENDS_IN_S = 45.0  # beside its seconds, for imports, a first step and the end
CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^\n]*\r")  # of progress bars
KEPT_LINES = 12  # of its output, for a run that failed


@dataclass(frozen=True)
class Result:
    """What a run said. `failed`: why there are no figures, with the end of its output; `early`: a
    longer run may have some; `items`: of a callable's stream; `waiting`: share of the steps' time
    that is a wait for input, None if that was not seen."""

    pace: Pace = NO_PACE
    failed: str = ""
    early: bool = False
    digests: Digests = field(default_factory=Digests)
    items: Digests = field(default_factory=Digests)
    waiting: float | None = None


class Seen(NamedTuple):
    """What a diagnosis saw: the calls that made what, and the files that the script imported."""

    recording: Recording
    calls: list[CallSite]
    files: frozenset[str]


class Trials:
    """Runs of one script, one at a time, until `end_s` (time.monotonic); a diagnosis is watched for
    `seconds`; the first `most_batches` of a run get checksums."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        seconds: float,
        end_s: float,
        start_s: float = ENDS_IN_S,
        most_batches: int = COMPARED_BATCHES,
    ) -> None:
        self._workspace = workspace
        self.end_s = end_s
        self.seconds = seconds
        self.start_s = start_s  # what a run takes beside its seconds: the mean of `_starts`
        self._starts: list[float] = []
        self._most_batches = most_batches
        self._usual: int | None = 0  # exit code

    def diagnose(self, *, warmup: float, edits: Iterable[Edit] = ()) -> Seen | str:
        """Diagnose the original, or a copy with edits that move no line.

        Return what was seen; or why there is nothing.
        """
        run = self._workspace.copy(edits)
        failed, code = self._execute(run, DIAGNOSE, seconds=self.seconds, warmup=warmup)
        path = run.folder / EVIDENCE
        if not path.exists():
            return failed or _unseen(run, "the script")
        original = functools.partial(self._workspace.original, run)
        made, files = json.loads((run.folder / CALLS).read_text())
        calls = [
            one._replace(
                file=original(one.file), about=tuple((key, value) for key, value in one.about)
            )
            for one in (CallSite(*each) for each in made)
        ]
        found = read_evidence(path)
        run.remove()
        if failed and found.evidence.loop is None:
            return failed
        self._usual = code  # of the script as it is, which may end by itself
        return Seen(found, calls, frozenset(map(original, files)))

    def rate(self, edits: Iterable[Edit], *, seconds: float, warmup: float) -> Result:
        """Measure the steps/s of the script with edits."""
        return self._result(edits, RATE, seconds=seconds, warmup=warmup)

    def batches(
        self, edits: Iterable[Edit], *, seconds: float, purpose: str = BATCHES, epoch: int = 0
    ) -> Result:
        """Take the checksums of the first batches of the script with edits. `purpose`: BATCHES,
        RESEEDED or REORDERED; `epoch`: batches of an epoch at most, where it can be shortened."""
        return self._result(edits, purpose, seconds=seconds, warmup=0.0, epoch=epoch)

    def _result(
        self, edits: Iterable[Edit], purpose: str, *, seconds: float, warmup: float, epoch: int = 0
    ) -> Result:
        try:
            run = self._workspace.copy(edits)
        except (OptionError, SyntaxError) as error:
            return Result(failed=f"it cannot be combined: {error}")
        except OSError as error:
            return Result(failed=f"the folder of the script could not be copied: {error}")
        try:
            failed, code = self._execute(run, purpose, seconds=seconds, warmup=warmup, epoch=epoch)
            path = run.folder / RESULT
            if not path.exists():
                return Result(failed=failed or _unseen(run, "it"))
            found: dict[str, Any] = json.loads(path.read_text())
        finally:
            run.remove()
        digests, ends = Digests.of_json(found["batches"]), found["ends"]
        if found["died"]:
            return Result(failed=found["died"][0])
        # The watch ends a run without an error; one that does not end has been seen, too.
        if failed and (not ends or code not in (None, self._usual)):
            return Result(failed=failed)
        if found["unused"]:
            names = ", ".join(os.path.basename(one) for one in found["unused"])
            return Result(failed=f"{names}: the script did not import the changed copy of it")
        if purpose == RATE and (len(ends) < LEAST_STEPS or ends[-1] <= ends[0]):
            what = f"{len(ends)} steps in {seconds:.3g} s after the warm-up: too few for a rate"
            return Result(failed=what, early=True)
        pace = pace_of(ends) if purpose == RATE else NO_PACE
        items = Digests.of_json(found["items"])
        return Result(pace, digests=digests, items=items, waiting=found["waiting"])

    def _execute(
        self, run: Run, purpose: str, *, seconds: float, warmup: float, epoch: int = 0
    ) -> tuple[str, int | None]:
        """Run the script; return why it failed, "" if it did not, and its exit code, None if it was
        ended. Nothing of it goes on."""
        bounds = self._workspace.bounds(run)
        guard = WriteGuard(OwnFiles(bounds))
        settings = {
            "guard": guard.descriptor,
            "bounds": bounds,
            "purpose": purpose,
            "seconds": seconds,
            "warmup": warmup,
            "most_batches": self._most_batches,
            "epoch": epoch,
            "folder": str(run.folder),
            "moved": run.moved,
            "edited": run.edited,
            "parent": os.getpid(),
        }
        log = run.folder / OUTPUT
        stdin = self._workspace.stdin
        with closing(guard), log.open("wb") as output, stdin.open("rb") as given:
            limit_s = seconds + 2 * self.start_s + ENDS_IN_S
            begin_s = time.monotonic()
            limit_s = max(1.0, min(limit_s, self.end_s - begin_s))
            code = run_session(
                [sys.executable, "-c", RUN_MAIN, json.dumps(settings), *run.script],
                limit_s=limit_s,
                env=run.environment,
                cwd=run.cwd,
                stdin=given,
                stdout=output,
                stderr=output,
                pass_fds=[guard.descriptor],
            )
            beside_s = time.monotonic() - begin_s - seconds
        if not guard.is_asked:
            self._workspace.check()
        if code is not None and beside_s > 0:
            self._starts.append(beside_s)
            self.start_s = mean(self._starts)
        if code is None:
            return f"it was ended after {limit_s:.0f} s without a result", code
        words = guard.refused or _last_words(log) or "it ended with an error, and without a word"
        return words if code else "", code


def _unseen(run: Run, what: str) -> str:
    """Return that a run ended well and has nothing to say, with the end of its output."""
    words = _last_words(run.folder / OUTPUT)
    return f"{what} ended before its training was seen; its last lines: {words or 'none'}"


def _last_words(log: Path) -> str:
    """Return the end of a run's output."""
    text = CONTROLS.sub("", log.read_text(errors="replace"))
    lines = [line.rstrip() for line in text.split("\n") if line.strip()]
    return "\n".join(lines[-KEPT_LINES:])
