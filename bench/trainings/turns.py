"""One run of a form in a fresh process, whose memory is read from outside."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import psutil

from bench.rounds import started

LIMIT_S = 900.0
SAMPLE_S = 0.5  # between two readings of the memory
MB = 1e6


def measured(training: str, form: str, *, quick: bool, seed: int = 0) -> dict[str, Any]:
    """Return the figures of a run, or why there are none as "failed"."""
    cell = {"measure": "one_run", "training": training, "form": form, "quick": quick, "seed": seed}
    load = os.getloadavg()[0]
    with started(cell) as run:
        peak = _peak_memory(run.process)
        result = run.result()
        if result is not None:
            return {**result, "memory_mb": peak / MB, "load": load}
        if run.process.poll() is None:
            return {"failed": f"no result within {LIMIT_S:.0f} s", "load": load}
        return {"failed": run.last_words(), "load": load}


def _peak_memory(process: subprocess.Popen[bytes]) -> int:
    """Return the most memory of a process and its descendants until it ends, shared pages counted
    once; wait for at most LIMIT_S."""
    peak, end_s = 0, time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        try:
            process.wait(SAMPLE_S)
            break
        except subprocess.TimeoutExpired:
            peak = max(peak, memory_of(process.pid))
    return peak


def memory_of(pid: int) -> int:
    """Return the bytes of a process and its descendants (proportional set size)."""
    total = 0
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for one in tree:
        try:
            total += one.memory_full_info().pss
        except (psutil.Error, OSError):  # it has ended since it was listed
            continue
    return total
