"""A FeedRunner in place of a tf.data map that calls Python makes the batches that the map made."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.patches.python_maps import PythonMaps
from tests.diagnose.patches.patching import Script

tf = pytest.importorskip("tensorflow")

BEGIN = """\
import numpy as np
import tensorflow as tf

def work(name, label):
    return np.float32([label, len(name)]), label

def load(name, label):
    return tf.numpy_function(work, [name, label], [tf.float32, tf.int64])

def one(label):
    return tf.py_function(lambda x: x.numpy() * 2, [label], tf.int64)

def both(names):
    return {"x": tf.numpy_function(lambda x: np.int64(len(x)), [names["a"]], tf.int64)}

names, labels = np.array(["a", "bb", "c", "dddd", "e"]), np.arange(5)
"""
SLICES = "data = tf.data.Dataset.from_tensor_slices"
LOOP = "for x in data:\n    step(x)\n"
FORMS = [
    f"{SLICES}((names, labels)).map(load).batch(2)\n",
    f"{SLICES}((names, labels)).map(load, num_parallel_calls=2).batch(2, drop_remainder=True)\n",
    f"{SLICES}(labels).repeat(2).map(one).batch(batch_size=3, drop_remainder=False).prefetch(2)\n",
    f"{SLICES}({{'a': names}}).map(both)\ndata = data.batch(2)\n",
    f"{SLICES}((names, labels)).map(lambda n, k: tf.numpy_function(work, [n, k], "
    "[tf.float32, tf.int64])).batch(2)\n",
]


def script_of(folder: Path, text: str) -> Script:
    """A script, whose calls of tf.data come last first, as they are seen."""
    script = Script(folder, BEGIN + text + LOOP, kind="tf.data", loop="for x in data:")
    names = [one for one in ("repeat", "map", "batch", "prefetch") if f".{one}(" in text]
    for name in sorted(names, key=lambda one: -text.index(f".{one}(")):
        script.calls_of(f"tf.data {name}", f".{name}(")
    return script.advised("processes", "2")


def batches(text: str) -> list[Any]:
    names: dict[str, Any] = {"found": [], "step": lambda x: names["found"].append(x)}
    exec(text, names)
    found = [tf.nest.map_structure(lambda leaf: leaf.numpy(), one) for one in names["found"]]
    names.clear()
    gc.collect()  # the runner, which would go on with another epoch
    return found


@pytest.mark.parametrize("form", FORMS)
def test_the_batches_are_those_of_the_map(tmp_path: Path, form: str) -> None:
    script = script_of(tmp_path, form)
    patched = script.patched(PythonMaps(), titled="threads=1")
    assert ".map(" not in patched.partition("data = ")[2]
    before, after = batches(script.text), batches(patched)
    assert len(before) == len(after) > 1
    for one, other in zip(before, after, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)
    first = script.proposals(PythonMaps())[0]
    assert "processes=2" in first.title and first.advice is not None


@pytest.mark.parametrize(
    "form",
    [
        f"{SLICES}(labels).map(lambda x: x * 2).batch(2)\n",  # no Python in it
        f"{SLICES}(labels).map(one).repeat(2).batch(2)\n",
        f"{SLICES}(labels).map(one)\n",
    ],
)
def test_another_map_stays(tmp_path: Path, form: str) -> None:
    assert script_of(tmp_path, form).proposals(PythonMaps()) == []
