"""Hooks of Keras on TensorFlow: waits of a step, and unchanged training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.hooks import keras_steps
from tests.diagnose.fitting import NO_MORE, batch, keras, model_of, on_demand, shuffled, tf, trained
from tests.diagnose.hooked import Clock, kinds, loops, watched

pytestmark = NO_MORE


def endless() -> Iterator[Any]:
    i = 0
    while True:
        yield batch(i)
        i += 1


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        return batch(i)


def ragged() -> Any:
    rows = tf.ragged.constant([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0], [7.0]] * 6)
    made = tf.data.Dataset.from_tensor_slices(rows).batch(4)
    return made.map(
        lambda x: (
            {"x": x.to_tensor(shape=(None, 3)), "r": tf.strings.as_string(x)},
            tf.zeros((4, 1)),
        )
    )


SOURCES: dict[str, Callable[[], dict[str, Any]]] = {
    "generator": lambda: {"x": endless(), "steps_per_epoch": 12},
    "dataset": lambda: {"x": shuffled(12)},
    "repeated": lambda: {"x": shuffled(12).repeat(), "steps_per_epoch": 12},
    "arrays": lambda: {
        "x": np.arange(144, dtype=np.float32).reshape(48, 3),
        "y": np.ones((48, 1)),
        "batch_size": 4,
    },
    "PyDataset": lambda: {"x": Batches(workers=2), "shuffle": False},
    "odd end": lambda: {"x": tf.data.Dataset.from_tensor_slices(batch(3)).repeat(11).batch(4)},
}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_training_is_the_same_to_the_last_bit(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where batches are taken beforehand, over the ends of epochs."""
    expected = trained(model_of(), **SOURCES[source](), epochs=3)
    monkeypatch.setattr(keras_steps, "ALWAYS_OBSERVED_S", 0.0)
    with watched("keras", "keras_fit", every=4) as log:
        assert trained(model_of(), **SOURCES[source](), epochs=3) == expected
    (loop,) = loops(log, "keras")
    assert len(loop.steps) == (33 if source == "odd end" else 36)
    assert loop.waits == "exact"
    assert sum(step.free for step in loop.steps) >= 8
    assert [mark.label for mark in log.timeline.marks if mark.kind == "epoch"] == [
        "0",
        "1",
        "2",
    ]
    assert loop.where.startswith("fitting.py:")
    assert loop.note


