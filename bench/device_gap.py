"""The gap that a fetch leaves on a GPU, by the GPU's own clock, beside the truth.

    python -m bench.device_gap

A step of matrix products takes a known time on the GPU, and each batch takes a known time to make.
The truth is the share of the period that is no step. Exit code 1 if a share is off by more than
5 points.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

import fastfeed

SIZE, PRODUCTS = 4096, 12
STEPS = 200
MAX_ERROR = 0.05
# seconds to make a batch, and whether each step ends with a synchronisation, as `loss.item()` does
CASES = ((0.0, True), (0.02, True), (0.001, False), (0.1, False))


def batches(seconds: float) -> Iterator[float]:
    """Yield batches that take some seconds each."""
    for _ in range(STEPS):
        time.sleep(seconds)
        yield seconds


def step(matrix: Any) -> Any:
    """Queue one step."""
    for _ in range(PRODUCTS):
        matrix = torch.mm(matrix, matrix).clamp(-1, 1)
    return matrix[0, 0]


def step_seconds(matrix: Any) -> float:
    """Return the seconds of one step, without any input."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(50):
        step(matrix)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / 50


def main() -> int:
    """Print a line for each case, and return the exit code."""
    matrix = torch.rand(SIZE, SIZE, device="cuda")
    worst = 0.0
    for seconds, synchronous in CASES:
        step_s = step_seconds(matrix)
        with fastfeed.diagnose(seconds=600, warmup=0.5, experiments=False) as report:
            begin = time.perf_counter()
            for _ in fastfeed.watch(batches(seconds)):
                value = step(matrix)
                if synchronous:
                    value.item()
            torch.cuda.synchronize()
            period_s = (time.perf_counter() - begin) / STEPS
        found = report.json()
        truth, gap = max(0.0, 1 - step_s / period_s), found["device_gap"]
        share = gap["share"] if gap else float("nan")
        worst = max(worst, abs(share - truth)) if gap else 1.0
        print(
            f"batch {1e3 * seconds:.0f} ms, step {1e3 * step_s:.1f} ms, "
            f"{'synchronous' if synchronous else 'queued'}: device gap {share:.1%}, "
            f"truth {truth:.1%}, starvation of the host {found['starvation']}"
        )
    return int(worst > MAX_ERROR)


if __name__ == "__main__":
    sys.exit(main())
