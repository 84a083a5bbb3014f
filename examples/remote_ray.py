"""Make batches on other machines: actors of Ray do the work, and this loop stays as it is.

    python examples/remote_ray.py                          # Ray starts on this machine
    python examples/remote_ray.py --remote auto --producers 32    # on a node of a cluster
    python examples/remote_ray.py --remote ray://head:10001       # from a machine outside it

Order and values are those of `threads=`: the last line is the same for every choice. Needs
`pip install 'fastfeed[ray]'`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np

from fastfeed import FeedRunner, MissingExtra, OptionError, Remote, Worker


class Records:
    """Records that cost some milliseconds of Python each."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> Any:
        rows = np.full((32, 32), index, np.float32)
        for _ in range(200):
            rows = np.sqrt(rows * rows + 1)
        return rows, index


def noisy(record: Any, worker: Worker) -> Any:
    """Add noise, which is drawn from the seed and the index, wherever it is drawn."""
    image, index = record
    return image + worker.rng.normal(size=image.shape).astype(np.float32), index


def main() -> None:
    """Read two epochs, and print how fast and what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--remote", default="local", help="local, auto or ray://host:port")
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--cpus", type=float, default=1.0, help="CPUs for each producer")
    given = parser.parse_args()
    runner = FeedRunner(
        Records(),
        batch_size=50,
        shuffle=True,
        seed=1,
        transform=noisy,
        remote=Remote(given.remote, producers=given.producers, cpus=given.cpus),
        on_worker_death="restart",
        epochs=2,
    )
    total, start = 0.0, time.perf_counter()
    with runner:
        for images, indices in runner:
            total = total * 0.9 + float(images.mean()) + float(indices[0])
        now = runner.snapshot()
    print(f"{now.consumed.batches / (time.perf_counter() - start):.0f} batches/s with {runner!r}")
    print(f"checksum {total:.4f}")


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
