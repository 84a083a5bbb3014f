"""Generated data in the shapes and formats of public data sets."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

SHAPES = {"mnist": (28, 28), "cifar": (32, 32, 3)}
ROWS = {"mnist": 60000, "cifar": 50000, "words": 25000}
VOCABULARY = 20000


def rows_of(kind: str, settings: dict[str, Any]) -> int:
    """Number of training records."""
    return int(settings.get("rows") or ROWS[kind])


def images(kind: str, settings: dict[str, Any]) -> Any:
    """Return ((x, y), (x, y)) as uint8: dark images with bright strokes, and labels 0 to 9."""
    path = os.path.join(settings["data"], f"{kind}-{rows_of(kind, settings)}.npz")
    if not os.path.exists(path):
        (x, y), (x_test, y_test) = _images(kind, settings)
        np.savez(path + ".part.npz", x=x, y=y, x_test=x_test, y_test=y_test)
        os.replace(path + ".part.npz", path)
    with np.load(path) as found:
        return (found["x"], found["y"]), (found["x_test"], found["y_test"])


def _images(kind: str, settings: dict[str, Any]) -> Any:
    rng = np.random.default_rng(1)
    shape, train = SHAPES[kind], rows_of(kind, settings)
    sets = []
    for count in (train, train // (6 if kind == "mnist" else 5)):
        x = rng.integers(0, 255, (count, *shape), np.uint8)
        if kind == "mnist":
            x *= rng.random((count, *shape), np.float32) < 0.2
        sets.append((x, rng.integers(0, 10, count).astype(np.uint8)))
    return tuple(sets)


def words(settings: dict[str, Any]) -> Any:
    """Return reviews as lists of word numbers, of the lengths of IMDB's, and labels."""
    rng = np.random.default_rng(2)
    count = rows_of("words", settings)

    def reviews() -> Any:
        found = np.empty(count, object)
        for i, n in enumerate(np.clip(rng.lognormal(5.2, 0.6, count), 20, 2000).astype(int)):
            found[i] = np.minimum(rng.zipf(1.3, n) + 3, VOCABULARY).tolist()
        return found

    return reviews(), rng.integers(0, 2, count), reviews(), rng.integers(0, 2, count)


def keras_file(name: str, settings: dict[str, Any]) -> str:
    """Write what `keras.utils.get_file` would have fetched, once, and return its path."""
    folder = settings["data"]
    base = os.path.basename(name)
    path = os.path.join(folder, base)
    if os.path.exists(path):
        return path
    if base == "mnist.npz":
        (x, y), (x_test, y_test) = images("mnist", settings)
        np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    elif base == "imdb.npz":
        x, y, x_test, y_test = words(settings)
        np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    elif base == "reuters.npz":
        x, _, _, _ = words({"rows": 11228})
        np.savez(path, x=x, y=np.random.default_rng(3).integers(0, 46, len(x)))
    elif base.startswith("cifar-10"):
        _cifar(os.path.join(folder, base + "_extracted", "cifar-10-batches-py"), settings)
        return os.path.join(folder, base + "_extracted")
    elif base.endswith("ubyte.gz"):
        _idx(folder, settings)
    else:
        raise FileNotFoundError(f"no stand-in for {name}")
    return path


def _cifar(folder: str, settings: dict[str, Any]) -> None:
    import pickle

    os.makedirs(folder, exist_ok=True)
    (x, y), (x_test, y_test) = images("cifar", {**settings, "rows": 50000})
    flat = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    for i in range(5):
        part = slice(10000 * i, 10000 * (i + 1))
        with open(os.path.join(folder, f"data_batch_{i + 1}"), "wb") as file:
            pickle.dump({b"data": flat[part], b"labels": y[part].tolist()}, file)
    with open(os.path.join(folder, "test_batch"), "wb") as file:
        test = x_test.transpose(0, 3, 1, 2).reshape(len(x_test), -1)
        pickle.dump({b"data": test, b"labels": y_test.tolist()}, file)


def _idx(folder: str, settings: dict[str, Any]) -> None:
    """The four gzipped files of MNIST and Fashion-MNIST."""
    import gzip
    import struct

    (x, y), (x_test, y_test) = images("mnist", settings)
    for kind, pixels, labels in (("train", x, y), ("t10k", x_test, y_test)):
        with gzip.open(os.path.join(folder, f"{kind}-images-idx3-ubyte.gz"), "wb", 1) as file:
            file.write(struct.pack(">IIII", 2051, *pixels.shape) + pixels.tobytes())
        with gzip.open(os.path.join(folder, f"{kind}-labels-idx1-ubyte.gz"), "wb", 1) as file:
            file.write(struct.pack(">II", 2049, len(labels)) + labels.tobytes())


def prose(length: int) -> str:
    """Return words of a Zipf distribution, of that many characters."""
    rng = np.random.default_rng(11)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = np.array(["".join(rng.choice(letters, n)) for n in rng.integers(2, 9, 2000)])
    return " ".join(words[np.minimum(rng.zipf(1.2, length // 4) - 1, 1999)])[:length]
