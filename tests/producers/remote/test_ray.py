"""Feeds with actors of a real Ray: places, losses, and clusters that are not there."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from fastfeed import FeedRunner, MissingExtra, Remote, Worker
from fastfeed.errors import OptionError, ProducerFailed
from fastfeed.producers.remote import cluster
from fastfeed.producers.remote.cluster import RayCluster

ROOT = Path(__file__).parents[3]
RECORDS = np.arange(200, dtype=np.int64)
LIMIT_S = 60.0


def remote(source: Any, **more: Any) -> FeedRunner:
    return FeedRunner(source, **{"remote": Remote("auto", 2, cpus=0.5), **more})


def pids(runner: FeedRunner) -> list[int]:
    status = runner.status()
    assert status is not None
    return [w.pid for w in status.workers if w.pid and not w.ended]


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def slow(record: Any, worker: Worker) -> Any:
    time.sleep(0.002)
    return record, worker.rng.random()


def test_order_and_draws_are_those_of_threads(ray: Any) -> None:
    options: dict[str, Any] = {"batch_size": 7, "transform": slow, "seed": 3, "shuffle": True}
    with FeedRunner(RECORDS, **options) as here, remote(RECORDS, processes=1, **options) as there:
        for want, got in itertools.zip_longest(here, there):
            np.testing.assert_array_equal(want[0], got[0])
            np.testing.assert_array_equal(want[1], got[1])


def test_killed_actors_are_replaced_and_nothing_is_lost(ray: Any) -> None:
    options: dict[str, Any] = {"batch_size": 2, "transform": slow, "on_worker_death": "restart"}
    got = []
    with remote(RECORDS, **options) as runner:
        for number, batch in enumerate(runner):
            got += batch[0].tolist()
            if number in (10, 50):
                wait_until(lambda: pids(runner))
                os.kill(pids(runner)[0], signal.SIGKILL)
    assert got == RECORDS.tolist()


@pytest.mark.parametrize("reachable", [False, True])
def test_a_silent_actor_is_lost_if_its_node_is_silent(
    ray: Any, monkeypatch: pytest.MonkeyPatch, *, reachable: bool
) -> None:
    monkeypatch.setattr(cluster, "LOOK_S", 0.1)
    monkeypatch.setattr(cluster, "CUT_OFF_S", 5.0)  # a busy machine answers within it
    looks, frozen = [], 0

    def answers(_: object, node: str) -> bool:
        looks.append(node)
        if reachable and len(looks) == 20:  # inside the user's code, and back from it
            os.kill(frozen, signal.SIGCONT)
        return reachable or not frozen

    monkeypatch.setattr(RayCluster, "answers", answers)
    got = []
    with remote(
        RECORDS, batch_size=4, transform=slow, prefetch=4, on_worker_death="restart"
    ) as runner:
        for number, batch in enumerate(runner):
            got += batch[0].tolist()
            if number == 10:
                wait_until(lambda: len(pids(runner)) == 2)
                looks.clear()
                frozen = pids(runner)[0]
                os.kill(frozen, signal.SIGSTOP)
        assert (frozen in pids(runner)) is reachable
    assert got == RECORDS.tolist()


def test_actors_come_and_go_while_a_feed_runs(ray: Any) -> None:
    options: dict[str, Any] = {"batch_size": 2, "transform": slow, "epochs": 3}
    with remote(RECORDS, **options) as runner:
        batches = iter(runner)
        got = [next(batches)[0].copy()]
        runner.resize(producers=4)
        wait_until(lambda: len(pids(runner)) == 4)
        got += [batch[0].copy() for batch in itertools.islice(batches, 120)]
        runner.resize(producers=1)
        got += [batch[0].copy() for batch in batches]
        wait_until(lambda: len(pids(runner)) == 1)
    np.testing.assert_array_equal(np.concatenate(got), np.tile(RECORDS, 3))


def test_an_error_names_the_node(ray: Any) -> None:
    def broken(worker: Worker) -> Iterator[Any]:
        yield np.zeros((1, 2))
        raise ValueError("broken there")

    with remote(broken) as runner, pytest.raises(ProducerFailed, match="broken there") as caught:
        list(runner)
    assert "on node" in str(caught.value)


def test_a_producer_that_fits_nowhere_is_refused_with_what_is_free(ray: Any) -> None:
    runner = remote(RECORDS, batch_size=2, remote=Remote("auto", 2, cpus=64))
    with runner, pytest.raises(OptionError, match=r"cpus=64.*of 6 CPUs on"):
        next(iter(runner))


def test_another_cluster_than_the_named_one_is_not_used(ray: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            runner = remote(RECORDS, batch_size=2, remote=address)
            with runner, pytest.raises(OptionError, match="this process is connected to"):
                next(iter(runner))


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        remote(RECORDS, batch_size=2) as runner,
        pytest.raises(MissingExtra, match=r"fastfeed\[ray"),
    ):
        next(iter(runner))


SILENT = """
import sys
from fastfeed import FeedRunner
try:
    next(iter(FeedRunner([[1], [2]], batch_size=1, remote=sys.argv[1])))
