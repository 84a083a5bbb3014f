"""The example of a sink of one's own runs, and its sink keeps the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fastfeed.testing import PROMISES

ROOT = Path(__file__).parents[2]


def test_the_sink_of_the_example_keeps_every_promise() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error:::__main__"}
    program = [sys.executable, str(ROOT / "examples" / "own_sink.py")]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    right, kept = done.stdout.splitlines()
    assert right == "the sum of all squares is right: True"
    assert set(kept.removeprefix("the sink keeps its promises: ").split(", ")) == set(PROMISES) - {
        "no hang"
    }
