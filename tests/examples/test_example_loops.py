"""Every short loop runs as a program of its own: it learns from its batches, and tells its wait."""

from __future__ import annotations

import importlib.util
import re

import pytest

from fastfeed.testing import PROMISES
from tests.examples.conftest import ROOT, Run

SLOW = pytest.mark.slow
SHARE = r"\d+\.\d% of the time"
LOOP = (r"epoch 1: 200 steps, loss (\S+)", r"epoch 2: 200 steps, loss (\S+)")
EACH = range(5)
CASES = [
    ("torch_loop.py", "torch", (*LOOP, f"waited for input {SHARE}")),
    ("jax_loop.py", "jax", (*LOOP, f"waited for input {SHARE}")),
    (
        "custom_loop.py",
        "tensorflow",
        [rf"epoch {n}: loss (\d\.\d{{3}}), waiting for input \d+%" for n in EACH],
    ),
    (
        "tf_distribute.py",
        "tensorflow",
        [rf"epoch {n}: 32 steps, loss (\d\.\d{{3}})" for n in EACH],
    ),
]


@SLOW
@pytest.mark.parametrize(("example", "framework", "lines"), CASES)
def test_the_loss_falls(example: str, framework: str, lines: list[str], run: Run) -> None:
    pytest.importorskip(framework, reason=f"pip install {framework}")
    out, _ = run(example)
    found = [re.fullmatch(*pair) for pair in zip(lines, out.splitlines(), strict=True)]
    assert all(found), out
    losses = [float(match[1]) for match in found if match.groups()]
    assert losses[-1] < losses[0] - 0.1 and losses[-1] < 1, "guessing gives 2.3"


@SLOW
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_fit_learns_on_each_backend_and_tells_its_starvation(backend: str, run: Run) -> None:
    pytest.importorskip("keras")
    pytest.importorskip(backend)
    environment = {"KERAS_BACKEND": backend, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    out, _ = run("keras_fit.py", "--epochs", "2", **environment)
    line = r"epoch {}: test accuracy (\d\.\d{{3}}), starvation (\d+\.\d)%, \d+ batches lay ready"
    found = [re.fullmatch(line.format(n), text) for n, text in enumerate(out.splitlines(), 1)]
    assert len(found) == 2
    assert float(found[1][1]) > 0.5, "guessing gives 0.1"
    assert all(0 <= float(match[2]) <= 100 for match in found)


def test_each_executor_makes_the_same_batches(run: Run) -> None:
    pytest.importorskip("cv2")
    executors = ["producers", *["dali-cpu"] * (importlib.util.find_spec("nvidia.dali") is not None)]
    out, _ = run("photos_dali.py", "--steps", "12", "--on", *executors, folder=ROOT)
    shape = rf"\(32, 160, 160, 3\) float32, labels \(32,\), \d+ images/s, waited for input {SHARE}"
    assert re.findall(rf"^([\w-]+): {shape}$", out, re.MULTILINE) == executors


def test_the_sink_of_the_example_keeps_every_promise(run: Run) -> None:
    out, errors = run("own_sink.py")
    right, kept = out.splitlines()
    assert (right, errors) == ("the sum of all squares is right: True", "")
    told = set(kept.removeprefix("the sink keeps its promises: ").split(", "))
    assert told == set(PROMISES) - {"no hang"}


@pytest.mark.parametrize(
    "options", [(), ("--crash", "0"), ("--crash", "69", "--processes", "2")], ids=str
)
def test_a_training_that_crashed_goes_on_with_the_very_same_stream(
    options: tuple[str, ...], run: Run
) -> None:
    out, errors = run("resume.py", *options)
    crash = int(options[1]) if options else 37
    assert out.splitlines() == [
        f"crashed at step {crash}",
        f"went on at step {crash // 10 * 10}: {70 - crash // 10 * 10} steps were left",
        "the stream is the very same: True",
        "and so is the model: True",
    ], errors
