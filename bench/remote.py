"""Remote producers on Ray, beside Ray itself, Ray Data and tf.data service on the same work.

    python -m bench.remote [--parts large,small,loss,model] [--output build/remote]

large: batches of 9.6 MB that exist already, in batches/s, beside a plain loop over the same stream
of Ray. small: batches of 1 KB and 100 KB, beside `iter_batches` of Ray Data. Both beside tf.data
service. loss: nodes of a local cluster die one after another; the longest wait for a batch after
each. model: the simulation beside real runs with 1 to 8 producers. All peers of a part take turns
in one process.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bench.metric_learning import spread
from bench.report import wrapped
from bench.results import SCHEMA, machine, read, write
from fastfeed import FeedRunner, Remote, Worker
from fastfeed.model.prediction import FEW_STEPS
from fastfeed.model.simulate import simulate
from fastfeed.model.workload import BATCH_PARTS, STEP_PARTS, Producers, Workload, fed_by, rows_of

KIND = "remote"
RAY, DATA = "Ray itself, a plain loop over its stream", "Ray Data, `iter_batches`"
SERVICE = "tf.data service"
SIZES = {"9.6 MB": 9_633_792, "100 KB": 102_400, "1 KB": 1024}  # of a batch
STORE_NBYTES = 10**9
PRODUCERS = 2
Results = dict[str, Any]


class Ready:
    """Batches of `nbytes` that exist already: all that is measured is their way."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __call__(self, worker: Worker) -> Iterator[Any]:
        batch = np.ones((64, self.nbytes // 64), np.uint8)
        while True:
            yield batch


def rate_of(batches: Iterator[Any], seconds: float, warm_s: float = 1.5) -> float:
    """Return batches/s of a loop that does nothing with them."""
    next(batches)
    counts, end_s = 0, time.perf_counter() + warm_s
    while time.perf_counter() < end_s:
        next(batches)
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        next(batches)
        counts += 1
    return counts / (now - start)


def by_fastfeed(nbytes: int, seconds: float) -> float:
    """Measure a FeedRunner with remote producers."""
    with FeedRunner(Ready(nbytes), remote=Remote("local", PRODUCERS)) as runner:
        return rate_of(iter(runner), seconds)


def by_ray(nbytes: int, seconds: float) -> float:
    """Measure streaming generators of Ray that a plain loop reads, in one thread for each."""
    import ray

    class Plain:
        def run(self) -> Iterator[Any]:
            yield from Ready(nbytes)(None)  # type: ignore[arg-type]

    actors = [ray.remote(num_cpus=1)(Plain).remote() for _ in range(PRODUCERS)]
    counts = [0] * PRODUCERS

    def read(number: int) -> None:
        stream = actors[number].run.options(
            num_returns="streaming", _generator_backpressure_num_objects=2
        )
        try:
            for ref in stream.remote():
                ray.get(ref)
                counts[number] += 1
        except ray.exceptions.RayError:  # it was killed, at the end
            return

    threads = [threading.Thread(target=read, args=(n,)) for n in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    while min(counts) < 5:
        time.sleep(0.01)
    time.sleep(1.5)
    start, before = time.perf_counter(), sum(counts)
    time.sleep(seconds)
    rate = (sum(counts) - before) / (time.perf_counter() - start)
    for actor in actors:
        ray.kill(actor)
    for thread in threads:
        thread.join()
    return rate


def by_ray_data(nbytes: int, seconds: float) -> float:
    """Measure `iter_batches` of a dataset that makes its rows in its own tasks."""
    import ray

    rows = 64
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.range(10**9, override_num_blocks=2000).map_batches(
        lambda block: {"x": np.ones((len(block["id"]), nbytes // rows), np.uint8)},
        batch_size=rows * max(1, min(1000, 10**6 // nbytes)),
    )
    batches = iter(dataset.iter_batches(batch_size=rows, batch_format="numpy"))
    try:
        return rate_of(batches, seconds)
    finally:  # its tasks go on as long as it exists
        del batches, dataset
        gc.collect()


def by_tf_service(nbytes: int, seconds: float) -> float:
    """Measure a pure tf.data pipeline behind a tf.data service with a worker process each."""
    import tensorflow as tf

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.partition("://")[2]
    code = (
        "import sys, time, tensorflow as tf\n"
        "service = tf.data.experimental.service\n"
        "worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=sys.argv[1]))\n"
        "time.sleep(600)"
    )
    command = [sys.executable, "-c", code, address]
    workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(PRODUCERS)]
    try:
        batch = tf.ones((64, nbytes // 64), tf.uint8)
        dataset = tf.data.Dataset.from_tensors(batch).repeat()
        dataset = dataset.apply(
            service.distribute(
                processing_mode=service.ShardingPolicy.OFF, service=dispatcher.target
            )
        )
        return rate_of(dataset.as_numpy_iterator(), seconds)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def turns(peers: dict[str, Callable[[int, float], float]], size: str, given: Any) -> Results:
    """Measure all peers in turn, `given.rounds` times. Return their batches/s."""
    found: Results = {name: [] for name in peers}
    for _ in range(given.rounds):
        for name, measure in peers.items():
            try:
                found[name].append(measure(SIZES[size], given.seconds))
            except Exception as error:  # a peer that cannot is reported, and the others go on
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            print(size, name, [round(rate, 1) for rate in found[name]], flush=True)
    return found


def large(given: Any) -> Results:
    """Measure batches of 9.6 MB."""
    peers = {"ray": by_ray, "fastfeed": by_fastfeed, "tf.data service": by_tf_service}
    return {"9.6 MB": turns(peers, "9.6 MB", given)}


def small(given: Any) -> Results:
    """Measure small batches."""
    peers = {"ray data": by_ray_data, "fastfeed": by_fastfeed, "tf.data service": by_tf_service}
    return {size: turns(peers, size, given) for size in ("1 KB", "100 KB")}


class Slow:
    """Records that take a while each, and say which they are."""

    def __init__(self, length: int, seconds: float, nbytes: int = 8000) -> None:
        self.length, self.seconds, self.nbytes = length, seconds, nbytes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return np.full(self.nbytes // 8, index)


def loss(given: Any) -> Results:
    """Kill nodes of a local cluster, one after another."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 10**8}
    )
    cluster.connect()

    def add() -> Any:
        return cluster.add_node(num_cpus=1, object_store_memory=10**8)

    nodes = [add() for _ in range(3)]
    cluster.wait_for_nodes()
    gaps: list[float] = []
    digest, want = hashlib.blake2b(), hashlib.blake2b()
    source = Slow(10**6, 0.02)
    remote = Remote("auto", 2)
    runner = FeedRunner(source, batch_size=1, remote=remote, on_worker_death="restart")
    with runner:
        last_s, killed_s, longest = time.perf_counter(), time.perf_counter(), 0.0
        for number, batch in enumerate(runner):
            now = time.perf_counter()
            longest, last_s = max(longest, now - last_s), now
            digest.update(batch[:, :1].tobytes())
            want.update(np.int64(number).tobytes())
            if now - killed_s > given.kill_every_s:
                gaps.append(longest)
                print("longest wait", round(longest, 2), flush=True)
                if len(gaps) > given.kills:
                    break
                nodes.append(add())  # so that there is room for what is lost
                cluster.remove_node(nodes.pop(0), allow_graceful=False)
                killed_s = last_s = time.perf_counter()
                longest = 0.0
    ray.shutdown()
    cluster.shutdown()
    same = digest.digest() == want.digest()
    return {"gaps_s": gaps[1:], "batches": number + 1, "as promised": same}


def model(given: Any) -> Results:
    """Compare the simulation with real runs of 1 to 8 producers that wait, and a step of 5 ms."""
    made_s, step_s = 0.02, 0.005
    found: Results = {"real": {}, "simulated": {}}
    for producers in (1, 2, 4, 8):
        rates = []
        for _ in range(given.rounds):
            remote = Remote("local", producers, cpus=0.1)
            source = Slow(10**6, made_s, 100_000)
            with FeedRunner(source, remote=remote, batch_size=1) as runner:
                batches = iter(runner)

                def stepping(batches: Iterator[Any] = batches) -> Iterator[Any]:
                    for batch in batches:
                        time.sleep(step_s)
                        yield batch

                rates.append(rate_of(stepping(), given.seconds))
        sleeps = made_s + 1e-4, step_s + 1e-4  # a sleep ends a little late
        workload = Workload(
            rows_of(BATCH_PARTS, wait=sleeps[0], native=5e-4),
            rows_of(STEP_PARTS, accelerator=sleeps[1], lock=1e-4),
            cores=2,
        )
        kind = Producers(1, producers)
        outcome = simulate(fed_by(workload, kind), kind, steps=FEW_STEPS)
        found["real"][producers], found["simulated"][producers] = rates, outcome.rate
        print(producers, rates, outcome.rate, flush=True)
    return found


PARTS = {"large": large, "small": small, "loss": loss, "model": model}


def table(document: dict[str, Any]) -> str:
    """Return the table of docs/scale-out.md."""
    peers = {"fastfeed": "fastfeed", "ray": RAY, "ray data": DATA, "tf.data service": SERVICE}
    lines = [["batches/s", *peers.values()], ["---", *["--:"] * len(peers)]]
    found = {**document["parts"]["large"], **document["parts"]["small"]}
    for size in SIZES:
        rates = [found[size].get(peer) for peer in peers]
        lines.append([size, *(spread(one) if one else "" for one in rates)])
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("|  |", "| |")
    known, rounds = document["versions"], document["plan"]["rounds"]
    versions = ", ".join(f"{name} {version}" for name, version in known.items())
    return (
        f"{rows}\n\n{rounds} rounds in turn, {document['machine']['at'].split()[0]}: {versions}.\n"
    )


def promises(document: dict[str, Any]) -> str:
    """Return what docs/scale-out.md says of lost nodes and of the model."""
    lost, modelled = document["parts"]["loss"], document["parts"]["model"]
    waits, simulated = lost["gaps_s"], modelled["simulated"]
    errors = [
        simulated[count] / statistics.median(rates) - 1 for count, rates in modelled["real"].items()
    ]
    longest, most = math.ceil(10 * max(waits)) / 10, math.ceil(100 * max(map(abs, errors)))
    *counts, last = simulated
    kept = "all batches in order, none lost or repeated" if lost["as promised"] else "NOT in order"
    items = (
        f"A node killed every {document['plan']['kill_every_s']:g} s, {len(waits)} times, in a "
        f"local cluster on the same cores: {kept}, and never a wait of more than {longest} s. A "
        "successor gets the source anew, because Ray would wait for the copy on the lost node. It "
        "never starts on a node that does not answer.",
        f"[The model](model.md) is within {most} % of real runs with {', '.join(counts)} and "
        f"{last} producers that wait 20 ms for a batch, and a step of 5 ms.",
    )
    return "\n".join(wrapped(f"- {item}") for item in items)


def main() -> None:
    """Measure the parts that were asked for, and write them to remote.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kill-every-s", type=float, default=6.0)
    parser.add_argument("--output", type=Path, default=Path("build/remote"))
    given = parser.parse_args()
    import ray
    import tensorflow as tf

    plan = {key: value for key, value in vars(given).items() if key not in ("output", "parts")}
    known = {name: metadata.version(name) for name in ("fastfeed", "ray")}
    known |= {"tensorflow": tf.__version__}
    before = given.output / f"{KIND}.json"
    parts = read(before)["parts"] if before.exists() else {}
    document = {"schema": SCHEMA, "kind": KIND, "plan": plan, "machine": machine()}
    document |= {"versions": known, "parts": parts}
    for part in given.parts.split(","):
        if not ray.is_initialized() and part != "loss":
            options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
            ray.init(address="local", num_cpus=4, object_store_memory=STORE_NBYTES, **options)
        document["parts"][part] = PARTS[part](given)
        write(document, given.output)


if __name__ == "__main__":
    main()
