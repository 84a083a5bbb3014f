"""The loops over a tf.data.Dataset learn from their batches, as programs of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("tensorflow")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "line"),
    [
        ("custom_loop.py", r"epoch (\d): loss (\d\.\d{3}), waiting for input \d+%"),
        ("tf_distribute.py", r"epoch (\d): 32 steps, loss (\d\.\d{3})"),
    ],
)
def test_the_loss_falls(example: str, line: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    program = [sys.executable, "-W", "error:::__main__", str(ROOT / "examples" / example)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = [re.fullmatch(line, text) for text in done.stdout.splitlines()]
    assert all(found) and [int(match[1]) for match in found] == list(range(5))
    assert float(found[-1][2]) < float(found[0][2]) - 0.1
