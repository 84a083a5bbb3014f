"""Work of one batch, and the clock of the loop: the same for every script."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

WARM_UP = 40  # batches, in which workers start and buffers fill
KIND, BATCHES = sys.argv[1], int(sys.argv[2])
# of fastfeed: threads hide waits, processes are for bytecode
TWO = {"threads": 2} if KIND == "sleep" else {"processes": 2}


def work(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return batch number `index`, after a wait of 50 ms or 10 ms of bytecode."""
    if KIND == "sleep":
        time.sleep(0.05)
    else:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            sum(range(100))
    return np.full((32, 28, 28), index % 10, np.float32), np.full(32, index % 10)


class Clock:
    """Prints the batches per second after the warm-up."""

    def __init__(self) -> None:
        self.seen, self.start_s = 0, 0.0

    def tick(self) -> None:
        """Count a batch."""
        self.seen += 1
        if self.seen == WARM_UP:
            self.start_s = time.perf_counter()
        if self.seen == BATCHES:
            print((BATCHES - WARM_UP) / (time.perf_counter() - self.start_s))


def loop(batches: Iterable[Any]) -> None:
    """Take every batch."""
    clock = Clock()
    for _ in batches:
        clock.tick()
