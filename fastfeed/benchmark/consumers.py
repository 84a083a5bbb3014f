"""Consumers of batches: the training loops that a benchmark can drive. Each counts its own steps
and waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from fastfeed.benchmark.quiet import import_quietly
from fastfeed.benchmark.training_loop import (
    Consumer,
    Options,
    TrainingLoop,
    images_and_labels,
    runner_for,
)
from fastfeed.benchmark.workloads import seconds_from
from fastfeed.errors import OptionError
from fastfeed.model.workload import Producers

CONSUMER_KINDS = "mnist, mnist-keras, resnet50, sim:20ms or none"


def consumer_from(text: str) -> Consumer:
    """Return the consumer that `text` names. Raise OptionError with the possible names."""
    kind, _, rest = text.partition(":")
    if text == "mnist":
        import_quietly("tensorflow")
        from fastfeed.benchmark.session_loop import SessionConsumer

        return SessionConsumer()
    if text in ("mnist-keras", "resnet50"):
        import_quietly("keras")
    if text == "mnist-keras":
        return PlainConsumer(text, _keras_step, burns_cpu=True)
    if text == "resnet50":
        return PlainConsumer(text, _resnet_step, burns_cpu=True)
    if text == "none":
        return PlainConsumer(text, lambda batch: lambda _: None)
    if kind == "sim" and rest:
        seconds = seconds_from(rest, text)
        return PlainConsumer(text, lambda batch: lambda _: time.sleep(seconds))
    raise OptionError(f"--consumer {text!r}: must be {CONSUMER_KINDS}")


def takes_any_batch(text: str) -> bool:
    """Return True for a consumer that does not look at the batches."""
    return text.partition(":")[0] in ("sim", "none")


class PlainConsumer:
    """A loop over numpy batches; `make_step(batch)` returns the function that trains on one."""

    def __init__(
        self,
        name: str,
        make_step: Callable[[Any], Callable[[Any], Any]],
        *,
        burns_cpu: bool = False,
    ) -> None:
        self.name = name
        self.burns_cpu = burns_cpu
        self._make_step = make_step

    @contextmanager
    def cached(self, batch: Any) -> Iterator[Callable[[], Any]]:
        """Yield the step on one cached batch."""
        train = self._make_step(batch)
        yield lambda: train(batch)

    @contextmanager
    def loop(
        self, source: Any, *, producers: Producers, batch_size: int | None, options: Options = None
    ) -> Iterator[TrainingLoop]:
        """Yield plain iteration over a FeedRunner."""
        start = time.perf_counter()
        with ExitStack() as stack:
            runner = stack.enter_context(
                runner_for(source, producers, batch_size=batch_size, options=options)
            )
            batches = iter(runner)
            first = next(batches)
            first_batch_s = time.perf_counter() - start
            train = self._make_step(first)

            def step() -> float:
                before = time.perf_counter()
                batch = next(batches)
                waited_s = time.perf_counter() - before
                train(batch)
                return waited_s

            yield TrainingLoop(step, first_batch_s, lambda: runner.snapshot().depth)


def _keras_step(batch: Any) -> Callable[[Any], Any]:
    from fastfeed.benchmark.cnn_keras import model

    images, _ = images_and_labels(batch)
    network = model(images.shape[1:], dtype=str(images.dtype))
    return lambda pair: network.train_on_batch(*pair)


def _resnet_step(batch: Any) -> Callable[[Any], Any]:
    from fastfeed.benchmark.cnn_keras import resnet

    images, _ = images_and_labels(batch)
    network = resnet(images.shape[1:])
    return lambda pair: network.train_on_batch(*pair)
