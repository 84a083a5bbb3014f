"""Parts of `tensorflow.contrib` that old scripts use, from where they are today."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np


def __getattr__(name: str) -> Any:
    import tensorflow.compat.v1 as tf

    if name in ("rnn", "layers", "learn", "seq2seq"):
        return sys.modules[__name__]
    if name in ("static_rnn", "static_bidirectional_rnn"):
        return getattr(tf.nn, name)
    if name == "flatten":
        return tf.layers.flatten
    if name == "fully_connected":
        return _fully_connected
    if name == "l2_regularizer":
        return lambda scale: lambda weights: scale * tf.nn.l2_loss(weights)
    if name == "xavier_initializer":
        return tf.glorot_uniform_initializer
    if name == "sequence_loss":
        return _sequence_loss
    if name == "preprocessing":
        return SimpleNamespace(VocabularyProcessor=VocabularyProcessor)
    if name.endswith("Cell"):
        return getattr(tf.nn.rnn_cell, name)
    raise AttributeError(name)


def _fully_connected(inputs: Any, num_outputs: int, activation_fn: Any = None) -> Any:
    import tensorflow.compat.v1 as tf

    return tf.layers.dense(inputs, num_outputs, activation_fn)


def _sequence_loss(logits: Any, targets: Any, weights: Any) -> Any:
    import tensorflow.compat.v1 as tf

    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=targets)
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


class VocabularyProcessor:
    """Numbers of the words of a text, padded with zeros."""

    def __init__(self, max_document_length: int) -> None:
        self.length = max_document_length
        self.vocabulary_: dict[str, int] = {"<UNK>": 0}

    def fit_transform(self, texts: Any) -> Any:
        for text in texts:
            row = np.zeros(self.length, np.int64)
            for i, word in enumerate(text.split(" ")[: self.length]):
                row[i] = self.vocabulary_.setdefault(word, len(self.vocabulary_))
            yield row

    def save(self, path: str) -> None:
        with open(path, "w") as file:
            file.write("\n".join(self.vocabulary_))
