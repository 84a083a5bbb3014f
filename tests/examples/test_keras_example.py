"""fit() learns from the workers' batches, on TensorFlow and on another backend, and reports its
starvation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_it_learns_and_tells_its_starvation(backend: str) -> None:
    pytest.importorskip("keras")
    pytest.importorskip(backend)
    program = [
        sys.executable,
        "-W",
        "error:::__main__",
        str(ROOT / "examples" / "keras_fit.py"),
        "--epochs",
        "2",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    line = r"epoch {}: test accuracy (\d\.\d{{3}}), starvation (\d+\.\d)%, \d+ batches lay ready"
    found = [
        re.fullmatch(line.format(n), text) for n, text in enumerate(done.stdout.splitlines(), 1)
    ]
    assert len(found) == 2
    assert float(found[1][1]) > 0.5, "guessing gives 0.1"
    assert all(0 <= float(match[2]) <= 100 for match in found)