except ValueError as error:
    print(error)
"""

ENDLESS = """
import time
import numpy as np
import ray
from fastfeed import FeedRunner, Remote
ray.init(address="local", num_cpus=2, object_store_memory=10**8, include_dashboard=False)
def numbers(worker):
    while True:
        yield np.zeros((1, 1000))
runner = FeedRunner(numbers, remote=Remote("local", 2))
for number, _ in enumerate(runner):
    workers = [w.pid for w in runner.status().workers if w.pid]
    if number > 100 and len(workers) == 2:
        print(*workers, flush=True)
        time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run(code: str, *given: str, **more: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *given]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, **more)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_without_a_cluster_is_refused_at_once(address: str) -> None:
    pytest.importorskip("ray")
    process = run(SILENT, address)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert "no cluster answers" in out and address in out


@pytest.mark.slow
def test_actors_end_with_a_trainer_that_is_killed() -> None:
    pytest.importorskip("ray")
    trainer = run(ENDLESS, start_new_session=True)
    assert trainer.stdout is not None
    workers = [int(word) for word in trainer.stdout.readline().split()]
    family = [p.pid for p in psutil.Process(trainer.pid).children(recursive=True)]
    assert len(workers) == 2 and set(workers) < set(family)
    trainer.kill()
    trainer.communicate()
    # agents of Ray, which are no part of it, notice the end of their node after a while
    wait_until(lambda: not any(map(is_alive, workers)))


def test_large_batches_stay_in_the_object_store_and_may_be_written_to(ray: Any) -> None:
    def batches(worker: Worker) -> Iterator[Any]:
        for number in range(worker.index, 40, worker.count):
            yield np.full((4, 500_000), number, np.int32)

    with remote(batches) as runner:
        kept, seen = [], []
        for batch in runner:
            seen.append(int(batch[3, -1]))
            batch += 1
            assert not batch.ctypes.data % 64
            if len(kept) < 20:  # more than the store may lend: the others come through the ring
                kept.append((seen[-1], batch))
    assert sorted(seen) == list(range(40))
    assert all((batch == number + 1).all() for number, batch in kept)


LOSING = """
import time
import numpy as np
import ray
from ray.cluster_utils import Cluster
from fastfeed import FeedRunner, Remote
store = {"object_store_memory": 10**8}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **store})
cluster.connect()
nodes = [cluster.add_node(num_cpus=1, **store) for _ in range(3)]
cluster.wait_for_nodes()
class Records:
    def __len__(self):
        return 600
    def __getitem__(self, index):
        time.sleep(0.01)
        return np.full(20_000, index)
options = {"remote": Remote("auto", 2), "on_worker_death": "restart"}
got = []
with FeedRunner(Records(), batch_size=2, **options) as runner:
    for number, batch in enumerate(runner):
        got += batch[:, 7].tolist()
        if number in (50, 150):
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1, **store))
print(got == list(range(600)), flush=True)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_nodes_may_be_lost() -> None:
    pytest.importorskip("ray")
    process = run(LOSING)
    out, _ = process.communicate(timeout=150)
    assert "True" in out.split()


SERVING = """
import os, sys
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
from ray.util.client.server.server import serve
ray.init(address="local", num_cpus=3, object_store_memory=10**8, include_dashboard=False)
server = serve("127.0.0.1", int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
server.stop(0)
ray.shutdown()
"""

FROM_OUTSIDE = """
import os, signal, sys, time
os.environ["RAY_AUTH_MODE"] = "disabled"
import numpy as np
from fastfeed import FeedRunner, Remote
class Records:
    def __len__(self):
        return 200
    def __getitem__(self, index):
        time.sleep(0.005)
        return np.full(2000, index)
def stream(worker):
    for index in range(worker.index, 50, worker.count):
        yield np.full((2, 100_000), index)
options = {"remote": Remote(sys.argv[1], 2), "on_worker_death": "restart"}
got = []
with FeedRunner(Records(), batch_size=2, **options) as runner:
    for number, batch in enumerate(runner):
        got += batch[:, 7].tolist()
        if number == 20:
            os.kill(next(w.pid for w in runner.status().workers if w.pid), signal.SIGKILL)
print(got == list(range(200)), flush=True)
with FeedRunner(stream, **options) as runner:
    print(sorted(int(batch[1, 5]) for batch in runner) == list(range(50)), flush=True)
"""


@pytest.mark.slow
def test_a_trainer_outside_of_the_cluster() -> None:
    pytest.importorskip("ray")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    server = run(SERVING, port, stdin=subprocess.PIPE)
    assert server.stdout is not None and server.stdout.readline() == "ready\n"
    out, _ = run(FROM_OUTSIDE, f"ray://127.0.0.1:{port}").communicate(timeout=LIMIT_S)
    server.communicate("", timeout=LIMIT_S)
    assert out.split() == ["True", "True"]
