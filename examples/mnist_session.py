"""Train a small CNN on handwritten digits in a TensorFlow 1 session, fed by producer threads.

    python examples/mnist_session.py --sleep 0.05 --threads 1     # 50 ms for each batch
    python examples/mnist_session.py --sleep 0.05 --threads 16    # the same work in parallel

The producers deliver every record exactly once in an epoch, which has as many steps as its records
fill. The queue shuffles across epochs: of its up to 2000 records, the last of one epoch are trained
on early in the next one.
"""

import argparse
import sys
import time
from itertools import pairwise

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from fastfeed import FeedRunner, MissingExtra, OptionError
from fastfeed.benchmark import digits
from fastfeed.benchmark.cnn_session import evaluation, train_step

tf1 = tf.compat.v1


def main():
    args = options()
    data = digits.load(args.data)
    print(data.origin)
    runner = FeedRunner(
        lambda worker: batches(data, args, worker),
        threads=args.threads,
        batch_size=args.batch_size,
        epochs=args.epochs,
    )
    with tf.Graph().as_default(), runner:
        step = train_step(*runner.get_inputs())
        images, labels = (
            tf1.placeholder(tf.uint8, (None, 28, 28)),
            tf1.placeholder(tf.int64, (None,)),
        )
        # the same weights, in a graph of its own that is fed by hand
        test = evaluation(images, labels)
        writer = (
            tf1.summary.FileWriter(args.logdir, tf1.get_default_graph()) if args.logdir else None
        )
        with tf1.Session() as sess:
            sess.run(tf1.global_variables_initializer())
            runner.start(sess)
            for epoch, steps in enumerate(steps_of_epochs(len(data.x_train), args), start=1):
                before = runner.snapshot()
                train(sess, step, tqdm(steps, f"epoch {epoch}", unit="step"), writer)
                fed = runner.snapshot() - before
                accuracy = measure(sess, test.correct, {images: data.x_test, labels: data.y_test})
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
    """Return the step numbers of each epoch, as ranges; together they have all records `--epochs`
    times, in whole batches."""
    ends = [min(epoch * records // args.batch_size, args.steps) for epoch in range(args.epochs + 1)]
    return [range(start, end) for start, end in pairwise(ends) if start < end]


def train(sess, step, bar, writer):
    """Run the steps of one epoch; the progress bar shows running means."""
    mean = None
    for number in bar:
        _, *now = sess.run((step.train_op, step.loss, step.accuracy))
        mean = np.array(now) if mean is None else 0.98 * mean + 0.02 * np.array(now)
        bar.set_postfix(loss=f"{mean[0]:.3f}", accuracy=f"{mean[1]:.3f}", refresh=False)
        record(writer, number, loss=now[0], accuracy=now[1])


def measure(sess, correct, feed, size=1000):
    """Return the share of the records in `feed` that are classified correctly."""
    records = len(next(iter(feed.values())))
    pieces = (
        {key: array[start : start + size] for key, array in feed.items()}
        for start in range(0, records, size)
    )
    return sum(sess.run(correct, piece) for piece in pieces) / records


def record(writer, step, **values):
    """Write `values` for TensorBoard, if there is a writer."""
    if writer is not None:
        pairs = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        writer.add_summary(tf1.Summary(value=pairs), step)


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=4, help="producer threads (4)")
    parser.add_argument(
        "--sleep", type=float, default=0.0, help="seconds of pretend preprocessing per batch (0)"
    )
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training set (10)")
    parser.add_argument("--batch-size", type=int, default=32, help="records of one step (32)")
    parser.add_argument("--data", help="mnist.npz or its folder (the digits that this machine has)")
    parser.add_argument("--logdir", help="folder for TensorBoard (no summaries)")
    parser.add_argument(
        "--steps", type=int, default=sys.maxsize, help="stop after so many steps (all)"
    )
    args = parser.parse_args()
    if not (args.sleep >= 0 and args.steps >= 1):
        parser.error("--sleep must be 0 or more, and --steps 1 or more")
    return args


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
