"""A running job, observed from a terminal: its FeedRunners through their socket, any other Python
through py-spy."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import psutil

from fastfeed.errors import MissingExtra, OptionError
from fastfeed.live import socket
from fastfeed.live import threads_of_job as spy
from fastfeed.live.job_view import JobView, ProcessUse
from fastfeed.probes.gpu import DRIVER, readings

EVERY_S = 0.5
SPY_EVERY_S = 2.0  # py-spy reads all of the interpreter's threads each time
WINDOW_S = 5.0  # the length of "now"


class JobWatcher:
    """Observes one process repeatedly; `look` returns a JobView, or None once it has ended."""

    def __init__(self, pid: int) -> None:
        try:
            self._process = psutil.Process(pid)
        except psutil.Error as error:
            raise OptionError(f"there is no process {pid}") from error
        self.pid = pid
        self.answers = socket.ask(pid) is not None
        self._uses: dict[int, psutil.Process] = {}
        self._past: list[dict[str, Any]] = []
        self._gpus = True

    @property
    def every_s(self) -> float:
        """The time between two observations."""
        return EVERY_S if self.answers else SPY_EVERY_S

    def look(self) -> JobView | None:
        """Return the process now. Raise OptionError if nothing of it can be observed."""
        try:
            with self._process.oneshot():
                command, up_s = (
                    " ".join(self._process.cmdline()),
                    time.time() - self._process.create_time(),
                )
                ended = self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.AccessDenied as error:
            raise OptionError(
                f"process {self.pid} is another user's: run as that user, or as root"
            ) from error
        except psutil.NoSuchProcess:
            return None
        if ended:
            return None
        answer = socket.ask(self.pid) if self.answers else None
        frame = JobView(self.pid, command, up_s, [])
        if answer is not None:
            frame.runners = self._rated(answer)
        else:
            frame.threads = spy.threads_of(self.pid)
            frame.missing.append(
                "no FeedRunner answers in this process: what its threads do is seen through py-spy"
            )
        frame.processes = self._use(answer)
        frame.gpus = self._gpu(frame)
        return frame

    def _rated(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the runners, each with its rates since the oldest answer of the last seconds; at
        first with the job's own."""
        self._past = [a for a in self._past if a["clock_s"] > answer["clock_s"] - WINDOW_S] + [
            answer
        ]
        for runner in answer["runners"]:
            earlier = (
                r for a in self._past for r in a["runners"] if r["runner"] == runner["runner"]
            )
            then = next((r for r in earlier if 0 < r["elapsed_s"] < runner["elapsed_s"]), None)
            runner["now"] = runner["recent"] if then is None else _rates(runner, then)
        runners: list[dict[str, Any]] = answer["runners"]
        return runners

    def _use(self, answer: dict[str, Any] | None) -> list[ProcessUse]:
        names = {self.pid: "process" if answer is None else "trainer"}
        if answer is not None:
            made = (
                p
                for r in answer["runners"]
                for p in r["producers"]
                if p["kind"] == "process" and p["pid"]
            )
            names |= {p["pid"]: f"worker {p['worker']}" for p in made}
        else:
            with _gone():
                names |= {child.pid: "child" for child in self._process.children(recursive=True)}
        found = []
        for pid, name in names.items():
            with _gone():
                new = pid not in self._uses
                process = self._uses.setdefault(pid, psutil.Process(pid))
                cpu = process.cpu_percent() / 100
                found.append(ProcessUse(pid, name, None if new else cpu, process.memory_info().rss))
        self._uses = {pid: self._uses[pid] for pid in names if pid in self._uses}
        return found

    def _gpu(self, frame: JobView) -> list[Any]:
        if not self._gpus:
            return []
        try:
            found = readings(self.pid)
            self._gpus = bool(found)
            return found
        except MissingExtra as error:
            self._gpus = False
            if os.path.exists(DRIVER):
                frame.missing.append(f"the GPU is not seen: {error}")
            return []


def frames(pid: int) -> Iterator[Any]:
    """Yield renderables of rich, until the process ends; the caller chooses the pace. Raise
    OptionError if there is no such process, or nothing of it can be observed."""
    from fastfeed.live.top_view import draw

    watcher = JobWatcher(pid)
    while (frame := watcher.look()) is not None:
        yield draw(frame)


def view(
    pid: int | None = None, *, once: bool = False, as_json: bool = False, console: Any = None
) -> None:
    """Show a job until it ends or Ctrl-C comes; with `once`, or if the output is no terminal, show
    one frame. Without `pid` show the only job that answers, or list them if there are several.

    Raise OptionError with a text for the user.
    """
    from rich.console import Console

    console = console or Console()
    if pid is None:
        pid = _only(console, as_json=as_json)
        if pid is None:
            return
    watcher = JobWatcher(pid)
    if as_json:
        console.file.write(json.dumps(asdict(_second(watcher))) + "\n")
        return
    if once or not console.is_terminal:
        from fastfeed.live.top_view import draw

        console.print(draw(_second(watcher)))
        return
    _live(watcher, console)


def _live(watcher: JobWatcher, console: Any) -> None:
    from rich.live import Live

    from fastfeed.live.top_view import draw

    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while (frame := watcher.look()) is not None:
                live.update(draw(frame), refresh=True)
                time.sleep(watcher.every_s)
            console.print(f"process {watcher.pid} has ended", style="bold")
    except KeyboardInterrupt:
        return


def _second(watcher: JobWatcher) -> JobView:
    """Return the second observation: the first one has no rates."""
    watcher.look()
    time.sleep(EVERY_S)
    frame = watcher.look()
    if frame is None:
        raise OptionError(f"process {watcher.pid} has just ended")
    return frame


def _only(console: Any, *, as_json: bool) -> int | None:
    """Return the pid of the job that answers; list them and return None if there are several."""
    from fastfeed.live.top_view import listing

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


def _rates(now: dict[str, Any], then: dict[str, Any]) -> dict[str, float | None]:
    seconds = now["elapsed_s"] - then["elapsed_s"]
    steps, waited = now["steps"] - then["steps"], now["wait_s"] - then["wait_s"]
    return {
        "seconds": seconds,
        "steps_per_second": steps / seconds,
        "starvation": min(1.0, max(0.0, waited / seconds)),
        "bytes_per_second": (now["nbytes"] - then["nbytes"]) / seconds,
        "wait_ms": waited / steps * 1000 if steps else None,
    }


def _gone() -> contextlib.suppress:
    """Suppress errors of a process that ends while it is observed."""
    return contextlib.suppress(psutil.Error)
