"""The measured peers: fastfeed and hand-written loaders. Other libraries are in bench/libraries.py.

A peer turns work (see bench/workloads.py) and a number of workers into a stream of batches, tuples
of numpy arrays. Its docstring states its settings.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import mmap
import multiprocessing as mp
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.workloads import Batch, Work

Open = Callable[[Work, int], AbstractContextManager[Iterator[Batch]]]


@dataclass(frozen=True)
class Peer:
    """`packages` are the names it may be installed under; `ordered`: batches arrive in the order of
    their numbers."""

    name: str
    open: Open
    module: str | None
    packages: tuple[str, ...]
    ordered: bool

    @property
    def settings(self) -> str:
        return " ".join((self.open.__doc__ or "").split())

    @property
    def version(self) -> tuple[str, str] | None:
        """The package that is installed, and its version."""
        for package in self.packages:
            try:
                return package, importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        if "fastfeed" not in self.packages:
            return None
        from fastfeed import __version__  # of a checkout that nobody installed

        return "fastfeed", __version__

    @property
    def installed(self) -> bool:
        return not self.packages or self.version is not None


PEERS: dict[str, Peer] = {}


def peer(
    name: str, *, module: str | None = None, packages: tuple[str, ...] = (), ordered: bool = True
) -> Callable[[Callable[[Work, int], Iterator[Iterator[Batch]]]], Open]:
    """Registers a generator function as the context manager that opens a peer's stream."""

    def register(function: Callable[[Work, int], Iterator[Iterator[Batch]]]) -> Open:
        PEERS[name] = Peer(name, contextmanager(function), module, packages, ordered)
        return PEERS[name].open

    return register


@peer("fastfeed", module="fastfeed", packages=("fastfeed",), ordered=False)
def in_place(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """FeedRunner(source, processes=workers), the rest at its defaults; the source fills
    worker.empty(like) in place."""
    from fastfeed import FeedRunner

    def source(worker: Any) -> Iterator[Batch]:
        like = work.like()
        for index in itertools.count(worker.index, worker.count):
            out = worker.empty(like)
            work.fill(index, out)
            yield out

    with FeedRunner(source, processes=workers) as runner:
        yield iter(runner)


def _shares(work: Work, worker: Any) -> Iterator[Batch]:
    return work.stream(worker.index, worker.count)


@peer("fastfeed, yield", module="fastfeed", packages=("fastfeed",), ordered=False)
def yielded(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """FeedRunner(source, processes=workers), the rest at its defaults; the source yields arrays of
    its own."""
    from fastfeed import FeedRunner

    with FeedRunner(lambda worker: _shares(work, worker), processes=workers) as runner:
        yield iter(runner)


@peer("fastfeed, threads", module="fastfeed", packages=("fastfeed",), ordered=False)
def threads(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """FeedRunner(source, threads=workers), the rest at its defaults."""
    from fastfeed import FeedRunner

    with FeedRunner(lambda worker: _shares(work, worker), threads=workers) as runner:
        yield iter(runner)


@peer("thread pool")
def pool(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """concurrent.futures.ThreadPoolExecutor(workers) with 2 batches a thread under way."""
    with ThreadPoolExecutor(workers) as executor:
        numbers = itertools.count()
        due = deque(executor.submit(work.batch, next(numbers)) for _ in range(2 * workers))

        def batches() -> Iterator[Batch]:
            while True:
                batch = due.popleft().result()
                due.append(executor.submit(work.batch, next(numbers)))
                yield batch

        yield batches()
        executor.shutdown(cancel_futures=True)


def _put_all(work: Work, share: tuple[int, int], queue: Any) -> None:
    for batch in work.stream(*share):
        queue.put(batch)


@peer("mp.Queue", ordered=False)
def queued(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """multiprocessing.Queue(2 * workers), forked workers that put whole batches into it (pickled,
    through a pipe)."""
    context = mp.get_context("fork")
    queue = context.Queue(2 * workers)
    with _running(
        [context.Process(target=_put_all, args=(work, (w, workers), queue)) for w in range(workers)]
    ):
        yield iter(queue.get, None)


@peer("bare ring", ordered=False)
def ring(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """A minimal shared ring, as a lower bound of the cost; not a library.

    Forked workers, 2 * workers + 2 slots of shared memory, and two pipes that carry the numbers of
    slots. Workers fill slots in place, and a request for the next batch frees the slot of the last
    one. It detects neither a worker's death nor an error nor the end, and it overwrites batches
    that a consumer keeps.
    """
    context, slots = mp.get_context("fork"), [_slot(work) for _ in range(2 * workers + 2)]
    (free_out, free_in), (ready_out, ready_in) = os.pipe(), os.pipe()
    os.write(free_in, np.arange(len(slots), dtype=np.int32).tobytes())

    def fill_all(first: int) -> None:
        for index in itertools.count(first, workers):
            token = os.read(free_out, 4)
            work.fill(index, slots[int.from_bytes(token, "little")])
            os.write(ready_in, token)

    def batches() -> Iterator[Batch]:
        while token := os.read(ready_out, 4):
            yield slots[int.from_bytes(token, "little")]
            os.write(free_in, token)

    with _running([context.Process(target=fill_all, args=(w,)) for w in range(workers)]):
        yield batches()


def _slot(work: Work) -> Batch:
    """Arrays like those of a batch in anonymous shared memory, touched."""
    shared = []
    for leaf in work.like():
        memory = np.frombuffer(mmap.mmap(-1, leaf.nbytes), leaf.dtype).reshape(leaf.shape)
        memory.fill(0)
        shared.append(memory)
    return tuple(shared)


@contextmanager
def _running(processes: list[Any]) -> Iterator[None]:
    for process in processes:
        process.daemon = True
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


@peer("bare loop")
def bare_loop(work: Work, workers: int) -> Iterator[Iterator[Batch]]:
    """Neither a library nor a worker: the training loop produces its batches itself."""
    yield map(work.batch, itertools.count())
