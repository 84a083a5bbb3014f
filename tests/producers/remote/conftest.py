"""One small cluster for all tests that need Ray; without it, they are skipped."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

LIMIT_S = 30.0


def ours() -> set[str]:
    """Return what a feed with remote producers has here: Ray's own processes, threads and sockets
    stay for the next feed."""
    found = {f"thread {t.name}" for t in threading.enumerate() if t.name.startswith("fastfeed")}
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor that listed the folder
            continue
        if target.startswith("/memfd:fastfeed"):
            found.add(f"file descriptor {target}")
    for process in psutil.Process().children(recursive=True):
        try:
            if "RemoteWorker" in " ".join(process.cmdline()):
                found.add(f"actor {process.pid}")
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread, an actor or shared memory of a feed."""
    before = ours()
    yield
    deadline = time.monotonic() + LIMIT_S
    while (left := ours() - before) and time.monotonic() < deadline:
        gc.collect()  # an unreachable runner may be part of a cycle
        time.sleep(0.02)
    assert not left, sorted(left)


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """Ray on this machine, with more CPUs than it has and a small object store."""
    ray = pytest.importorskip("ray")
    ray.init(
        address="local",
        num_cpus=6,
        object_store_memory=300_000_000,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()
