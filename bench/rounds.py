"""Runs measurements in turn, each in a fresh process, and ends whatever a library leaves behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from tqdm import tqdm

from bench.results import RESULT_MARK, Row

ROOT = Path(__file__).resolve().parents[1]
# in the environment of a run and of all its descendants, also of orphans
OWNER = "FASTFEED_BENCH_RUN"
# What the libraries print about themselves.
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GLOG_minloglevel": "3",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass
class Cell:
    """The measurement of one row.

    `spec` is the input of bench/one.py; its value times `scale` is in the row's unit.
    """

    row: Row
    spec: dict[str, Any]
    scale: float = 1.0
    timeout_s: float = 60.0


class RunFailed(Exception):
    """A measurement that gave no figure; the text says why in one line."""


def run_rounds(cells: list[Cell], *, repeats: int) -> None:
    """Every cell once a round, from another one on in each round; the figures go into the cells'
    rows."""
    with tqdm(total=repeats * len(cells), file=sys.stderr, unit="run") as bar:
        for turn in range(repeats):
            shift = turn * len(cells) // repeats
            for cell in cells[shift:] + cells[:shift]:
                bar.set_description(
                    f"{cell.row.table}, {cell.row.peer} x{cell.row.workers}"[:44].ljust(44)
                )
                _one(cell)
                bar.update()


def _one(cell: Cell) -> None:
    if len(cell.row.failed) > 1:  # what failed twice is not waited for again
        return
    try:
        result = run(cell.spec, timeout_s=cell.timeout_s)
    except RunFailed as error:
        cell.row.failed.append(str(error))
        return
    value = result.pop("value")
    cell.row.values.append(cell.scale * value)
    cell.row.more.append(result)


def run(spec: dict[str, Any], *, timeout_s: float) -> dict[str, float]:
    """The result of one measurement in a fresh process; RunFailed if it gives none in time."""
    with started(spec) as measurement:
        try:
            code = measurement.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"no result within {timeout_s:.0f} s") from None
        result = measurement.result()
        if result is None:
            raise RunFailed(f"exit {code}: {measurement.last_words()}")
        return result


@dataclass
class Measurement:
    """A running measurement; `owner` marks its tree. Its output goes to files: orphans would keep a
    pipe open."""

    process: subprocess.Popen[bytes]
    owner: str
    out: Path
    errors: Path

    def result(self) -> dict[str, float] | None:
        lines = [
            line
            for line in self.out.read_text(errors="replace").splitlines()
            if line.startswith(RESULT_MARK)
        ]
        return json.loads(lines[-1].removeprefix(RESULT_MARK)) if lines else None

    def last_words(self) -> str:
        """The last line on stderr that is the name of an error, else the last one at all."""
        said = [
            line for line in self.errors.read_text(errors="replace").splitlines() if line.strip()
        ] or ["nothing"]
        named = [
            line
            for line in said
            if re.match(r"[\w.]*(Error|Exception|Failed|Timeout|Stopped)\b", line)
        ]
        return (named or said)[-1][:200]


@contextmanager
def started(spec: dict[str, Any]) -> Iterator[Measurement]:
    """A measurement under way in a fresh process; its whole tree is ended at the end."""
    owner = uuid.uuid4().hex
    paths = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    environment = QUIET | os.environ | {OWNER: owner, "PYTHONPATH": paths}
    command = [*own_shared_memory(), sys.executable, "-m", "bench.one", json.dumps(spec)]
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        with out.open("wb") as o, errors.open("wb") as e:
            process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=o, stderr=e)
        try:
            yield Measurement(process, owner, out, errors)
        finally:
            end_all(owner)
            process.wait()


@cache
def own_shared_memory() -> tuple[str, ...]:
    """The beginning of a command that gives a run a /dev/shm of its own, which vanishes with it;
    empty if refused."""
    mount = 'mount -t tmpfs -o size=100% tmpfs /dev/shm && exec "$@"'
    for unshare in (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user")):
        command = (*unshare, "sh", "-c", mount, "sh")
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], capture_output=True).returncode == 0
        ):
            return command
    return ()


def tree_of(owner: str) -> list[psutil.Process]:
    """Every living process of a run, by its environment: also those whose parents have ended."""
    return [p for p in psutil.process_iter() if _belongs(p, owner)]


def _belongs(process: psutil.Process, owner: str) -> bool:
    try:
        return process.environ().get(OWNER) == owner and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end_all(owner: str) -> None:
    """Kill a run's processes until none is left: some libraries replace processes that die."""
    end = time.monotonic() + 10
    while (left := tree_of(owner)) and time.monotonic() < end:
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=1)
