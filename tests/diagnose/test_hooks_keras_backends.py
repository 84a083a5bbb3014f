"""Hooks of Keras on PyTorch and JAX, each in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import numpy as np
import keras
from fastfeed.diagnose.hooks import keras as hook, keras_steps
from tests.diagnose.hooked import Clock, Every, loops, watched

clock = Clock()
keras_steps.time = hook.time = clock

def batches():
    for i in range(100):
        clock.advance(7.0)
        yield np.full((4, 3), i, np.float32), np.full((4, 1), i, np.float32)

class Work(keras.callbacks.Callback):
    def on_train_batch_end(self, step, logs=None):
        clock.advance(2.0)

def train():
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    given = np.zeros((8, 3)), np.zeros((8, 1))
    history = model.fit(
        batches(), steps_per_epoch=6, epochs=2, verbose=0, callbacks=[Work()], validation_data=given, shuffle=False
    )
    single = [float(np.array(model.train_on_batch(*given))) for _ in range(3)]
    return [history.history["loss"], single, [w.tobytes() for w in model.get_weights()]]

expected = train()
with watched("keras", "keras", experiments=Every(2)) as context:
    assert train() == expected
(loop,) = loops(context, "keras")
assert len(loop.steps) == 12, len(loop.steps)
# Of the second epoch; the first two batches were made before the first step, to see what they are.
steps = loop.steps[6:]
assert [s.wait_s for s in steps] == [7.0] * 6, steps
assert [s.end_s - s.begin_s for s in steps] == [9.0] * 6, steps
assert (loop.waits, loop.buffer) == ("exact", 0)
assert "by the thread that trains" in loop.note
assert [leaf.dtype for leaf in loop.leaves] == ["float32", "float32"]
(single,) = loops(context, "call")
assert (len(single.steps), single.waits) == (3, "none")
kinds = [mark.kind for mark in context.timeline.marks]
assert (kinds.count("epoch"), kinds.count("evaluation")) == (2, 2), kinds
with watched("keras", "keras") as context:
    context.active = False
    train()
assert (context.timeline.loops, context.timeline.marks) == ({}, [])
print("done")
"""


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_steps_and_waits_of_other_backends(backend: str) -> None:
    pytest.importorskip("keras")
    pytest.importorskip(backend)
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=200
    )
    assert done.stdout.strip() == "done", done.stderr[-2000:]
