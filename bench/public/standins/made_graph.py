"""The features of Cora's papers, which are too large to be part of a snapshot."""

from __future__ import annotations

import os
import pickle

import numpy as np


def complete() -> None:
    """Write `data/ind.cora.allx` unless it is there: words of 1,708 papers, as many as there."""
    path = "data/ind.cora.allx"
    if os.path.exists(path):
        return
    import scipy.sparse

    rng = np.random.default_rng(21)
    words = scipy.sparse.random(1708, 1433, 0.0127, "csr", np.float32, rng, np.ones)
    with open(path, "wb") as file:
        pickle.dump(words, file)
