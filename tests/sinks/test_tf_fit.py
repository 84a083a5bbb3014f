"""fit() over runner.dataset(): epochs, validation on the same workers, weights, and ends that come
early."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

from fastfeed import FeedRunner

keras = pytest.importorskip("keras")
pytest.importorskip("tensorflow")
from tests.sinks.test_keras_fit import (  # noqa: E402
    RECORDS,
    VALID,
    Each,
    compiled,
    fit,
    identity,
    model_of,
    record,
    runner_of,
)

pytestmark = pytest.mark.usefixtures("short_collections")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_epochs_and_validations_are_exact_on_the_same_workers(prefetch: int) -> None:
    workers: list[set[int]] = []
    tell = Each(
        epoch=lambda _: workers.append({p.pid for p in psutil.Process().children(recursive=True)})
    )
    with (
        runner_of(processes=2, shuffle=True) as runner,
        runner.also(range(VALID), transform=record, batch_size=4) as valid,
    ):
        data, validation = runner.dataset(prefetch=prefetch), valid.dataset(prefetch=prefetch)
        had = fit(data, epochs=3, validation_data=validation, callbacks=[tell])
    assert (had["once"], had["more"]) == ([RECORDS] * 3, [0] * 3)
    assert (had["val_once"], had["val_sum"]) == ([VALID] * 3, [sum(range(VALID))] * 3)
    assert len(workers[0]) > 1 and workers[0] == workers[1] == workers[2]


def test_steps_of_an_endless_dataset() -> None:
    with runner_of(threads=2) as runner:
        # two passes of 11 batches each
        had = fit(runner.dataset().repeat(), steps_per_epoch=22, epochs=2)
    assert had["sum"] == [2 * sum(range(RECORDS))] * 2


def test_weights_as_a_third_leaf() -> None:
    def weighted(index: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
        return np.ones(1, np.float32), np.zeros(1, np.float32), np.float32(index == 3)

    model = compiled(keras.Sequential([identity()]))
    with FeedRunner(range(8), transform=weighted, batch_size=8) as runner:
        loss = model.fit(runner.dataset(), verbose=0).history["loss"]
    assert loss == [pytest.approx(1 / 8)]


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("mix", [{"threads": 2}, {"processes": 1}], ids=str)
def test_an_interrupted_fit_leaves_nothing_and_another_one_is_whole(
    mix: dict[str, Any], error: Any
) -> None:
    def interrupted(batch: int) -> None:
        if batch == 3:
            raise error("enough")

    with runner_of(**mix) as runner:
        data = runner.dataset()
        with pytest.raises(error, match="enough"):
            fit(data, callbacks=[Each(batch=interrupted)])
        assert fit(data, model=model_of())["once"] == [RECORDS]
