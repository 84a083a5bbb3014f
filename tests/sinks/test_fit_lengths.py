"""Epochs of `fit` that are longer or shorter than others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, SpecError

keras = pytest.importorskip("keras")
X, Y = np.arange(24.0, dtype=np.float32).reshape(24, 1), np.zeros((24, 1), np.float32)


def mirrored(batch: Any) -> Any:
    x, y = batch
    return np.concatenate([x, -x]), np.concatenate([y, y])


class Steps(keras.callbacks.Callback):
    """Counts the steps: the optimizer counts one more where Keras asks for the length."""

    count = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1


def fitted(data: Any, epochs: int = 2) -> int:
    """Steps of all epochs."""
    model, steps = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), Steps()
    model.compile(loss="mse")
    model.fit(data, epochs=epochs, verbose=0, callbacks=[steps])
    return steps.count


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # when Keras has counted
def test_fit_gets_all_of_an_epoch_that_has_grown() -> None:
    with FeedRunner((X, Y), batch_size=4, batch_transform=mirrored) as runner:
        assert len(runner) == 6
        assert fitted(runner.dataset()) == 2 * 12
        with pytest.raises(TypeError):
            len(runner)


def test_keras_is_not_told_a_length_that_is_wrong() -> None:
    with (
        FeedRunner((X, Y), batch_size=4, batch_transform=mirrored) as runner,
        pytest.raises(SpecError, match="more records than it gets"),
    ):
        fitted(runner.keras())


def test_functions_that_keep_the_number_of_records_keep_the_length() -> None:
    with FeedRunner((X, Y), batch_size=4, batch_transform=lambda batch: batch) as runner:
        assert fitted(runner.keras()) == 2 * 6
        assert len(runner) == 6


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # at the end of the rest
@pytest.mark.parametrize("left", [1, 2])
@pytest.mark.parametrize("sink", ["dataset", "keras"])
def test_the_epochs_after_the_rest_of_one_are_whole(sink: str, left: int) -> None:
    with FeedRunner((X, Y), batch_size=4) as runner:
        state = [runner.state() for _ in runner][5 - left]
    with FeedRunner((X, Y), batch_size=4).restore(state) as runner:
        assert fitted(getattr(runner, sink)(), epochs=3) == left + 2 * 6
