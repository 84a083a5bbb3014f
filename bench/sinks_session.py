"""A session of tf.compat.v1 beside the plain loop: the limit of its queue, and the gain of the way
around it.

Two worker processes copy ready batches, and no step reads the data, so that only the transport is
measured. All peers of a workload are open in one process at the same time and are read in turn; the
others wait for room.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.workloads import Batch, Ready

SHUFFLED, KEPT = "shuffled", "order kept"
LOOP, NOW, BEFORE, STEP = "loop", "session", "queue of records", "sess.run alone"
CASES: dict[str, tuple[tuple[int, ...], str]] = {
    "28x28x1 float32, batches of 32": ((32, 28, 28, 1), "float32"),
    "28x28x1 float32, batches of 128": ((128, 28, 28, 1), "float32"),
    "224x224x3 uint8, batches of 64": ((64, 224, 224, 3), "uint8"),
}
CAPACITY, MIN_AFTER_DEQUEUE = 2000, 1000  # the default shuffle's
Step = Callable[[], Any]


@dataclass
class Way:
    """A step of a loop, and the thread that fills its queue, if it has one."""

    step: Step
    filler: threading.Thread | None = None
    rates: list[float] = field(default_factory=list)
    step_us: list[float] = field(default_factory=list)
    filler_us: list[float] = field(default_factory=list)


def session_rates(
    case: str, *, seconds: float = 0.5, rounds: int = 9, warm_s: float = 1.0
) -> dict[str, Any]:
    """Records per second of each way in, shuffled and with the order kept, of one of CASES; in a
    fresh process.

    As JSON, for each way: `median`, `least` and `most` of the rounds; `share`, the median over the
    rounds of its rate by that of the loop of the same order in the same round; and for each batch
    `step_cpu_us` of the loop's own thread and `filler_cpu_us` of the thread that fills the queue.
    """
    shape, dtype = CASES[case]
    ways: dict[str, Way] = {}
    with ExitStack() as stack:
        ways[STEP] = stack.enter_context(_step_alone(shape, dtype))
        for order, way in itertools.product((SHUFFLED, KEPT), WAYS):
            ways[f"{way}, {order}"] = stack.enter_context(
                WAYS[way](Ready(shape, dtype), order == SHUFFLED)
            )
        for way in ways.values():
            _measure(Way(way.step), seconds=warm_s, rows=shape[0], least=2 * CAPACITY // shape[0])
        for turn in range(rounds):
            names = list(ways)
            shift = turn * len(names) // rounds
            for name in names[shift:] + names[:shift]:
                _measure(ways[name], seconds=seconds, rows=shape[0])
    return {
        "case": case,
        "unit": "records/s",
        "rounds": rounds,
        "ways": {n: _summed(n, ways) for n in ways},
    }


def _summed(name: str, ways: dict[str, Way]) -> dict[str, float]:
    way = ways[name]
    loop = ways[f"{LOOP}, {KEPT if name.endswith(KEPT) else SHUFFLED}"]
    found = {
        "median": statistics.median(way.rates),
        "least": min(way.rates),
        "most": max(way.rates),
    }
    found["share"] = statistics.median(
        mine / its for mine, its in zip(way.rates, loop.rates, strict=True)
    )
    found["step_cpu_us"] = statistics.median(way.step_us)
    return found | ({"filler_cpu_us": statistics.median(way.filler_us)} if way.filler_us else {})


def _measure(way: Way, *, seconds: float, rows: int, least: int = 20) -> None:
    """Adds a round to the figures of a way."""
    clock = None if way.filler is None else time.pthread_getcpuclockid(way.filler.ident or 0)
    filler_s = 0.0 if clock is None else time.clock_gettime(clock)
    count, step_s, start = 0, time.thread_time(), time.perf_counter()
    while (now := time.perf_counter()) - start < seconds or count < least:
        way.step()
        count += 1
    way.rates.append(rows * count / (now - start))
    way.step_us.append(1e6 * (time.thread_time() - step_s) / count)
    if clock is not None:
        way.filler_us.append(1e6 * (time.clock_gettime(clock) - filler_s) / count)


def _runner(work: Ready, shuffle: Any) -> Any:
    from fastfeed import FeedRunner

    def source(worker: Any) -> Iterator[Batch]:
        like = work.like()
        for index in itertools.count(worker.index, worker.count):
            out = worker.empty(like)
            work.fill(index, out)
            yield out

    return FeedRunner(source, processes=2, shuffle=shuffle, batch_size=work.shape[0])


def _shuffle(shuffled: bool) -> Any:
    from fastfeed import Shuffle

    return Shuffle(CAPACITY, MIN_AFTER_DEQUEUE) if shuffled else False


@contextmanager
def _loop(work: Ready, shuffled: bool) -> Iterator[Way]:
    """for batch in FeedRunner(source, processes=2, batch_size=..., shuffle=...)"""
    with _runner(work, _shuffle(shuffled)) as runner:
        yield Way(iter(runner).__next__)


@contextmanager
def _session(work: Ready, shuffled: bool) -> Iterator[Way]:
    """get_inputs() and start(sess) of the same runner, and sess.run of an operation on them."""
    import tensorflow as tf

    with tf.Graph().as_default(), _runner(work, _shuffle(shuffled)) as runner:
        taken = tf.group(runner.get_inputs())
        with tf.compat.v1.Session() as session:
            others = threading.enumerate()
            runner.start(session)
            new = [t for t in threading.enumerate() if t not in others]
            yield Way(
                lambda: session.run(taken), next(t for t in new if t.name == "fastfeed-enqueue")
            )
            runner.stop()


@contextmanager
def _queue_of_records(work: Ready, shuffled: bool) -> Iterator[Way]:
    """The idiom, driven as fast as it can be: a thread that takes from the loop without a shuffle,
    prepared calls of enqueue_many into a RandomShuffleQueue (with the order kept: a FIFOQueue) of
    as many records, and dequeue_many, of which the time is taken in the graph as in a session's."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default(), _runner(work, False) as runner:
        dtypes, shapes = [tf.as_dtype(work.dtype)], [work.shape[1:]]
        if shuffled:
            queue = tf.queue.RandomShuffleQueue(CAPACITY, MIN_AFTER_DEQUEUE, dtypes, shapes)
        else:
            queue = tf.queue.FIFOQueue(CAPACITY, dtypes, shapes)
        given = [tf1.placeholder(dtypes[0], (None, *shapes[0]))]
        put, close = queue.enqueue_many(given), queue.close(cancel_pending_enqueues=True)
        totals, taken = _timed(lambda: queue.dequeue_many(work.shape[0]))
        with tf1.Session() as session:
            call = _prepared(session, put, given)

            def fill() -> None:
                try:
                    for batch in runner:
                        call(*batch)
                except tf.errors.CancelledError:
                    runner.stop()

            thread = threading.Thread(target=fill)
            thread.start()
            session.run(totals.initializer)
            yield Way(lambda: session.run(taken), thread)
            session.run(close)
            thread.join()


