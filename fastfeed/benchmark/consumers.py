"""Consumers of batches: the training loops that a benchmark can drive."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastfeed import FeedRunner, Remote, Worker
from fastfeed.benchmark.workloads import seconds_from
from fastfeed.core.worker import takes_worker
from fastfeed.errors import OptionError
from fastfeed.model.workload import Producers
from fastfeed.options import AUTO
from fastfeed.source.indexed import is_indexable

CONSUMER_KINDS = "mnist, mnist-keras, resnet50, sim:20ms or none"
FOR_EVER = 10**9  # epochs
Options = Mapping[str, Any] | None  # of FeedRunner, beside those that a benchmark varies


@dataclass(frozen=True)
class TrainingLoop:
    """A training loop that is ready: `step` takes a batch, trains, and returns the seconds that it
    waited for it; `stock` returns how many batches are ready."""

    step: Callable[[], float]
    first_batch_s: float
    stock: Callable[[], float]
    producers: Callable[[], Producers]


def consumer_from(text: str) -> Consumer:
    """Return the consumer that `text` names. Raise OptionError with the possible names, and
    MissingExtra without its framework."""
    kind, _, rest = text.partition(":")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its start is no result
    if text == "mnist":
        from fastfeed.benchmark.cnn_session import train_step

        return SessionConsumer(text, train_step, True)
    if text in ("mnist-keras", "resnet50"):
        from fastfeed.benchmark.cnn_keras import imported_keras

        imported_keras()
        return Consumer(text, partial(_keras_step, large=text == "resnet50"), True)
    if text == "none":
        return Consumer(text, lambda batch: lambda _: None)
    if kind == "sim" and rest:
        seconds = seconds_from(rest, text)
        return Consumer(text, lambda batch: lambda _: time.sleep(seconds))
    raise OptionError(f"--consumer {text!r}: must be {CONSUMER_KINDS}")


def takes_any_batch(text: str) -> bool:
    """Return True for a consumer that does not look at the batches."""
    return text.partition(":")[0] in ("sim", "none")


@dataclass(frozen=True)
class Consumer:
    """A training loop over numpy batches; `make_step(batch)` returns the function that trains on
    one. `burns_cpu`: its step competes with the producers for cores."""

    name: str
    make_step: Callable[..., Any]
    burns_cpu: bool = False

    @contextmanager
    def cached(self, batch: Any) -> Iterator[Callable[[], Any]]:
        """Yield the step on one cached batch."""
        train = self.make_step(batch)
        yield lambda: train(batch)

    @contextmanager
    def loop(
        self,
        source: Any,
        *,
        producers: Producers | None,
        batch_size: int | None,
        options: Options = None,
    ) -> Iterator[TrainingLoop]:
        """Yield plain iteration over a FeedRunner."""
        start = time.perf_counter()
        with runner_for(source, producers, batch_size=batch_size, options=options) as runner:
            batches = iter(runner)
            first = next(batches)
            first_batch_s = time.perf_counter() - start
            train = self.make_step(first)

            def step() -> float:
                before = time.perf_counter()
                batch = next(batches)
                waited_s = time.perf_counter() - before
                train(batch)
                return waited_s

            yield TrainingLoop(
                step, first_batch_s, lambda: runner.snapshot().depth, partial(producers_of, runner)
            )


class SessionConsumer(Consumer):
    """A session of tf.compat.v1, which trains from a queue that shuffles; `make_step(images,
    labels)` adds the network to its graph."""

    @contextmanager
    def cached(self, batch: Any) -> Iterator[Callable[[], Any]]:
        """Yield the same training step on a batch in variables of the graph: no queue, no
        feeding."""
        import tensorflow as tf

        with tf.Graph().as_default(), tf.device("/device:CPU:0"):
            kept = [
                tf.compat.v1.Variable(array, trainable=False, use_resource=True)
                for array in images_and_labels(batch)
            ]
            train = self.make_step(*(v.read_value() for v in kept))
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                yield lambda: session.run([train.train_op, train.loss])

    @contextmanager
    def loop(
        self,
        source: Any,
        *,
        producers: Producers | None,
        batch_size: int | None,
        options: Options = None,
    ) -> Iterator[TrainingLoop]:
        """Yield the drop-in."""
        import tensorflow as tf

        start = time.perf_counter()
        with ExitStack() as stack:
            stack.enter_context(tf.Graph().as_default())
            runner = stack.enter_context(
                runner_for(source, producers, batch_size=batch_size, options=options)
            )
            x, y = images_and_labels(runner.get_inputs())
            first_batch_s = time.perf_counter() - start
            train = self.make_step(x, y)
            session = stack.enter_context(tf.compat.v1.Session())
            session.run(tf.compat.v1.global_variables_initializer())
            runner.start(session)
            fetches = [train.train_op, train.loss, runner.waited_s]
            step = lambda: float(session.run(fetches)[2])  # noqa: E731
            yield TrainingLoop(
                step, first_batch_s, lambda: runner.snapshot().depth, partial(producers_of, runner)
            )


def producers_of(runner: FeedRunner) -> Producers:
    """Return the producers that a runner has now."""
    return Producers(int(runner.options.threads), int(runner.options.processes))


def runner_for(
    source: Any, producers: Producers | None, *, batch_size: int | None, options: Options = None
) -> FeedRunner:
    """Return the runner under test, which chooses its producers itself if they are None: a finite
    iterator starts again, because speed is measured and not data."""
    workers: dict[str, Any] = {"threads": AUTO, "processes": AUTO}
    if producers is not None:
        workers = {"threads": producers.threads, "processes": producers.processes}
    if producers is not None and producers.remote is not None:
        workers = {"remote": Remote(producers.remote, producers.processes)}
    if callable(source) and not is_indexable(source) and not takes_worker(source):
        source = partial(_copy, source)
    return FeedRunner(
        source,
        **workers,
        batch_size=batch_size,
        epochs=FOR_EVER,
        **(options or {}),
    )


def _copy(make: Callable[[], Any], worker: Worker) -> Any:
    """Return what `make` returns, for each worker: speed is measured, and not data."""
    return make()


def images_and_labels(batch: Any) -> tuple[Any, Any]:
    """Return the two leaves of an image classifier. Raise OptionError if the batch holds something
    else."""
    if (
        isinstance(batch, (tuple, list))
        and len(batch) == 2
        and batch[0].ndim in (3, 4)
        and batch[1].ndim == 1
    ):
        return batch[0], batch[1]
    raise OptionError(
        "this consumer trains an image classifier: needed batches (images (B, H, W) or (B, H, W, "
        "C), labels (B,)). For other batches take --consumer sim:20ms with the time of your own "
        "step, or none"
    )


def _keras_step(batch: Any, *, large: bool) -> Callable[[Any], Any]:
    """Return the training step of the small network, or of a ResNet-50."""
    from fastfeed.benchmark.cnn_keras import model, resnet

    images, _ = images_and_labels(batch)
    shape = images.shape[1:]
    network = resnet(shape) if large else model(shape, dtype=str(images.dtype))
    return lambda pair: network.train_on_batch(*pair)
