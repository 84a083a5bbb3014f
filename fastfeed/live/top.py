"""Observation of a running job: FeedRunners through their socket, other Python through py-spy."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict
from typing import Any

import psutil
from rich.console import Console
from rich.live import Live

from fastfeed.errors import MissingExtra, OptionError
from fastfeed.live import socket
from fastfeed.live import threads_of_job as spy
from fastfeed.live.drawing import Terminal
from fastfeed.live.job_view import JobView, ProcessUse
from fastfeed.live.top_view import draw, listing
from fastfeed.probes.gpu import DRIVER, readings

SOCKET_INTERVAL_S = 0.5
PYSPY_INTERVAL_S = 2.0  # py-spy reads all threads of the interpreter each time
RATE_WINDOW_S = 5.0  # of the rates in "now"


class JobWatcher:
    """Observes one process repeatedly."""

    def __init__(self, pid: int) -> None:
        try:
            self._process = psutil.Process(pid)
        except psutil.Error as error:
            raise OptionError(f"there is no process {pid}") from error
        self.pid = pid
        self.answers = socket.ask(pid) is not None
        self._processes: dict[int, psutil.Process] = {}
        self._answers: list[dict[str, Any]] = []
        self._has_gpu = True

    @property
    def interval_s(self) -> float:
        """The time between two observations."""
        return SOCKET_INTERVAL_S if self.answers else PYSPY_INTERVAL_S

    def observe(self) -> JobView | None:
        """Return the present state of the process, or None once it has ended.

        Raise OptionError if nothing of it can be observed.
        """
        try:
            with self._process.oneshot():
                command = " ".join(self._process.cmdline())
                up_s = time.time() - self._process.create_time()
                has_ended = self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.AccessDenied as error:
            raise OptionError(
                f"process {self.pid} is another user's: run as that user, or as root"
            ) from error
        except psutil.NoSuchProcess:
            return None
        if has_ended:
            return None
        answer = socket.ask(self.pid) if self.answers else None
        job = JobView(self.pid, command, up_s, self._process_uses(answer))
        if answer is not None:
            job.runners = self._with_rates(answer)
        else:
            job.threads = spy.threads_of(self.pid)
            job.missing.append(
                "no FeedRunner answers in this process: what its threads do is seen through py-spy"
            )
        self._add_gpus(job)
        return job

    def _with_rates(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the runners, each with its rates since the oldest answer in the window.

        The first answer gets the rates of the job itself.
        """
        start_s = answer["clock_s"] - RATE_WINDOW_S
        self._answers = [a for a in self._answers if a["clock_s"] > start_s] + [answer]
        runners: list[dict[str, Any]] = answer["runners"]
        for runner in runners:
            earlier = (
                r
                for a in self._answers
                for r in a["runners"]
                if r["runner"] == runner["runner"] and 0 < r["elapsed_s"] < runner["elapsed_s"]
            )
            oldest = next(earlier, None)
            runner["now"] = runner["recent"] if oldest is None else _rates(runner, oldest)
        return runners

    def _process_uses(self, answer: dict[str, Any] | None) -> list[ProcessUse]:
        names = {self.pid: "process" if answer is None else "trainer"}
        if answer is not None:
            names |= {
                producer["pid"]: f"worker {producer['worker']}"
                for runner in answer["runners"]
                for producer in runner["producers"]
                if producer["kind"] == "process" and producer["pid"]
            }
        else:
            with _ignore_ended_process():
                names |= {child.pid: "child" for child in self._process.children(recursive=True)}
        uses = []
        for pid, name in names.items():
            with _ignore_ended_process():
                is_new = pid not in self._processes
                process = self._processes.setdefault(pid, psutil.Process(pid))
                cpu = process.cpu_percent() / 100
                rss = process.memory_info().rss
                uses.append(ProcessUse(pid, name, None if is_new else cpu, rss))
        self._processes = {pid: self._processes[pid] for pid in names if pid in self._processes}
        return uses

    def _add_gpus(self, job: JobView) -> None:
        if self._has_gpu:
            try:
                job.gpus = readings(self.pid)
            except MissingExtra as error:
                if os.path.exists(DRIVER):
                    job.missing.append(f"the GPU is not seen: {error}")
            self._has_gpu = bool(job.gpus)


def view(
    pid: int | None = None,
    *,
    once: bool = False,
    as_json: bool = False,
    console: Console | None = None,
) -> None:
    """Show a job until its end or Ctrl-C.

    With `once`, or if the output is no terminal, show one frame. Without `pid`, show the only job
    that answers, or list them if there are several. Raise OptionError with a text for the user.
    """
    console = console or Terminal()
    if pid is None:
        pid = _only_job(console, as_json=as_json)
        if pid is None:
            return
    watcher = JobWatcher(pid)
    if as_json:
        console.file.write(json.dumps(asdict(_second_observation(watcher))) + "\n")
    elif once or not console.is_terminal:
        console.print(draw(_second_observation(watcher)))
    else:
        _show_until_end(watcher, console)


def _show_until_end(watcher: JobWatcher, console: Console) -> None:
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while (job := watcher.observe()) is not None:
                live.update(draw(job), refresh=True)
                time.sleep(watcher.interval_s)
            console.print(f"process {watcher.pid} has ended", style="bold")
    except KeyboardInterrupt:
        return


def _second_observation(watcher: JobWatcher) -> JobView:
    """Return the second observation, because the first one has no rates."""
    watcher.observe()
    time.sleep(SOCKET_INTERVAL_S)
    job = watcher.observe()
    if job is None:
        raise OptionError(f"process {watcher.pid} has just ended")
    return job


def _only_job(console: Console, *, as_json: bool) -> int | None:
    """Return the pid of the job that answers; list them and return None if there are several."""
    jobs = socket.jobs()
    if not jobs:
        raise OptionError(
            "no process of this user has a FeedRunner that answers: `fastfeed top PID` looks into "
            "any Python process"
        )
    if len(jobs) == 1:
        return int(next(iter(jobs)))
    if as_json:
        console.file.write(json.dumps({"jobs": list(jobs.values())}) + "\n")
    else:
        console.print(listing(jobs))
    return None


def _rates(now: dict[str, Any], earlier: dict[str, Any]) -> dict[str, float | None]:
    seconds = now["elapsed_s"] - earlier["elapsed_s"]
    steps, waited = now["steps"] - earlier["steps"], now["wait_s"] - earlier["wait_s"]
    return {
        "seconds": seconds,
        "steps_per_second": steps / seconds,
        "starvation": min(1.0, max(0.0, waited / seconds)),
        "bytes_per_second": (now["nbytes"] - earlier["nbytes"]) / seconds,
        "wait_ms": waited / steps * 1000 if steps else None,
    }


def _ignore_ended_process() -> contextlib.suppress:
    """Suppress the errors of a process that ends during its observation."""
    return contextlib.suppress(psutil.Error)
