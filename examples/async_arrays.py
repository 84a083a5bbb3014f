"""Asynchronous training with PyTorch or JAX, for async_parallel.py: parameters are arrays of numpy.

Neither framework has a parameter server, so a process holds the parameters, and the workers send
their gradients. It is a server of multiprocessing.managers: if it listens at an address that other
machines can reach, the workers can be there.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.managers import BaseManager
from typing import Any, NamedTuple

import numpy as np
from local_cluster import SPAWN, LocalCluster, free_addresses

from fastfeed import FeedRunner
from fastfeed.benchmark import digits
from fastfeed.ranks import ShardServer

SIZES = (784, 100, 10)
Arrays = list[np.ndarray]


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


class Meeting(NamedTuple):
    """What the processes get from the one that starts them."""

    host: str
    port: int
    key: bytes  # without it the server answers nobody
    shards: str  # address of the ShardServer
    ready: Any  # set when the server listens
    results: Any

    def manager(self, source: Callable[[], Parameters] | None = None) -> BaseManager:
        class Manager(BaseManager):
            pass

        Manager.register("parameters", source, exposed=("read", "apply", "applied"))
        return Manager((self.host, self.port), self.key)

    def parameters(self) -> Any:
        """Return the Parameters of the server, to be called from here."""
        manager = self.manager()
        manager.connect()
        return manager.parameters()


def parameter_server(meeting: Meeting, args: argparse.Namespace) -> None:
    records = len(digits.load(args.data).y_train[: args.records])
    shared = Parameters(records=records, rate=args.learning_rate, seed=args.seed)
    server = meeting.manager(lambda: shared).get_server()
    meeting.ready.set()
    server.serve_forever()


def worker(index: int, meeting: Meeting, args: argparse.Namespace) -> None:
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
    parameters, staleness, start = meeting.parameters(), Counter(), time.perf_counter()
    with runner:
        for images, labels, numbers in runner:
            version, arrays = parameters.read()
            found = gradients(arrays, images.reshape(len(images), -1) / np.float32(255), labels)
            # as a larger model on an accelerator of its own, which needs no core
            time.sleep(args.work_ms / 1000 * (args.slow if index == 1 else 1))
            staleness[parameters.apply(version, found, np.array(numbers))] += 1
            if index == args.die and staleness.total() == 5:
                os.kill(os.getpid(), signal.SIGKILL)
    meeting.results.send((index, time.perf_counter() - start, staleness))


def torch_gradients() -> Callable[[Arrays, np.ndarray, np.ndarray], Arrays]:
    """Return a function from parameters and a batch to the gradients."""
    import torch

    torch.set_num_threads(1)  # the workers share the cores

    def gradients(arrays: Arrays, images: np.ndarray, labels: np.ndarray) -> Arrays:
        w, b, v, c = leaves = [torch.from_numpy(array).requires_grad_() for array in arrays]
        scores = torch.relu(torch.from_numpy(images) @ w + b) @ v + c
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels))
        return [gradient.numpy() for gradient in torch.autograd.grad(loss, leaves)]

    return gradients


def jax_gradients() -> Callable[[Arrays, np.ndarray, np.ndarray], Arrays]:
    """Return a function from parameters and a batch to the gradients."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu")

    def loss(arrays: Any, images: Any, labels: Any) -> Any:
        w, b, v, c = arrays
        scores = jax.nn.log_softmax(jax.nn.relu(images @ w + b) @ v + c)
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    gradient = jax.jit(jax.grad(loss))
    return lambda arrays, images, labels: list(
        map(np.asarray, gradient(arrays, images, labels.astype(np.int32)))
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train with `--workers` workers; return speed, staleness and accuracy."""
    (address,) = free_addresses(1)
    host, _, port = address.rpartition(":")
    names = [f"worker {index}" for index in range(args.workers)]
    receive, send = SPAWN.Pipe(duplex=False)
    with ShardServer() as shards, LocalCluster(args.limit_s) as processes:
        key, ready = secrets.token_bytes(16), SPAWN.Event()
        meeting = Meeting(host, int(port), key, shards.address, ready, send)
        processes.start("parameter server", parameter_server, meeting, args)
        ready.wait(args.limit_s)
        for index, name in enumerate(names):
            processes.start(name, worker, index, meeting, args)
        send.close()
        codes = processes.wait(*names, survivors=args.die is not None)
        sent = sorted(receive.recv() for code in codes.values() if code == 0)
        parameters = meeting.parameters()
        applied, (_, arrays) = parameters.applied(), parameters.read()
    return {
        "accuracy": accuracy(arrays, digits.load(args.data)),
        "applied": Counter(applied.tolist()),
        "sent": sent,
        "given_again": shards.report().given_again,
    }


def accuracy(arrays: Arrays, data: Any) -> float:
    w, b, v, c = arrays
    hidden = np.maximum(data.x_test.reshape(-1, SIZES[0]) / np.float32(255) @ w + b, 0)
    return float(((hidden @ v + c).argmax(axis=1) == data.y_test).mean())
