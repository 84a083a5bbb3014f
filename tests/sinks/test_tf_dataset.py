"""The promises of runner.dataset() as a tf.data.Dataset."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import (
    FeedRunner,
    FeedStopped,
    OptionError,
    Pad,
    ProducerError,
    Shard,
    SpecError,
    StateError,
)
from tests.helpers.labelled import (
    Mixed,
    Pair,
    Records,
    WithNone,
    bucketed,
    endless,
    failing,
    labels,
)

tf = pytest.importorskip("tensorflow")


@pytest.fixture
def runner() -> Iterator[FeedRunner]:
    with FeedRunner(Records(10), batch_size=4) as made:
        yield made


class TestSpec:
    def test_structure_dtypes_and_bytes(self) -> None:
        with FeedRunner(Mixed(6), batch_size=4) as runner:
            data = runner.dataset()
            assert data.element_spec == {
                "z": tf.TensorSpec((None,), tf.uint8),
                "a": Pair(
                    tf.TensorSpec((None, 2, 2), tf.float16),
                    (tf.TensorSpec((None,), tf.bool), tf.TensorSpec((None,), tf.string)),
                ),
            }
            batches = list(data)
        assert [int(n) for b in batches for n in b["z"]] == list(range(6))
        assert isinstance(batches[0]["a"], Pair)
        assert [n for b in batches for n in b["a"].label[1].numpy()] == [
            b"\0%d\0" % n for n in range(6)
        ]
        assert [bool(n) for b in batches for n in b["a"].label[0]] == [False, True] * 3

    def test_text_is_a_tensor_of_strings(self) -> None:
        names = np.array(["a", "\u00e4\u4e2d", ""])
        with FeedRunner({"x": np.arange(3), "name": names}, batch_size=3) as runner:
            (batch,) = runner.dataset()
        assert [name.decode() for name in batch["name"].numpy()] == names.tolist()

    @pytest.mark.parametrize(
        ("length", "options", "rows"),
        [
            (10, {}, None),
            (12, {}, 4),
            (10, {"last_batch": "drop"}, 4),
            (12, {"on_error": "skip"}, None),
        ],
    )
    def test_the_batch_dimension_is_static_where_it_is_constant(
        self, length: int, options: Any, rows: Any
    ) -> None:
        with FeedRunner(Records(length), batch_size=4, **options) as runner:
            assert runner.dataset().element_spec.label.shape == (rows,)

    @pytest.mark.parametrize(
        ("options", "batches"),
        [
            ({}, 3),
            ({"last_batch": "drop"}, 2),
            ({"epochs": 3}, 9),
            ({"shard": Shard(1, 2, "drop")}, 2),
        ],
    )
    def test_cardinality(self, options: Any, batches: int) -> None:
        with FeedRunner(Records(10), batch_size=4, **options) as runner:
            data = runner.dataset()
            assert int(data.cardinality()) == batches == len(list(data))

    def test_cardinality_of_what_nobody_knows(self) -> None:
        with FeedRunner(endless) as runner:
            assert runner.dataset().cardinality() == tf.data.UNKNOWN_CARDINALITY

    def test_a_dtype_that_tensorflow_lacks(self) -> None:
        runner = FeedRunner([np.zeros((2, 2), np.longdouble)], records=False)
        with (
            runner,
            pytest.raises(SpecError, match="TensorFlow does not have: cast it with dtypes="),
        ):
            runner.dataset()

    @pytest.mark.parametrize("processes", [0, 1])
    def test_none_is_carried(self, processes: int) -> None:
        options: Any = {"batch_size": 2, "processes": processes, "pad": True}
        with FeedRunner(WithNone(3), **options) as runner:
            data = runner.dataset(shapes=({"m": None, "a": (None,)}, None, ()))
            x, y, weights = data.element_spec
            assert x["m"] == y == tf.NoneTensorSpec() and weights.dtype == tf.int64
            batches = list(data)
        with FeedRunner(WithNone(3), **{**options, "pad": Pad(lengths=True)}) as runner:
            ragged = list(runner.dataset(ragged=True))
        assert [(x["m"], y) for x, y, _ in batches + ragged] == [(None, None)] * 4
        assert [int(n) for *_, weights in batches for n in weights] == [0, 1, 2]
        assert batches[0][0]["a"].numpy().tolist() == [[0, 0], [0, 1]]
        assert ragged[0][0]["a"].to_list() == [[0], [0, 1]]

    @pytest.mark.parametrize("processes", [0, 1])
    def test_rows_and_widths_vary_on_purpose(self, processes: int) -> None:
        shapes = [(2, 5), (3, 4), (1, 9), (4, 2)]  # as many tokens as fit
        with FeedRunner(bucketed(shapes), pad=True, processes=processes) as runner:
            found = [(ids.shape, label.shape) for ids, label in runner.dataset()]
        assert found == [((rows, width), (rows,)) for rows, width in shapes]

    def test_keys_that_tensorflow_cannot_sort(self) -> None:
        batch = np.arange(2), {1: np.arange(2), "a": np.arange(2)}
        with (
            FeedRunner([batch], records=False) as runner,
            pytest.raises(SpecError, match=r"1: array, 'a': array\} has keys of several types"),
        ):
            runner.dataset()

    @pytest.mark.parametrize("prefetch", [-2, 1.5, True, "2"])
    def test_a_prefetch_that_is_none(self, runner: FeedRunner, prefetch: Any) -> None:
        with pytest.raises(OptionError, match="must be a number of batches"):
            runner.dataset(prefetch=prefetch)


class TestPasses:
    @pytest.mark.parametrize("mix", [{"threads": 2}, {"processes": 2}])
    @pytest.mark.parametrize("prefetch", [0, 2, tf.data.AUTOTUNE])
    def test_each_pass_is_an_epoch(self, mix: Any, prefetch: int) -> None:
        with FeedRunner(Records(10), batch_size=4, **mix) as runner:
            data = runner.dataset(prefetch=prefetch)
            assert [labels(data) for _ in range(3)] == [list(range(10))] * 3
            assert labels(data.repeat(2)) == list(range(10)) * 2

    def test_other_epochs_have_another_order_and_all_records(self) -> None:
        with FeedRunner(Records(40), batch_size=4, shuffle=True, seed=1) as runner:
            data = runner.dataset()
            one, two = labels(data), labels(data)
        assert sorted(one) == sorted(two) == list(range(40)) and one != two

    @pytest.mark.parametrize("mix", [{"threads": 2}, {"processes": 1}])
    def test_a_pass_that_was_left_early_costs_the_next_one_nothing(self, mix: Any) -> None:
        with FeedRunner(Records(10), batch_size=4, **mix) as runner:
            data = runner.dataset()
            assert labels(data.take(1)) == [0, 1, 2, 3]
            assert labels(data) == list(range(10))
            assert labels(data.take(3)) == list(range(10))  # its end is never asked for
            assert labels(data) == list(range(10))

    def test_a_stream_without_a_length_goes_on(self) -> None:
        with FeedRunner(endless) as runner:
            data = runner.dataset()
            assert labels(data.take(2)) == [0, 0, 1, 1]
            assert labels(data.take(2)) == [2, 2, 3, 3]

    def test_a_restored_runner_goes_on(self) -> None:
        with FeedRunner(Records(10), batch_size=4) as runner:
            data = iter(runner.dataset())
            next(data), next(data)
            state = runner.state()
        with FeedRunner(Records(10), batch_size=4) as again:
            data = again.restore(state).dataset()
            assert data.cardinality() == 3  # of the whole epochs after the first
            assert [labels(data), labels(data)] == [[8, 9], list(range(10))]

    def test_restored_at_the_end_of_a_pass_it_begins_the_next(self) -> None:
        with FeedRunner(Records(10), batch_size=4) as runner:
            labels(runner.dataset().take(3))
            state = runner.state()
        with FeedRunner(Records(10), batch_size=4) as again:
            assert labels(again.restore(state).dataset()) == list(range(10))

    def test_validation_by_the_same_workers(self) -> None:
        with FeedRunner(Records(10), batch_size=4, processes=1) as runner:
            valid = runner.also(Records(5), batch_size=2).dataset()
            train = runner.dataset()
            for _ in range(2):
                assert labels(train) == list(range(10))
                assert labels(valid) == list(range(5))

    def test_the_older_of_two_iterators_is_refused(self, runner: FeedRunner) -> None:
        data = runner.dataset()
        older = iter(data)
        next(older)
        assert labels(data) == list(range(10))
        with pytest.raises(StateError, match="two iterators at once.*a second FeedRunner"):
            next(older)

    def test_a_runner_has_one_taker(self, runner: FeedRunner) -> None:
        runner.dataset()
        with pytest.raises(
            StateError, match=r"feeds a tf.data.Dataset, and a loop would get only some"
        ):
            iter(runner)
        with pytest.raises(StateError, match="make another FeedRunner"):
            runner.get_inputs()

    def test_an_iterator_that_is_refused_does_not_speak_for_the_newer_one(self) -> None:
        with FeedRunner(failing) as runner:
            data = runner.dataset()
            older = iter(data)
            next(older)
            newer = iter(data.map(lambda batch: batch))
            with pytest.raises(ProducerError, match="not there"):
                next(newer)
            with pytest.raises(StateError, match="two iterators at once"):
                next(older)
            with pytest.raises(ProducerError, match="not there"):
                next(newer)

    def test_what_could_not_be_made_takes_nothing(self, runner: FeedRunner) -> None:
        with pytest.raises(OptionError):
            runner.dataset(prefetch=-5)
        with pytest.raises(StateError, match="iterate over the runner instead"):
            runner.get_inputs()  # in eager mode
        assert [int(n) for batch in runner for n in batch.label] == list(range(10))

    def test_a_validation_goes_on_where_the_training_begins_anew(self) -> None:
        with FeedRunner(Records(10), batch_size=4) as runner:
            valid = iter(runner.also(Records(6), batch_size=2).dataset())
            train = runner.dataset()
            next(iter(train))
            found = next(valid).label.numpy().tolist()
            assert labels(train) == list(range(10))  # the rest of the pass before is not made
            assert found + [int(n) for batch in valid for n in batch.label] == list(range(6))

    @pytest.mark.parametrize("count", [0, 1])
    def test_a_runner_that_is_stopped_while_a_pass_begins_starts_nothing(self, count: int) -> None:
        runner = FeedRunner(Records(10), batch_size=4)
        data = runner.dataset()
        labels(data.take(count))
        begun, plain = [], runner._stream._new_feed

        def stopped_meanwhile(*given: Any, **options: Any) -> Any:
            begun.append(runner._stream.begin_stop())
            return plain(*given, **options)

        runner._stream._new_feed = stopped_meanwhile
        if count:
            with pytest.raises(FeedStopped):
                labels(data)
            assert begun
        runner.stop()


class TestLengthsThatNobodyKnows:
    """The dataset states no cardinality and no batch dimension that an epoch may contradict."""

    @pytest.mark.parametrize(
        "options",
        [
            {"sampler": lambda: None},
            {"on_worker_death": "restart"},
        ],
    )
    def test_nothing_is_claimed(self, options: Any) -> None:
        if "sampler" in options:
            options = {"sampler": Varying()}
        with FeedRunner(Records(12), **{"batch_size": 4, **options}) as runner:
            data = runner.dataset()
            assert data.cardinality() == tf.data.UNKNOWN_CARDINALITY
            assert all(spec.shape[0] is None for spec in tf.nest.flatten(data.element_spec))

    def test_ready_batches_of_which_one_is_empty(self) -> None:
        batches = [np.zeros(count) for count in (2, 0, 2)]
        with FeedRunner(batches, records=False) as runner:
            data = runner.dataset()
            assert data.cardinality() == tf.data.UNKNOWN_CARDINALITY
            assert [len(batch) for batch in data] == [2, 2]

    def test_a_sampler_that_varies(self) -> None:
        with FeedRunner(Records(12), batch_size=4, sampler=Varying()) as runner:
            data = runner.dataset()
            found = [labels(data) for _ in range(3)]
        assert (
            all(epoch == list(range(len(epoch))) for epoch in found)
            and len({len(epoch) for epoch in found}) > 1
        )


class Varying:
    """A sampler with a different number of indices in each epoch."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Any:
        self.count += 1
        return iter(range(4 + self.count % 5))