def test_a_step_waits_as_long_as_its_batch_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(keras_steps, "time", clock)

    def slow() -> Iterator[Any]:
        for i in range(10):
            clock.advance(7.0)
            yield batch(i)

    class Steps(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            clock.advance(2.0)

    with watched("keras", "keras_fit") as log:
        model_of().fit(on_demand(slow), verbose=0, callbacks=[Steps()])
    (loop,) = loops(log, "keras")
    # the first one traces, the second one prepares
    assert [step.wait_s for step in loop.steps[2:]] == [7.0] * 8
    assert [step.end_s - step.begin_s for step in loop.steps[2:]] == [7.0] * 8
    assert {b.begin_s - a.end_s for a, b in zip(loop.steps[2:], loop.steps[3:], strict=False)} == {
        2.0
    }
    assert (loop.waits, loop.buffer) == ("exact", 0)
    assert "compile" in kinds(log)


def test_a_model_is_observed_again() -> None:
    """Its train function has kept what the first diagnosis wrapped around it."""
    model, counts = model_of(), []
    for _ in range(2):
        with watched("keras", "keras_fit") as log:
            model.fit(on_demand(lambda: map(batch, range(5))), verbose=0)
        counts.append([len(loop.steps) for loop in loops(log, "keras")])
    assert counts == [[5], [5]]


def test_of_short_steps_only_some_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Additional time of the other steps counts as waiting."""
    clock = Clock()
    monkeypatch.setattr(keras_steps, "time", clock)

    def slow() -> Iterator[Any]:
        for i in range(100):
            clock.advance(0.25)
            yield batch(i)

    with watched("keras", "keras_fit") as log:
        model_of().fit(on_demand(slow), verbose=0)
    (loop,) = loops(log, "keras")
    assert [step.wait_s for step in loop.steps[2:]] == [0.25] * 98
    assert loop.waits == "modelled"


def test_structures_of_every_kind_go_through() -> None:
    """Dictionaries, ragged tensors, strings."""

    class OnlyX(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.layer(inputs["x"])

    def run() -> list[float]:
        keras.utils.set_random_seed(1)
        model = OnlyX()
        model.compile("sgd", "mse", run_eagerly=False)
        made = ragged().map(lambda x, y: ({"x": x["x"], "r": x["r"].to_tensor(shape=(None, 3))}, y))
        found: list[float] = model.fit(made, epochs=2, verbose=0).history["loss"]
        return found

    expected = run()
    with watched("keras", "keras_fit", every=3) as log:
        assert run() == expected
    assert {leaf.dtype for leaf in loops(log, "keras")[0].leaves} == {"float32", "string"}


def test_errors_of_the_source_come_as_they_are() -> None:
    def broken() -> Iterator[Any]:
        yield from (batch(i) for i in range(8))
        raise ValueError("bad record")

    def run() -> tuple[type, bool, int]:
        seen: list[int] = []
        count = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda step, logs: seen.append(step)
        )
        with pytest.raises(Exception, match="bad record") as raised:
            model_of().fit(broken(), steps_per_epoch=20, verbose=0, callbacks=[count])
        return type(raised.value), "bad record" in str(raised.value), len(seen)

    expected = run()
    with watched("keras", "keras_fit"):
        assert run() == expected


def test_what_is_taken_beforehand_breaks_where_it_would_have() -> None:
    def broken() -> Iterator[Any]:
        yield from (batch(i) for i in range(9))
        raise ValueError("bad record")

    seen: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: seen.append(step))
    found = pytest.raises(tf.errors.OpError, match="bad record")
    with watched("keras", "keras_fit", every=2) as log, found:
        model_of().fit(broken(), steps_per_epoch=20, verbose=0, callbacks=[count])
    assert len(seen) == 9
    assert any(step.free for step in loops(log, "keras")[0].steps)


def test_evaluations_checkpoints_and_callbacks_are_marks(tmp_path: Path) -> None:
    with watched("keras", "keras_fit") as log:
        saving = keras.callbacks.ModelCheckpoint(
            str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True
        )
        given = np.zeros((8, 3)), np.zeros((8, 1))
        model_of().fit(
            *given, epochs=2, batch_size=4, verbose=0, validation_data=given, callbacks=[saving]
        )
    marks = [mark.kind for mark in log.timeline.marks]
    assert marks.count("evaluation") == 2
    assert marks.count("checkpoint") == 2
    assert marks.count("epoch") == 2
    assert sum(len(loop.steps) for loop in log.timeline.loops.values()) == 4


def test_train_on_batch_waits_for_nothing() -> None:
    def run() -> list[float]:
        model = model_of()
        return [float(model.train_on_batch(*batch(i))) for i in range(5)]

    expected = run()
    with watched("keras", "keras_fit") as log:
        assert run() == expected
    (loop,) = log.timeline.loops.values()
    assert (loop.kind, loop.waits, loop.buffer, len(loop.steps)) == ("call", "none", 0, 5)
    assert [leaf.shape for leaf in loop.leaves] == [(4, 3), (4, 1)]
    assert loop.name.endswith("train_on_batch")


def test_waits_of_several_steps_in_a_call_are_hidden() -> None:
    """And training is the same, also where the data end within a call."""

    def train() -> list[bytes]:
        return trained(model_of(steps_per_execution=4), x=shuffled(22), epochs=2)

    expected = train()
    with watched("keras", "keras_fit", every=2) as log:
        assert train() == expected
    (loop,) = loops(log, "keras")
    assert (loop.waits, {step.wait_s for step in loop.steps}) == ("hidden", {0.0})
    assert not any(step.free for step in loop.steps)
    assert "steps_per_execution=4" in loop.note


def test_steps_of_tf_distribute_are_seen_and_their_waits_are_not() -> None:
    with watched("keras", "keras_fit") as log:
        with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
            model = model_of(steps_per_execution=4)
        model.fit(shuffled(4 * 4), verbose=0)
        model.compile("sgd", "mse")
        model.fit(shuffled(4), verbose=0)
    assert [(loop.waits, len(loop.steps)) for loop in loops(log, "keras")] == [
        ("hidden", 4 * 4),
        ("hidden", 4),
    ]


def test_nobody_watches_any_more() -> None:
    model = model_of()
    plain = type(model).make_train_function, type(model).train_on_batch
    with watched("keras", "keras_fit") as log:
        assert type(model).make_train_function is not plain[0]
        log.active = False
        model.fit(endless(), steps_per_epoch=3, verbose=0)
    assert (log.timeline.loops, log.timeline.marks) == ({}, [])
    assert (type(model).make_train_function, type(model).train_on_batch) == plain
