"""The state of the batches that fit() was trained on, saved beside the model; exact, although fit()
takes batches ahead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import Shuffle

keras = pytest.importorskip("keras")
from fastfeed.sinks.keras_callbacks import StateCallback  # noqa: E402
from tests.helpers.fits import (  # noqa: E402
    EPOCH,
    NO_MORE,
    Diary,
    diary,
    fit,
    on_tensorflow,
    runner_of,
    stream,
)

pytestmark = [pytest.mark.usefixtures("short_collections"), on_tensorflow]


class Crash(keras.callbacks.Callback):
    """Ends the training with an error at the begin or end of a batch."""

    def __init__(self, batch: int, *, begins: bool = True) -> None:
        super().__init__()
        self._left = batch
        self._begins = begins

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._begins:
            self._count()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._begins:
            self._count()

    def _count(self) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1


def interrupted(feed: StateCallback, crash: Crash, **options: Any) -> list[list[int]]:
    model = diary()
    with pytest.raises(KeyboardInterrupt):
        fit(model, feed, crash, **options)
    return model.seen


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Return a file in a folder that does not exist yet; check that no other file is left there."""
    path = tmp_path / "run" / "model.json"
    yield path
    assert {file.name for file in path.parent.glob("*")} <= {path.name}


@pytest.mark.parametrize("crash", [1, 10, 17])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "threads": 3},
        {"shuffle": Shuffle(12, 6)},
        {"epochs": 2},
    ],
    ids=str,
)
def test_it_goes_on_with_the_batch_after_the_last_one(
    crash: int, options: dict[str, Any], path: Path
) -> None:
    with runner_of(**options) as runner:
        trained = interrupted(StateCallback(runner, path, save_freq=1), Crash(crash), epochs=2)
    assert len(trained) == crash
    with runner_of(**options) as runner:
        epochs = 1 if crash < EPOCH else 2  # of which one is left
        trained += fit(
            diary(), StateCallback(runner, path), epochs=epochs, steps_per_epoch=2 * EPOCH - crash
        )
    assert trained == stream(2 * EPOCH, **options)


def test_batches_that_were_trained_on_after_the_last_save_come_again(path: Path) -> None:
    with runner_of() as runner:
        trained = interrupted(StateCallback(runner, path, save_freq=4), Crash(11), epochs=3)
    with runner_of() as runner:
        trained = trained[:8] + fit(diary(), StateCallback(runner, path), epochs=1)
    assert trained == stream(18)


def test_an_interruption_inside_the_callbacks_of_a_batch(path: Path) -> None:
    """The state was written, and a later callback failed."""
    with runner_of() as runner:
        trained = interrupted(StateCallback(runner, path, save_freq=1), Crash(5, begins=False))
    with runner_of() as runner:
        trained += fit(diary(), StateCallback(runner, path))
    assert trained == stream(16)


def test_epochs_are_saved_where_they_end_and_counted(path: Path) -> None:
    with runner_of() as runner:
        trained = interrupted(StateCallback(runner, path), Crash(2 * EPOCH + 3), epochs=4)
    with runner_of() as runner:
        feed = StateCallback(runner, path)
        trained = trained[: 2 * EPOCH] + fit(diary(), feed, epochs=3)
    assert json.loads(path.read_text())["epoch"] == 3
    assert trained == stream(3 * EPOCH)


def test_nothing_is_saved_before_the_first_time(path: Path) -> None:
    with runner_of() as runner:
        interrupted(StateCallback(runner, path), Crash(3))
        assert not path.exists()
    with runner_of() as runner:
        assert StateCallback(runner, path).restore() == 0
        assert runner.state()["epoch"] == 0


