"""A FeedRunner in place of a tf.data map that calls Python makes the batches that the map made."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.patches import python_maps
from fastfeed.diagnose.patches.datasets import GeneratorDataset
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
    f"{SLICES}({{'a': names}}).map(both).batch(2)\n",
    f"{SLICES}((names, labels)).map(lambda n, k: tf.numpy_function(work, [n, k], "
    "[tf.float32, tf.int64])).batch(2)\n",
]


def script_of(folder: Path, text: str) -> Script:
    """A script, whose calls of tf.data come last first, as they are seen."""
    text = BEGIN + text + LOOP
    script = Script(folder, text, kind="tf.data", loop="for x in data:")
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


def test_where_there_is_a_gpu_no_worker_process_gets_tensorflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_maps, "GPU_DRIVER", str(tmp_path))
    found = script_of(tmp_path, FORMS[0]).proposals(PythonMaps())
    assert [one.title.partition(", ")[2].partition(")")[0] for one in found] == ["threads=1"]


WORK = "seen = []\ndef noted(x):\n    seen.append(x)\n    return x\n"
NOTED = (
    "data = tf.data.Dataset.range(9).map(lambda x: tf.py_function(noted, [x], tf.int64)).batch(2)\n"
)


def test_what_a_function_tells_the_loop_stays_in_the_process(tmp_path: Path) -> None:
    text = f"import tensorflow as tf\n{WORK}{NOTED}for x in data:\n    step(x, seen)\n"
    script = Script(tmp_path, text, kind="tf.data", loop="for x in data:")
    script.calls_of("tf.data batch", ".batch(").advised("threads", "2")
    found = [one.title for one in script.proposals(PythonMaps())]
    assert found and not any("processes" in one or "threads=2" in one for one in found)


EPOCHS = "for epoch in range(3):\n    for x in data:\n        step(x)\n"


@pytest.mark.parametrize(
    ("loop", "proposed"),
    [
        (EPOCHS, True),
        (EPOCHS + "        if x > 3:\n            break\n", False),
        (EPOCHS.replace("in data", "in zip(range(3), data)").replace("for x", "for n, x"), False),
        ("for x in data:\n    step(x)\n    if x > 3:\n        break\n", True),
    ],
)
def test_an_epoch_that_ends_before_its_data_begins_anew(
    tmp_path: Path, loop: str, proposed: bool
) -> None:
    """A runner would go on where the last epoch was left."""
    makes = "def make():\n    yield 1\n"
    source = "data = tf.data.Dataset.from_generator(make, output_types=tf.int64)\n"
    for text, site, patch in (
        (BEGIN + FORMS[0], "batch", PythonMaps()),
        (BEGIN + makes + source, "from_generator", GeneratorDataset()),
    ):
        line = next(one.strip() for one in loop.split("\n") if "data" in one)
        script = Script(tmp_path, text + loop, kind="tf.data", loop=line)
        script.calls_of(f"tf.data {site}", f".{site}(")
        assert bool(script.proposals(patch)) == proposed


@pytest.mark.parametrize(
    "form",
    [
        f"{SLICES}(labels).map(lambda x: x * 2).batch(2)\n",  # no Python in it
        f"{SLICES}(labels).map(one).repeat(2).batch(2)\n",
        f"{SLICES}(labels).map(one)\n",
        f"{SLICES}(labels).map(one)\ndata = data.batch(2)\n",  # of which others may take, too
        f"{SLICES}(labels).map(one).map(lambda x: x * 2).batch(2)\n",
        f"{SLICES}(labels).map(one).batch(2)\nsteps = int(data.cardinality())\n",
        f"{SLICES}(labels).map(one).batch(2)\nsteps = len(data)\n",
        f"{SLICES}(labels).map(one).batch(2).take(2)\n",
    ],
)
def test_another_map_stays(tmp_path: Path, form: str) -> None:
    assert script_of(tmp_path, form).proposals(PythonMaps()) == []
