"""The MNIST network in a session of tf.compat.v1: fed by FeedRunner, by the hand-written idiom, or
from a constant."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fastfeed import Shuffle
from fastfeed.benchmark.cnn_session import train_step
from fastfeed.benchmark.training_loop import Options, TrainingLoop, images_and_labels, runner_for
from fastfeed.benchmark.workloads import open_stream
from fastfeed.core.structure import leaves_of, structure_of
from fastfeed.errors import MissingExtra
from fastfeed.model.workload import Producers

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra("TensorFlow", "tensorflow-cpu") from error

v1 = tf.compat.v1
QUEUE = Shuffle()


class SessionConsumer:
    """A session that trains from a queue that shuffles."""

    name = "mnist"
    burns_cpu = True

    @contextmanager
    def cached(self, batch: Any) -> Iterator[Callable[[], Any]]:
        """Yield the same training step on a batch in variables of the graph: no queue, no
        feeding."""
        images, labels = images_and_labels(batch)
        with tf.Graph().as_default(), tf.device("/device:CPU:0"):
            kept = [v1.Variable(a, trainable=False, use_resource=True) for a in (images, labels)]
            train = train_step(*(v.read_value() for v in kept))
            with _session() as session:
                yield lambda: session.run([train.train_op, train.loss])

    @contextmanager
    def loop(
        self, source: Any, *, producers: Producers, batch_size: int | None, options: Options = None
    ) -> Iterator[TrainingLoop]:
        """Yield the drop-in."""
        start = time.perf_counter()
        made = runner_for(source, producers, batch_size=batch_size, options=options)
        with tf.Graph().as_default(), made as runner:
            x, y = images_and_labels(runner.get_inputs())
            first_batch_s = time.perf_counter() - start
            train = train_step(x, y)
            with _session() as session:
                runner.start(session)
                fetches = [train.train_op, train.loss, runner.waited_s]
                yield TrainingLoop(
                    lambda: float(session.run(fetches)[2]),
                    first_batch_s,
                    lambda: runner.snapshot().depth,
                )

    @contextmanager
    def handwritten(
        self, source: Any, *, producers: Producers, batch_size: int | None
    ) -> Iterator[TrainingLoop]:
        """Yield the idiom of many code bases: placeholders, a queue, daemon threads that run the
        enqueue."""
        start = time.perf_counter()
        first = leaves_of(structure_of(batch := next(open_stream(source))), batch) or []
        first_batch_s = time.perf_counter() - start
        with tf.Graph().as_default():
            dtypes, shapes = [a.dtype for a in first], [a.shape[1:] for a in first]
            places = [v1.placeholder(d, (None, *s)) for d, s in zip(dtypes, shapes, strict=True)]
            queue = tf.queue.RandomShuffleQueue(
                QUEUE.capacity, QUEUE.min_after_dequeue, dtypes, shapes
            )
            in_stock = queue.size()
            enqueue, size = queue.enqueue_many(places), batch_size or len(first[0])
            train = train_step(*queue.dequeue_many(size))
            with _session() as session:
                idiom = _HandWritten(session, enqueue, places=places, source=source)
                idiom.start(producers.threads)
                try:
                    fetches = [train.train_op, train.loss]
                    yield TrainingLoop(
                        lambda: _unmeasured(session.run(fetches)),
                        first_batch_s,
                        lambda: session.run(in_stock) / size,
                    )
                finally:
                    idiom.end(queue.close(cancel_pending_enqueues=True))


class _HandWritten:
    """The threads of the idiom, with an end, which the idiom does not have."""

    def __init__(self, session: Any, enqueue: Any, *, places: Any, source: Any) -> None:
        self._session, self._enqueue, self._places, self._source = session, enqueue, places, source
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        """Start `count` daemon threads."""
        self._threads = [
            threading.Thread(target=self._main, args=(i, count), daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def end(self, close: Any) -> None:
        """Unblock and end them."""
        self._session.run(close)
        for thread in self._threads:
            thread.join(5)

    def _main(self, index: int, count: int) -> None:
        with suppress(tf.errors.CancelledError):
            while True:
                for batch in open_stream(self._source, index, count=count):
                    self._session.run(
                        self._enqueue, feed_dict=dict(zip(self._places, batch, strict=True))
                    )


def _unmeasured(_: Any) -> float:
    """Return nan: the idiom cannot measure its wait."""
    return float("nan")


@contextmanager
def _session() -> Iterator[Any]:
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        yield session
