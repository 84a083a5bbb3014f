"""The figures of FeedCallback for each epoch. test_keras_backends.py runs this file on the other
backends, too."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from fastfeed import Snapshot
from fastfeed.core.stats import StageRow

keras = pytest.importorskip("keras")
import fastfeed.sinks.keras_callbacks as module  # noqa: E402
from fastfeed.keras import FeedCallback, StateCallback  # noqa: E402
from tests.helpers.fits import loses_none  # noqa: E402
from tests.sinks.test_keras_fit import STEPS, VALID, fit, model_of, record, runner_of, since_3_3  # noqa: E402

pytestmark = pytest.mark.usefixtures("short_collections")

KEYS = {"feed_starvation", "feed_au", "feed_queue_depth", "feed_wait_ms"}


class Told:
    """A runner with the counters, and a clock with the times, that a test sets."""

    def __init__(self) -> None:
        self.now = Snapshot(0.0, StageRow(), StageRow(), depth=0, depth_nbytes=0, producers=())
        self.clock_s = 100.0

    def snapshot(self) -> Snapshot:
        return self.now

    def perf_counter(self) -> float:
        return self.clock_s

    def at(self, clock_s: float, *, elapsed_s: float, batches: int, waited_s: float) -> None:
        self.clock_s = clock_s
        row = StageRow(batches=batches, wait_in_s=waited_s)
        self.now = Snapshot(elapsed_s, StageRow(), row, depth=3, depth_nbytes=0, producers=())


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    runner = Told()
    monkeypatch.setattr(module, "time", runner)
    return runner


def ended(callback: Any, epoch: int = 0) -> dict[str, float]:
    logs: dict[str, float] = {"loss": 1.0}
    callback.on_epoch_end(epoch, logs)
    assert logs.pop("loss") == 1.0
    return {key.removeprefix("feed_"): round(value, 9) for key, value in logs.items()}


def test_the_figures_of_each_epoch(told: Told) -> None:
    callback = FeedCallback(told)
    callback.on_epoch_begin(0)
    told.at(110, elapsed_s=8, batches=80, waited_s=2)
    assert ended(callback) == {"starvation": 0.25, "au": 0.75, "queue_depth": 3, "wait_ms": 25}
    callback.on_epoch_begin(1)
    told.at(120, elapsed_s=18, batches=180, waited_s=3)
    assert ended(callback) == {"starvation": 0.1, "au": 0.9, "queue_depth": 3, "wait_ms": 10}


def test_validation_and_what_is_between_epochs_do_not_count(told: Told) -> None:
    callback = FeedCallback(told)
    # where the run before has ended the elapsed time stands still
    told.at(100, elapsed_s=50, batches=500, waited_s=1)
    callback.on_epoch_begin(0)
    told.at(104, elapsed_s=80, batches=540, waited_s=2)
    callback.on_test_begin()
    told.at(190, elapsed_s=166, batches=540, waited_s=2)
    assert ended(callback) == {"starvation": 0.25, "au": 0.75, "queue_depth": 3, "wait_ms": 25}


def test_producers_that_were_started_anew_count_from_the_beginning(told: Told) -> None:
    callback = FeedCallback(told)
    told.at(100, elapsed_s=50, batches=500, waited_s=40)
    callback.on_epoch_begin(0)
    told.at(110, elapsed_s=8, batches=80, waited_s=2)
    assert ended(callback)["starvation"] == 0.25


@pytest.mark.parametrize("started", [False, True])
def test_an_epoch_that_has_nothing_to_tell(started: bool, told: Told) -> None:
    callback = FeedCallback(told)
    callback.on_epoch_begin(0)
    if started:
        told.at(100, elapsed_s=0, batches=0, waited_s=0)
    figures = ended(callback)
    assert (
        math.isnan(figures["starvation"])
        and math.isnan(figures["au"])
        and math.isnan(figures["wait_ms"])
    )
    callback.on_epoch_end(0)  # Keras may have no logs


def test_more_waiting_than_time_is_all_of_it(told: Told) -> None:
    """A thread that takes batches ahead of the step waits in parallel with it."""
    callback = FeedCallback(told)
    callback.on_epoch_begin(0)
    told.at(101, elapsed_s=1, batches=10, waited_s=5)
    assert (figures := ended(callback))["starvation"] == 1.0 and figures["au"] == 0.0


def test_nothing_is_called_for_each_batch() -> None:
    for name in ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"):
        assert getattr(FeedCallback, name) is getattr(keras.callbacks.Callback, name)
    assert issubclass(StateCallback, keras.callbacks.Callback)


def check(history: dict[str, list[float]], epochs: int, name: str = "feed") -> None:
    for key in KEYS:
        values = history[key.replace("feed", name)]
        assert [type(value) for value in values] == [float] * epochs
    pairs = zip(history[f"{name}_starvation"], history[f"{name}_au"], strict=True)
    assert all(
        0 <= starvation <= 1 and starvation + au == pytest.approx(1) for starvation, au in pairs
    )
    assert all(value >= 0 for value in history[f"{name}_wait_ms"])


@since_3_3
def test_the_callbacks_behind_it_have_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = keras.callbacks.EarlyStopping(
        monitor="feed_starvation", mode="min", min_delta=2.0, patience=0
    )
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    with runner_of() as runner, runner.also(range(VALID), transform=record, batch_size=4) as valid:
        callbacks = [FeedCallback(runner), stop, log]
        model = model_of()
        model.fit(
            runner.keras(), epochs=5, verbose=2, validation_data=valid.keras(), callbacks=callbacks
        )
    check(model.history.history, epochs=2)  # no improvement by 2: the second epoch was the last
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 and set(rows[0]) >= KEYS
    assert "feed_starvation: " in capsys.readouterr().out


@since_3_3
def test_tensorboard_has_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a test of Keras' own callback is enough once")
    with runner_of() as runner:
        board = keras.callbacks.TensorBoard(str(tmp_path), write_graph=False)
        fit(runner.keras(), callbacks=[FeedCallback(runner, name="input"), board])
    content = b"".join(file.read_bytes() for file in tmp_path.rglob("events.out.tfevents.*"))
    assert b"epoch_input_starvation" in content and b"epoch_input_au" in content


@loses_none
def test_over_a_plain_generator() -> None:
    with runner_of(epochs=2) as runner:
        history = fit(
            iter(runner),
            epochs=2,
            steps_per_epoch=STEPS,
            shuffle=False,
            callbacks=[FeedCallback(runner)],
        )
    check(history, epochs=2)


def test_over_a_dataset() -> None:
    if keras.backend.backend() != "tensorflow":
        pytest.skip("the others read a dataset in the same way")
    with runner_of() as runner:
        history = fit(
            runner.dataset(),
            epochs=2,
            shuffle=False,
            callbacks=[FeedCallback(runner, name="input")],
        )
    check(history, epochs=2, name="input")
