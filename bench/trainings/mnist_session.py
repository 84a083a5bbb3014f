"""MNIST in a session of TensorFlow 1, with 50 ms of preprocessing for each batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from bench.trainings.sessions import graph, placeholders, timed, train_ops
from bench.trainings.training import SEED, Form, Progress, Training, data_folder
from fastfeed import FeedRunner
from fastfeed.benchmark import digits

BATCH, SLEEP_S, THREADS = 64, 0.05, 8
Batch = tuple[np.ndarray, np.ndarray]


def load(quick: bool) -> tuple[digits.Digits, str]:
    """Return MNIST, or scikit-learn's digits."""
    folder = data_folder()
    data = digits.load(folder if (folder / digits.FILE).is_file() else None)
    return data, f"{data.origin.partition(' from ')[0].partition(',')[0]}, {len(data.x_train)}"


def prepare(batch: Batch) -> Batch:
    """Return a batch after a preprocessing that waits."""
    time.sleep(SLEEP_S)
    images, labels = batch
    return images.astype(np.float32) / 255, labels


def batches(data: digits.Digits, seed: int = SEED) -> Iterator[Batch]:
    """Yield prepared batches without end, shuffled in each epoch."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(data.x_train))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield prepare((data.x_train[chosen], data.y_train[chosen]))


def feed_dict(data: digits.Digits, progress: Progress) -> None:
    """Make each batch in the loop."""
    with graph() as tf1, tf1.Session() as sess:
        images, labels = placeholders(tf1)
        ops = train_ops(images, labels)
        sess.run(tf1.global_variables_initializer())
        for x, y in progress.watch(batches(data)):
            _, loss = sess.run(ops, {images: x, labels: y})
            if progress.over(loss):
                break


def queue(data: digits.Digits, progress: Progress) -> None:
    """Fill a queue by threads, each with a stream of its own."""
    with graph() as tf1, tf1.Session() as sess:
        images, labels = placeholders(tf1)
        waiting = tf1.RandomShuffleQueue(2000, 1000, (tf1.float32, tf1.int64), ((28, 28), ()))
        enqueue = waiting.enqueue_many((images, labels))
        close = waiting.close(cancel_pending_enqueues=True)
        batch, waited = timed(tf1, waiting, BATCH)
        ops = train_ops(*batch)

        def fill(seed: int) -> None:
            try:
                for x, y in batches(data, seed):
                    sess.run(enqueue, {images: x, labels: y})
            except tf1.errors.CancelledError:
                pass

        sess.run(tf1.global_variables_initializer())
        seeds = range(SEED * THREADS, (SEED + 1) * THREADS)
        threads = [threading.Thread(target=fill, args=(seed,), daemon=True) for seed in seeds]
        for thread in threads:
            thread.start()
        over = False
        while not over:
            (_, loss), waited_s = sess.run((ops, waited))
            progress.waited(waited_s)
            over = progress.over(loss)
        sess.run(close)
        for thread in threads:
            thread.join()


def fastfeed(data: digits.Digits, progress: Progress, **producers: Any) -> None:
    """Feed the session by a FeedRunner."""
    options = {"batch_size": BATCH, "last_batch": "drop", "shuffle": True, "seed": SEED}
    arrays = data.x_train, data.y_train
    runner = FeedRunner(arrays, batch_transform=prepare, **options, **producers)
    with graph() as tf1, progress.feed(runner):
        ops = train_ops(*runner.get_inputs())
        with tf1.Session() as sess:
            sess.run(tf1.global_variables_initializer())
            runner.start(sess)
            while not progress.over(sess.run(ops)[1]):
                pass


TRAINING = Training(
    "MNIST in a session of TensorFlow 1, 50 ms of preprocessing for each batch",
    load,
    (
        Form("feed_dict in the loop", feed_dict, uses=(batches,)),
        Form("queue and 8 threads", queue, uses=(batches,)),
        Form("fastfeed, threads=8", partial(fastfeed, threads=THREADS), "fixed"),
        Form('fastfeed, threads="auto"', partial(fastfeed, threads="auto"), "auto"),
    ),
    target=0.2,
    cap=2500,
    needs=("tensorflow",),
)
