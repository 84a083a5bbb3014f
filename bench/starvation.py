"""Accuracy of the starvation figure, in a plain loop and in a session.

Producers and steps take known fixed times. The exact value follows from the clock: 1 - (time in
steps) / (wall time), the time in steps being measured around the step itself. The run of a session
whose batch is ready is part of the step, not a wait for input; its cost is measured with a producer
that is never late.

    python bench/starvation.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fastfeed import FeedRunner, Shuffle

# producer ms, step ms, threads
CASES = [(50, 20, 1), (50, 20, 2), (50, 40, 1), (50, 5, 4), (10, 30, 1)]
STEPS, WARM_UP = 60, 12


def source(cost_s: float) -> Callable[[], Iterator[Any]]:
    def batches() -> Iterator[Any]:
        while True:
            time.sleep(cost_s)
            yield (np.zeros((8, 16), np.float32),)

    return batches


def measure(
    runner: FeedRunner, take: Callable[[], Any], *, step_s: float, run_s: float = 0.0
) -> tuple[float, float]:
    """(what fastfeed says, what the clock says) over the steps after warm-up; a run costs `run_s`
    of each step."""
    for _ in range(WARM_UP):
        take()
        time.sleep(step_s)
    before, start, in_steps = runner.snapshot(), time.perf_counter(), 0.0
    for _ in range(STEPS):
        take()
        began = time.perf_counter()
        time.sleep(step_s)
        in_steps += time.perf_counter() - began + run_s
    wall = time.perf_counter() - start
    return (runner.snapshot() - before).starvation, 1 - in_steps / wall


def plain(cost_s: float, step_s: float, threads: int) -> tuple[float, float]:
    with FeedRunner(source(cost_s), threads=threads) as runner:
        batches = iter(runner)
        return measure(runner, lambda: next(batches), step_s=step_s)


def session(cost_s: float, step_s: float, threads: int) -> tuple[float, float]:
    never_late = in_session(0.001, step_s, threads, run_s=0.0)[1]
    return in_session(cost_s, step_s, threads, run_s=never_late / (1 - never_late) * step_s)


def in_session(cost_s: float, step_s: float, threads: int, *, run_s: float) -> tuple[float, float]:
    import tensorflow as tf

    shuffle = Shuffle(capacity=32, min_after_dequeue=8)
    with (
        tf.Graph().as_default(),
        FeedRunner(source(cost_s), threads=threads, shuffle=shuffle) as runner,
    ):
        (x,) = runner.get_inputs()
        with tf.compat.v1.Session() as sess:
            runner.start(sess)
            return measure(runner, lambda: sess.run(x), step_s=step_s, run_s=run_s)


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print(
        f"{'producer':>9} {'step':>6} {'threads':>8} {'loop':>8} {'said':>7} {'exact':>7} "
        f"{'points':>7}"
    )
    for cost_ms, step_ms, threads in CASES:
        for name, run in (("plain", plain), ("session", session)):
            said, exact = run(cost_ms / 1e3, step_ms / 1e3, threads)
            difference = f"{100 * (said - exact):+.1f}"
            print(
                f"{cost_ms:>6} ms {step_ms:>3} ms {threads:>8} {name:>8} {said:7.1%} {exact:7.1%} "
                f"{difference:>7}"
            )


if __name__ == "__main__":
    main()