def _timed(take: Callable[[], Any]) -> tuple[Any, Any]:
    """Seconds waited and dequeues, as a variable, and the operation that takes a batch and adds to
    it."""
    import tensorflow as tf

    totals = tf.compat.v1.Variable(np.zeros(2), dtype=tf.float64, collections=[], use_resource=True)
    before = tf.timestamp()
    with tf.control_dependencies([before]):
        batch = take()
    with tf.control_dependencies([batch]):
        waited = tf.timestamp() - before
    update = totals.assign_add(tf.stack([waited, tf.ones_like(waited)]), read_value=False)
    with tf.control_dependencies([update]):
        return totals, tf.group(tf.identity(batch))


def _prepared(session: Any, target: Any, given: list[Any]) -> Callable[..., Any]:
    """The call without a public name, which takes a fifth of the time of make_callable with
    feed_list=."""
    from tensorflow.core.protobuf import config_pb2

    options = config_pb2.CallableOptions(target=[target.name], feed=[place.name for place in given])
    prepared: Callable[..., Any] = session._make_callable_from_options(options)
    return prepared


WAYS: dict[str, Any] = {LOOP: _loop, NOW: _session, BEFORE: _queue_of_records}


@contextmanager
def _step_alone(shape: tuple[int, ...], dtype: str) -> Iterator[Way]:
    """sess.run of an operation behind a variable that holds one batch: no session is faster."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        batch = tf1.Variable(np.zeros(shape, dtype), use_resource=True)
        taken = tf.group(batch.read_value())
        with tf1.Session() as session:
            session.run(batch.initializer)
            yield Way(lambda: session.run(taken))
