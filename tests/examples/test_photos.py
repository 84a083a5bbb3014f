"""examples/photos_dali.py with every executor that can work here."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXECUTORS = ["producers", *["dali-cpu"] * (importlib.util.find_spec("nvidia.dali") is not None)]

pytest.importorskip("cv2")


def test_each_executor_makes_the_same_batches() -> None:
    program = [
        sys.executable,
        str(ROOT / "examples" / "photos_dali.py"),
        "--steps",
        "12",
        "--on",
        *EXECUTORS,
    ]
    done = subprocess.run(program, capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    shape = (
        r"\(32, 160, 160, 3\) float32, labels \(32,\), \d+ images/s, "
        r"waited for input \d+\.\d% of the time"
    )
    assert re.findall(rf"^([\w-]+): {shape}$", done.stdout, re.MULTILINE) == EXECUTORS
