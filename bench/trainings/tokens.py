"""Texts of varying length, tokenised and padded while JAX trains on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.trainings.made_texts import made_texts
from bench.trainings.training import SEED, Form, Progress, Training
from fastfeed import FeedRunner

CLASSES, BATCH, WIDTH, EPOCHS = 8, 64, 128, 1000
LONGEST = 6  # letters of a token
Record = tuple[np.ndarray, np.int32]


@dataclass(frozen=True)
class Texts:
    """Texts and their classes; a record is the tokens of a text and its class."""

    texts: list[str]
    labels: np.ndarray
    vocabulary: dict[str, int]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Record:
        words = self.texts[index].lower().split()
        tokens = [token for word in words for token in self.tokens(word)]
        return np.array(tokens, np.int32), self.labels[index]

    def tokens(self, word: str) -> Iterator[int]:
        """Yield the longest token that a word begins with, then that of its rest."""
        start = 0
        while start < len(word):
            for end in range(min(start + LONGEST, len(word)), start, -1):
                token = self.vocabulary.get(word[start:end])
                if token is not None:
                    yield token
                    break
            start = end


def load(quick: bool) -> tuple[Texts, str]:
    """Return made texts."""
    found = made_texts(1000 if quick else 6400, CLASSES, longest=LONGEST)
    return Texts(*found), f"{len(found[0])} made texts"


def padded(records: list[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch, filled up with zeros to a multiple of WIDTH: JAX compiles each width."""
    tokens, labels = zip(*records, strict=True)
    longest = max(map(len, tokens))
    batch = np.zeros((len(tokens), -(-longest // WIDTH) * WIDTH), np.int32)
    for row, found in zip(batch, tokens, strict=True):
        row[: len(found)] = found
    return batch, np.array(labels, np.int32)


def batches(data: Texts) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches without end, shuffled in each epoch."""
    rng = np.random.default_rng(SEED)
    while True:
        order = rng.permutation(len(data))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            yield padded([data[n] for n in order[start : start + BATCH]])


def plain(data: Texts, progress: Progress) -> None:
    """Make each batch in the loop."""
    train = training(data)
    for tokens, labels in progress.watch(batches(data)):
        if progress.over(train(tokens, labels)):
            break


def grain(data: Texts, progress: Progress, *, workers: int) -> None:
    """Train on the batches of Grain, made in its threads or in worker processes."""
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # of a program that does not begin by absl.app.run
    made = grain.MapDataset.source(data).seed(SEED).shuffle().repeat()
    made = made.batch(BATCH, drop_remainder=True, batch_fn=padded).to_iter_dataset()
    if workers:
        made = made.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    train = training(data)
    for tokens, labels in progress.watch(made):
        if progress.over(train(tokens, labels)):
            break


def fastfeed(data: Texts, progress: Progress, **producers: Any) -> None:
    """Train on the batches of a FeedRunner."""
    options = {"batch_size": BATCH, "last_batch": "drop", "shuffle": True, "seed": SEED}
    with FeedRunner(data, collate=padded, pad=True, **options, **producers) as runner:
        made = progress.watch(runner.jax())
        train = training(data)
        for _ in range(EPOCHS):
            for tokens, labels in made:
                if progress.over(train(tokens, labels)):
                    return


def training(data: Texts) -> Any:
    """Return the function that trains on a batch and returns its loss."""
    from bench.trainings.bag_of_tokens import trained

    return trained(len(data.vocabulary) + 1, CLASSES)


TRAINING = Training(
    "texts of varying length, JAX",
    load,
    (
        Form("plain loop", plain, uses=(batches,)),
        Form("Grain, threads", partial(grain, workers=0), needs=("grain",)),
        Form("Grain, 2 workers", partial(grain, workers=2), needs=("grain",)),
        Form("fastfeed, processes=2", partial(fastfeed, processes=2), "fixed"),
        Form('fastfeed, workers="auto"', partial(fastfeed, workers="auto"), "auto"),
    ),
    target=0.1,
    cap=4000,
    needs=("jax",),
)
