"""Runs every example as a program and compares its output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
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


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A machine without MNIST, where every warning of an example's own is an error."""
    kept = {key: value for key, value in os.environ.items() if key != "FASTFEED_DATA"}
    changed = {
        "KERAS_HOME": str(tmp_path / "keras"),
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    return {**kept, **changed, "PYTHONWARNINGS": "error:::__main__"}


def run(
    environment: dict[str, str], *command: str, code: str = ""
) -> subprocess.CompletedProcess[str]:
    """`code` runs the example; without it, Python does."""
    program = [
        sys.executable,
        *(("-c", code) if code else ()),
        str(EXAMPLES / command[0]),
        *command[1:],
    ]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=200)


def accuracies(out: str) -> list[float]:
    """The test accuracy of every epoch that was printed, in order."""
    rates = r"(?:\d+|nan) steps/s, waited for input (?:\d+\.\d|nan)% of the time"
    found = re.findall(rf"^epoch (\d+): test accuracy (\d\.\d{{4}}), {rates}$", out, re.MULTILINE)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    return [float(accuracy) for _, accuracy in found]


@pytest.mark.slow
@pytest.mark.parametrize("example", TRAININGS)
def test_small_digits_and_a_file_that_is_named_and_the_real_mnist_where_it_is(
    example: str, environment: dict[str, str], tmp_path: Path
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
    done = run(
        environment, example, small, f"--data {own} --steps 3 --threads 2", *real, code=IN_TURN
    )
    assert done.returncode == 0, done.stderr
    first, named, second = done.stdout.partition(f"{own}: 200 digits to train on, 30 to test with")
    assert "scikit-learn's small digits" in first
    assert len(accuracies(first)) == 2
    assert f"{1500 // 64 if 'session' in example else -(-1500 // 64)}/" in done.stderr, (
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
    assert "3/3" in done.stderr
    if MNIST:
        assert many
        assert accuracies(third)[0] > 0.2, "300 steps give about 0.5, guessing gives 0.1"


@pytest.mark.parametrize(
    "options", [(), ("--crash", "0"), ("--crash", "69", "--processes", "2")], ids=str
)
def test_a_training_that_crashed_goes_on_with_the_very_same_stream(
    options: tuple[str, ...], environment: dict[str, str]
) -> None:
    done = run(environment, "resume.py", *options)
    crash = int(options[1]) if options else 37
    assert done.stdout.splitlines() == [
        f"crashed at step {crash}",
        f"went on at step {crash // 10 * 10}: {70 - crash // 10 * 10} steps were left",
        "the stream is the very same: True",
        "and so is the model: True",
    ], done.stderr


def test_a_crash_that_never_comes_is_refused(environment: dict[str, str]) -> None:
    done = run(environment, "resume.py", "--crash", "70")
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be a step from 0 to 69" in done.stderr


def test_both_train_the_same_network() -> None:
    import tensorflow as tf

    from fastfeed.benchmark import cnn_keras, cnn_session

    for shape in ((28, 28), (224, 200, 3), (8, 9)):
        with tf.Graph().as_default():
            cnn_session.logits(tf.compat.v1.placeholder(tf.uint8, (None, *shape)), training=True)
            session = [tuple(v.shape) for v in tf.compat.v1.trainable_variables()]
        assert session == [tuple(v.shape) for v in cnn_keras.model(shape).trainable_variables]
