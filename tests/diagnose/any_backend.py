"""Hooks of Keras on PyTorch and JAX: tests/sinks/test_keras_backends.py has it run where such a
Keras is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

from fastfeed.diagnose.hooks import keras_fit as hook
from fastfeed.diagnose.hooks import patches
from fastfeed.steps import recorder
from tests.diagnose.hooked import Clock, loops, watched

Batch = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    turned = Clock()
    monkeypatch.setattr(hook, "time", turned)
    monkeypatch.setattr(patches, "time", turned)
    monkeypatch.setattr(recorder, "perf_counter", turned)
    return turned


def batches(clock: Clock) -> Iterator[Batch]:
    for i in range(100):
        clock.advance(7.0)
        yield np.full((4, 3), i, np.float32), np.full((4, 1), i, np.float32)


def train(clock: Clock) -> list[Any]:
    class Work(keras.callbacks.Callback):
        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            clock.advance(2.0)

        def on_test_end(self, logs: Any = None) -> None:
            clock.advance(3.0)

    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    held_out = np.zeros((8, 3)), np.zeros((8, 1))
    options = {
        "steps_per_epoch": 6,
        "epochs": 2,
        "verbose": 0,
        "validation_data": held_out,
        "shuffle": False,
    }
    history = model.fit(batches(clock), callbacks=[Work()], **options)
    single = [float(np.array(model.train_on_batch(*held_out))) for _ in range(3)]
    return [history.history["loss"], single, [w.tobytes() for w in model.get_weights()]]


def test_steps_and_waits_are_seen_and_training_is_the_same(clock: Clock) -> None:
    expected = train(clock)
    with watched("keras", "keras_fit") as log:
        assert train(clock) == expected
    (loop,) = loops(log, "keras")
    assert len(loop.steps) == 12
    # Of the second epoch; the first two batches were made before the first step, to see what they
    # are.
    assert [s.wait_s for s in loop.steps[6:]] == [7.0] * 6
    assert [s.end_s - s.begin_s for s in loop.steps[6:]] == [9.0] * 6
    assert (loop.waits, loop.buffer) == ("exact", 0)
    assert "by the thread that trains" in loop.note
    assert [leaf.dtype for leaf in loop.leaves] == ["float32", "float32"]
    (single,) = loops(log, "call")
    assert (len(single.steps), single.waits) == (3, "none")
    kinds = [mark.kind for mark in log.timeline.marks]
    assert (kinds.count("epoch"), kinds.count("evaluation")) == (1, 2)


def test_nobody_watches_any_more(clock: Clock) -> None:
    with watched("keras", "keras_fit") as log:
        log.active = False
        train(clock)
    assert (log.timeline.loops, log.timeline.marks) == ({}, [])
