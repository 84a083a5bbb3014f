"""The queue of a session: every record exactly once, in the requested shapes, dtypes and order."""

from __future__ import annotations

import gc
import threading
import warnings
from collections import Counter
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, FeedWarning, OptionError, Shuffle, SpecError
from fastfeed.core.collate import aligned_arrays
from fastfeed.core.structure import leaves_of, structure_of
from tests.helpers.batches import make, templates
from tests.helpers.feeds import (
    Blocked,
    Readable,
    chunks,
    ids_of,
    shared_out,
)

tf = pytest.importorskip("tensorflow")
from tests.helpers.graphs import drained, session, tf1  # noqa: E402

SMALL = Shuffle(capacity=20, min_after_dequeue=8)
pytestmark = pytest.mark.usefixtures("graph")


# the last one draws several at once
@pytest.mark.parametrize("shuffle", [None, False, SMALL, Shuffle(50, 4)])
@pytest.mark.parametrize("last_batch", ["keep", "drop"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_exactly_once(shuffle: Any, last_batch: str, threads: int, batch_size: int | None) -> None:
    options = {
        "shuffle": shuffle,
        "last_batch": last_batch,
        "threads": threads,
        "batch_size": batch_size,
    }
    with session(FeedRunner(shared_out(27, 4), epochs=2, **options)) as (sess, inputs):
        batches = drained(sess, inputs)
        for _ in range(2):
            assert drained(sess, inputs) == [], "the end stays"
    size = batch_size or 4
    counts = Counter(ids_of(batches))
    assert set(counts) <= set(range(27))
    assert max(counts.values()) == 2
    sizes = [len(b[0]) for b in batches]
    if shuffle is False and batch_size is None and last_batch == "keep":  # as produced
        assert set(sizes) <= {3, 4} and len(sizes) == 14
    else:
        assert sizes[:-1] == [size] * (len(batches) - 1)
    assert sum(counts.values()) == (54 if last_batch == "keep" else 54 - 54 % size)


def test_without_shuffle_the_order_is_kept() -> None:
    with session(
        FeedRunner(Readable(lambda: chunks(40, 4)), shuffle=False, threads=3, epochs=2)
    ) as (sess, inputs):
        assert ids_of(drained(sess, inputs)) == list(range(40)) * 2


def test_records_are_shuffled_and_not_batches() -> None:
    def order(seed: int) -> list[int]:
        with (
            tf.Graph().as_default(),
            session(FeedRunner(shared_out(400, 4), seed=seed, epochs=1)) as (sess, inputs),
        ):
            return ids_of(drained(sess, inputs))

    first = order(1)
    assert sorted(first) == list(range(400))
    together = sum(b == a + 1 for a, b in pairwise(first))
    assert together < 40, "neighbours are torn apart"


def test_an_indexable_is_shuffled_by_index() -> None:
    """The order is that of a loop: records are not shuffled again."""

    def runner() -> FeedRunner:
        return FeedRunner(
            range(50), transform=lambda i: (i, -i), batch_size=5, shuffle=True, seed=3, epochs=1
        )

    with session(runner()) as (sess, inputs):
        every = ids_of(drained(sess, inputs))
    assert sorted(every) == list(range(50)) != every
    assert every == ids_of(runner())


def test_the_seed_alone_decides_the_order() -> None:
    def order(seed: int, threads: int) -> list[int]:
        source = Readable(lambda: chunks(60, 4))
        runner = FeedRunner(source, seed=seed, threads=threads, shuffle=SMALL, epochs=2)
        with tf.Graph().as_default(), session(runner) as (sess, inputs):
            return ids_of(drained(sess, inputs))

    first = order(1, 1)
    assert first == order(1, 3)
    assert first != order(2, 1)


def test_a_batch_comes_as_soon_as_the_smallest_pool_is_there() -> None:
    """It comes after min_after_dequeue records and one batch, before the source has more."""
    with (
        Blocked(chunks(12, 4)) as blocked,
        session(FeedRunner(blocked, shuffle=SMALL, epochs=1)) as (sess, inputs),
    ):
        first = sess.run(inputs)
        blocked.let_go.set()
        assert sorted(ids_of([first, *drained(sess, inputs)])) == list(range(12))


@pytest.mark.parametrize(("last_batch", "rows"), [("keep", None), ("drop", 4)])
def test_static_shapes(last_batch: str, rows: int | None) -> None:
    source = iter([{"x": np.zeros((4, 5, 3), np.float32), "y": np.arange(4)}])
    with session(FeedRunner(source, last_batch=last_batch, epochs=1)) as (sess, inputs):
        assert inputs["x"].shape.as_list() == [rows, 5, 3]
        assert inputs["y"].shape.as_list() == [rows]
        assert (inputs["x"].dtype, inputs["y"].dtype) == (tf.float32, tf.int64)
        assert sess.run(inputs)["x"].shape == (4, 5, 3)


@settings(max_examples=30, phases=[Phase.explicit, Phase.generate])  # to shrink takes minutes
@given(templates, st.booleans())
def test_any_structure_and_dtype(template: Any, shuffled: bool) -> None:
    wanted = [make(template, range(i, i + 3)) for i in (0, 3)]
    with warnings.catch_warnings(), tf.Graph().as_default():
        warnings.simplefilter("ignore", FeedWarning)
        runner = FeedRunner(iter(wanted), shuffle=SMALL if shuffled else False, epochs=1)
        with session(runner) as (sess, inputs):
            parts = drained(sess, inputs)
    structure = structure_of(wanted[0])
    assert structure_of(parts[0]) == structure
    columns = [
        list(zip(*(leaves_of(structure, b) or [] for b in batches), strict=True))
        for batches in (parts, wanted)
    ]
    for have, want in zip(*map(whole, columns), strict=True):
        assert (have.shape, have.dtype.kind) == (want.shape, want.dtype.kind)
        assert shuffled or (have == want).all()
        assert sorted(map(repr, have.ravel().tolist())) == sorted(map(repr, want.ravel().tolist()))


def whole(columns: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Concatenate each leaf over all batches, with bytes in one form."""
    return [
        np.concatenate([b.astype(object) if b.dtype.kind == "S" else b for b in column])
        for column in columns
    ]


def words(total: int) -> list[Any]:
    return [(np.arange(1 + i % 3), b"w" * i) for i in range(total)]


@pytest.mark.parametrize(("pad", "fill"), [(True, 0), (-1, -1)])
def test_records_of_varying_shape_are_padded(pad: Any, fill: int) -> None:
    with session(FeedRunner(words(7), batch_size=3, pad=pad, epochs=1)) as (sess, (ids, text)):
        assert ids.shape.as_list() == [None, None]
        batches = drained(sess, (ids, text))
    assert batches[0][0].tolist() == [[0, fill, fill], [0, 1, fill], [0, 1, 2]]
    assert batches[2][0].tolist() == [[0]]
    assert [t for _, text in batches for t in text] == [b"w" * i for i in range(7)]


@pytest.mark.parametrize("shuffle", [None, False])
@pytest.mark.parametrize("processes", [0, 1])
def test_file_names_travel_beside_the_images(shuffle: Any, processes: int) -> None:
    names = np.array([f"{n}/\u00e4.png" for n in range(40)])
    source = np.arange(40), names
    options: Any = {"batch_size": 4, "epochs": 1, "shuffle": shuffle, "processes": processes}
    with session(FeedRunner(source, **options)) as (sess, (numbers, text)):
        assert text.dtype == tf.string
        batches = drained(sess, (numbers, text))
    pairs = [pair for batch in batches for pair in zip(*batch, strict=True)]
    assert sorted(n for n, _ in pairs) == list(range(40))
    assert all(text == names[n].encode() for n, text in pairs)


def test_records_of_varying_shape_are_shuffled() -> None:
    wanted = [np.full((3, 1 + i % 5), i) for i in range(20)]
    with session(
        FeedRunner(iter(wanted), batch_size=3, pad=-1, shuffle=SMALL, seed=1, epochs=1)
    ) as (
        sess,
        inputs,
    ):
        batches = drained(sess, inputs)
    order = [int(row[0]) for batch in batches for row in batch]
    assert sorted(order) == sorted([*range(20)] * 3) != order
    for batch in batches:
        assert batch.shape[1] == max(1 + row[0] % 5 for row in batch), (
            "as wide as the widest of this batch"
        )
        for row in batch:
            length = 1 + row[0] % 5
            assert row.tolist() == [row[0]] * length + [-1] * (len(row) - length)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_batches_of_varying_width_are_padded(batch_size: int | None) -> None:
    wanted = [np.full((2, width), width) for width in (1, 4, 2)]
    with session(FeedRunner(iter(wanted), pad=-1, batch_size=batch_size, epochs=1)) as (
        sess,
        inputs,
    ):
        batches = drained(sess, inputs)
    if batch_size is None:
        assert [b.tolist() for b in batches] == [m.tolist() for m in wanted]
    else:
        assert batches[0].tolist() == [[1, -1, -1, -1], [1, -1, -1, -1], [4] * 4]
        assert batches[1].tolist() == [[4] * 4, [2, 2, -1, -1], [2, 2, -1, -1]]


@pytest.mark.parametrize("processes", [0, 1])
def test_none_and_keys_of_several_types_are_carried(processes: int) -> None:
    def source() -> Any:
        yield np.arange(4), None, {"a": np.ones((4, 2), np.float32), 1: None}

    runner = FeedRunner(source, shuffle=False, epochs=1, processes=processes)
    with session(runner) as (sess, (ids, weights, features)):
        assert weights is None and list(features) == ["a", 1] and features[1] is None
        assert sess.run((ids, features["a"]))[0].tolist() == list(range(4))


def test_which_dimensions_vary_can_be_said() -> None:
    wanted = [np.zeros((2, 5, 3)), np.zeros((2, 5, 4))]
    options = {"pad": True, "dtypes": "float32"}
    with session(FeedRunner(iter(wanted), **options), shapes=(5, None)) as (sess, inputs):
        assert inputs.shape.as_list() == [None, 5, None]
        assert [b.shape for b in drained(sess, inputs)] == [(2, 5, 3), (2, 5, 4)]


def test_a_dimension_that_the_graph_does_not_know_to_vary() -> None:
    wanted = [np.zeros((2, 5, 3), "f4"), np.zeros((2, 5, 4), "f4")]
    message = r"\(5, 4\).*get_inputs\(shapes=\.\.\.\)"
    with (
        session(FeedRunner(iter(wanted), pad=True, epochs=1)) as (sess, inputs),
        pytest.raises(SpecError, match=message),
    ):
        drained(sess, inputs)


@pytest.mark.parametrize(
    ("dtypes", "x", "y"),
    [
        ("float32", "f4", "i8"),
        (tf.float16, "f2", "i8"),
        ((tf.float32, tf.int32), "f4", "i4"),
        ("float64", "f8", "i8"),
    ],
)
def test_dtypes_are_cast_and_nothing_is_said(dtypes: Any, x: str, y: str) -> None:
    with session(FeedRunner(iter([(np.ones((2, 3)), np.arange(2))]), dtypes=dtypes, epochs=1)) as (
        sess,
        inputs,
    ):
        assert [tensor.dtype.as_numpy_dtype for tensor in inputs] == [np.dtype(x), np.dtype(y)]
        assert [array.dtype for array in sess.run(inputs)] == [np.dtype(x), np.dtype(y)]


def test_float64_is_said_once_where_the_caller_sees_it() -> None:
    runner = FeedRunner(iter([(np.ones((2, 3)), np.arange(2.0), np.arange(2))] * 3), epochs=1)
    with pytest.warns(
        FeedWarning, match=r"batch\[0\], batch\[1\] is float64.*dtypes='float32'"
    ) as caught:
        inputs = runner.get_inputs()
    runner.get_inputs()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with tf1.Session() as sess, runner.start(sess):
        assert len(drained(sess, inputs)) == 3


def test_a_dtype_that_tensorflow_does_not_have() -> None:
    with pytest.raises(
        SpecError, match=r"batch\[1\] has dtype .*which TensorFlow does not have.*dtypes="
    ):
        FeedRunner(iter([(np.arange(3), np.zeros(3, np.longdouble))]), epochs=1).get_inputs()


def test_asking_twice_gives_the_same_tensors() -> None:
    with FeedRunner(shared_out(8, 4), epochs=1) as runner:
        assert runner.get_inputs()[0] is runner.get_inputs()[0]


def test_a_batch_larger_than_the_queue_of_the_others_passes() -> None:
    wanted = [np.arange(2), np.arange(5000)]
    with session(FeedRunner(iter(wanted), shuffle=False, epochs=1)) as (sess, inputs):
        assert sum(len(b) for b in drained(sess, inputs)) == 5002


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batch_size": 1500},
            r"1500 records does not fit.*capacity must be >= .* = 2500, .*shuffle=Shuffle\(cap",
        ),
        ({"shuffle": SMALL, "batch_size": 13}, r"13 records does not fit.*= 21,"),
        (
            {"shuffle": SMALL, "memory": 300},
            r"20 records of 16 bytes does not fit into the 300 bytes.*memory=",
        ),
    ],
)
def test_a_queue_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        FeedRunner(shared_out(10**5, 4), **options).get_inputs()


def test_nothing_of_the_feed_is_saved_or_trained() -> None:
    with FeedRunner(shared_out(8, 4), epochs=1) as runner:
        runner.get_inputs()
        assert not tf1.global_variables() + tf1.local_variables() + tf1.trainable_variables()


def test_several_threads_may_run_steps() -> None:
    with session(FeedRunner(shared_out(200, 4), threads=2, shuffle=SMALL, epochs=1)) as (
        sess,
        inputs,
    ):
        parts: list[list[Any]] = [[], [], []]
        steps = [
            threading.Thread(target=lambda p=p: p.extend(drained(sess, inputs))) for p in parts
        ]
        for thread in steps:
            thread.start()
        for thread in steps:
            thread.join()
    assert sorted(ids_of(chain(*parts))) == list(range(200))


def test_a_runner_that_nobody_holds_feeds_on() -> None:
    """The usual code keeps only the tensors."""

    def build() -> Any:
        runner = FeedRunner(shared_out(400, 4), shuffle=False, epochs=1)
        inputs = runner.get_inputs()
        runner.start(sess)
        return inputs

    with tf1.Session() as sess:
        inputs = build()
        gc.collect()
        assert ids_of(drained(sess, inputs)) == list(range(400))


def test_what_the_source_keeps_is_never_written_to() -> None:
    """TensorFlow gets it without a copy, and writes to separate memory."""
    (kept,) = aligned_arrays([((64, 256), np.dtype(np.float32))])
    kept[:] = np.arange(64)[:, None]
    runner = FeedRunner(
        lambda: (kept[i : i + 16] for i in range(0, 64, 16)), shuffle=False, epochs=1
    )
    with session(runner) as (sess, x):
        variable = tf1.Variable(np.zeros((16, 256), np.float32), use_resource=True)
        with tf.control_dependencies([variable.assign(x, read_value=False)]):
            changed = variable.assign_add(tf.ones((16, 256)))
        for i in range(4):
            given, sums = sess.run((x, changed) if i % 2 else (x, tf.nn.relu(x) + 1))
            assert (given[:, 0] == np.arange(16 * i, 16 * i + 16)).all()
            assert (sums[:, 0] == given[:, 0] + 1).all()
            given[:] = -1
    assert (kept == np.arange(64)[:, None]).all()


@pytest.mark.parametrize("shuffle", [False, SMALL])
def test_the_snapshot_counts_what_the_session_took(shuffle: Any) -> None:
    runner = FeedRunner(shared_out(40, 4), shuffle=shuffle, epochs=1)
    with session(runner) as (sess, inputs):
        assert np.isnan(runner.snapshot().starvation)
        drained(sess, inputs)
        now = runner.snapshot()
    assert (now.consumed.batches, now.consumed.records) == (9, 36), (
        "the first batch ends the warm-up"
    )
    assert now.produced.records == 40
    assert now.depth == 0
    assert now.consumed.cpu_s > 0, "of the thread that fills the queue"
    assert 0 <= now.starvation <= 1
