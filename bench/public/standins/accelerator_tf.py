"""Steps of an accelerator in TensorFlow and Keras: they take a fixed time and no processor."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

SOURCE = Path(__file__).with_name("accelerator_op.cc")


def loss(seconds: float, *batch: Any) -> Any:
    """Return the operation's output, a loss that is there `seconds` after the batch."""
    return _library().accelerator_step(batch=list(batch), seconds=seconds)


def simulate(model: Any, seconds: float, *metrics: str) -> Any:
    """Let a Keras model take `seconds` for a step, and a third of it to evaluate one."""

    def step(data: Any, *, takes: float) -> dict[str, Any]:
        value = loss(takes, *tf.nest.flatten(data))
        return dict.fromkeys(("loss", *metrics), value)

    model.train_step = functools.partial(step, takes=seconds)
    model.test_step = functools.partial(step, takes=seconds / 3)
    model.get_metrics_result = dict
    compiled = model.compile

    def compile(*given: Any, **named: Any) -> None:
        compiled(*given, **{**named, "jit_compile": False})

    model.compile = compile
    model.jit_compile = False
    return model


def network(seconds: float, *metrics: str) -> Any:
    """Return a Keras model in place of one that is only there to take time."""
    import keras

    made = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    return simulate(made, seconds, *metrics)


@functools.cache
def _library() -> Any:
    """Load the operation; it is compiled once for a version of TensorFlow."""
    key = hashlib.sha256(SOURCE.read_bytes() + tf.__version__.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"accelerator-{key}.so"
    if not path.exists():
        part = f"{path}.{os.getpid()}"
        flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
        subprocess.run(
            ["g++", "-O1", "-w", "-shared", "-fPIC", SOURCE, "-o", part, *flags], check=True
        )
        os.replace(part, path)
    return tf.load_op_library(str(path))
