"""Train a small CNN on handwritten digits with Keras, fed by producer threads: batches are plain
numpy arrays.

    python examples/mnist_keras.py --sleep 0.05 --threads 1     # 50 ms for each batch
    python examples/mnist_keras.py --sleep 0.05 --threads 16    # the same work in parallel

Every epoch has each record exactly once: each producer yields its share, and the runner keeps the
epochs apart.
"""

import math
import sys
import time
from itertools import pairwise

import numpy as np
import tensorflow as tf
from mnist_options import options
from tqdm import tqdm

from fastfeed import FeedRunner, MissingExtra, OptionError
from fastfeed.benchmark import cnn_keras, digits


def main():
    args = options(__doc__)
    data = digits.load(args.data)
    print(data.origin)
    model = cnn_keras.model(data.x_train.shape[1:])
    writer = tf.summary.create_file_writer(args.logdir) if args.logdir else None
    runner = FeedRunner(
        lambda worker: batches(data, args, worker),
        threads=args.threads,
        batch_size=args.batch_size,
        epochs=args.epochs,
    )
    with runner:
        feed = iter(runner.start())
        for epoch, steps in enumerate(steps_of_epochs(len(data.x_train), args), start=1):
            before = runner.snapshot()
            train(model, feed, tqdm(steps, f"epoch {epoch}", unit="step"), writer)
            fed = runner.snapshot() - before
            _, accuracy = model.evaluate(data.x_test, data.y_test, batch_size=1000, verbose=0)
            record(writer, steps.stop, test_accuracy=accuracy, starvation=fed.starvation)
            print(
                f"epoch {epoch}: test accuracy {accuracy:.4f}, {fed.batches_per_second:.0f} "
                f"steps/s, waited for input {fed.starvation:.1%} of the time"
            )


def batches(data, args, worker):
    """Yield one epoch of this producer's share, in a new order: (images, labels) of up to
    `--batch-size` records."""
    share = worker.rng.permutation(np.arange(worker.index, len(data.x_train), worker.count))
    for start in range(0, len(share), args.batch_size):
        chosen = share[start : start + args.batch_size]
        time.sleep(args.sleep)  # pretend preprocessing
        yield data.x_train[chosen], data.y_train[chosen]


def steps_of_epochs(records, args):
    """Return the step numbers of each epoch, as ranges; the last step of an epoch has the remaining
    records."""
    length = math.ceil(records / args.batch_size)
    ends = [min(epoch * length, args.steps) for epoch in range(args.epochs + 1)]
    return [range(start, end) for start, end in pairwise(ends) if start < end]


def train(model, feed, bar, writer):
    """Run the steps of one epoch; the progress bar shows running means."""
    mean = None
    for number, (images, labels) in zip(bar, feed, strict=False):
        model.reset_metrics()  # some releases of Keras add up over the batches, some do not
        now = model.train_on_batch(images, labels)
        mean = np.array(now) if mean is None else 0.98 * mean + 0.02 * np.array(now)
        bar.set_postfix(loss=f"{mean[0]:.3f}", accuracy=f"{mean[1]:.3f}", refresh=False)
        record(writer, number, loss=now[0], accuracy=now[1])


def record(writer, step, **values):
    """Write `values` for TensorBoard, if there is a writer."""
    if writer is not None:
        with writer.as_default(step):
            for tag, value in values.items():
                tf.summary.scalar(tag, value)


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
