"""Bad input: each kind has an error of its own (what was given, what is needed, which knob).

The fixture in tests/conftest.py proves after each test that nothing keeps running, although no test
calls stop().
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedError, FeedRunner, FeedStopped, OptionError, Shuffle, SpecError, StateError
from tests.helpers.feeds import (
    Readable,
    chunks,
    ids_of,
    shared_out,
)

X = np.zeros((4, 3), np.float32)
Y = np.arange(4)
threads = pytest.mark.parametrize("threads", [1, 3])


def refused(kind: type[FeedError], *said: str, by: Callable[[], Any]) -> None:
    """Check that `by()` raises exactly this kind, with all of `said` in its text."""
    with pytest.raises(FeedError) as caught:
        by()
    assert type(caught.value) is kind
    missing = [text for text in said if text not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"


def looped(source: Any, **options: Any) -> Callable[[], Any]:
    return lambda: list(FeedRunner(source, **options))


def in_a_graph(source: Any, **options: Any) -> Callable[[], Any]:
    """Return the same use in a graph, up to get_inputs()."""
    tf = pytest.importorskip("tensorflow")

    def build() -> Any:
        with tf.Graph().as_default():
            return FeedRunner(source, **options).get_inputs()

    return build


either_sink = pytest.mark.parametrize("used", [looped, in_a_graph])


@pytest.mark.parametrize("source", [3, None, 2.5, object()])
def test_not_callable_and_not_iterable(source: Any) -> None:
    kind = f"got {type(source).__name__}"
    refused(OptionError, kind, "must be a callable", "iterable", by=lambda: FeedRunner(source))


@either_sink
@threads
def test_a_callable_that_returns_a_list_of_numbers(used: Any, threads: int) -> None:
    said = "is int (1): expected an array with one leading dimension", "records=True"
    refused(SpecError, *said, by=used(lambda: [1, 2, 3], threads=threads))


@either_sink
@threads
@pytest.mark.parametrize("source", [lambda: iter([]), iter([]), Readable(list), lambda: []])
def test_an_empty_iterator(used: Any, threads: int, source: Any) -> None:
    refused(
        SpecError,
        "ended before its first batch",
        "must have at least one record",
        by=used(source, threads=threads),
    )


@pytest.mark.parametrize("source", [[], np.zeros((0, 3))])
def test_an_empty_indexable(source: Any) -> None:
    refused(
        OptionError,
        "the source is empty: it must have at least one record",
        by=lambda: FeedRunner(source, batch_size=2),
    )


CHANGES = {
    "structure": (
        (X,),
        "batch 5 has another structure than the first: expected (array, array), got (array)",
    ),
    "keys": (
        {"x": X, "y": Y},
        "batch 5 has another structure than the first: expected (array, array), got {'x': array",
    ),
    "dtype": (
        (X.astype("f8"), Y),
        "batch[0] of batch 5 has dtype float64: expected float32 as in the first batch",
    ),
    "record shape": (
        (X[:, :2], Y),
        "batch[0] of batch 5 has records of shape (2,): expected (3,) as in the first batch",
    ),
    "leading dimensions": (
        (X, Y[:3]),
        "batch[1] of batch 5 has 3 records, batch[0] has 4: expected the same",
    ),
    "object": (
        (X, np.array([None] * 4)),
        "batch[1] of batch 5 is an object array that holds NoneType",
    ),
    "ragged": ((X, [[1], [2, 3], [4], [5]]), "batch[1] of batch 5 is a ragged list"),
    "scalar": (
        (X, 3),
        "batch[1] of batch 5 is int (3): expected an array with one leading dimension",
    ),
}


@threads
@pytest.mark.parametrize("change", CHANGES)
def test_batches_that_change_midway(change: str, threads: int) -> None:
    other, said = CHANGES[change]
    refused(
        SpecError, said, by=looped(iter([(X, Y)] * 5 + [other] + [(X, Y)] * 5), threads=threads)
    )


@pytest.mark.parametrize("change", CHANGES)
def test_batches_of_a_callable_that_change_midway(change: str) -> None:
    other, said = CHANGES[change]
    said = said.replace("batch 5", "batch 5 of producer 0")
    refused(SpecError, said, by=looped(lambda: iter([(X, Y)] * 5 + [other])))


@threads
def test_a_leading_dimension_that_changes_midway(threads: int) -> None:
    made = [np.zeros(n) for n in (4, 4, 3, 5, 4)]
    said = "midway: batch 3 has 5 records", "more than the 4 of the first batch", "batch_size="
    refused(SpecError, *said, by=looped(iter(made), threads=threads))
    assert [len(b) for b in FeedRunner(iter(made), threads=threads, batch_size=4)] == [4] * 5


@threads
def test_short_batches_of_a_generator_that_makes_several_epochs(threads: int) -> None:
    sizes = [4, 4, 3] * 3
    runner = FeedRunner((np.zeros(n) for n in sizes), threads=threads)
    assert [len(batch) for batch in runner] == sizes


@either_sink
@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (
            np.array([{}, {}], object),
            "is an object array that holds dict: expected numbers, bools, bytes or text",
        ),
        (np.array([np.zeros(2), np.zeros(3)], object), "object array that holds ndarray"),
        ([[1, 2], [3]], "is a ragged list, not an array"),
        ([np.zeros(2), np.zeros(3)], "leading dimension"),
        (np.array(["a", b"b"], object), "is an object array that holds str: expected numbers"),
    ],
)
def test_object_arrays_and_ragged_lists(used: Any, batch: Any, said: str) -> None:
    refused(SpecError, said, by=used(iter([batch])))


def test_ragged_records_name_the_knob() -> None:
    said = "varying shape, such as [(1,), (2,)]", "pad=True", "pad=<number>"
    refused(SpecError, *said, by=looped([np.zeros(1), np.zeros(2)], batch_size=2))


@threads
def test_batches_of_no_record_are_skipped_and_counted(threads: int) -> None:
    runner = FeedRunner(iter([X[:0], X, X[:0], X]), threads=threads)
    assert [len(b) for b in runner] == [4, 4]
    assert runner.snapshot().produced.skipped == 2


def test_a_batch_larger_than_the_queue() -> None:
    said = (
        "a batch of 30 records does not fit",
        "capacity must be >= min_after_dequeue + batch_size = 40",
        "shuffle=Shuffle(",
    )
    refused(OptionError, *said, by=in_a_graph(shared_out(60, 30), shuffle=Shuffle(20, 10)))


@threads
@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(4, 6)[:, ::2],
        np.asfortranarray(np.arange(12).reshape(4, 3)),
        np.broadcast_to(np.arange(3), (4, 3)),
        np.arange(12, dtype=">i8").reshape(4, 3),
        np.arange(12, dtype=">f4").reshape(4, 3),
        np.arange(12).reshape(4, 3).view(type("Sub", (np.ndarray,), {})),
    ],
    ids=["strided", "fortran", "read-only", "big-endian", "big-endian-float", "subclass"],
)
def test_unusual_arrays_are_accepted(array: np.ndarray, threads: int) -> None:
    array.flags.writeable = False
    for batch in FeedRunner(iter([array] * 3), threads=threads):
        assert np.array_equal(batch, array)
        assert batch.dtype.isnative
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default():
        runner = FeedRunner(iter([array] * 3), shuffle=False, threads=threads)
        inputs = runner.get_inputs()
        with tf.compat.v1.Session() as sess, runner.start(sess):
            assert np.array_equal(sess.run(inputs), array)


def test_a_generator_object_shared_by_several_threads() -> None:
    both, one = threading.Barrier(2), chunks(10**6, 4)

    def same() -> Iterator[Any]:
        both.wait()
        return one

    said = (
        "the same generator object to producers",
        "it must return a new one at each call",
        "transform=",
    )
    refused(OptionError, *said, by=looped(same, threads=2))


def test_a_generator_itself_may_be_shared() -> None:
    assert ids_of(FeedRunner(chunks(40, 4), threads=3)) == list(range(40))


@either_sink
def test_a_finite_callable_under_several_threads(used: Any) -> None:
    said = (
        "the data would be delivered several times",
        "`worker`",
        "transform=",
        "take `worker` and not use it",
    )
    refused(OptionError, *said, by=looped(lambda: chunks(40, 4), threads=3))


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "4"])
def test_threads_that_cannot_be(count: Any) -> None:
    said = f'threads must be an integer >= 1 or "auto", got {count!r}'
    refused(OptionError, said, by=lambda: FeedRunner(shared_out(8, 4), threads=count))


@threads
@pytest.mark.parametrize(
    "source", [chunks(3, 2), shared_out(3, 3), range(3), Readable(lambda: chunks(3, 3))]
)
def test_a_batch_size_that_can_never_be_filled(source: Any, threads: int) -> None:
    said = (
        "batch_size=50 can never be filled",
        "has 3 records",
        'last_batch="drop"',
        'last_batch="keep"',
    )
    source = chunks(3, 2) if hasattr(source, "__next__") else source  # a new one, not used up
    refused(
        OptionError, *said, by=looped(source, threads=threads, batch_size=50, last_batch="drop")
    )


def test_a_batch_size_that_a_session_can_never_fill() -> None:
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default():
        runner = FeedRunner(chunks(3, 3), batch_size=50, last_batch="drop", shuffle=False)
        inputs = runner.get_inputs()
        with tf.compat.v1.Session() as sess:
            runner.start(sess)
            refused(
                OptionError,
                "batch_size=50 can never be filled",
                "has 3 records",
                by=lambda: sess.run(inputs),
            )


class TestAtTheWrongMoment:
    """Calls that do not fit the state: in a graph that feeds a session, unless noted otherwise."""

    @pytest.fixture
    def tf(self) -> Iterator[Any]:
        tf = pytest.importorskip("tensorflow")
        with tf.Graph().as_default():
            yield tf

    @pytest.fixture
    def runner(self) -> Iterator[FeedRunner]:
        with FeedRunner(shared_out(8, 4)) as runner:
            yield runner

    def test_start_twice(self, tf: Any, runner: FeedRunner) -> None:
        runner.get_inputs()
        with tf.compat.v1.Session() as sess, runner.start(sess):
            refused(
                StateError,
                "called twice",
                "make a second FeedRunner",
                by=lambda: runner.start(sess),
            )

    def test_get_inputs_after_start(self, tf: Any, runner: FeedRunner) -> None:
        with runner.start():
            refused(StateError, "get_inputs() after start()", "call it first", by=runner.get_inputs)

    def test_start_before_get_inputs(self, tf: Any, runner: FeedRunner) -> None:
        with tf.compat.v1.Session() as sess:
            said = (
                "`x, y = runner.get_inputs()` while the graph is built, then `runner.start(sess)`"
            )
            refused(StateError, said, by=lambda: runner.start(sess))

    def test_get_inputs_and_no_session(self, tf: Any, runner: FeedRunner) -> None:
        runner.get_inputs()
        refused(StateError, "needs the session", "start(sess)", by=runner.start)

    @pytest.mark.parametrize("session", [3, "session", object()])
    def test_what_is_no_session(self, tf: Any, runner: FeedRunner, session: Any) -> None:
        runner.get_inputs()
        refused(OptionError, "must be a tf.compat.v1 Session", by=lambda: runner.start(session))

    def test_iteration_beside_a_session(self, tf: Any, runner: FeedRunner) -> None:
        runner.get_inputs()
        what = "feeds a session, and a loop would get only some"
        refused(StateError, what, "make another FeedRunner", by=lambda: list(runner))

    @pytest.mark.parametrize("first", ["stop", "start", "__iter__", "get_inputs"])
    @pytest.mark.parametrize("use", [FeedRunner.start, FeedRunner.get_inputs, list])
    def test_use_after_stop(self, tf: Any, runner: FeedRunner, first: str, use: Any) -> None:
        getattr(runner, first)()
        runner.stop()
        refused(FeedStopped, "stopped: make a new", by=lambda: use(runner))

    def test_a_session_of_another_graph(self, tf: Any, runner: FeedRunner) -> None:
        runner.get_inputs()
        with tf.compat.v1.Session(graph=tf.Graph()) as sess:
            refused(StateError, "another graph", "graph=", by=lambda: runner.start(sess))

    def test_a_finalised_graph(self, tf: Any, runner: FeedRunner) -> None:
        tf.compat.v1.get_default_graph().finalize()
        refused(
            StateError, "finalised graph: call it while the graph is built", by=runner.get_inputs
        )

    def test_a_graph_finalised_before_start(self, tf: Any, runner: FeedRunner) -> None:
        """Monitored sessions do this: it works."""
        inputs = runner.get_inputs()
        tf.compat.v1.get_default_graph().finalize()
        with tf.compat.v1.Session() as sess, runner.start(sess):
            assert sess.run(inputs)[0].shape == (4,)

    def test_eager_mode(self, runner: FeedRunner) -> None:
        pytest.importorskip("tensorflow")
        refused(
            StateError,
            "eager mode",
            "tf.Graph().as_default()",
            "iterate over the runner",
            by=runner.get_inputs,
        )
