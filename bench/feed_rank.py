"""One rank of bench/data_parallel.py, as a process of its own.

    python -m bench.feed_rank '{"shard": [0, 8], "records": 1000, ...}'

It says "ready", waits for a line, and answers with the records and the time of each batch.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from fastfeed import FeedRunner, Shard


class Numbers:
    """An indexable whose records are their own numbers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.int64:
        return np.int64(index)


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    length, step_s = given.pop("records"), given.pop("step_s", 0.0)
    if isinstance(given["shard"], list):
        given["shard"] = Shard(*given["shard"])
    print("ready", flush=True)
    sys.stdin.readline()
    epochs: list[list[list[int]]] = []
    times: list[float] = []
    with FeedRunner(Numbers(length), shuffle=True, **given) as runner:
        for epoch in runner.epochs():
            epochs.append([])
            for batch in epoch:
                epochs[-1].append(batch.tolist())
                times.append(time.perf_counter())
                time.sleep(step_s)  # a step of an accelerator, which needs no core
    print(json.dumps({"epochs": epochs, "times": times}), flush=True)


if __name__ == "__main__":
    main()
