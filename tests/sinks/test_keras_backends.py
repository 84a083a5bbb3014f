"""What holds for Keras on TensorFlow holds on PyTorch and JAX: the same tests, in a process of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "torch": ("test_keras_fit.py", "test_keras_refusals.py"),
    "jax": ("test_keras_fit.py", "test_keras_callback.py"),
}

pytest.importorskip("keras")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("backend", FILES)
def test_the_other_backends(backend: str) -> None:
    pytest.importorskip(backend, reason=f"pip install {backend}")
    files = [str(Path(__file__).parent / file) for file in FILES[backend]]
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    # most of the time is JAX's compiler
    changed = {"KERAS_BACKEND": backend, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(program, env={**os.environ, **changed}, cwd=ROOT, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 20
