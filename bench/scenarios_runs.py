"""Runs of a scenario, alone or under the diagnosis, one at a time and each in its own session."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.scenarios.labels import LABELS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "scenarios"
START_S = 60.0  # imports, compilations, and the end
BESIDE_S = 15.0  # a script under diagnosis runs longer than the diagnosis looks
FASTFEED = (sys.executable, "-c", "from fastfeed.cli import main; main()")
SAID = (
    *(
        "schema",
        "verdict",
        "headline",
        "causes",
        "starvation",
        "steps_per_second",
        "step_seconds",
        "overhead",
    ),
    *(
        "speedup_if_input_free",
        "speedup_range",
        "recommendations",
        "abstained",
        "not_measured",
        "figures",
        "ceiling",
    ),
)


class Failed(Exception):
    """A run without figures; the text says why in one line."""


def truth_of(
    name: str, *, seconds: float, repeats: int, midway: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Return the medians of every variant that ends, from interleaved rounds.

    For the slow variant the starvation and speed-ups are added. `midway` is called once, between
    the rounds, so that a drift of the machine's speed affects both.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for turn in range(repeats):
        for variant in LABELS[name].variants:
            found.setdefault(variant, []).append(plain(name, variant, seconds=seconds))
        if turn == (repeats - 1) // 2:
            midway()
    return summary(found)


def summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the truth from the runs of each variant; ratios are medians of those in a round."""
    truth: dict[str, Any] = {variant: _middle(runs) for variant, runs in found.items()}
    if "slow" not in truth:
        return truth
    free, fixed = (_ratio(truth[kind]["all"], truth["slow"]["all"]) for kind in ("free", "fixed"))
    # A loop that sees its waits measures them, or does so in a variant that makes them visible.
    # Otherwise waiting is the time that the step alone does not explain.
    seen = truth.get("seen", truth["slow"])["starvation"]
    truth["starvation"] = max(0.0, 1 - 1 / free) if seen is None else seen
    truth["starvation_by"] = "the step alone" if seen is None else "the loop's own clock"
    truth["speedup_if_input_free"], truth["speedup_if_fixed"] = free, fixed
    return truth


def _ratio(rates: list[float], to: list[float]) -> float:
    return statistics.median(rate / other for rate, other in zip(rates, to, strict=True))


def _middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [run["steps_per_second"] for run in runs]
    waits = [run["starvation"] for run in runs if run["starvation"] is not None]
    return {
        "steps_per_second": statistics.median(rates),
        "all": rates,
        "starvation": statistics.median(waits) if waits else None,
    }


def plain(name: str, variant: str, *, seconds: float) -> dict[str, Any]:
    """Run a script and return the figures that it prints."""
    script = [str(FOLDER / f"{name}.py"), "--variant", variant, "--seconds", f"{seconds:g}"]
    code, out, errors = _run([sys.executable, *script], limit_s=seconds + START_S)
    return last_line(out, f"{name} {variant}: exit {code}: {_last_words(errors)}")


def diagnose(name: str, *, seconds: float, evidence: Path | None = None) -> dict[str, Any]:
    """Run `fastfeed diagnose` on the slow variant, and return the main fields of its answer.

    Its evidence is written to NAME.json.gz in the folder `evidence`.
    """
    options = ["--stop"]
    if evidence is not None:
        evidence.mkdir(parents=True, exist_ok=True)
        options += ["--evidence", str(evidence.resolve() / f"{name}.json.gz")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "diagnosis.json"
        code, _, errors = _diagnose(name, path, *options, seconds=seconds)
        if not path.exists():
            raise Failed(f"{name}: no diagnosis: exit {code}: {_last_words(errors)}")
        said: dict[str, Any] = json.loads(path.read_text())
    return {key: said[key] for key in SAID if key in said}


def slowed(name: str, *, seconds: float, pairs: int) -> float:
    """Return the share by which diagnosis slows the slow variant.

    It is the median of pairs of runs, one after the other.
    """
    shares = []
    for _ in range(pairs):
        alone = plain(name, "slow", seconds=seconds + BESIDE_S)["steps_per_second"]
        with tempfile.TemporaryDirectory() as folder:
            code, out, errors = _diagnose(name, Path(folder) / "diagnosis.json", seconds=seconds)
        watched = last_line(out, f"{name}, watched: exit {code}: {_last_words(errors)}")[
            "steps_per_second"
        ]
        shares.append(1 - watched / alone)
    return statistics.median(shares)


def _diagnose(name: str, path: Path, *options: str, seconds: float) -> tuple[int, str, str]:
    script = [
        str(FOLDER / f"{name}.py"),
        "--variant",
        "slow",
        "--seconds",
        f"{seconds + BESIDE_S:g}",
    ]
    command = [
        *FASTFEED,
        "diagnose",
        "--seconds",
        f"{seconds:g}",
        "--json",
        str(path),
        *options,
        "--",
        *script,
    ]
    return _run(command, limit_s=seconds + BESIDE_S + START_S)


def _run(command: list[str], *, limit_s: float) -> tuple[int, str, str]:
    """Run a command in its own session and folder; return its exit code, output and errors."""
    with tempfile.TemporaryDirectory(dir=on_disk()) as folder:
        return run_in(folder, command, limit_s=limit_s)


def run_in(folder: str, command: list[str], *, limit_s: float) -> tuple[int, str, str]:
    """Run a command in its own session in a folder; return its exit code, output and errors.

    The whole session is killed at the limit, and the rest of it at the end.
    """
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as o, tempfile.TemporaryFile() as e:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=o, stderr=e, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            _end(process)
        return code, _text(o), _text(e)


def on_disk() -> str:
    """Return a folder on a real disk for files of scripts; temporary folders may be in memory."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    return str(folder)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # nothing is left of the session
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def last_line(out: str, failure: str) -> dict[str, Any]:
    """Return the figures of the last line with some; raise Failed with `failure` without any."""
    found = _own_figures(out)
    if found is None:
        raise Failed(failure)
    return found


def _own_figures(out: str) -> dict[str, Any] | None:
    lines = [line for line in out.splitlines() if line.startswith('{"variant"')]
    return json.loads(lines[-1]) if lines else None


def _last_words(errors: str) -> str:
    return ([line.strip() for line in errors.splitlines() if line.strip()] or ["nothing said"])[-1][
        :160
    ]
