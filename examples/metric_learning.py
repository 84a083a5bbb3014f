"""Learn which images show the same item: cross-domain pairs, N-pair loss, 256 numbers an image.

    python examples/metric_learning.py                   # Omniglot in $FASTFEED_DATA, or digits
    python examples/metric_learning.py --data my/photos  # a folder of class folders
    python examples/metric_learning.py --batch-size 1024 # pairs; by default measured
    python examples/metric_learning.py --data my/photos --model resnet50 --size 224

`Pairs` draws two images of each class: the anchor in the street (turned, cropped, in other light),
the positive in the shop. All classes of a batch differ. What is learned is tested on classes that
the training never saw. The pictures and figures are in build/metric.
"""

import json
import resource
import sys
import time
from itertools import islice
from pathlib import Path

import keras
import numpy as np
from metric_batch import measured_batch
from metric_data import load
from metric_feed import numbers, pairs_of
from metric_model import build, npair_loss, step_of, unit
from metric_options import options
from metric_plots import draw
from metric_search import search
from tqdm import tqdm

from fastfeed import FeedRunner, MissingExtra, OptionError

TESTED = 64  # pairs of a test batch
WINDOWS = 12  # of the training, each of as many steps within 1


def main():
    args = options(__doc__)
    train, test, said = load(
        args.data, side=args.size, colour=args.model == "resnet50", held_out=args.held_out
    )
    print(said)
    keras.utils.set_random_seed(args.seed)
    batch = args.batch_size or measured_batch(train, args)
    model = build(args.model, train)
    figures = learn(model, train, test, batch=batch, args=args)
    figures["recall"], found, missed = search(model, test, args)
    draw(figures["history"], found, missed=missed, folder=args.output)
    (Path(args.output) / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"memory of the training process: {peak_gb:.1f} GB at most")


def learn(model, train, test, *, batch, args):
    """Train, and return the figures: speed, the course of the training, and top-1 and top-5 on
    held-out classes."""
    steps = max(args.pairs // batch, 1)
    tested = min(TESTED, batch, len(set(test.names)))
    rate = keras.optimizers.schedules.CosineDecay(args.learning_rate, steps)
    step = step_of(model, keras.optimizers.Adam(rate), pairs=tested)
    ends = {round(steps * part / WINDOWS) for part in range(1, WINDOWS + 1)} - {0}
    history, losses, testing_s = [], [], 0.0
    options = pairs_of(train, batch, args, processes=args.processes, epochs=10**6)
    runner = FeedRunner(numbers(train), **options)
    with runner, runner.also(numbers(test), **pairs_of(test, tested, args)) as validation:
        bar = tqdm(islice(runner, steps), "training", steps, unit=" steps")
        for number, images in enumerate(bar, start=1):
            losses.append(step(images))
            if number in ends:
                began = time.perf_counter()
                window = {"pairs": number * batch, "loss": float(np.mean(losses))}
                history.append(window | evaluated(model, validation))
                testing_s += time.perf_counter() - began
                bar.set_postfix({k: f"{v:.3f}" for k, v in history[-1].items() if k != "pairs"})
                losses.clear()
        fed = runner.snapshot()
        last = [evaluated(model, validation) for _ in range(3)]
    trained_s = fed.elapsed_s - testing_s
    figures = {
        "batch": batch,
        "tested": tested,
        "pairs_per_s": steps * batch / trained_s,
        "waited": fed.starvation * fed.elapsed_s / trained_s,
        "history": history,
        **{name: float(np.mean([found[name] for found in last])) for name in last[0]},
    }
    print(
        f"trained on {steps * batch} pairs in batches of {batch}: "
        f"{figures['pairs_per_s']:.0f} pairs/s, waited for input {figures['waited']:.1%} of the "
        f"time\nclasses never seen, batches of {tested} pairs: top-1 {figures['top1']:.3f}, "
        f"top-5 {figures['top5']:.3f}, loss {figures['held_out_loss']:.3f} "
        f"(training {history[-1]['loss']:.3f})"
    )
    return figures


def evaluated(model, batches):
    """Return the loss of held-out classes, and how often an anchor's own positive is the nearest of
    its batch, and among the five nearest."""
    losses, ranks = [], []
    for images in batches:
        embedded = model(images, training=False)
        losses.append(npair_loss(embedded))
        found = unit(embedded)
        products = found[0::2] @ found[1::2].T
        ranks.extend((products > np.diag(products)[:, None]).sum(axis=1).tolist())
    top1, top5 = (float(np.mean(np.array(ranks) < count)) for count in (1, 5))
    return {"held_out_loss": float(np.mean(losses)), "top1": top1, "top5": top5}


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
