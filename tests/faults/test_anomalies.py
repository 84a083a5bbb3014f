"""A producer that gets no descriptor, memory, thread or space ends the feed with all records or
with an error that says so, wherever that happens; `python -m bench.anomalies` tries every call."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, ProducerError
from fastfeed.errors import ProducerFailed
from tests.faults.anomalies import (
    FOR_GOOD,
    KINDS,
    SERVER_CALLS,
    SOURCES,
    STALL_S,
    Fault,
    FaultyServer,
    faulty_server,
    impatient,
    injected,
    points,
    run,
    take_all,
)
from tests.helpers.batches import Leaf, checked
from tests.helpers.rings import ring

MIXES = [(1, 1), (2, 1), (1, 2)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with impatient():
        yield


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server() as found:
        yield found


def check(found: Iterator[Any], least: int) -> None:
    """Fail with what is wrong; at least so many calls must have failed."""
    count = 0
    for fault, ending in found:
        assert not ending.wrong, f"{fault}: {ending.wrong}"
        count += 1
    assert count >= least


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("source", SOURCES)
def test_a_call_of_a_thread_fails(source: str, threads: int) -> None:
    check(points(source, {"threads": threads}, injected, step=5), least=3)


@pytest.mark.parametrize("source", SOURCES)
def test_a_call_of_a_worker_fails(source: str, server: FaultyServer) -> None:
    check(points(source, {"processes": 1}, server.fault, step=40), least=8)


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("source", SOURCES)
def test_calls_of_workers_fail(source: str, mix: tuple[int, int], server: FaultyServer) -> None:
    options = {"processes": mix[0], "threads": mix[1], "on_worker_death": "restart"}
    check(points(source, options, server.fault, step=12), least=10)


def of_session(runner: FeedRunner) -> Iterator[Any]:
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default():
        tensors = runner.get_inputs()
        with tf.compat.v1.Session() as session:
            runner.start(session)
            while True:
                try:
                    yield session.run(tensors)
                except tf.errors.OutOfRangeError:
                    return


def of_dataset(runner: FeedRunner) -> Iterator[Any]:
    pytest.importorskip("tensorflow")
    for batch in runner.dataset():
        yield batch.numpy()


def of_torch(runner: FeedRunner) -> Iterator[Any]:
    pytest.importorskip("torch")
    yield from runner.torch()


def of_jax(runner: FeedRunner) -> Iterator[Any]:
    pytest.importorskip("jax")
    yield from runner.jax()


def of_keras(runner: FeedRunner) -> Iterator[Any]:
    pytest.importorskip("keras")
    data = runner.keras()
    yield from data
    data.on_epoch_end()


SINKS = [of_session, of_dataset, of_keras, of_torch, of_jax]
ONCE = {"epochs": 1}  # a session repeats the data for ever otherwise


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:JAX casts:fastfeed.FeedWarning")
# A call that fails in a finalizer is only printed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("sink", SINKS)
def test_in_every_sink(sink: Callable[[FeedRunner], Iterator[Any]], server: FaultyServer) -> None:
    names = {
        of_session: "tensorflow",
        of_dataset: "tensorflow",
        of_keras: "keras",
        of_torch: "torch",
    }
    pytest.importorskip(names.get(sink, "jax"))
    assert not run("indexable", ONCE, server.fault(Fault("EMFILE", FOR_GOOD)), sink).wrong
    for options, faulty, step in (
        ({"processes": 2, **ONCE}, server.fault, 60),
        (ONCE, injected, 8),
    ):
        found = points("indexable", options, faulty, step=step, kinds=["ENOSPC", "MemoryError"])
        check(found, least=2)
        found = points(
            "indexable", options, faulty, step=step, kinds=["ENOSPC", "SystemExit"], sink=sink
        )
        check(found, least=2)


@pytest.mark.parametrize("call", SERVER_CALLS)
def test_a_worker_that_cannot_be_started_is_named_as_that(call: str, server: FaultyServer) -> None:
    with server.fault(Fault(call, 1)), pytest.raises(ProducerError) as caught:
        list(FeedRunner(SOURCES["indexable"]()[0], processes=2, batch_size=4))
    assert f"BlockingIOError: [Errno 11] injected: {call}" in str(caught.value)
    assert "ulimit -u" in str(caught.value) and "SIGKILL" not in str(caught.value)


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit("no pickle")


def without_descriptors(kept: list[int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    kept.append(os.open(os.devnull, os.O_RDONLY))


def without_space(kept: list[int]) -> None:
    kept.append(0)
    if len(kept) == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        raise OSError("no file may grow" + "!" * 2**16)


def without_pickle(kept: list[int]) -> None:
    kept.append(0)
    if len(kept) == 3:
        raise Unpicklable("gone")


def with_much_text(kept: list[int]) -> None:
    kept.append(0)
    if len(kept) == 3:
        raise ValueError("much text" + "x" * 10**8)


class Breaking:
    """An indexable whose record breaks something in its process, sooner or later."""

    def __init__(self, way: Callable[[list[int]], None]) -> None:
        self.way, self.kept = way, list[int]()

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> Any:
        self.way(self.kept)
        return np.int64(index)


WAYS = {
    without_descriptors: "OSError: [Errno 24] Too many open files: '/dev/null'",
    without_space: "OSError: no file may grow",
    without_pickle: "Unpicklable: gone",
    with_much_text: "ValueError: much text",
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(
    "way",
    [
        without_descriptors,
        pytest.param(without_space, marks=pytest.mark.slow),
        pytest.param(without_pickle, marks=pytest.mark.slow),
        pytest.param(with_much_text, marks=pytest.mark.slow),
    ],
)
def test_a_real_limit(way: Any, kind: str) -> None:
    broken = Breaking(way)

    def stream(worker: Any) -> Iterator[Any]:
        for index in range(worker.index, 2000, worker.count):
            yield np.full(1, broken[index])

    given: dict[str, tuple[Any, dict[str, Any]]] = {
        "callable": (stream, {}),
        "indexable": (broken, {"batch_size": 1}),
        "iterable": (iter(range(2000)), {"transform": lambda n: np.full(1, broken[n])}),
    }
    source, more = given[kind]
    options = {"stall_timeout_s": STALL_S, "on_worker_death": "restart", **more}
    runner = FeedRunner(source, processes=2, **options)
    with runner, pytest.raises(ProducerFailed) as caught:
        list(runner)
    assert WAYS[way] in str(caught.value)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Leave this process no descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_trainer_without_descriptors_hears_of_errors() -> None:
    with ring() as made:
        made.outlets[0].fail(ProducerFailed("batch 3", ValueError("long" * 2**20)), None)
        made.outlets[0].skip(ProducerFailed("batch 4", ValueError("short")), None)
        with no_descriptor_left():
            error, _ = made.handle.error(b"E")
            skipped, _ = made.handle.error(b"K")
    assert str(error).startswith("batch 3 raised LostException: ValueError: longlong")
    assert "ValueError: short" in str(skipped)


def test_a_trainer_without_descriptors_says_so() -> None:
    with ring() as made:
        spec, batch = checked(Leaf("i8", (4,)), [1] * 3)
        made.put(batch, spec)
        with no_descriptor_left(), pytest.raises(OSError, match=r"Errno 24.*ulimit -n"):
            made.take()


def test_the_harness_can_fail(monkeypatch: pytest.MonkeyPatch, server: FaultyServer) -> None:
    """A feed that ends early, and one whose error does not say why, are found."""
    ended = run("callable", {}, injected(Fault("EMFILE", FOR_GOOD)), lambda r: iter(list(r)[:3]))
    assert ended.wrong == "a silent end after 12 records"
    whole = run("callable", {"processes": 1}, server.fault(Fault("EMFILE", FOR_GOOD)), take_all)
    assert (whole.wrong, whole.how, whole.fired) == ("", "complete", 0)
    assert set(KINDS) >= {"EMFILE", "ENOSPC", "MemoryError"}
