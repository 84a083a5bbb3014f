"""Optimizers and learning rates of large minibatches, for data_parallel.py."""

from __future__ import annotations

import argparse
from typing import Any


def make_optimizers(args: argparse.Namespace, *, scale: float, steps: int) -> list[Any]:
    """Return the optimizers that are applied to each gradient, usually one.

    The linear rule: with `scale` times the records in a step, as of so many ranks, the rate grows
    by `scale`. k small steps with rate r go about as far as one with k * r (Goyal et al., Accurate,
    large minibatch SGD, 2017). The reason: the noise of SGD has the scale r * N / (B * (1 - m)) for
    N records, batches of B and momentum m, and it decides what is found (Smith and Le, 2018); r / B
    keeps it. At the beginning the gradient changes too fast for so long a step, so the rate rises
    over the first epochs, the warm-up.

    "rmsprop-to-momentum" (Akiba et al., ImageNet in 15 minutes, 2017) begins with RMSprop and fades
    to momentum. Momentum is linear, so two optimizers of Keras, applied to the same gradient, are
    their mixed update; they fade along an exponential and a line, this along a line. "lamb" (You et
    al., 2020) has a rate for each layer, as LARS (You et al., 2017) does, which Keras lacks.
    """
    import keras

    rise, total = max(1, int(args.warmup * steps)), args.epochs * steps
    peak = args.learning_rate * scale

    def risen(first: float, peak: float) -> Any:
        if not args.warmup:
            return keras.optimizers.schedules.CosineDecay(peak, total)
        return keras.optimizers.schedules.CosineDecay(
            first, max(1, total - rise), warmup_target=peak, warmup_steps=rise
        )

    if args.optimizer == "lamb":
        return [keras.optimizers.Lamb(risen(args.learning_rate / 10, peak / 10))]
    if args.optimizer == "momentum":
        return [keras.optimizers.SGD(risen(args.learning_rate, peak), momentum=0.9)]
    fading = keras.optimizers.schedules.PolynomialDecay(0.001, rise, end_learning_rate=0.0)
    return [
        keras.optimizers.RMSprop(fading, momentum=0.9),
        keras.optimizers.SGD(risen(0.0, peak), momentum=0.9),
    ]
