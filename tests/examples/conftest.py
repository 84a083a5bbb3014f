"""Examples as programs of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 600  # of a hang; TensorFlow alone takes a minute to start on a busy machine
Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs an example and returns its stdout and stderr.

    The machine has no MNIST, and every warning of an example's own is an error. `by` are arguments
    of Python before the script, `code` is the expected exit code. Whatever it started ends in time.
    """
    kept = {k: v for k, v in os.environ.items() if k not in ("FASTFEED_DATA", "RANK")}
    changed = {"KERAS_HOME": str(tmp_path / "keras"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    paths = {"PYTHONPATH": f"{ROOT}:{EXAMPLES}", "PYTHONWARNINGS": "error:::__main__"}

    def program(
        script: str,
        *arguments: str,
        by: tuple[str, ...] = (),
        code: int = 0,
        folder: Path | None = None,
        **environment: str,
    ) -> tuple[str, str]:
        process = subprocess.Popen(
            [sys.executable, *by, str(EXAMPLES / script), *arguments],
            env=kept | changed | paths | environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, errors = process.communicate()
            pytest.fail(f"no end within {LIMIT_S} s: {out}{errors}")
        assert process.returncode == code, errors
        return out, errors

    return program
