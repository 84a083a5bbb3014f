"""A step of Keras' fit(), fed by what costs Python: alone, beside a worker process, and beside
itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench.keras_step import model_of
from bench.workloads import Python, Ready, Work, rounds_for

STEP_SHAPE = (64, 64, 64, 3)


def fit_step_s(cell: dict[str, Any]) -> float:
    """Seconds of a step, from one fit() of as many steps as fit into the time."""
    import tensorflow as tf

    # or the step takes every core, and leaves none to others
    tf.config.threading.set_intra_op_parallelism_threads(1)
    work = Ready(STEP_SHAPE)
    model = model_of(work)
    labels = np.zeros(STEP_SHAPE[0], np.int32)
    cached = tf.data.Dataset.from_tensors((work.batch(0)[0], labels)).repeat()
    model.fit(cached, steps_per_epoch=30, verbose=0)
    alone_s = _fit(model, cached, 1.0, 0.005)
    python = Python(STEP_SHAPE, rounds=rounds_for(0.6 * alone_s))
    with FITS[cell["fit"]](python, labels, cached) as data:
        _fit(model, data, cell["warm_s"], alone_s)
        return _fit(model, data, cell["seconds"], alone_s)


def _fit(model: Any, data: Any, seconds: float, step_s: float) -> float:
    steps = max(20, round(seconds / step_s))
    start = time.perf_counter()
    model.fit(data, steps_per_epoch=steps, verbose=0)
    return (time.perf_counter() - start) / steps


@contextmanager
def fit_cached(work: Work, labels: np.ndarray, cached: Any) -> Iterator[Any]:
    yield cached


def fit_runner(**given: Any) -> Any:
    @contextmanager
    def opened(work: Work, labels: np.ndarray, cached: Any) -> Iterator[Any]:
        from fastfeed import FeedRunner

        def source(worker: Any) -> Iterator[Any]:
            return ((*batch, labels) for batch in work.stream(worker.index, worker.count))

        with FeedRunner(source, **given) as runner:
            yield runner.dataset()

    return opened


@contextmanager
def fit_generator(work: Work, labels: np.ndarray, cached: Any) -> Iterator[Any]:
    import tensorflow as tf

    signature = tuple(tf.TensorSpec(a.shape, a.dtype) for a in (*work.like(), labels))
    batches = work.stream(0, 1)
    yield tf.data.Dataset.from_generator(
        lambda: ((*b, labels) for b in batches), output_signature=signature
    )


FITS: dict[str, Any] = {
    "a cached batch": fit_cached,
    "runner.dataset(), processes=1": fit_runner(processes=1),
    "runner.dataset(), threads=1": fit_runner(threads=1),
    "from_generator": fit_generator,
}
