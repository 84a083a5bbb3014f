"""Pairs/s of images of the same character, decoded and varied: fastfeed, tf.data and DataLoader in
turn, alone, into a training step on the same cores, and into a simulated accelerator.

FASTFEED_DATA=folder python -m bench.metric_learning --rounds 5 --output build/metric.json

Rounds are added to those that the file already has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from metric_data import load
from metric_images import TURNS, Look

TRAINING = Look(turn=15, zoom=(0.85, 1.25), shift=0.1, light=0.4)  # of all images
SIDE, PAIRS, WORKERS = 32, 64, 2
ACCELERATOR_S = 0.025  # of a step: 2,560 pairs/s
WARM_UP = 8  # batches: more than wait ready
BLOCKS = 3  # of the step alone and of the fed step in turn
Batches = Iterator[np.ndarray]


def of_fastfeed(images: Any, stack: ExitStack, *, workers: int) -> Batches:
    """`Pairs`, and the example's decoding in worker processes."""
    from fastfeed import FeedRunner
    from fastfeed.samplers import Pairs

    runner = FeedRunner(
        np.arange(len(images)),
        batch_transform=images.render,
        sampler=Pairs(images.labels, 2 * PAIRS),
        batch_size=2 * PAIRS,
        processes=workers,
        epochs=1 << 30,
        prefetch=2,
        seed=0,
    )
    return iter(stack.enter_context(runner))


def orders(images: Any) -> Iterator[np.ndarray]:
    """Yield the indices of each epoch, for the loaders that have no sampler of pairs."""
    from fastfeed.samplers import Pairs

    sampler = Pairs(images.labels, 2 * PAIRS)
    return (sampler.indices(0, epoch, length=len(images)) for epoch in itertools.count())


def of_torch(images: Any, stack: ExitStack, *, workers: int) -> Batches:
    """A DataLoader whose Dataset calls the same functions; its workers persist."""
    from torch.utils.data import DataLoader

    class Endless:
        def __iter__(self) -> Iterator[int]:
            return itertools.chain.from_iterable(order.tolist() for order in orders(images))

    loader = DataLoader(
        TorchImages(images),  # type: ignore[arg-type]
        batch_size=2 * PAIRS,
        sampler=Endless(),  # type: ignore[arg-type]
        num_workers=workers,
        multiprocessing_context="forkserver",
    )
    batches = iter(loader)
    return (batch.numpy() for batch in batches)


class TorchImages:
    """The images as a Dataset of torch, with a generator in each worker."""

    def __init__(self, images: Any) -> None:
        self.images, self.rng = images, None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        self.rng = self.rng or np.random.default_rng(os.getpid())
        draws = self.rng.uniform(-1, 1, 5).tolist()
        pixels: np.ndarray = TRAINING.of(*self.images[index], draws, side=SIDE)
        return pixels


