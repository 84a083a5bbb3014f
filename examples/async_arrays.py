"""Asynchronous training with PyTorch or JAX, for async_parallel.py: parameters are arrays of numpy.

Neither framework has a parameter server, so a process holds the parameters, and the workers send
their gradients. It is a server of multiprocessing.managers: if it listens at an address that other
machines can reach, the workers can be there.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.managers import BaseManager
from typing import Any

import numpy as np
from async_gradients import SIZES, Arrays, jax_gradients, torch_gradients
from fault_injection import die, pretend_work

from fastfeed import FeedRunner
from fastfeed.benchmark import digits


class Parameters:
    """Weights and biases of the layers, which workers read and update, one at a time."""

    def __init__(self, *, records: int, rate: float, seed: int) -> None:
        rng, self._arrays = np.random.default_rng(seed), []
        for shape in pairwise(SIZES):
            limit = (6 / sum(shape)) ** 0.5  # Glorot and Bengio, 2010
            weights = rng.uniform(-limit, limit, shape).astype(np.float32)
            self._arrays += [weights, np.zeros(shape[1], np.float32)]
        self._rate, self._version = rate, 0
        self._applied = np.zeros(records, np.int64)
        self._lock = threading.Lock()  # the server has a thread for each worker

    def read(self) -> tuple[int, Arrays]:
        """Return the updates so far, and the parameters."""
        with self._lock:
            return self._version, [array.copy() for array in self._arrays]

    def apply(self, version: int, gradients: Arrays, numbers: np.ndarray) -> int:
        """Take a step with gradients at a version of the parameters, of the records with these
        numbers. Return its staleness: the updates in between."""
        with self._lock:
            for array, gradient in zip(self._arrays, gradients, strict=True):
                array -= self._rate * gradient
            self._applied[numbers] += 1
            self._version += 1
            return self._version - 1 - version

    def applied(self) -> np.ndarray:
        """Return how often each record was applied."""
        return self._applied


def manager_of(meeting: Any, source: Callable[[], Parameters] | None = None) -> BaseManager:
    """Return the manager of the parameters: of the server with their `source`, else of a client."""

    class Manager(BaseManager):
        pass

    Manager.register("parameters", source, exposed=("read", "apply", "applied"))
    host, _, port = meeting.addresses[0].rpartition(":")
    return Manager((host, int(port)), meeting.key)


def connected(meeting: Any, args: argparse.Namespace) -> Any:
    """Return the Parameters of the server, to be called from here."""
    meeting.ready.wait(args.limit_s)
    manager: Any = manager_of(meeting)
    manager.connect()
    return manager.parameters()


def parameter_server(meeting: Any, args: argparse.Namespace) -> None:
    records = len(digits.load(args.data).y_train[: args.records])
    shared = Parameters(records=records, rate=args.learning_rate, seed=args.seed)
    server = manager_of(meeting, lambda: shared).get_server()
    meeting.ready.set()
    server.serve_forever()


def worker(index: int, meeting: Any, args: argparse.Namespace) -> None:
    """Train until no batch of any epoch is left, and send (index, seconds, how many steps had
    which staleness)."""
    gradients = {"torch": torch_gradients, "jax": jax_gradients}[args.framework]()
    data = digits.load(args.data)
    images, labels = data.x_train[: args.records], data.y_train[: args.records]
    runner = FeedRunner(
        (images, labels.astype(np.int64), np.arange(len(labels))),
        batch_size=args.batch_size,
        shard=meeting.shards,
        epochs=args.epochs,
        shuffle=True,
        prefetch=2,
    )
    parameters, staleness = connected(meeting, args), Counter()
    with runner:
        runner.start()  # joins the job
        meeting.start.wait(args.limit_s)
        start = time.perf_counter()
        for images, labels, numbers in runner:
            version, arrays = parameters.read()
            found = gradients(arrays, images.reshape(len(images), -1) / np.float32(255), labels)
            pretend_work(index, args)
            staleness[parameters.apply(version, found, np.array(numbers))] += 1
            if index == args.die and staleness.total() == 5:
                die()
        seconds = time.perf_counter() - start
    meeting.results.send((index, seconds, staleness))


@contextmanager
def observer(
    meeting: Any, args: argparse.Namespace
) -> Iterator[Callable[[], tuple[list[int], float]]]:
    """Yield a function that returns how often each record was applied, and the test accuracy."""
    parameters, data = connected(meeting, args), digits.load(args.data)

    def look() -> tuple[list[int], float]:
        _, (w, b, v, c) = parameters.read()
        hidden = np.maximum(data.x_test.reshape(-1, SIZES[0]) / np.float32(255) @ w + b, 0)
        accuracy = ((hidden @ v + c).argmax(axis=1) == data.y_test).mean()
        return parameters.applied().tolist(), float(accuracy)

    yield look
