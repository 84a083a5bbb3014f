"""Runs of a public script: for its truth, and under the diagnosis."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.public.prepare import Prepared
from bench.scenarios_runs import SAID
from fastfeed.diagnose.prove.gains import pace_of

START_S = float(os.environ.get("START_S", 30.0))  # imports and compilations
GRACE_S = 30.0  # a report is due that long after the time it was given
KEPT = (*SAID, "lost_to_input", "loop", "doubt")
CONTROLS = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x1f|]+")  # of progress bars
FASTFEED = (sys.executable, "-c", "from fastfeed.cli import main; main()")


class RunFailed(Exception):
    """A run without figures; the text says why in one line."""


class Disturbed(Exception):
    """A run beside which other processes took too much of the machine."""


def rate(prepared: Prepared, *, seconds: float, warmup: float) -> dict[str, Any]:
    """Return the steps/s that a prepared script counts after its warm-up."""
    out = prepared.folder
    code, errors, _ = execute(
        [sys.executable, *prepared.script], prepared, seconds + warmup + START_S
    )
    root = Path(json.loads(Path(prepared.environment["PUBLIC_SETTINGS"]).read_text())["out"])
    tallies = sorted(root.parent.glob(f"{root.name}.*[0-9]"))
    read = [json.loads(path.read_text()) for path in tallies]
    found = [one["times"] for one in read]
    found = [times for times in found if len(times) > 1 and times[-1] - times[0] > seconds / 2]
    if not found:
        raise RunFailed(f"{out}: exit {code}: {errors}")
    paces = [pace_of(times) for times in found]
    return {
        "steps_per_second": sum(one.rate(one.long_s) for one in paces),
        "pauses": max(len(one.pauses(one.long_s)) for one in paces),
        "foreign": max(one["foreign"] or 0.0 for one in read),
    }


def diagnose(
    prepared: Prepared, *, seconds: float, evidence: Path, anonymous: bool = False
) -> dict[str, Any]:
    """Run `fastfeed diagnose --stop`; return its answer, and the seconds that the run took."""
    evidence.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "diagnosis.json"
        options = ["--stop", "--json", str(path), "--evidence", str(evidence)]
        options += ["--anonymous"] if anonymous else []
        command = [*FASTFEED, "diagnose", "--seconds", f"{seconds:g}", *options, "--"]
        before, own = _spent()
        code, errors, took = execute(
            [*command, *prepared.script], prepared, seconds + START_S + GRACE_S
        )
        after, own_after = _spent()
        if not path.exists():
            raise RunFailed(f"no diagnosis within {took:.0f} s: exit {code}: {errors}")
        said = json.loads(path.read_text())
        foreign = (after - before - own_after + own) / took
        return {
            "took_s": took,
            "foreign": foreign,
            **{key: said[key] for key in KEPT if key in said},
        }


def _spent() -> tuple[float, float]:
    """Return CPU seconds of the machine, and of the children of this process that have ended."""
    times = psutil.cpu_times()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    idle = times.idle + getattr(times, "iowait", 0.0)
    return sum(times) - idle - times.guest, children.ru_utime + children.ru_stime


def execute(command: Sequence[str], prepared: Prepared, limit_s: float) -> tuple[int, str, float]:
    """Run a command in its own session; return exit code, its last words and seconds.

    The whole session is killed at the limit, and the rest of it at the end.
    """
    environment = {**os.environ, **prepared.environment}
    begin = time.monotonic()
    with (prepared.folder / "output.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=prepared.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            with suppress(ProcessLookupError):  # nothing is left of the session
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = (prepared.folder / "output.log").read_text(errors="replace").split("\n")
    shown = [CONTROLS.sub(" ", line).strip() for line in lines]
    words = ([line for line in shown if line] or ["nothing said"])[-1]
    return code, words[-200:], time.monotonic() - begin
