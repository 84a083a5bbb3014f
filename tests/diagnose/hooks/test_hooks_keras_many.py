"""Hooks of Keras with several steps in a call: waits of a call, and unchanged training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastfeed.diagnose.hooks import keras_steps
from tests.diagnose.fitting import NO_MORE, SPEC, batch, model_of, on_demand, shuffled, tf, trained
from tests.diagnose.hooked import Clock, loops, watched

pytestmark = NO_MORE
MANY = 4
SOURCES: dict[str, Callable[[], dict[str, Any]]] = {
    "even": lambda: {"x": shuffled(12 * MANY)},
    "odd end": lambda: {"x": shuffled(10 * MANY + 1)},
    "repeated": lambda: {"x": shuffled(8).repeat(), "steps_per_epoch": 12 * MANY},
}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_training_is_the_same_to_the_last_bit(source: str) -> None:
    """Also where the data end within the batches that are taken beforehand."""
    expected = trained(model_of(steps_per_execution=MANY), **SOURCES[source](), epochs=2)
    with watched("keras", "keras_fit", every=2) as log:
        assert (
            trained(model_of(steps_per_execution=MANY), **SOURCES[source](), epochs=2) == expected
        )
    (loop,) = loops(log, "keras")
    assert loop.waits == "modelled"
    assert sum(step.free for step in loop.steps) >= 3 * MANY
    assert "steps_per_execution=4" in loop.note


def test_what_is_longer_than_with_batches_at_hand_was_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(keras_steps, "time", clock)

    def slow() -> Iterator[Any]:
        for i in range(12 * MANY):
            clock.advance(3.0)
            yield batch(i)

    with watched("keras", "keras_fit", every=1000) as log:
        model_of(steps_per_execution=MANY).fit(on_demand(slow), verbose=0)
    (loop,) = loops(log, "keras")
    at_hand = [step for step in loop.steps if step.free]
    rest = [step for step in loop.steps[MANY:] if not step.free]
    assert [step.end_s - step.begin_s for step in at_hand] == [0.0] * len(at_hand)
    assert len(at_hand) >= 3 * MANY
    assert [step.wait_s for step in rest] == [3.0] * len(rest)
    assert len(rest) >= 3 * MANY
    assert [mark.kind for mark in log.timeline.marks].count("experiment") == 2, "and what prepares"


@pytest.mark.slow
@pytest.mark.parametrize("experiments", [True, False])
def test_a_source_that_fails_does_so_at_the_same_batch(experiments: bool) -> None:
    failing = 5 * MANY + 2

    def broken() -> Iterator[Any]:
        for i in range(failing):
            yield batch(i)
        raise ValueError("bad record")

    def train() -> tuple[type, bool, list[bytes]]:
        model = model_of(steps_per_execution=MANY)
        with pytest.raises(tf.errors.OpError) as raised:
            model.fit(tf.data.Dataset.from_generator(broken, output_signature=SPEC), verbose=0)
        return (
            type(raised.value),
            "bad record" in str(raised.value),
            [w.tobytes() for w in model.get_weights()],
        )

    expected = train()
    with watched("keras", "keras_fit", every=1000 if experiments else 0) as log:
        assert train() == expected
    (loop,) = loops(log, "keras")
    assert loop.waits == ("modelled" if experiments else "hidden")


def test_steps_of_tf_distribute_are_seen_and_their_waits_are_not() -> None:
    with watched("keras", "keras_fit") as log:
        with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
            model = model_of(steps_per_execution=MANY)
        model.fit(shuffled(4 * MANY), verbose=0)
        model.compile("sgd", "mse")
        model.fit(shuffled(MANY), verbose=0)
    assert [(loop.waits, len(loop.steps)) for loop in loops(log, "keras")] == [
        ("hidden", 4 * MANY),
        ("hidden", MANY),
    ]
