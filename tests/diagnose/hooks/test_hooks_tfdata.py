"""Hooks of loops over tf.data, and of functions that are called again and again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.hooks import keras_steps, tfdata
from fastfeed.steps import recorder as passing
from tests.diagnose.hooked import Clock, loops, watched

tf = pytest.importorskip("tensorflow")


def plain_dataset(generator: Any) -> Any:
    """A dataset without the prefetch that TensorFlow adds, so that it produces on demand."""
    spec = tf.TensorSpec((2,), tf.float32)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.from_generator(generator, output_signature=spec).with_options(options)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(passing, "perf_counter", clock)
    monkeypatch.setattr(tfdata, "time", clock)
    return clock


def test_each_step_of_an_eager_loop_has_waited_as_long_as_its_batch_was_made(clock: Clock) -> None:
    def make() -> Iterator[Any]:
        for i in range(5):
            clock.advance(3.0 if i else 0.0)
            yield np.full(2, i, np.float32)

    dataset = plain_dataset(make)
    found = []
    with watched("tensorflow", "tfdata") as log:
        for batch in dataset:
            clock.advance(2.0)
            found.append(float(batch[0]))
    (loop,) = loops(log, "tf.data")
    assert found == [0, 1, 2, 3, 4]
    assert [(step.wait_s, step.end_s - step.begin_s) for step in loop.steps] == [(0.0, 2.0)] + [
        (3.0, 5.0)
    ] * 4
    assert (loop.waits, loop.buffer) == ("exact", 0)
    assert "FlatMap" in loop.name
    assert [(leaf.dtype, leaf.shape) for leaf in loop.leaves] == [("float32", (2,))]
    assert loop.where.startswith("test_hooks_tfdata.py:")


def test_get_next_counts_and_epochs_belong_to_one_loop() -> None:
    dataset = tf.data.Dataset.range(10).batch(2)
    with watched("tensorflow", "tfdata") as log:
        for _ in range(3):
            iterator = iter(dataset)
            assert [int(iterator.get_next()[0]) for _ in range(5)] == [0, 2, 4, 6, 8]
            with pytest.raises(tf.errors.OutOfRangeError):
                iterator.get_next()
    assert sum(len(loop.steps) for loop in loops(log, "tf.data")) >= 12


def test_a_function_called_from_a_loop_is_its_step(clock: Clock) -> None:
    @tf.function
    def train_step(x: Any) -> Any:
        return tf.reduce_sum(tf.numpy_function(work, [x], tf.float32))

    def work(x: Any) -> Any:
        clock.advance(2.0)
        return x

    @tf.function
    def outer(x: Any) -> Any:
        return train_step(x)  # while it is traced, no step

    with watched("tensorflow", "tfdata") as log:
        for i in range(4):
            clock.advance(1.0)  # a batch is made
            assert float(train_step(np.full(2, i, np.float32))) == 2 * i
        outer(np.zeros(2, np.float32))
    first, second = loops(log, "call")
    assert [(step.wait_s, step.end_s - step.begin_s) for step in first.steps] == [(0.0, 2.0)] * 4
    assert [b.begin_s - a.end_s for a, b in itertools.pairwise(first.steps)] == [1.0] * 3
    assert (first.name, first.waits, first.buffer) == ("train_step()", "none", 0)
    assert len(second.steps) == 1


@pytest.mark.parametrize("batches", [1, 2])
def test_a_function_that_takes_its_batch_itself(
    clock: Clock, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that takes several batches is left unchanged."""
    monkeypatch.setattr(keras_steps, "time", clock)

    def make() -> Iterator[Any]:
        for i in range(12):
            clock.advance(3.0)
            yield np.full(2, i, np.float32)

    def train() -> list[float]:
        @tf.function
        def train_step(iterator: Any, rate: Any) -> Any:
            return tf.add_n([tf.reduce_sum(iterator.get_next()) for _ in range(batches)]) * rate

        iterator = iter(plain_dataset(make))
        found = [float(train_step(iterator, tf.constant(2.0))) for _ in range(12 // batches)]
        with pytest.raises(tf.errors.OutOfRangeError):
            train_step(iterator, tf.constant(2.0))
        return found

    expected = train()
    with watched("tensorflow", "tfdata") as log:
        assert train() == expected
    (loop,) = loops(log, "tf.data")
    assert len(loop.steps) == 12 // batches
    assert loop.waits == ("exact" if batches == 1 else "hidden")
    assert [step.wait_s for step in loop.steps[2:]] == ([3.0] * 10 if batches == 1 else [0.0] * 4)
    assert [leaf.shape for leaf in loop.leaves] == [(2,)]


def test_random_numbers_are_the_same_to_the_last_bit() -> None:
    def train() -> list[bytes]:
        tf.keras.utils.set_random_seed(7)
        dataset = (
            tf.data.Dataset.range(40).shuffle(40).batch(4).map(lambda x: tf.cast(x, tf.float32))
        )
        weight = tf.Variable(tf.random.normal((4, 1)))

        @tf.function
        def train_step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.dropout(x, 0.5) @ weight)
            weight.assign_sub(0.01 * tape.gradient(loss, weight))
            return loss

        found = [train_step(x[None]).numpy().tobytes() for _ in range(2) for x in dataset]
        return [*found, tf.random.normal((2,)).numpy().tobytes(), weight.numpy().tobytes()]

    expected = train()
    with watched("tensorflow", "tfdata", "session") as log:
        assert train() == expected
    assert len(loops(log, "call")[-1].steps) >= 20


def test_errors_of_the_source_come_as_they_are() -> None:
    def broken() -> Iterator[Any]:
        yield np.zeros(2, np.float32)
        raise ValueError("bad record")

    def read() -> tuple[type, bool]:
        iterator = iter(plain_dataset(broken))
        next(iterator)
        with pytest.raises(tf.errors.OpError) as raised:
            next(iterator)
        return type(raised.value), "bad record" in str(raised.value)

    expected = read()
    with watched("tensorflow", "tfdata"):
        assert read() == expected


def test_nobody_watches_any_more() -> None:
    kind = type(iter(tf.data.Dataset.range(1)))
    plain = kind.__next__, kind.get_next
    with watched("tensorflow", "tfdata") as log:
        assert kind.__next__ is not plain[0]
        log.active = False
        assert [int(x) for x in tf.data.Dataset.range(3)] == [0, 1, 2]
    assert log.timeline.loops == {}
    assert (kind.__next__, kind.get_next) == plain


def test_a_loop_over_a_distributed_dataset_is_exact() -> None:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with watched("tensorflow", "tfdata") as log:
        for _ in range(2):
            for x in strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(2)):
                assert x.shape == (2,)
    (loop,) = loops(log, "tf.data")
    assert (len(loop.steps), loop.waits) == (8, "exact")


@pytest.mark.parametrize("way", ["a dataset", "an iterator", "tensors"])
def test_a_function_that_takes_its_batches_itself_hides_its_waits(way: str) -> None:
    dataset = tf.data.Dataset.range(64)
    iterator = iter(dataset)

    @tf.function
    def epoch(over: Any) -> Any:
        total = tf.constant(0, tf.int64)
        for x in over:
            total += x
        return total

    @tf.function
    def captured(_: Any) -> Any:
        return next(iterator)

    with watched("tensorflow", "tfdata") as log:
        for _ in range(3):
            {"a dataset": epoch, "tensors": epoch, "an iterator": captured}[way](
                dataset if way == "a dataset" else tf.range(4, dtype=tf.int64)
            )
    (loop,) = loops(log, "call")
    assert (loop.waits, loop.buffer) == (("none", 0) if way == "tensors" else ("hidden", None))
