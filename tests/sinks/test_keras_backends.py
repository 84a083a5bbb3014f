"""The tests of Keras on TensorFlow, run on PyTorch and JAX in separate processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOKS = "../diagnose/any_backend.py"
FILES = {
    "torch": ("test_keras_fit.py", "test_keras_refusals.py", HOOKS),
    "jax": ("test_keras_fit.py", "test_keras_callback.py", HOOKS),
}
KEEPS_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}

pytest.importorskip("keras")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("backend", FILES)
def test_the_other_backends(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend, reason=f"pip install {backend}")
    files = [str(Path(__file__).parent / file) for file in FILES[backend]]
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    # most of the time is JAX's compiler, which meets the same models again and again
    quick = {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        **KEEPS_ALL,
    }
    env = {**os.environ, "KERAS_BACKEND": backend, **quick}
    done = subprocess.run(program, env=env, cwd=ROOT, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 20
