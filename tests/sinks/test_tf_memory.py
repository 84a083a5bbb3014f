"""runner.dataset(): memory, errors, and records of varying shape."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, FeedStopped, OptionError, Pad, ProducerError, SpecError
from tests.helpers.labelled import (
    Ragged,
    Records,
    failing,
    labels,
)

tf = pytest.importorskip("tensorflow")


@pytest.fixture
def runner() -> Iterator[FeedRunner]:
    with FeedRunner(Records(10), batch_size=4) as made:
        yield made


class TestMemory:
    def test_tensors_lie_in_the_slots_and_never_change(self) -> None:
        with FeedRunner(Records(64, size=1000), batch_size=4, processes=1) as runner:
            data = runner.dataset()
            kept = [batch.image for number, batch in enumerate(data) if number < 3]
            assert all(in_shared_memory(tensor) for tensor in kept)
            for _ in range(4):  # every slot is used many times
                labels(data)
            assert [int(t[0, 0]) for t in kept] == [0, 4, 8] and all(
                (t[0] == t[0, 0]).numpy().all() for t in kept
            )
            assert runner.snapshot().slots.lent >= 3
            kept.clear()
            labels(data)
            assert runner.snapshot().slots.lent <= 1

    def test_what_is_made_of_a_tensor_never_changes(self) -> None:
        with FeedRunner(Records(64, size=1000), batch_size=4, processes=1) as runner:
            data = runner.dataset()
            cached = runner.dataset().take(2).cache()
            before = labels(cached)
            variables = [tf.Variable(batch.image) for batch in data.take(2)]
            views = [batch.image[1:3] for batch in data.take(2)]
            for variable in variables:
                variable.assign_add(tf.ones_like(variable))
            for _ in range(4):
                assert labels(data) == list(range(64))
            assert [int(v[0, 0]) for v in variables] == [1, 5] and [
                int(v[0, 0]) for v in views
            ] == [1, 5]
            assert labels(cached) == before == list(range(8))

    def test_kept_for_ever_they_are_copies_in_the_end(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with FeedRunner(Records(400), batch_size=1, processes=1) as runner:
            kept = list(runner.dataset())
            copied = runner.snapshot().consumed.copied
        assert [int(batch.label[0]) for batch in kept] == list(range(400))
        assert 0 < copied < 400
        assert len([r for r in caplog.records if "gets copies" in r.message]) == 1

    @pytest.mark.parametrize("offset", [0, 1, 16])
    def test_arrays_at_any_address(self, offset: int) -> None:
        raw = np.zeros(4096 + 64, np.uint8)
        start = -raw.ctypes.data % 64 + offset
        array = raw[start : start + 4096].reshape(4, 1024)
        array[:] = np.arange(4)[:, None]
        with FeedRunner([array], records=False) as runner:
            (batch,) = runner.dataset()
            assert tf.reduce_sum(tf.cast(batch, tf.int64), axis=1).numpy().tolist() == [
                0,
                1024,
                2048,
                3072,
            ]

    def test_a_forgotten_dataset_lets_go_of_its_runner(self) -> None:
        runner = FeedRunner(Records(10), batch_size=4)
        data = runner.dataset()
        labels(data)
        stream = weakref.ref(runner._stream)
        del runner
        gc.collect()
        assert labels(data.map(lambda batch: batch)) == list(range(10))
        del data
        gc.collect()
        assert stream() is None


def in_shared_memory(tensor: Any) -> bool:
    """Return True if the memory of a tensor is the ring of a worker."""
    capsule = tf.experimental.dlpack.to_dlpack(tensor)  # shares it, where numpy() may copy
    exported = type(
        "Exported",
        (),
        {"__dlpack__": lambda _, **given: capsule, "__dlpack_device__": lambda _: (1, 0)},
    )
    address = np.from_dlpack(exported()).ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return "memfd:" in line
    return False


class TestErrors:
    def test_of_a_producer(self) -> None:
        with FeedRunner(failing) as runner:
            data = iter(runner.dataset())
            next(data)
            refuses(lambda: next(data))

    def test_inside_a_function_with_more_transformations(self) -> None:
        with FeedRunner(failing) as runner:
            data = iter(runner.dataset().map(lambda x: x * 2, num_parallel_calls=2).prefetch(2))
            following = tf.function(lambda iterator: next(iterator))
            following(data)
            refuses(lambda: following(data))

    def test_in_fit(self) -> None:
        import keras

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with FeedRunner(failing) as runner:
            data = runner.dataset().map(lambda x: (x, x[:, :1]))
            refuses(lambda: model.fit(data, verbose=0))

    def test_in_a_session(self) -> None:
        with tf.Graph().as_default(), FeedRunner(failing) as runner:
            batch = tf.compat.v1.data.make_one_shot_iterator(runner.dataset()).get_next()
            with tf.compat.v1.Session() as session:
                session.run(batch)
                refuses(lambda: session.run(batch))

    def test_of_tensorflow_stay_what_they_are(self) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.function(lambda size: tf.reshape(tf.range(3), (size, size)))(tf.constant(2))

    def test_a_runner_that_was_stopped(self, runner: FeedRunner) -> None:
        data = iter(runner.dataset())
        next(data)
        runner.stop()
        with pytest.raises(FeedStopped, match="make a new FeedRunner"):
            next(data)

    def test_records_that_change_their_shape(self) -> None:
        runner = FeedRunner([np.zeros((2, 3)), np.zeros((2, 4))], records=False)
        with runner, pytest.raises(SpecError, match=r"records of shape \(4,\): expected \(3,\)"):
            list(runner.dataset())


def refuses(call: Any) -> None:
    """Check that the producer's error is raised, with its cause and its traceback."""
    with pytest.raises(ProducerError, match="KeyError.*\n.*\n*.*In the producer") as caught:
        call()
    assert isinstance(caught.value.__cause__, KeyError)
    assert 'raise KeyError("not there")' in str(caught.value)


