"""Photographs with an augmentation by OpenCV into a small Keras network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.made_photos import make_photos
from bench.trainings.training import SEED, Form, Progress, Training, data_folder
from fastfeed import FeedRunner

BATCH, SIDE, REPEATS, EPOCHS = 32, 64, 16, 1000


@dataclass(frozen=True)
class Photographs:
    """Encoded photographs, each of a class of its own, and each `REPEATS` times in an epoch."""

    files: list[bytes]

    def __len__(self) -> int:
        return REPEATS * len(self.files)

    def augmented(self, number: int, rng: Any) -> tuple[np.ndarray, np.int64]:
        """Return a random part of a photograph in random light, half of them mirrored, and its
        class."""
        import cv2

        label = number % len(self.files)
        image = cv2.imdecode(np.frombuffer(self.files[label], np.uint8), cv2.IMREAD_COLOR)
        size, down, right, flip, light = rng.random(5)
        side = int(min(image.shape[:2]) * (1 + size) / 2)
        top, left = (
            int(part * (n - side)) for part, n in zip((down, right), image.shape[:2], strict=True)
        )
        part = image[top : top + side, left : left + side]
        part = cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        part = cv2.flip(part, 1) if flip < 0.5 else part
        return cv2.convertScaleAbs(part, alpha=0.7 + 0.6 * light), np.int64(label)


def load(quick: bool) -> tuple[Photographs, str]:
    """Return the photographs of the data folder, or smooth random pictures of their size."""
    found, origin = _files(data_folder() / "photos"), "photographs"
    if not found:
        with TemporaryDirectory() as made:
            make_photos(Path(made))
            found, origin = _files(Path(made)), "made pictures"
    return Photographs(found), f"{len(found)} {origin}"


def _files(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.glob("*.jpg"))]


def batches(data: Photographs) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches without end, shuffled in each epoch."""
    rng = np.random.default_rng(SEED)
    while True:
        order = rng.permutation(len(data))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            images, labels = zip(*(data.augmented(n, rng) for n in chosen), strict=True)
            yield np.stack(images), np.array(labels)


def generator(data: Photographs, progress: Progress) -> None:
    """Fit on a generator."""
    fit(batches(data), data, progress)


def from_generator(data: Photographs, progress: Progress) -> None:
    """Fit on a dataset of a generator."""
    import tensorflow as tf

    images = tf.TensorSpec((BATCH, SIDE, SIDE, 3), tf.uint8)
    signature = images, tf.TensorSpec((BATCH,), tf.int64)
    made = tf.data.Dataset.from_generator(partial(batches, data), output_signature=signature)
    fit(made.prefetch(tf.data.AUTOTUNE), data, progress)


def tf_map(data: Photographs, progress: Progress) -> None:
    """Fit on a dataset that maps the numbers of the photographs in parallel."""
    import tensorflow as tf

    def augmented(number: Any) -> Any:
        kinds = tf.uint8, tf.int64
        draw = partial(data.augmented, rng=np.random)
        image, label = tf.numpy_function(draw, [number], kinds)
        return tf.ensure_shape(image, (SIDE, SIDE, 3)), tf.ensure_shape(label, ())

    numbers = tf.data.Dataset.range(len(data)).shuffle(len(data), seed=SEED).repeat()
    made = numbers.map(augmented, num_parallel_calls=tf.data.AUTOTUNE)
    made = made.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    fit(made, data, progress)


def fastfeed(data: Photographs, progress: Progress, **producers: Any) -> None:
    """Fit on the dataset of a FeedRunner."""

    def augmented(number: int, worker: Any) -> Any:
        return data.augmented(number, worker.rng)

    options = {"batch_size": BATCH, "last_batch": "drop", "shuffle": True, "seed": SEED}
    numbers = range(len(data))
    with FeedRunner(numbers, transform=augmented, epochs=EPOCHS, **options, **producers) as runner:
        fit(runner.dataset(), data, progress)


def fit(batches: Any, data: Photographs, progress: Progress) -> None:
    """Train a new network until the progress is over."""
    from bench.trainings.fits import Until, network

    model = network(progress, side=SIDE, classes=len(data.files))
    ending = {"steps_per_epoch": progress.cap, "callbacks": [Until(progress)]}
    model.fit(batches, **ending, shuffle=False, verbose=0)


TRAINING = Training(
    "photographs with an augmentation by OpenCV, Keras",
    load,
    (
        Form("generator in fit", generator, uses=(batches,)),
        Form("from_generator", from_generator, uses=(batches,)),
        Form("tf.data map", tf_map),
        Form("fastfeed, threads=2", partial(fastfeed, threads=2), "fixed"),
        Form('fastfeed, workers="auto"', partial(fastfeed, workers="auto"), "auto"),
    ),
    target=0.8,
    cap=1000,
    needs=("cv2", "tensorflow", "keras"),
)
