"""Time of a peer to its first batch, and memory of its workers."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

import psutil

from bench.libraries import load
from bench.peers import PEERS
from bench.rounds import OWNER, tree_of
from bench.workloads import from_json, read_stamp

MB = 1e6


def measure(cell: dict[str, Any]) -> dict[str, float]:
    """Seconds from opening to the first batch, and the memory of the whole tree a second later
    minus the trainer alone.

    Memory is PSS: what several processes share is counted once. The trainer alone has imported the
    library already, and TensorFlow where the cell says so.
    """
    peer, work = PEERS[cell["peer"]], from_json(cell["work"])
    if cell["tensorflow"]:
        _use_tensorflow()
    began = time.perf_counter()
    if peer.module:
        load(peer.module)
    imported = time.perf_counter() - began
    alone = _pss([psutil.Process()])
    began = time.perf_counter()
    with peer.open(work, cell["workers"]) as batches:
        read_stamp(next(batches))
        first = time.perf_counter() - began
        while time.perf_counter() < began + first + cell["seconds"]:
            read_stamp(next(batches))
        tree = tree_of(os.environ[OWNER])
        memory = (_pss(tree) - alone) / MB
        own = sum(p.memory_full_info().uss for p in tree if p.pid != os.getpid()) / MB
    return {
        "value": first,
        "pss_mb": memory,
        "workers_uss_mb": own,
        "import_s": imported,
        "processes": len(tree) - 1,
    }


def _pss(processes: list[psutil.Process]) -> int:
    return sum(p.memory_full_info().pss for p in processes)


def _use_tensorflow() -> None:
    """Imported and used: only then its threads are there, which a forked worker lacks."""
    tensorflow = importlib.import_module("tensorflow")
    float(
        tensorflow.reduce_sum(tensorflow.random.uniform((256, 256)) @ tensorflow.ones((256, 256)))
    )
