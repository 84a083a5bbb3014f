"""The batch size of metric_learning.py, from the speed of the source and of the step."""

import time

import keras
import numpy as np
from metric_feed import numbers, pairs_of
from metric_model import build, step_of

from fastfeed import FeedRunner
from fastfeed.plan.balance import balanced_batch

SMALLEST = 16  # pairs of a batch: fewer give an anchor little to be told from
STEPS = 1000  # of a training at least: a third of them learned less from as many pairs
LARGE = 64  # pairs of a step that is measured, beside one of a quarter
STEPS_TIMED = 12


def measured_batch(images, args):
    """Return the batch that balances input and step, both measured alone on this machine, or the
    largest one that leaves enough steps."""
    classes = len(set(images.labels.tolist()))
    large = min(LARGE, classes)
    small = max(large // 4, 1)
    source_s = source_time(images, large, args)
    model = build(args.model, images)
    step = step_of(model, keras.optimizers.Adam())
    shape = (images.side, images.side, images.channels)
    steps = step_times(step, [np.zeros((2 * pairs, *shape), np.uint8) for pairs in (small, large)])
    most = max(min(args.pairs // STEPS, classes), min(SMALLEST, classes))
    found = balanced_batch(source_s, steps, most=most)
    batch = max(found.batch, min(SMALLEST, classes))
    times = ", ".join(f"{seconds * 1e3:.0f} ms for {pairs}" for pairs, seconds in steps)
    print(
        f"source alone: {1 / source_s:.0f} pairs/s; a step takes {times}: batches of {batch}, "
        f"at most {found.samples_per_second:.0f} pairs/s, by the {found.limit}"
    )
    return batch


def source_time(images, pairs, args):
    """Return the seconds of a pair of the source alone."""
    options = pairs_of(images, pairs, args, processes=args.processes, epochs=10**6)
    with FeedRunner(numbers(images), **options) as runner:
        batches = iter(runner)
        next(batches)  # the workers have started
        began, made = time.perf_counter(), 0
        while made < 2 * pairs or time.perf_counter() - began < 1:
            made += len(next(batches)) // 2
        return (time.perf_counter() - began) / made


def step_times(step, batches):
    """Return (pairs, seconds) for each batch: the shortest of several steps, the batches in turn,
    after those that trace."""
    times = np.empty((1 + STEPS_TIMED, len(batches)))
    for row in times:
        for place, images in enumerate(batches):
            began = time.perf_counter()
            step(images).numpy()
            row[place] = time.perf_counter() - began
    pairs = [len(images) // 2 for images in batches]
    return list(zip(pairs, times[1:].min(axis=0).tolist(), strict=True))
