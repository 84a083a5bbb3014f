"""Train a small CNN with `fit` of Keras 3, fed by worker processes that draw its digits, and print
the starvation of each epoch.

    python examples/keras_fit.py                              # two workers draw as fast as they can
    python examples/keras_fit.py --work-ms 2 --processes 1    # 2 ms of waiting per digit

On TensorFlow `dataset()` shares the workers' memory; `KERAS_BACKEND=torch` or `jax` uses `keras()`.
"""

import argparse
import sys
import time

import keras
import numpy as np

from fastfeed import FeedRunner, MissingExtra, OptionError
from fastfeed.keras import FeedCallback

TRAIN, TEST = 3200, 500  # records
SIZE = 12  # pixels of a side
# The seven strokes of a pocket calculator, as slices of a 9 x 5 field, and which of them make each
# digit.
STROKES = [
    np.s_[0, :],
    np.s_[:5, 4],
    np.s_[4:, 4],
    np.s_[8, :],
    np.s_[4:, 0],
    np.s_[:5, 0],
    np.s_[4, :],
]
DIGITS = ["012345", "12", "01346", "01236", "1256", "02356", "023456", "012", "0123456", "012356"]


def main():
    args = options()
    draw = drawing(args.work_ms / 1000)
    runner = FeedRunner(
        range(TRAIN), transform=draw, batch_size=32, shuffle=True, processes=args.processes
    )
    with runner, runner.also(range(TRAIN, TRAIN + TEST), transform=draw, batch_size=100) as valid:
        tensorflow = keras.backend.backend() == "tensorflow"
        history = (
            network()
            .fit(
                runner.dataset() if tensorflow else runner.keras(),
                validation_data=valid.dataset() if tensorflow else valid.keras(),
                epochs=args.epochs,
                callbacks=[FeedCallback(runner)],
                shuffle=False,  # the runner has shuffled
                verbose=0,
            )
            .history
        )
    for epoch in range(args.epochs):
        print(
            f"epoch {epoch + 1}: test accuracy {history['val_accuracy'][epoch]:.3f}, "
            f"starvation {history['feed_starvation'][epoch]:.1%}, "
            f"{history['feed_queue_depth'][epoch]:.0f} batches lay ready"
        )


def drawing(work_s):
    """Return a function that is sent to the workers. It needs nothing of this file, so the workers
    do not import Keras."""

    def draw(number):
        """Return the image of record `number`, (SIZE, SIZE, 1) float32, and its digit."""
        rng = np.random.default_rng(number)
        label, image = number % 10, rng.normal(0, 0.2, (SIZE, SIZE, 1)).astype(np.float32)
        row, column = rng.integers(0, SIZE - 9), rng.integers(0, SIZE - 5)
        for stroke in DIGITS[label]:
            image[row : row + 9, column : column + 5, 0][STROKES[int(stroke)]] += rng.uniform(
                0.7, 1.0
            )
        time.sleep(work_s)  # pretend preprocessing
        return image, np.int32(label)

    return draw


def network():
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            keras.layers.Conv2D(32, 5, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.005), loss=loss, metrics=["accuracy"])
    return model


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=2, help="worker processes (2)")
    parser.add_argument(
        "--work-ms", type=float, default=0.0, help="pretend preprocessing of each digit, in ms (0)"
    )
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training set (3)")
    args = parser.parse_args()
    if not (args.work_ms >= 0 and args.epochs >= 1):
        parser.error("--work-ms must be 0 or more, and --epochs 1 or more")
    return args


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