class TestRagged:
    @pytest.mark.parametrize("mix", [{}, {"processes": 1}])
    def test_ragged_tensors_of_the_records_as_they_were(self, mix: Any) -> None:
        with FeedRunner(
            Ragged(5),
            batch_size=3,
            pad=Pad(7, lengths=True),
            dtypes={"text": "int32", "image": None, "n": None},
            **mix,
        ) as r:
            data = r.dataset(ragged=True)
            assert data.element_spec["text"] == tf.RaggedTensorSpec((None, None), tf.int32)
            found = [
                row
                for batch in data
                for row in zip(batch["text"], batch["image"], batch["n"], strict=True)
            ]
            assert int(data.cardinality()) == 2
        for index, (text, image, number) in enumerate(found):
            assert int(number) == index and text.numpy().tolist() == list(range(index + 1))
            assert (
                image.to_tensor().shape == (index + 1, 6 - index, 2)
                and (image.to_tensor() == index).numpy().all()
            )

    def test_padded_otherwise(self) -> None:
        with FeedRunner(Ragged(2), batch_size=2, pad=7) as runner:
            (batch,) = runner.dataset()
            assert batch["text"].numpy().tolist() == [[0, 7], [0, 1]]

    def test_lengths_for_a_loop(self) -> None:
        with FeedRunner(Ragged(2), batch_size=2, pad=Pad(lengths=True)) as runner:
            ((batch, lengths),) = runner
        assert lengths["image"].tolist() == [[1, 6, 2], [2, 5, 2]] and lengths["text"].tolist() == [
            [1],
            [2],
        ]
        assert lengths["n"].shape == (2, 0) and batch["image"].shape == (2, 2, 6, 2)

    def test_without_lengths(self) -> None:
        with (
            FeedRunner(Ragged(2), batch_size=2, pad=True) as runner,
            pytest.raises(OptionError, match=r"set pad=Pad\(0, lengths=True\)"),
        ):
            runner.dataset(ragged=True)
        with pytest.raises(OptionError, match="must be single records"):
            FeedRunner(lambda: iter([np.zeros((2, 2))]), pad=Pad(lengths=True))

    def test_dimensions_that_the_first_batch_does_not_show(self) -> None:
        """The second record is wider than the first batch, in an axis that did not vary there."""
        records = [np.zeros((n + 1, 4), np.uint8) for n in range(3)] + [np.ones((2, 5), np.uint8)]
        with FeedRunner(records, batch_size=2, pad=True) as runner:
            data = iter(runner.dataset())
            assert next(data).shape == (2, 2, 4)
            with pytest.raises(
                SpecError,
                match=r"built for \(None, 4\).*which dimensions vary with dataset\(shapes=",
            ):
                next(data)
        with FeedRunner(records, batch_size=2, pad=True) as runner:
            data = runner.dataset(shapes=(None, None))
            assert [batch.shape for batch in data] == [(2, 2, 4), (2, 3, 5)]
        with FeedRunner(records, batch_size=2, pad=Pad(lengths=True)) as runner:
            rows = [
                row.to_tensor().shape
                for batch in runner.dataset(ragged=True, shapes=(None, None))
                for row in batch
            ]
            assert rows == [(1, 4), (2, 4), (3, 4), (2, 5)]

    def test_a_dimension_that_varies_later_only(self) -> None:
        """Its fill would count as data: in the first batch all records have two."""
        records = [(np.ones(2), np.ones(2)), (np.ones(3), np.ones(2))]
        records += [(np.ones(2), np.ones(1)), (np.ones(3), np.ones(2))]
        with FeedRunner(records, batch_size=2, pad=Pad(0, lengths=True)) as runner:
            data = iter(runner.dataset(ragged=True))
            next(data)
            with pytest.raises(SpecError, match=r"shorter than \(2,\).*dataset\(shapes="):
                next(data)
        with FeedRunner(records, batch_size=2, pad=Pad(0, lengths=True)) as runner:
            (_, last) = runner.dataset(ragged=True, shapes=((None,), (None,)))
            assert last[1].to_list() == [[1.0], [1.0, 1.0]]
