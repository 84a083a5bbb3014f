"""Texts of made words, each of a class."""

from __future__ import annotations

import numpy as np

from bench.trainings.training import DATA_SEED

SYLLABLES = tuple(a + b for a in "bcdfghklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er"))
WORDS, OWN = 4000, 100  # in all, and of a class


def made_texts(
    count: int, classes: int, *, longest: int
) -> tuple[list[str], np.ndarray, dict[str, int]]:
    """Return texts, their classes, and the numbers of the tokens, of at most `longest` letters.

    A tenth of the words of a text are of its class, the others of all of them.
    """
    rng = np.random.default_rng(DATA_SEED)
    parts = rng.integers(0, len(SYLLABLES), (WORDS, 4))
    words = np.array(["".join(SYLLABLES[n] for n in row[: 2 + row[0] % 3]) for row in parts])
    tokens = sorted({*"".join(SYLLABLES), *SYLLABLES, *(word[:longest] for word in words)})
    labels = rng.integers(0, classes, count).astype(np.int32)
    texts = []
    for label in labels:
        length = int(np.clip(rng.lognormal(4.6, 0.6), 20, 250))
        shared = (WORDS * rng.random(length) ** 2).astype(int)
        own = int(label) * OWN + rng.integers(0, OWN, length)
        texts.append(" ".join(words[np.where(rng.random(length) < 0.1, own, shared)]))
    return texts, labels, {token: number for number, token in enumerate(tokens, start=1)}
