"""A PyDataset of a runner by itself, and the input that it refuses."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

from fastfeed import (
    FeedRunner,
    FeedStopped,
    MissingExtra,
    OptionError,
    SpecError,
    StateError,
)
from fastfeed.testing import SinkTraits, check_sink

keras = pytest.importorskip("keras")
from fastfeed.sinks.keras_data import KerasData  # noqa: E402
from tests.helpers.fits import on_tensorflow  # noqa: E402
from tests.sinks.test_keras_fit import (  # noqa: E402
    BATCH,
    RECORDS,
    STEPS,
    Each,
    batches,
    fit,
    model_of,
    record,
    runner_of,
)
from tests.sinks.test_keras_fit import pytestmark as pytestmark  # noqa: E402

IDS = (np.arange(4, dtype=np.float32)[:, None],) * 2


def ids(batch: Any) -> list[int]:
    return [int(value) for value in np.ravel(batch[0])]


def test_the_backend_is_the_one_that_was_meant() -> None:
    assert keras.backend.backend() == os.environ.get("KERAS_BACKEND", "tensorflow")


def test_it_is_a_dataset_of_its_own() -> None:
    with runner_of() as runner:
        data = runner.keras()
        assert isinstance(data, keras.utils.PyDataset)
        assert len(data) == data.num_batches == STEPS
        assert (data.workers, data.use_multiprocessing) == (1, False)
        for _ in range(2):
            assert [i for batch in data for i in ids(batch)] == list(range(RECORDS))


def test_it_keeps_the_contract_of_all_sinks() -> None:
    check_sink(lambda runner: runner.keras(), traits=SinkTraits(lists_become_tuples=True))


def test_a_look_takes_nothing() -> None:
    with runner_of() as runner:
        data = runner.keras()
        for _ in range(2):
            assert [ids(data[2])[0], ids(data[0])[0]] == [2 * BATCH, 0]
            assert [i for batch in data for i in ids(batch)] == list(range(RECORDS))
        with pytest.raises(IndexError, match="batch 11 of an iteration of 11"):
            data[STEPS]


def test_a_look_where_nobody_knows_the_length() -> None:
    with FeedRunner(batches) as runner:
        data = runner.keras()
        assert not hasattr(data, "__len__")
        stream = iter(data)
        assert ids(next(stream))[0] == 0
        assert [ids(data[0])[0], ids(data[1])[0]] == [BATCH, 2 * BATCH]
        assert [i for batch in data for i in ids(batch)] == list(range(BATCH, RECORDS)), (
            "it goes on"
        )
        assert [i for batch in data for i in ids(batch)] == list(range(RECORDS))
        with pytest.raises(StateError, match="two iterators at once"):
            next(stream)


def test_whole_passes_where_nobody_knows_the_length_are_not_followed_by_empty_ones() -> None:
    with FeedRunner(batches) as runner:
        data = runner.keras()
        for _ in range(2):
            stream = iter(data)
            assert [ids(next(stream))[0] for _ in range(STEPS)] == list(range(0, RECORDS, BATCH))


def test_another_fit_inside_a_fit_is_refused() -> None:
    with runner_of() as runner:
        data = runner.keras()
        inner = Each(lambda _: model_of().evaluate(data, verbose=0))
        with pytest.raises(StateError, match="two iterators at once"):
            fit(data, callbacks=[inner])


def test_a_runner_that_was_stopped_amid_fit() -> None:
    with runner_of(400, threads=1) as runner, pytest.raises(FeedStopped):
        compiled = model_of()
        compiled.fit(runner.keras(), verbose=0, callbacks=[Each(lambda _: runner.stop())])


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (lambda i: record(i) * 2, r"needs batches \(x,\), \(x, y\)"),
        (lambda i: (b"text", np.float32(i)), r"batch\[0\] holds bytes.*frombuffer"),
        (lambda i: ("text", np.float32(i)), r"batch\[0\] holds text.*runner.dataset\(\)"),
        (lambda i: (np.complex64(i), np.float32(i)), r"batch\[0\] has dtype complex64"),
        (lambda i: (np.longdouble(i), np.float32(i)), r"Keras on \w+ does not have.*dtypes="),
        (lambda i: ({1: record(i)[0], "a": record(i)[0]}, record(i)[1]), "keys of several types"),
        pytest.param(
            lambda i: ({"x": record(i)[0], "mask": None}, record(i)[1]),
            r"holds None.*runner.dataset\(\) does",
            marks=on_tensorflow,
        ),
    ],
)
def test_batches_that_fit_cannot_take(transform: Any, text: str) -> None:
    with runner_of(transform=transform) as runner, pytest.raises(SpecError, match=text):
        fit(runner.keras())


@pytest.mark.parametrize(
    "use",
    [
        lambda model, runner: model.fit(runner, verbose=0),
        lambda model, runner: model.fit(runner, validation_split=0.1, verbose=0),
        lambda model, runner: model.evaluate(runner, verbose=0),
        lambda model, runner: model.predict(runner, verbose=0),
        pytest.param(
            lambda model, runner: model.train_on_batch(runner),
            marks=on_tensorflow,  # others ask for other attributes
        ),
        lambda model, runner: model.fit(*IDS, validation_data=runner, verbose=0),
        lambda model, runner: np.asarray(runner),
    ],
)
def test_the_runner_itself_is_answered_with_what_to_write(use: Any) -> None:
    with (
        runner_of() as runner,
        pytest.raises(OptionError, match=r"runner.keras\(\), or runner.dataset\(\)"),
    ):
        use(model_of(), runner)


@pytest.mark.filterwarnings("ignore::UserWarning:keras")
def test_other_datasets_are_read_as_ever() -> None:
    class Own(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return np.full((2, 1), index, np.float32), np.full((2, 1), index, np.float32)

    with runner_of() as runner:
        assert isinstance(runner.keras(), KerasData)
        assert fit(Own(), epochs=2)["sum"] == [6.0, 6.0]


@pytest.mark.parametrize("name", ["_get_iterator", "num_batches"])
def test_an_unknown_keras_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    monkeypatch.delattr(
        PyDatasetAdapter if name == "_get_iterator" else keras.utils.PyDataset, name
    )
    with (
        runner_of() as runner,
        pytest.raises(StateError, match="feed fit\\(\\) with dataset\\(\\)"),
    ):
        runner.keras()


@pytest.mark.parametrize("name", ["keras_data", "keras_callbacks"])
def test_without_keras_there_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.setitem(sys.modules, "keras", None)
    monkeypatch.delitem(sys.modules, f"fastfeed.sinks.{name}", raising=False)
    with pytest.raises(MissingExtra, match="requires Keras, which is not installed"):
        importlib.import_module(f"fastfeed.sinks.{name}")
