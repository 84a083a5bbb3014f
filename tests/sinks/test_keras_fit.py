"""fit(), evaluate() and predict() over a runner; test_keras_backends.py runs this file on the other
backends, too."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from fastfeed import FeedRunner, ProducerError, SpecError

keras = pytest.importorskip("keras")
from keras.src.trainers.epoch_iterator import EpochIterator  # noqa: E402

from fastfeed.sinks.keras_data import MAX_SHAPE_BATCHES  # noqa: E402
from tests.helpers.dying import until  # noqa: E402
from tests.helpers.fits import NO_MORE, loses_none  # noqa: E402

since_3_3 = pytest.mark.skipif(
    not hasattr(keras.utils.PyDataset, "num_batches"), reason="runner.keras() needs Keras 3.3"
)
pytestmark = [pytest.mark.usefixtures("short_collections"), since_3_3]

RECORDS, VALID, BATCH = 42, 13, 4  # neither is a whole number of batches
STEPS = 11
GIVEN_BACK = "the return of the slots, of which a backend may let go in a thread of its own"


def _by_value() -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Return a function that is pickled by value: an import of this file would import Keras in the
    workers."""

    def record(index: int) -> tuple[np.ndarray, np.ndarray]:
        return np.full(1, index, np.float32), np.full(1, index, np.float32)

    return record


record = _by_value()


def runner_of(records: int = RECORDS, transform: Any = record, **options: Any) -> FeedRunner:
    return FeedRunner(
        range(records), transform=transform, **{"batch_size": BATCH, "seed": 3, **options}
    )


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return as many records as a stream of unknown length."""
    for start in range(0, RECORDS, BATCH):
        ids = np.arange(start, min(start + BATCH, RECORDS), dtype=np.float32)[:, None]
        yield ids, ids


class Seen(keras.metrics.Metric):
    """Metric: the number of records that came exactly once, the number of others, and the sum of
    all."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.counts = self.add_weight(name="counts", shape=(RECORDS,), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        ids = keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int32")
        self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(ids, RECORDS), axis=0))

    def result(self) -> dict[str, Any]:
        counts = self.counts + 0.0
        total = keras.ops.sum(counts * keras.ops.arange(RECORDS, dtype="float32"))
        once = keras.ops.sum(keras.ops.cast(counts == 1, "float32"))
        return {
            "once": once,
            "more": keras.ops.sum(keras.ops.cast(counts > 1, "float32")),
            "sum": total,
        }


class Order(keras.metrics.Metric):
    """Metric: the sum of the first record of each batch times the number of the batch, which is
    highest in ascending order."""

    def __init__(self) -> None:
        super().__init__(name="order")
        self.at = self.add_weight(name="at", initializer="zeros")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.at.assign_add(1.0)
        self.total.assign_add(self.at * keras.ops.reshape(y_true, (-1,))[0])

    def result(self) -> Any:
        return self.total + 0.0


def compiled(model: Any, *metrics: Any) -> Any:
    """Return a model that learns nothing: its loss is the mean squared difference of records and
    targets."""
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.0), metrics=list(metrics))
    return model


def model_of(*, built: bool = False) -> Any:
    given = [keras.Input((1,))] if built else []
    return compiled(keras.Sequential([*given, identity()]), Seen())


def identity() -> Any:
    return keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)


def fit(data: Any, *, model: Any = None, **options: Any) -> dict[str, list[float]]:
    history = (model or model_of()).fit(data, verbose=0, **options).history
    assert not any(history["loss"]), "the targets are not those of the records"
    return history


