"""Remote producers, which no sampler sees: their tasks, and what is said of them."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from fastfeed.core.stats import StageRow
from fastfeed.core.status import MAKING, PROCESS, REMOTE, THREAD, ProducerStatus
from fastfeed.diagnose.anonymous import anonymised
from fastfeed.diagnose.evidence import FEEDER, FULL, HERE, NATIVE, PRODUCER, SLEEP, Task
from fastfeed.diagnose.evidence_file import Recording
from fastfeed.diagnose.sample.remote_tasks import with_remote
from tests.diagnose.evidences import PID, evidence, judged, loop_of, producers, trainer

AWAY = "node 203.0.113.9"  # an address for documentation, never this machine's
BUSY = StageRow(batches=100, read_s=9.0, cpu_s=8.5, wait_in_s=0.5, wait_out_s=0.5)


def status(kind: int, pid: int, where: str = "") -> ProducerStatus:
    return ProducerStatus(kind, MAKING, 0, pid, 0, 0, 0, -1, BUSY, where)


def child(pid: int) -> Task:
    return Task("child", pid, pid, PRODUCER, 10.0, 1.0, busy={SLEEP: 1.0})


def test_a_feed_without_remote_producers_stays_as_it_is() -> None:
    tasks = (trainer(), child(8), child(9))
    assert with_remote(tasks, [status(PROCESS, 8), status(THREAD, os.getpid())]) == tasks


def test_what_the_runner_does_not_name_passes_batches_on() -> None:
    """Children of a Ray that runs on this machine: the actors, and Ray's own processes."""
    tasks = (trainer(), child(8), child(9), child(10))
    named = [status(REMOTE, 8, "node 127.0.0.1"), status(PROCESS, 9)]
    _, actor, local, ray = with_remote(tasks, named)
    assert actor == replace(tasks[1], node=HERE)
    assert local == tasks[2]
    assert ray.role == FEEDER


def test_counters_tell_what_producers_elsewhere_do() -> None:
    """Processes of several machines may have one number, and none of them uses our cores."""
    named = [status(REMOTE, 8, AWAY), status(REMOTE, 8, AWAY), status(REMOTE, 11, "node 127.0.0.1")]
    _, mine, here, *there = with_remote((trainer(), child(8)), named)
    assert mine.role == FEEDER
    for task in (*there, here):
        assert task.role == PRODUCER and not task.sampled
        assert task.busy[NATIVE] == pytest.approx(0.85) and task.busy[FULL] == pytest.approx(0.05)
    assert [(task.node, task.cpu_s) for task in there] == [(AWAY, 0.0)] * 2
    assert (here.node, here.cpu_s) == (HERE, pytest.approx(8.5))


def test_beside_local_processes_only_the_remote_ones_become_more() -> None:
    both = producers(3, {SLEEP: 0.95, FULL: 0.05}, pid=5)
    made = (both[0], *(replace(task, node=AWAY, pid=PID, cpu_s=0.0) for task in both[1:]))
    found = judged(loop_of([20.0] * 200), trainer(), *made)
    assert found.causes[0].evidence[0].startswith("3 worker processes")
    first = found.recommendations[0]
    assert first.knob == "producers" and int(first.value) > 2
    assert first.change == f"producers of remote=Remote(...): 2 -> {first.value}"


def test_an_anonymous_node_has_no_address() -> None:
    made = with_remote((trainer(),), [status(REMOTE, 8, AWAY), status(REMOTE, 9, AWAY)])
    hidden = anonymised(Recording(evidence(loop_of([20.0] * 200), made))).evidence
    assert [task.node for task in hidden.tasks] == ["", "node 1", "node 1"]
    assert not any("203.0.113.9" in task.name for task in hidden.tasks)


@pytest.mark.parametrize(("busy", "code"), [(NATIVE, "input.cpu"), (SLEEP, "input.latency")])
def test_more_of_them_are_asked_for_by_their_own_option(busy: str, code: str) -> None:
    made = tuple(
        replace(task, node=AWAY, cpu_s=0.0)
        for task in producers(2, {busy: 0.95, FULL: 0.05}, pid=5)
    )
    found = judged(loop_of([20.0] * 200), trainer(), *made)
    assert found.verdict == code
    assert "remote producer" in found.causes[0].evidence[0]
    first = found.recommendations[0]
    assert first.knob == "producers" and first.change.startswith(
        "producers of remote=Remote(...): 2 -> "
    )
    assert int(first.value) > 2
