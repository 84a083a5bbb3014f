"""Sampler of a job that runs already, from outside: one process and its children."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace

from fastfeed.diagnose.evidence import FRAMEWORK, TRAINER, Evidence, Task
from fastfeed.diagnose.sample.children import ChildLog, Children, process_task
from fastfeed.diagnose.sample.sampler import INTERVAL_S, SPY_EVERY, TASK_SEARCH_S
from fastfeed.diagnose.sample.tasks import role_of
from fastfeed.probes import procfs
from fastfeed.probes.gpu import GpuSampler
from fastfeed.probes.machine_log import MachineLog
from fastfeed.probes.places import Places
from fastfeed.probes.procfs import DescriptorReader
from fastfeed.probes.pyspy import PySpy, StackSamples

FROM_OUTSIDE = (
    "a job that is watched from outside (--pid) does not show its steps; `fastfeed diagnose -- "
    "SCRIPT`, or `with fastfeed.diagnose()` around the training, sees them"
)
NOT_OUTSIDE = "steps, waits for input and experiments: --pid installs no hooks for them"


class JobSampler:
    """Samples process `pid`, its children and the machine by /proc and py-spy. Nothing runs in the
    job, and nothing stops it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        entries = procfs.text_of(f"/proc/{pid}/environ").split("\0")
        self._children = Children(DescriptorReader(), job=pid)
        self._machine = MachineLog()
        self._gpus = GpuSampler(environ=dict(entry.partition("=")[::2] for entry in entries))
        self._spy = PySpy(Places(), job=pid)
        self._begun_s = self._ended_s = self._cpu_s = 0.0

    def run(self, seconds: float) -> None:
        """Sample for this time, until the job ends, or until Ctrl-C."""
        rng = random.Random(0)
        for one in (self._children, self._machine, self._gpus, self._spy):
            one.begin()
        self._begun_s = searched_s = now_s = time.perf_counter()
        self._cpu_s, count = time.process_time(), 0
        with contextlib.suppress(KeyboardInterrupt):
            while now_s < self._begun_s + seconds and self.runs:
                time.sleep(INTERVAL_S * (0.5 + rng.random()))
                now_s, count = time.perf_counter(), count + 1
                self._children.sample(now_s)
                if count % SPY_EVERY == 0:
                    self._spy.poll(self._children.python_pids())
                if now_s - searched_s >= TASK_SEARCH_S:
                    self._children.refresh(now_s - searched_s)
                    self._gpus.sample(self._children.logs)
                    searched_s = now_s
        self._ended_s = time.perf_counter()
        self._children.refresh(self._ended_s - searched_s)
        self._cpu_s = time.process_time() - self._cpu_s

    @property
    def runs(self) -> bool:
        """True as long as the job has not ended."""
        return procfs.stat_of(self.pid).state not in ("", "Z")

    def evidence(self) -> Evidence:
        """Return what was seen. There is no loop in it: steps cannot be told apart from outside."""
        logs, log = self._children.logs, self._children.logs.get(self.pid)
        own = self._own_tasks(log) if log is not None else ()
        used = [one.total()[:2] for one in logs.values()]
        ended = "" if self.runs else f"the rest of the time: process {self.pid} has ended"
        missing = [*self._spy.missing(self._children.python_pids()), self._gpus.missing, ended]
        return Evidence(
            *(None, (), (*own, *self._children.tasks(self._spy))),
            self._machine.machine(
                used, own={os.getpid(), *logs}, gpus=self._gpus.means(), names={}
            ),
            *(self._begun_s, self._ended_s),
            missing=(NOT_OUTSIDE, *filter(None, missing)),
            overhead_s=self._cpu_s + self._spy.cpu_s,
            stepless=FROM_OUTSIDE,
        )

    def _own_tasks(self, log: ChildLog) -> Iterator[Task]:
        """Yield the main thread of the job, its other threads with Python frames, and the rest."""
        stacks = self._spy.all.get(self.pid, StackSamples())
        python = [tid for tid in sorted({self.pid, *stacks.seen}) if tid in log.threads]
        for tid in python:
            task = process_task(log, self._spy, threads=[tid])
            other = replace(task, name=f"thread {tid}", role=role_of(task.stacks))
            main = replace(task, name="main thread", role=TRAINER)
            yield main if tid == self.pid else other
        if native := log.threads.keys() - set(python):
            task = process_task(log, self._spy, threads=native)
            yield replace(task, name="native threads", role=FRAMEWORK)

    def close(self) -> None:
        """Close all files and end the helper."""
        self._spy.stop()
        self._gpus.stop()
        self._children.close()
