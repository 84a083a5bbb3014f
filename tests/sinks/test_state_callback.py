"""Input that StateCallback refuses."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from fastfeed import OptionError, ProducerError, StateError

pytest.importorskip("keras")
from keras.src.trainers.epoch_iterator import EpochIterator

from fastfeed.sinks.keras_callbacks import StateCallback
from tests.helpers.fits import (
    NO_MORE,
    diary,
    fit,
    on_tensorflow,
    runner_of,
)

pytestmark = [pytest.mark.usefixtures("short_collections"), on_tensorflow]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.json"


@pytest.mark.skipif(
    not hasattr(EpochIterator, "reset"), reason="Keras before 3.7 has no batch for it"
)
@pytest.mark.filterwarnings(NO_MORE)
def test_a_second_epoch_of_a_generator_that_has_ended_is_refused(path: Path) -> None:
    """Keras would train on its first batches again."""
    with runner_of(epochs=1) as runner, pytest.raises(StateError, match="steps_per_epoch"):
        fit(diary(), StateCallback(runner, path), epochs=2, steps_per_epoch=None)


def test_batches_of_somebody_else_are_refused(path: Path) -> None:
    with runner_of() as runner, pytest.raises(StateError, match="call fit\\(feed.batches"):
        diary().fit(
            iter(runner), steps_per_epoch=2, verbose=0, callbacks=[StateCallback(runner, path)]
        )


def test_a_failure_is_met_by_every_generator(path: Path) -> None:
    with runner_of(broken=9) as runner:
        feed = StateCallback(runner, path)
        for _ in range(2):
            batches = feed.batches()
            assert [batch[0][0, 0] for batch in islice(batches, 2)] == [0, 4], (
                "nothing was trained on"
            )
            with pytest.raises(ProducerError, match="the disk is gone"):
                next(batches)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"epoch": 1}', '{"epoch": null, "feed": {}}', '{"epoch": 1, "feed"']
)
def test_a_file_of_something_else_is_refused(text: str, path: Path) -> None:
    path.write_text(text)
    with (
        runner_of() as runner,
        pytest.raises(OptionError, match="must be a file that a StateCallback wrote"),
    ):
        StateCallback(runner, path).restore()


def test_a_state_of_another_stream_is_refused(path: Path) -> None:
    with runner_of() as runner:
        fit(diary(), StateCallback(runner, path))
    with runner_of(seed=4) as runner, pytest.raises(OptionError, match="seed was 3 and is 4"):
        StateCallback(runner, path).restore()


def test_restoring_after_the_start_is_refused(path: Path) -> None:
    with runner_of() as runner:
        fit(diary(), feed := StateCallback(runner, path))
        with pytest.raises(StateError, match="after the start"):
            feed.restore()


@pytest.mark.parametrize("save_freq", [0, -1, True, 1.5, "batch", None])
def test_a_save_freq_that_never_comes_is_refused(save_freq: Any, path: Path) -> None:
    with runner_of() as runner, pytest.raises(OptionError, match="save_freq="):
        StateCallback(runner, path, save_freq=save_freq)