def of_tf_data(images: Any, stack: ExitStack, *, workers: int) -> Batches:
    """The same operations by the kernels of TensorFlow: decode_png, resize, and one transform."""
    import tensorflow as tf

    files = tf.constant(images.files)

    def one(index: Any) -> Any:
        image = tf.io.decode_png(files[index // TURNS], channels=1)[tf.newaxis]
        height, width = image.shape[1] or 105, image.shape[2] or 105
        image = tf.image.resize(image, (height // 2, width // 2), "area")
        return turned(image, tf.cast(index % TURNS, tf.float32), TRAINING)

    def turned(image: Any, turn: Any, look: Any) -> Any:
        angle, zoom, x, y, light = tf.unstack(tf.random.uniform((5,), -1, 1))
        size = tf.cast(tf.shape(image)[1], tf.float32)
        low, high = look.zoom
        # the transform maps pixels of the output to those of the input
        scale = size / SIDE / (low + (high - low) * (zoom + 1) / 2)
        angle = angle * math.radians(look.turn) + tf.math.floormod(turn, 4.0) * (math.pi / 2)
        mirror = tf.where(turn > 3, -1.0, 1.0)
        cos, sin = scale * tf.cos(angle), scale * tf.sin(angle)
        right = (SIDE - 1) / 2 + SIDE * look.shift * x
        down = (SIDE - 1) / 2 + SIDE * look.shift * y
        centre = (size - 1) / 2
        rows = [mirror * cos, mirror * sin, centre - mirror * (cos * right + sin * down)]
        rows += [-sin, cos, centre + sin * right - cos * down, 0.0, 0.0]
        found = tf.raw_ops.ImageProjectiveTransformV3(
            images=image,
            transforms=tf.stack(rows)[tf.newaxis],
            output_shape=(SIDE, SIDE),
            fill_value=0.0,
            interpolation="BILINEAR",
            fill_mode="NEAREST",
        )
        return tf.cast(tf.round(found[0] * (1 - look.light * (light + 1) / 2)), tf.uint8)

    def all_orders() -> Iterator[np.ndarray]:
        return orders(images)

    data = tf.data.Dataset.from_generator(
        all_orders, output_signature=tf.TensorSpec((None,), tf.int64)
    )
    data = data.flat_map(tf.data.Dataset.from_tensor_slices)
    data = data.map(one, num_parallel_calls=tf.data.AUTOTUNE).batch(2 * PAIRS)
    return iter(data.prefetch(2).as_numpy_iterator())


LOADERS: dict[str, Callable[..., Batches]] = {
    "fastfeed": of_fastfeed,
    "tf.data": of_tf_data,
    "DataLoader": of_torch,
}


def rate(step: Callable[[Any], object], batches: Batches, *, seconds: float) -> float:
    """Return the pairs/s of a loop."""
    for batch in itertools.islice(batches, WARM_UP):
        step(batch)
    began, pairs = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step(next(batches))
        pairs += PAIRS
    return pairs / (time.perf_counter() - began)


def one_run(name: str, seconds: float, *, workers: int) -> dict[str, float]:
    """Return the pairs/s of one loader: alone, of each step alone, and of both together."""
    train, _, _ = load(None, side=SIDE, colour=False, held_out=None)
    train = train.seen(TRAINING, turned=True)
    found: dict[str, float] = {}
    with ExitStack() as stack:
        batches = LOADERS[name](train, stack, workers=workers)
        ready = itertools.repeat(next(batches).copy())
        found["source"] = rate(lambda _: None, batches, seconds=seconds)
        import keras
        from metric_model import build, step_of

        trained = step_of(build("cnn", train), keras.optimizers.Adam())
        steps = {
            "accelerator": lambda _: time.sleep(ACCELERATOR_S),
            "cnn": lambda images: trained(images).numpy(),
        }
        for kind, step in steps.items():
            # in turn: the machine is not always equally fast. Queues are short, and full after
            # the warm-up of the step alone
            blocks = [
                (rate(step, ready, seconds=seconds), rate(step, batches, seconds=seconds))
                for _ in range(BLOCKS)
            ]
            found[f"{kind} alone"], found[kind] = map(statistics.median, zip(*blocks, strict=True))
    return found


def main() -> None:
    """Print a table, and write the figures of all runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", choices=LOADERS, help="one run, in this process")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one_run(args.one, args.seconds, workers=args.workers)))
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in LOADERS}
    if args.output and args.output.exists():
        runs = json.loads(args.output.read_text())
    names = list(LOADERS)
    first = min(map(len, runs.values())) * len(names)
    for number in tqdm(range(first, first + args.rounds * len(names)), "runs"):
        # each round begins with another loader
        name = names[(number + number // len(names)) % len(names)]
        rest = ["--seconds", str(args.seconds), "--workers", str(args.workers)]
        done = subprocess.run(
            [sys.executable, "-m", "bench.metric_learning", "--one", name, *rest],
            stdout=subprocess.PIPE,
            check=True,
            timeout=300,
        )
        runs[name].append(json.loads(done.stdout.splitlines()[-1]))
        if args.output:
            args.output.write_text(json.dumps(runs, indent=1) + "\n")
    print(table(runs))


def table(runs: dict[str, list[dict[str, float]]]) -> str:
    """Return the medians with the lowest and highest, and the share of what is possible."""
    kinds = ("source", "accelerator", "cnn")
    lines = ["| pairs/s | alone | accelerator | of the possible | CNN | of the possible |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for name, found in runs.items():
        cells = [spread([run[kind] for run in found]) for kind in kinds]
        for place, kind in ((2, "accelerator"), (4, "cnn")):
            shares = [run[kind] / min(run["source"], run[f"{kind} alone"]) for run in found]
            cells.insert(place, spread([100 * share for share in shares]) + " %")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    every = [run for found in runs.values() for run in found]
    alone = [spread([run[f"{kind} alone"] for run in every]) for kind in kinds[1:]]
    lines.append(f"| step alone | | {alone[0]} | | {alone[1]} | |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Return "median (lowest to highest)"."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


if __name__ == "__main__":
    main()
