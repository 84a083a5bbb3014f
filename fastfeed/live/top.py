"""Observation of a running job: FeedRunners through their socket, other Python through py-spy, and
its screen."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fastfeed.errors import MissingExtra, OptionError
from fastfeed.live import socket
from fastfeed.live import threads_of_job as spy
from fastfeed.live.drawing import (
    Terminal,
    bar,
    decimal,
    duration,
    percent,
    producer_state,
    size,
    starvation_colour,
    with_remainder,
)
from fastfeed.live.postmortem import name_of
from fastfeed.live.threads_of_job import SampledThread
from fastfeed.probes.gpu import DRIVER, readings

SOCKET_INTERVAL_S = 0.5
PYSPY_INTERVAL_S = 2.0  # py-spy reads all threads of the interpreter each time
RATE_WINDOW_S = 5.0  # of the rates in "now"
# rows on the screen
TOP_PRODUCERS = 24
TOP_THREADS = 20
TOP_PROCESSES = 6
THREAD_STATES = {"GIL": "red", "runs": "green", "waits": "blue"}


@dataclass(frozen=True)
class ProcessUse:
    """One process of the job."""

    pid: int
    what: str
    cpu: float | None  # in cores; None at first
    rss: int  # in bytes


@dataclass
class JobView:
    """A job at one moment.

    `runners` is as in the socket's JSON, with the rates of the last seconds in "now". Without a
    socket, `threads` replaces it. `missing` lists in sentences what could not be observed.
    """

    pid: int
    command: str
    up_s: float
    processes: list[ProcessUse]
    runners: list[dict[str, Any]] = field(default_factory=list)
    threads: list[SampledThread] = field(default_factory=list)
    gpus: list[Any] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


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


def draw(job: JobView) -> RenderableType:
    """Return the whole screen."""
    parts: list[RenderableType] = [_processes(job)]
    for runner in job.runners:
        parts += [_runner(runner), _producers(runner)]
    if job.threads:
        parts.append(_threads(job))
    parts += [Text(sentence, style="yellow") for sentence in job.missing]
    script = name_of(" ".join(job.command.split()[1:]))
    title = Text.assemble((script, "bold"), f"  pid {job.pid}  up {duration(job.up_s)}")
    return Panel(Group(*parts), title=title, title_align="left", border_style="cyan")


def listing(jobs: dict[int, dict[str, Any]]) -> RenderableType:
    """Return a list of the jobs that answer."""
    table = Table(box=None, padding=(0, 1))
    for name in ("PID", "steps/s", "starvation", "runners", "command"):
        table.add_column(name, justify="left" if name == "command" else "right")
    for pid, answer in sorted(jobs.items()):
        first = max(answer["runners"], key=lambda r: r["steps"], default=None)
        recent = first["recent"] if first else {"steps_per_second": None, "starvation": None}
        starvation = recent["starvation"]
        table.add_row(
            str(pid),
            decimal(recent["steps_per_second"]),
            Text(percent(starvation), style=starvation_colour(starvation)),
            str(len(answer["runners"])),
            " ".join(answer["command"]),
        )
    return Group(
        table, Text("several jobs answer: name one, fastfeed top PID", style="bright_black")
    )


def _processes(job: JobView) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_header=False)
    busiest = sorted(job.processes[1:], key=lambda p: -(p.cpu or 0.0))
    for use in (*job.processes[:1], *busiest[:TOP_PROCESSES]):
        cpu = bar(use.cpu, 12, style="cyan")
        table.add_row(use.what, f"pid {use.pid}", cpu, *_cpu_and_memory(use.cpu, use.rss))
    rest = busiest[TOP_PROCESSES:]
    if rest:
        totals = _cpu_and_memory(sum(p.cpu or 0.0 for p in rest), sum(p.rss for p in rest))
        table.add_row(f"{len(rest)} more", "", "", *totals)
    for gpu in job.gpus:
        own = f", {size(gpu.own_nbytes)} its own" if gpu.own_nbytes else ""
        table.add_row(
            f"GPU {gpu.number}",
            gpu.name,
            bar(gpu.busy, 12, style="magenta"),
            f"{percent(gpu.busy)} busy",
            f"{size(gpu.used_nbytes)} of {size(gpu.all_nbytes)} memory{own}",
        )
    return table


def _cpu_and_memory(cpu: float | None, rss: int) -> tuple[str, str]:
    return f"{'–' if cpu is None else f'{cpu * 100:.0f} %'} CPU", f"{size(rss)} memory"


def _runner(runner: dict[str, Any]) -> RenderableType:
    now = runner["now"]
    starvation = now["starvation"]
    utilisation = None if starvation is None else 1 - starvation
    style = starvation_colour(starvation)
    options = " ".join(f"{name}={value}" for name, value in runner["options"].items())
    title = Text.assemble(
        "\n",
        (f"runner {runner['runner']}", "bold"),
        f" {runner['state']}  ",
        (options, "bright_black"),
    )
    rate = f"{decimal(now['steps_per_second'])} steps/s, {size(now['bytes_per_second'])}/s"
    so_far = f"{runner['steps']:,} steps, {runner['records']:,} records so far"
    wait = "" if now["wait_ms"] is None else f", {decimal(now['wait_ms'])} ms a step"
    depth, room = runner["depth"], max(1, runner["room"])
    queued = f", {size(runner['depth_nbytes'])}" if runner["depth_nbytes"] else ""
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_row("speed", "", f"{rate}; {so_far}")
    for name, share, colour, text in (
        ("starvation", starvation, style, Text(f"{percent(starvation)}{wait}", style=style)),
        ("AU", utilisation, "green", f"{percent(utilisation)} of the time the step could work"),
        ("queue", depth / room, "blue", f"{depth} ready, room for {room}{queued}"),
    ):
        table.add_row(name, bar(share, style=colour), text)
    if runner["errors"]:
        table.add_row("errors", "", f"{runner['errors']} errors passed over")
    if runner["copied"]:
        copied = f"{runner['copied']} batches copied, for the loop holds the slots"
        table.add_row("copied", "", copied)
    if runner["error"]:
        table.add_row("failed", "", Text(runner["error"].splitlines()[0], style="red"))
    return Group(title, table)


def _producers(runner: dict[str, Any]) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for name in ("#", "in", "state", "busy", "", "batches/s", "in hand", "at"):
        table.add_column(name, justify="right" if name in ("#", "", "batches/s") else "left")
    for producer in runner["producers"][:TOP_PRODUCERS]:
        if producer["kind"] != "thread":
            place = f"worker {producer['worker']} (pid {producer['pid']})"
        else:
            place = f"thread {producer['tid']}"
        table.add_row(
            str(producer["producer"]),
            place,
            producer_state(producer["state"]),
            bar(producer["busy"], 8),
            percent(producer["busy"]),
            decimal(producer["batches_per_second"]),
            producer["hand"],
            producer["where"],
        )
    return with_remainder(table, len(runner["producers"]) - TOP_PRODUCERS)


def _threads(job: JobView) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for name in ("thread", "", "at (the user's line)", "inside"):
        table.add_column(name)
    for thread in job.threads[:TOP_THREADS]:
        state = "GIL" if thread.owns_gil else "runs" if thread.active else "waits"
        inside = "" if thread.innermost == thread.user_line else thread.innermost
        table.add_row(
            thread.name, Text(state, THREAD_STATES[state]), thread.user_line or "–", inside
        )
    return with_remainder(table, len(job.threads) - TOP_THREADS)
