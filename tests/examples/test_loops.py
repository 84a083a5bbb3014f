"""The loops of PyTorch and JAX learn from their batches, as programs of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_loss_falls_and_the_wait_is_told(framework: str) -> None:
    pytest.importorskip(framework, reason=f"pip install {framework}")
    program = [
        sys.executable,
        "-W",
        "error:::__main__",
        str(ROOT / "examples" / f"{framework}_loop.py"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    first, second, wait = done.stdout.splitlines()
    losses = [
        float(re.fullmatch(rf"epoch {n}: 200 steps, loss (\d\.\d{{3}})", line)[1])
        for n, line in ((1, first), (2, second))
    ]
    assert losses[1] < losses[0] and losses[1] < 1, "guessing gives 2.3"
    assert re.fullmatch(r"waited for input \d+\.\d% of the time", wait)