class CountsFromZero(keras.callbacks.ModelCheckpoint):
    """Counts like Keras up to 3.13: a first execution of three batches counts as two."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._last_batch_seen = 0


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "old"), [(1, False), (3, False), (3, True)])
def test_saves_fall_on_those_of_the_model(
    steps: int, old: bool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ModelCheckpoint counts the batches of all epochs; both save within the same execution."""
    if old:
        monkeypatch.setattr(keras.callbacks, "ModelCheckpoint", CountsFromZero)

    class Written(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[tuple[bool, bool]] = []

        def _collect(self) -> None:
            both = (tmp_path / "model.weights.h5", path)
            self.found.append((both[0].exists(), both[1].exists()))
            for file in both:
                file.unlink(missing_ok=True)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._collect()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._collect()

    for freq in ("epoch", 1, 3, 7, 10, 13):
        model = diary(steps)
        model(np.zeros((1, 1)))  # which makes its weights
        model_saves = keras.callbacks.ModelCheckpoint(
            tmp_path / "model.weights.h5", save_weights_only=True, save_freq=freq
        )
        with runner_of() as runner:
            feed = StateCallback(runner, path, save_freq=freq)
            model.fit(
                feed.batches(),
                steps_per_epoch=7,
                epochs=4,
                verbose=0,
                callbacks=[model_saves, feed, written := Written()],
            )
        assert all(weights == state for weights, state in written.found), f"save_freq={freq}"
        assert any(state for _, state in written.found)


@pytest.mark.filterwarnings(NO_MORE)
@pytest.mark.parametrize("steps", [2, 3])
def test_several_steps_in_one_execution(steps: int, path: Path) -> None:
    with runner_of(epochs=1) as runner:
        trained = fit(diary(steps), StateCallback(runner, path, save_freq=1), steps_per_epoch=steps)
    with runner_of(epochs=1) as runner:
        trained += fit(diary(steps), StateCallback(runner, path), steps_per_epoch=None, epochs=2)
    assert trained == stream(EPOCH)
    with runner_of() as runner:
        feed = StateCallback(runner, path)
        feed.restore()
        assert next(feed.batches())[0][0, 0] == 0, "the second epoch begins"
        assert runner.state()["epoch"] == 1


def test_another_fit_goes_on_with_what_the_first_took_and_did_not_train_on(path: Path) -> None:
    model = diary()
    with runner_of() as runner:
        feed = StateCallback(runner, path)
        for _ in range(4):
            model.fit(feed.batches(), steps_per_epoch=6, verbose=0, callbacks=[feed])
        with pytest.raises(KeyboardInterrupt):
            model.fit(feed.batches(), steps_per_epoch=6, verbose=0, callbacks=[feed, Crash(2)])
        model.fit(feed.batches(), steps_per_epoch=6, verbose=0, callbacks=[feed])
    assert model.seen == stream(32)


def test_a_training_that_is_stopped_saves_what_it_had(path: Path) -> None:
    class Enough(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 3

    with runner_of() as runner:
        trained = fit(diary(), StateCallback(runner, path), Enough(), epochs=5)
    assert len(trained) == 4
    with runner_of() as runner:
        trained += fit(diary(), StateCallback(runner, path), epochs=2)
    assert trained == stream(14)


def test_validation_does_not_count(path: Path) -> None:
    """Validation has other callbacks and other data than the runner."""

    class Lenient(Diary):
        def test_step(self, data: Any) -> dict[str, Any]:
            return {"loss": 0.0}

    model = Lenient()
    model.compile(run_eagerly=True)
    valid = np.zeros((5, 1), np.float32), np.zeros((5, 1), np.float32)
    with runner_of() as runner:
        fit(model, StateCallback(runner, path), epochs=2, steps_per_epoch=3, validation_data=valid)
    with runner_of() as runner:
        assert model.seen + fit(
            diary(), StateCallback(runner, path), epochs=3, steps_per_epoch=3
        ) == stream(9)


@pytest.mark.filterwarnings(NO_MORE)
def test_the_end_of_the_data_ends_fit_and_another_run_may_follow(path: Path) -> None:
    with runner_of(epochs=1) as runner:
        feed, model = StateCallback(runner, path), diary()
        model.fit(feed.batches(), verbose=0, callbacks=[feed])
        model.fit(feed.batches(), verbose=0, callbacks=[feed])
    with runner_of(epochs=1) as runner:
        feed = StateCallback(runner, path)
        model.fit(
            feed.batches(), epochs=2, initial_epoch=feed.restore(), verbose=0, callbacks=[feed]
        )
    assert model.seen == stream(3 * EPOCH), "the run was complete: the next one begins"


def test_a_runner_that_is_forgotten_ends_although_tensorflow_keeps_the_generator(
    path: Path,
) -> None:
    assert len(fit(diary(), StateCallback(runner_of(threads=2), path))) == EPOCH
