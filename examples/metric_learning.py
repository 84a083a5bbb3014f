"""Learn which images show the same item: pairs of images, N-pair loss, embeddings of 256 numbers.

    python examples/metric_learning.py                   # Omniglot in $FASTFEED_DATA, or digits
    python examples/metric_learning.py --data my/photos  # a folder of class folders
    python examples/metric_learning.py --batch 1024      # pairs; by default measured
    python examples/metric_learning.py --data my/photos --model resnet50 --size 224

`Pairs` draws two images of each class, and all classes of a batch differ. What is learned is tested
on classes that the training never saw. The pictures are in build/metric.
"""

import argparse
import resource
import sys
import time
from itertools import islice
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from metric_images import SHOP, STREET, load
from tqdm import tqdm

from fastfeed import FeedRunner, MissingExtra, OptionError
from fastfeed.plan.balance import balanced_batch
from fastfeed.samplers import Pairs

DIMENSIONS = 256
L2 = 0.03  # of the embeddings
NEAREST = 7  # neighbours in the picture
SHOWN = 8  # queries in the picture
TESTED = 64  # pairs of a test batch
SMALLEST = 16  # pairs of a batch: fewer give an anchor little to be told from
STEPS = 1000  # of a training at least: a third of them learned less from as many pairs
LARGE = 64  # pairs of a step that is measured, beside one of a quarter
STEPS_TIMED = 12


def main():
    args = options()
    train, test, said = load(
        args.data, side=args.size, colour=args.model == "resnet50", held_out=args.held_out
    )
    print(said)
    keras.utils.set_random_seed(args.seed)
    batch = args.batch or measured_batch(train, args)
    model = build(args.model, train)
    history = learn(model, train, test, batch=batch, args=args)
    found = neighbours(model, test, args)
    draw(history, found, args.output)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"memory of the training process: {peak_gb:.1f} GB at most")


def build(name, images):
    """Return a network from (n, side, side, channels) uint8 to embeddings (n, 256)."""
    shape = (images.side, images.side, images.channels)
    inputs = keras.Input(shape, dtype="uint8")
    found = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    if name == "resnet50":
        found = keras.applications.ResNet50(
            include_top=False, weights=None, input_shape=shape, pooling="avg"
        )(found)
    else:
        for filters in (32, 64, 128, 128):
            found = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(found)
            found = keras.layers.BatchNormalization(momentum=0.9)(found)
            found = keras.layers.MaxPooling2D(2)(keras.layers.ReLU()(found))
        found = keras.layers.Flatten()(found)
    # short at first: the products of long random embeddings are large errors
    start = keras.initializers.VarianceScaling(0.02)
    return keras.Model(inputs, keras.layers.Dense(DIMENSIONS, kernel_initializer=start)(found))


def npair_loss(embedded):
    """Return the N-pair loss of embeddings in the order anchor, positive, anchor, positive.

    Each anchor is classified among the positives of all classes of the batch (Sohn, Improved deep
    metric learning with multi-class N-pair loss objective, NIPS 2016). Its L2 term keeps the
    lengths of the embeddings in bounds.
    """
    anchors, positives = embedded[0::2], embedded[1::2]
    logits = tf.matmul(anchors, positives, transpose_b=True)
    right = tf.range(tf.shape(logits)[0])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=right, logits=logits)
    return tf.reduce_mean(losses) + L2 * tf.reduce_mean(tf.reduce_sum(embedded**2, axis=1))


