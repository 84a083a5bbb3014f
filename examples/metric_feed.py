"""Feeds of metric_learning.py: of pairs for the training, and of all images for the search.

The source is the numbers of the images, which the producers render by whole batches.
"""

import numpy as np

from fastfeed import FeedRunner
from fastfeed.samplers import Pairs


def numbers(images):
    return np.arange(len(images))


def pairs_of(images, pairs, args, **given):
    """Return the options of a runner over batches of `pairs` pairs, each of an anchor from the
    street and a positive from the shop."""
    return {
        "batch_transform": images.render,
        "batch_size": 2 * pairs,
        "sampler": Pairs(images.labels, 2 * pairs, anchors=images.anchors),
        "seed": args.seed,
        **given,
    }


def in_order(images, args):
    """Yield (the number of its first image, pixels) of batches of all images, each time alike."""
    options = {"batch_transform": images.render, "batch_size": 256, "seed": args.seed}
    first = 0
    with FeedRunner(numbers(images), **options) as runner:
        for batch in runner:
            yield first, batch
            first += len(batch)
