"""Tasks of the remote producers of a FeedRunner, which no sampler sees."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import psutil

from fastfeed.core.status import REMOTE, ProducerStatus
from fastfeed.diagnose.evidence import EMPTY, FEEDER, FULL, HERE, NATIVE, OTHER, PRODUCER, Task


def with_remote(tasks: Sequence[Task], producers: Iterable[ProducerStatus]) -> tuple[Task, ...]:
    """Return the tasks with those of remote producers, as far as their counters tell.

    Child processes that the runner does not name, such as those of Ray, pass batches on.
    """
    every = list(producers)
    remote = [producer for producer in every if producer.kind == REMOTE and producer.pid]
    if not remote:
        return tuple(tasks)
    own = {one.address for several in psutil.net_if_addrs().values() for one in several}
    here = [producer for producer in remote if producer.where.rpartition(" ")[2] in own]
    actors = {producer.pid for producer in here}
    named = {os.getpid(), *actors, *(one.pid for one in every if one.kind != REMOTE)}
    watched_s = max((task.wall_s for task in tasks), default=0.0)
    found = []
    for task in tasks:
        if task.pid in actors:
            found.append(replace(task, node=HERE))
        elif task.role == PRODUCER and task.pid not in named:
            found.append(replace(task, role=FEEDER))
        else:
            found.append(task)
    sampled = {task.pid for task in tasks}
    found += [_task(one, watched_s, here=True) for one in here if one.pid not in sampled]
    found += [_task(one, watched_s, here=False) for one in remote if one not in here]
    return tuple(found)


def _task(producer: ProducerStatus, watched_s: float, *, here: bool) -> Task:
    row = producer.counters
    wall_s = max(1e-9, row.busy_s + row.wait_in_s + row.wait_out_s)
    cpu_s = min(row.cpu_s, row.busy_s)
    busy = {
        NATIVE: cpu_s / wall_s,
        OTHER: (row.busy_s - cpu_s) / wall_s,
        FULL: row.wait_out_s / wall_s,
        EMPTY: row.wait_in_s / wall_s,
    }
    return Task(
        *(f"remote producer {producer.worker} ({producer.where})", producer.pid, producer.pid),
        *(PRODUCER, watched_s, watched_s * cpu_s / wall_s * here),
        busy=busy,
        sampled=False,
        node=HERE if here else producer.where,
    )
