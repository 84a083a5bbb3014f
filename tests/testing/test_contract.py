"""Every sink keeps the contract: one battery for all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, ProducerError
from fastfeed.testing import PROMISES, SinkBroken, SinkTraits, check_sink

EVERY = set(PROMISES) - {"no hang"}  # checked all the time


@pytest.fixture(autouse=True)
def short_collections() -> Iterator[None]:
    """Freeze the objects of the frameworks, because the battery often collects garbage.

    Each collection of them takes a third of a second.
    """
    gc.freeze()
    yield
    gc.unfreeze()


def needed(framework: str) -> Any:
    """Import it, or skip the test."""
    found = pytest.importorskip(framework)
    gc.freeze()
    return found


def keeps(sink: Any, *but: str, **options: Any) -> None:
    """Assert that every promise `but` some was checked, and is kept."""
    assert set(check_sink(sink, **options)) == EVERY - set(but)


def test_the_plain_loop() -> None:
    traits = SinkTraits(goes_on=True, dtypes=(*SinkTraits.dtypes, "bytes"))
    keeps(lambda runner: runner, traits=traits)


def test_one_iterator_is_a_sink_too() -> None:
    keeps(iter, "early break", "second epoch", traits=SinkTraits(again=False), processes=(0,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "put", [lambda batch: batch, lambda batch: Copied(batch)], ids=["as it is", "an own container"]
)
def test_prefetch_to_device(put: Any) -> None:
    def back(element: Any) -> Any:
        return element.batch if isinstance(element, Copied) else element

    keeps(lambda runner: runner.prefetch_to_device(put), to_numpy=back)


class Copied:
    """A batch as a user's own framework converts it."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch


def test_torch() -> None:
    needed("torch")
    keeps(lambda runner: runner.torch())


def same(batch: Any) -> Any:
    """Return the batch itself, of which a DataLoader makes lists of tuples otherwise."""
    return batch


def test_torch_under_a_dataloader() -> None:
    data = needed("torch.utils.data")
    options = {"batch_size": None, "collate_fn": same}
    keeps(lambda runner: data.DataLoader(runner.torch(), **options), processes=(0,))


@pytest.mark.filterwarnings("ignore:JAX casts:fastfeed.FeedWarning")
def test_jax() -> None:
    needed("jax")
    keeps(lambda runner: runner.jax(), traits=SinkTraits(casts={"int64": "int32"}, ahead=1))


class Iterated:
    """A PyDataset as Keras iterates over it without TensorFlow."""

    def __init__(self, runner: FeedRunner) -> None:
        self._data = runner.keras()

    def __iter__(self) -> Iterator[Any]:
        yield from self._data
        self._data.on_epoch_end()


class AsFitReads(Iterated):
    """A PyDataset as `fit` reads it: the first two batches, and then all through TensorFlow."""

    def __iter__(self) -> Iterator[Any]:
        from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

        adapter = PyDatasetAdapter(self._data, shuffle=False)
        if hasattr(adapter, "on_epoch_begin"):  # since Keras 3.5
            adapter.on_epoch_begin()
        yield from adapter.get_tf_dataset()
        adapter.on_epoch_end()


@pytest.mark.slow
@pytest.mark.parametrize(("sink", "ahead"), [(Iterated, 0), (AsFitReads, 1)])
def test_keras(sink: Any, ahead: int) -> None:
    if not hasattr(needed("keras").utils.PyDataset, "num_batches"):
        pytest.skip("runner.keras() needs Keras 3.3")
    needed("tensorflow")
    traits = SinkTraits(lists_become_tuples=True, ahead=ahead)
    keeps(sink, traits=traits)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_dataset(prefetch: int) -> None:
    needed("tensorflow")
    traits = SinkTraits(lists_become_tuples=True, dtypes=(*SinkTraits.dtypes, "bytes"))
    keeps(lambda runner: runner.dataset(prefetch=prefetch), traits=traits)


class InSession:
    """The loop around `sess.run`."""

    def __init__(self, runner: FeedRunner) -> None:
        self._runner = runner

    def __iter__(self) -> Iterator[Any]:
        import tensorflow as tf

        with tf.Graph().as_default() as graph:
            inputs = self._runner.get_inputs()
        # no `with`: the generator may be closed in another thread
        session = tf.compat.v1.Session(graph=graph)
        try:
            self._runner.start(session)
            while True:
                yield session.run(inputs)
        except tf.errors.OutOfRangeError:
            return
        finally:
            session.close()


def test_a_session() -> None:
    needed("tensorflow")
    traits = SinkTraits(again=False, dtypes=(*SinkTraits.dtypes, "bytes"))
    # the defaults of loops, which sessions must request
    options = {"shuffle": False, "epochs": 1}
    keeps(InSession, "early break", "second epoch", traits=traits, options=options)


class Whatever:
    """A sink whose framework converts everything; `TRAITS` declares it."""

    def __init__(self, runner: FeedRunner) -> None:
        self._runner = runner

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from map(self._element, self._runner)
        except (ProducerError, FeedStopped) as error:
            raise DeviceError(str(error)) from None

    def _element(self, batch: Any) -> Any:
        if isinstance(batch, dict):
            return {key: self._element(batch[key]) for key in sorted(batch)}
        if isinstance(batch, (tuple, list)):
            return tuple(map(self._element, batch))
        if batch.dtype == np.float16 or len(batch) != 4:
            raise ValueError("the device cannot do that")
        return batch.astype(np.int32) if batch.dtype == np.int64 else batch


class DeviceError(Exception):
    """The error that the framework raises in place of every other."""


TRAITS = SinkTraits(
    lists_become_tuples=True,
    namedtuples_become_tuples=True,
    partial_batch=False,
    dtypes=("int64", "bool"),
    casts={"int64": "int32"},
    errors=(DeviceError,),
    goes_on=True,
)


def test_a_sink_that_says_what_it_does_otherwise() -> None:
    keeps(Whatever, traits=TRAITS, processes=(0,))


@pytest.mark.parametrize(
    ("trait", "broken"),
    [
        ("lists_become_tuples", "structure"),
        ("namedtuples_become_tuples", "structure"),
        ("partial_batch", "once"),
        ("dtypes", "once"),
        ("casts", "dtypes"),
        ("errors", "errors"),
        ("goes_on", "early break"),
    ],
)
def test_what_is_not_said_must_be_as_in_the_loop(trait: str, broken: str) -> None:
    traits = replace(TRAITS, **{trait: getattr(SinkTraits(), trait)})
    with pytest.raises(SinkBroken) as caught:
        check_sink(Whatever, traits=traits, processes=(0,))
    assert caught.value.broken == (broken,)