def step_of(model, optimizer):
    """Return a function that trains on one batch and returns its loss."""

    @tf.function(reduce_retracing=True)
    def step(images):
        with tf.GradientTape() as tape:
            loss = npair_loss(model(images, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


def numbers(images):
    """Return the source: the numbers of the images, which the producers render by whole batches."""
    return np.arange(len(images))


def feed(images, pairs, args, **given):
    """Return the options of a runner over batches of `pairs` pairs."""
    return {
        "batch_transform": images.render,
        "batch_size": 2 * pairs,
        "sampler": Pairs(images.labels, 2 * pairs),
        "seed": args.seed,
        **given,
    }


def measured_batch(images, args):
    """Return the batch that balances input and step, both measured alone on this machine, or the
    largest one that leaves enough steps."""
    classes = len(set(images.labels.tolist()))
    large = min(LARGE, classes)
    small = max(large // 4, 1)
    options = feed(images, large, args, processes=args.processes, epochs=10**6)
    with FeedRunner(numbers(images), **options) as runner:
        batches = iter(runner)
        next(batches)  # the workers have started
        began, made = time.perf_counter(), 0
        while made < 2 * large or time.perf_counter() - began < 1:
            made += len(next(batches)) // 2
        source_s = (time.perf_counter() - began) / made
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


def learn(model, train, test, *, batch, args):
    """Train, and return [(pairs seen, mean loss since the last one, top-1), ...]."""
    steps = max(args.pairs // batch, 1)
    rate = keras.optimizers.schedules.CosineDecay(args.rate, steps)
    step, history, losses, testing_s = step_of(model, keras.optimizers.Adam(rate)), [], [], 0.0
    tested = min(TESTED, len(set(test.names)))
    options = feed(train, batch, args, processes=args.processes, epochs=10**6)
    runner = FeedRunner(numbers(train), **options)
    with runner, runner.also(numbers(test), **feed(test, tested, args)) as validation:
        bar = tqdm(islice(runner, steps), "training", steps, unit=" steps")
        for number, images in enumerate(bar, start=1):
            losses.append(step(images))
            if number % max(steps // 12, 1) == 0 or number == steps:
                began = time.perf_counter()
                top1, _ = top_in_batches(model, validation)
                testing_s += time.perf_counter() - began
                history.append((number * batch, float(np.mean(losses)), top1))
                bar.set_postfix(loss=f"{history[-1][1]:.3f}", top1=f"{top1:.3f}")
                losses.clear()
        fed = runner.snapshot()
        trained_s = fed.elapsed_s - testing_s
        top1, top5 = np.mean([top_in_batches(model, validation) for _ in range(3)], axis=0)
    print(
        f"trained on {steps * batch} pairs in batches of {batch}: "
        f"{steps * batch / trained_s:.0f} pairs/s, waited for input "
        f"{fed.starvation * fed.elapsed_s / trained_s:.1%} of the time"
    )
    print(f"classes never seen, batches of {tested} pairs: top-1 {top1:.3f}, top-5 {top5:.3f}")
    return history


def embed(model, images):
    """Return embeddings of length 1: their product is the cosine of their angle."""
    return tf.math.l2_normalize(model(images, training=False), axis=1).numpy()


def top_in_batches(model, batches):
    """Return how often an anchor's own positive is the nearest of its batch, and among the five
    nearest."""
    ranks = []
    for images in batches:
        found = embed(model, images)
        products = found[0::2] @ found[1::2].T
        ranks.extend((products > np.diag(products)[:, None]).sum(axis=1))
    return np.mean(np.array(ranks) < 1), np.mean(np.array(ranks) < 5)


def neighbours(model, test, args):
    """Search the first half of each class for the others, taken in the shop and in the street, and
    print how often one of the same class is among the nearest.

    Return some queries in the street, each with the images nearest to it, and if they are right.
    """
    place = np.zeros(len(test), int)
    for name in set(test.names):
        own = np.flatnonzero(np.equal(test.names, name))
        place[own] = np.arange(len(own)) < len(own) / 2
    gallery, queries = (test.chosen(np.flatnonzero(place == part)) for part in (1, 0))
    chosen = np.random.default_rng(args.seed).permutation(len(queries))[:SHOWN].tolist()
    known, _ = embedded(model, gallery.seen(SHOP), args)
    for look, where in ((SHOP, "shop to shop"), (STREET, "street to shop")):
        found, pixels = embedded(model, queries.seen(look), args, kept=chosen)
        parts = np.array_split(found, len(found) // 1000 + 1)
        nearest = np.concatenate([np.argsort(-part @ known.T)[:, :NEAREST] for part in parts])
        right = np.array(gallery.names)[nearest] == np.array(queries.names)[:, None]
        rates = [right[:, :count].any(axis=1).mean() for count in (1, 5)]
        print(
            f"{where}: {len(found)} queries in {len(known)} images, recall@1 {rates[0]:.3f}, "
            f"recall@5 {rates[1]:.3f}"
        )
    return [
        (pixels[n], [(gallery.plain(m), right[n, k]) for k, m in enumerate(nearest[n])])
        for n in chosen
    ]


def embedded(model, images, args, *, kept=()):
    """Return the embeddings of all images in order, and the pixels of those to be `kept`."""
    options = {"batch_transform": images.render, "batch_size": 256, "seed": args.seed}
    found, pixels = [], {}
    with FeedRunner(numbers(images), **options) as runner:
        for batch in runner:
            first = sum(map(len, found))
            inside = [n for n in kept if first <= n < first + len(batch)]
            pixels |= {n: batch[n - first].copy() for n in inside}
            found.append(embed(model, batch))
    return np.concatenate(found), pixels


def draw(history, found, folder):
    """Save the queries with their neighbours, right ones in green, and the course of training."""
    from matplotlib.figure import Figure

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure((8, len(found)), layout="constrained")
    axes = figure.subplots(len(found), NEAREST + 1, squeeze=False)
    for row, (query, nearest) in zip(axes, found, strict=True):
        for axis, (image, right) in zip(row, [(query, None), *nearest], strict=True):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            colour = "black" if right is None else "tab:green" if right else "tab:red"
            for side in axis.spines.values():
                side.set(color=colour, linewidth=1 if right is None else 4)
    figure.suptitle("left: in the street; then the nearest in the shop, green if right", fontsize=9)
    figure.savefig(folder / "neighbours.png", dpi=80)
    figure = Figure((6, 3.5), layout="constrained")
    pairs, losses, top1 = zip(*history, strict=True)
    left = figure.subplots()
    left.plot(pairs, losses, "o-", color="tab:blue")
    left.set(xlabel="pairs", ylabel="loss")
    left.yaxis.label.set_color("tab:blue")
    right = left.twinx()
    right.plot(pairs, top1, "s-", color="tab:green")
    right.set(ylabel="top-1 on held-out classes", ylim=(0, 1))
    right.yaxis.label.set_color("tab:green")
    figure.savefig(folder / "training.png", dpi=80)
    print(f"pictures: {folder / 'neighbours.png'}, {folder / 'training.png'}")


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder of class folders, or with Omniglot's small zips")
    parser.add_argument(
        "--held-out", nargs="+", help="groups or classes to test on (the last ones)"
    )
    parser.add_argument("--model", choices=["cnn", "resnet50"], default="cnn")
    parser.add_argument("--size", type=int, default=32, help="pixels of a side (32)")
    parser.add_argument("--batch", type=int, help="pairs of a batch (as measured)")
    parser.add_argument("--pairs", type=int, default=100_000, help="pairs to train on (100000)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of Adam (0.001)")
    parser.add_argument("--processes", type=int, default=1, help="worker processes (1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="build/metric", help="folder of the pictures")
    parser.add_argument("--quick", action="store_true", help="few pairs, to see that it runs")
    args = parser.parse_args()
    if min(args.size, args.pairs, 1 if args.batch is None else args.batch) < 1:
        parser.error("--size, --batch and --pairs must be 1 or more")
    args.pairs = min(args.pairs, 2000) if args.quick else args.pairs
    return args


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
