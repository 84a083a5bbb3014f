"""A three-layer perceptron on MNIST: how fast it learns, and where the time goes.

    python examples/mnist_mlp.py                 # 20 passes over 60,000 digits
    python examples/mnist_mlp.py --quick         # 3 passes over 1,280

Only multiplications and additions with weights count as FLOP: two for each weight in the forward
pass, two for its gradient, and two for the gradient of its input, which the images do not need.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from typing import Any

from fastfeed import FeedRunner, MissingExtra, OptionError
from fastfeed.benchmark import digits

SIZES = (784, 100, 100, 10)


def flop_per_sample() -> int:
    """Return the FLOP of a training step for one sample.

    89,400 weights: 178,800 forwards, 178,800 for their gradients and 22,000 for those of the
    hidden layers, together 379,600. (A report of such a training says about 0.75 million, and not
    what it counts; that is nearly twice as many.)
    """
    weights = [rows * columns for rows, columns in pairwise(SIZES)]
    forward, to_weights, to_inputs = 2 * sum(weights), 2 * sum(weights), 2 * sum(weights[1:])
    return forward + to_weights + to_inputs


def main() -> None:
    args = options()
    import tensorflow as tf

    data = digits.load(args.data)
    print(data.origin)
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(size, "relu") for size in SIZES[1:-1]]
    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28)),
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Flatten(),
            *layers,
            tf.keras.layers.Dense(SIZES[-1]),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
            loss = tf.reduce_mean(losses)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    images, labels = data.x_train[: args.records], data.y_train[: args.records]
    step.get_concrete_function(
        tf.TensorSpec((None, 28, 28), tf.uint8), tf.TensorSpec((None,), tf.int64)
    )
    print(f"{flop_per_sample():,} FLOP a sample, {len(labels):,} samples an epoch")
    runner = FeedRunner((images, labels), batch_size=args.batch_size, shuffle=True, seed=1)
    with runner:
        for epoch in range(1, args.epochs + 1):
            before, start, inside = runner.snapshot(), time.perf_counter(), 0.0
            for batch in runner.dataset():
                begin = time.perf_counter()
                step(*batch)
                inside += time.perf_counter() - begin
            seconds = time.perf_counter() - start
            waited = (runner.snapshot() - before).starvation * seconds
            report(epoch, len(labels), seconds=seconds, inside=inside, waited=waited)
    found = tf.argmax(model(data.x_test), axis=1).numpy()
    print(f"test accuracy {(found == data.y_test).mean():.4f}")


def report(epoch: int, samples: int, *, seconds: float, inside: float, waited: float) -> None:
    """Print the time of an epoch, and what its parts were."""
    rate = flop_per_sample() * samples
    rest = max(0.0, seconds - inside - waited)
    print(
        f"epoch {epoch}: {seconds:.2f} s, {rate / seconds / 1e9:.2f} GFLOP/s "
        f"({rate / inside / 1e9:.2f} inside the steps); steps {inside / seconds:.0%}, waited for "
        f"input {waited / seconds:.0%}, tf.data and Python between the steps {rest / seconds:.0%}"
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (20)")
    parser.add_argument("--batch-size", type=int, default=128, help="records of a step (128)")
    parser.add_argument("--records", type=int, help="train on the first N records only (all)")
    parser.add_argument("--data", help="mnist.npz or its folder (the digits that this machine has)")
    parser.add_argument("--quick", action="store_true", help="three epochs of 1,280 records")
    args = parser.parse_args()
    if args.epochs < 1 or (args.records is not None and args.records < 1):
        parser.error("--epochs and --records must be 1 or more")
    if args.quick:
        args.epochs, args.records = min(args.epochs, 3), args.records or 1280
    return args


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