class TestTransformations:
    def test_map_unbatch_shuffle_batch(self, runner: FeedRunner) -> None:
        data = (
            runner.dataset()
            .map(lambda batch: batch.label * 2)
            .unbatch()
            .shuffle(5)
            .batch(3)
            .prefetch(1)
        )
        assert sorted(int(n) for batch in data for n in batch) == list(range(0, 20, 2))

    def test_an_iterators_end_waits_for_no_tuner(self, runner: FeedRunner) -> None:
        """The tuner sometimes sleeps on for up to a minute; the dataset disables it."""
        dataset = runner.dataset()
        assert dataset.options().autotune.enabled is False
        assert len(list(dataset.map(lambda *batch: batch, num_parallel_calls=tf.data.AUTOTUNE))) > 0

    def test_in_a_function(self, runner: FeedRunner) -> None:
        @tf.function
        def added(data: Any) -> Any:
            total = tf.constant(0, tf.int64)
            for batch in data:
                total += tf.reduce_sum(batch.label)
            return total

        data = runner.dataset()
        assert [int(added(data)) for _ in range(2)] == [45, 45]

    def test_iterators_of_tensorflow_1(self) -> None:
        with tf.Graph().as_default(), FeedRunner(Records(10), batch_size=4) as runner:
            batch = tf.compat.v1.data.make_one_shot_iterator(runner.dataset()).get_next()
            gc.collect()  # nobody but the graph holds the dataset
            with tf.compat.v1.Session() as session:
                assert until_the_end(session, batch.label) == list(range(10))

    def test_an_initializable_iterator(self) -> None:
        with tf.Graph().as_default(), FeedRunner(Records(10), batch_size=4) as runner:
            iterator = tf.compat.v1.data.make_initializable_iterator(
                runner.dataset().map(lambda b: b.label)
            )
            number = iterator.get_next()
            with tf.compat.v1.Session() as session:
                for _ in range(2):
                    session.run(iterator.initializer)
                    assert until_the_end(session, number) == list(range(10))


def until_the_end(session: Any, tensor: Any) -> list[int]:
    found: list[int] = []
    with pytest.raises(tf.errors.OutOfRangeError):
        while True:
            found += session.run(tensor).tolist()
    return found
