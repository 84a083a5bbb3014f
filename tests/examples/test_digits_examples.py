"""The two trainings on digits, as programs, and their network."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.examples.conftest import EXAMPLES, ROOT, Run

TRAININGS = ["mnist_session.py", "mnist_keras.py"]
SHARED = [Path(os.environ.get("FASTFEED_DATA") or ROOT), ROOT.parent / "shared" / "data"]
MNIST = next((str(folder) for folder in SHARED if (folder / "mnist.npz").is_file()), None)

# The runs of one example in one interpreter: most of what a run takes is the start of TensorFlow.
IN_TURN = """
import runpy, shlex, sys
script, *runs = sys.argv[1:]
for run in runs:
    sys.argv = [script, *shlex.split(run)]
    runpy.run_path(script, run_name="__main__")
"""

pytest.importorskip("tensorflow")


def accuracies(out: str) -> list[float]:
    """The test accuracy of every epoch that was printed, in order."""
    rates = r"(?:\d+|nan) steps/s, waited for input (?:\d+\.\d|nan)% of the time"
    found = re.findall(rf"^epoch (\d+): test accuracy (\d\.\d{{4}}), {rates}$", out, re.MULTILINE)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    return [float(accuracy) for _, accuracy in found]


@pytest.mark.slow
@pytest.mark.parametrize("example", TRAININGS)
def test_small_digits_and_a_file_that_is_named_and_the_real_mnist_where_it_is(
    example: str, run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("tensorboard")
    images, labels = np.zeros((200, 28, 28), np.uint8), np.arange(200) % 10
    np.savez(
        own := tmp_path / "own.npz",
        x_train=images,
        y_train=labels,
        x_test=images[:30],
        y_test=labels[:30],
    )
    small = f"--epochs 2 --threads 3 --batch-size 64 --logdir {tmp_path / 'log'}"
    real = [f"--data {Path(MNIST) / 'mnist.npz'} --steps 300 --threads 2"] if MNIST else []
    in_turn = (small, f"--data {own} --steps 3 --threads 2", *real)
    out, errors = run(example, *in_turn, by=("-c", IN_TURN))
    first, named, second = out.partition(f"{own}: 200 digits to train on, 30 to test with")
    assert "scikit-learn's small digits" in first
    assert len(accuracies(first)) == 2
    assert f"{1500 // 64 if 'session' in example else -(-1500 // 64)}/" in errors, (
        "all steps of an epoch"
    )
    (events,) = (tmp_path / "log").glob("events.out.tfevents.*")
    content = events.read_bytes()
    assert all(
        tag in content
        for tag in (b"\x04loss", b"\x08accuracy", b"\x0dtest_accuracy", b"\x0astarvation")
    )
    assert named
    second, many, third = second.partition("60000 digits to train on")
    assert accuracies(second) == [0.1], "black images look all the same: one class in ten"
    assert "3/3" in errors
    if MNIST:
        assert many
        assert accuracies(third)[0] > 0.2, "300 steps give about 0.5, guessing gives 0.1"


def test_all_train_the_same_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import mnist_session
    import tensorflow as tf

    from fastfeed.benchmark import cnn_keras, cnn_session

    def shapes(network: Callable[..., Any], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        with tf.Graph().as_default():
            network(tf.compat.v1.placeholder(tf.uint8, (None, *shape)))
            return [tuple(v.shape) for v in tf.compat.v1.trainable_variables()]

    for shape in ((28, 28), (224, 200, 3), (8, 9)):
        keras = [tuple(v.shape) for v in cnn_keras.model(shape).trainable_variables]
        assert shapes(cnn_session.logits, shape) == keras
        if shape == (28, 28):
            assert shapes(partial(mnist_session.network, training=True), shape) == keras