class Each(keras.callbacks.Callback):
    """Calls a function at the end of each batch and each epoch."""

    def __init__(self, batch: Callable[[int], Any] = id, epoch: Callable[[int], Any] = id) -> None:
        super().__init__()
        self._batch, self._epoch = batch, epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batch(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._epoch(epoch)


@pytest.mark.slow
@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("options", [{"threads": 2}, {"processes": 2, "shuffle": True}], ids=str)
def test_epochs_and_validations_are_exact_on_the_same_workers(
    options: dict[str, Any], built: bool
) -> None:
    workers: list[set[int]] = []
    tell = Each(
        epoch=lambda _: workers.append({p.pid for p in psutil.Process().children(recursive=True)})
    )
    with (
        runner_of(**options) as runner,
        runner.also(range(VALID), transform=record, batch_size=BATCH) as valid,
    ):
        validation = valid.keras()
        had = fit(
            runner.keras(),
            model=model_of(built=built),
            epochs=3,
            validation_data=validation,
            callbacks=[tell],
        )
    assert (had["once"], had["more"]) == ([RECORDS] * 3, [0] * 3)
    assert (had["val_once"], had["val_more"]) == ([VALID] * 3, [0] * 3)
    assert workers[0] == workers[1] == workers[2]


@loses_none
def test_what_keras_only_looks_at_comes_again() -> None:
    """Keras takes two batches for their shapes on TensorFlow, and one to build the model on other
    backends."""
    with runner_of(shuffle=True) as runner:
        first = float(next(iter(runner))[0].sum())
    with runner_of(shuffle=True) as runner:
        model, data = model_of(), runner.keras()
        assert fit(data, model=model, steps_per_epoch=1)["sum"] == [first]
        assert fit(data, model=model, steps_per_epoch=1)["sum"] != [first], "it was trained on"


def test_the_order_is_the_runners() -> None:
    model = compiled(keras.Sequential([identity()]), Order())
    with runner_of() as runner:
        had = fit(runner.keras(), model=model, epochs=2, shuffle=True)
    assert had["order"] == [sum(step * (step - 1) * BATCH for step in range(1, STEPS + 1))] * 2


@loses_none
def test_steps_that_are_no_whole_passes() -> None:
    with runner_of() as runner:
        had = fit(
            runner.keras(), epochs=2, steps_per_epoch=5, model=model_of(built=True), shuffle=False
        )
        assert had["sum"] == [sum(range(20)), sum(range(20, 40))]
        assert fit(runner.keras(), epochs=2)["once"] == [RECORDS] * 2, "the rest is passed over"


@pytest.mark.skipif(
    not hasattr(EpochIterator, "reset"), reason="Keras before 3.7 goes on behind that part"
)
def test_a_part_of_the_validation_is_the_same_each_time() -> None:
    with (
        runner_of() as runner,
        runner.also(range(VALID), transform=record, batch_size=BATCH) as valid,
    ):
        had = fit(
            runner.keras(),
            epochs=2,
            steps_per_epoch=2,
            validation_data=valid.keras(),
            validation_steps=2,
        )
        assert had["val_sum"] == [sum(range(8))] * 2


def test_evaluate_and_predict_and_fit_one_after_another() -> None:
    with runner_of() as runner:
        model, data = model_of(), runner.keras()
        for _ in range(2):
            assert model.predict(data, verbose=0).ravel().tolist() == list(range(RECORDS))
            assert model.evaluate(data, verbose=0, return_dict=True)["once"] == RECORDS
            assert fit(data, model=model)["once"] == [RECORDS]


@pytest.mark.parametrize("records", [1, BATCH, BATCH + 1, 2 * BATCH + 1])
def test_tiny_sets(records: int) -> None:
    with runner_of(records) as runner:
        data = runner.keras()
        assert fit(data, epochs=3)["once"] == [records] * 3
        assert model_of().evaluate(data, verbose=0, return_dict=True)["once"] == records


@pytest.mark.filterwarnings(NO_MORE)
def test_where_nobody_knows_the_length_an_epoch_ends_with_the_data() -> None:
    with FeedRunner(batches) as runner:
        model, data = model_of(), runner.keras()
        assert data.num_batches is None
        for _ in range(2):
            had = fit(data, model=model, epochs=2)
            assert (had["once"], had["more"]) == ([RECORDS] * 2, [0] * 2)
        assert model.predict(data, verbose=0).ravel().tolist() == list(range(RECORDS))


@loses_none
def test_steps_where_nobody_knows_the_length() -> None:
    with FeedRunner(batches, epochs=2) as runner:
        had = fit(runner.keras(), epochs=2, steps_per_epoch=STEPS, shuffle=False)
    assert (had["once"], had["more"]) == ([RECORDS] * 2, [0] * 2)


@pytest.mark.filterwarnings(NO_MORE)
@pytest.mark.parametrize("known", [True, False])
def test_weights_of_classes(known: bool) -> None:
    """The target of odd records is wrong, and the weight of their class is 0."""

    def odd(index: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(1, np.float32), np.full(1, index % 2, np.float32)

    unknown = lambda: (  # noqa: E731
        tuple(np.stack(leaf) for leaf in zip(odd(i), odd(i + 1), strict=True)) for i in range(8)
    )
    with runner_of(transform=odd) if known else FeedRunner(unknown) as runner:
        fit(runner.keras(), class_weight={0: 1.0, 1: 0.0})
        assert model_of().fit(runner.keras(), verbose=0).history["loss"][0] > 0


@pytest.mark.parametrize("options", [{"threads": 2}, {"processes": 1}], ids=str)
def test_no_weights_and_floats_of_ml_dtypes(options: dict[str, Any]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.dtype(ml_dtypes.bfloat16)

    def unweighed(index: int) -> Any:
        return np.full(1, index).astype(half), np.full(1, index, np.float32), None

    with runner_of(transform=unweighed, **options) as runner:
        data = runner.keras()
        assert fit(data, class_weight={0: 1.0})["once"] == [RECORDS]
        assert data[0][0].dtype == half and len(data[0]) == 2


class Pair(NamedTuple):
    x: Any
    y: Any


def test_weights_of_records_and_other_containers() -> None:
    def weighed(index: int) -> list[Any]:
        return [
            *record(index)[:1],
            np.full(1, 0 if index % 2 else index, np.float32),
            np.float32(1 - index % 2),
        ]

    def named(index: int) -> Pair:
        return Pair(*record(index))

    def two(index: int) -> tuple[Any, Any]:
        return {"b": record(index)[0], "a": np.ones(1, np.float32)}, record(index + 1)[1]

    for transform in (weighed, named):
        with runner_of(transform=transform) as runner:
            fit(runner.keras())
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    model = compiled(keras.Model({"a": a, "b": b}, identity()(keras.layers.Add()([a, b]))))
    with runner_of(transform=two) as runner:
        fit(runner.keras(), model=model, epochs=2)
    with runner_of(transform=lambda index: two(index)[0]) as runner:
        assert model.predict(runner.keras(), verbose=0).ravel().tolist() == list(
            range(1, RECORDS + 1)
        )


@pytest.mark.parametrize("options", [{"threads": 2}, {"processes": 1}], ids=str)
def test_a_failure_comes_out_of_fit_as_it_is(options: dict[str, Any]) -> None:
    def broken(index: int) -> Any:
        if index == 30:
            raise ValueError("the disk is gone")
        return record(index)

    with runner_of(transform=broken, **options) as runner:
        for _ in range(2):
            with pytest.raises(ProducerError, match="the disk is gone") as caught:
                fit(runner.keras(), shuffle=False)
            assert type(caught.value.__cause__) is ValueError
            assert "in broken" in str(caught.value), "the traceback of the producer"
            del caught


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("at", [0, 5])
def test_an_interrupted_fit_leaves_nothing_and_another_one_is_whole(error: Any, at: int) -> None:
    def interrupt(batch: int) -> None:
        if batch == at:
            raise error

    before = {t.ident for t in threading.enumerate()}
    with runner_of(processes=1) as runner:
        model, data = model_of(), runner.keras()
        with pytest.raises(error):
            fit(data, model=model, callbacks=[Each(interrupt)])
        gc.collect()
        until(lambda: runner.snapshot().slots.lent <= MAX_SHAPE_BATCHES, GIVEN_BACK)
        if keras.backend.backend() == "jax" and not hasattr(EpochIterator, "reset"):
            model = model_of()  # Keras before 3.7 leaves no variables behind
        assert fit(data, model=model, epochs=2)["once"] == [RECORDS] * 2
        until(lambda: runner.snapshot().slots.lent == 0, GIVEN_BACK)
    assert not [t for t in threading.enumerate() if t.ident not in before and "fastfeed" in t.name]


def test_few_batches_are_held_at_once() -> None:
    lent: list[int] = []
    with runner_of(400, processes=1) as runner:
        tell = Each(lambda _: lent.append(runner.snapshot().slots.lent))
        compiled(model := keras.Sequential([keras.layers.Dense(1)])).fit(
            runner.keras(), verbose=0, callbacks=[tell]
        )
        del model
        gc.collect()
        until(lambda: runner.snapshot().slots.lent == 0, GIVEN_BACK)
    assert len(lent) == 100
    assert max(lent) <= (8 if keras.backend.backend() == "tensorflow" else 3)


def test_a_runner_that_is_forgotten_ends() -> None:
    assert fit(runner_of(threads=2).keras())["once"] == [RECORDS]


def test_integers_that_the_backend_does_not_hold_are_refused() -> None:
    """JAX would train on 5 in place of 2**40 + 5."""
    small, large = np.arange(4)[:, None], np.full((4, 1), 2**40 + 5)
    with FeedRunner((small, large), batch_size=2, shuffle=False) as runner:
        if keras.backend.backend() == "jax":
            with pytest.raises(SpecError, match="would change"):
                runner.keras()[0]
        else:
            assert runner.keras()[0][1].tolist() == [[2**40 + 5]] * 2
    with FeedRunner((small, small), batch_size=2, shuffle=False) as runner:
        assert runner.keras()[0][0].tolist() == [[0], [1]]
