"""The observation of a running job: its black box, and the load of its processes and GPUs."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fastfeed.errors import MissingExtra, OptionError
from fastfeed.jobs.blackbox import SUFFIX, FlightRecord, boxes, own_stat, read
from fastfeed.jobs.drawing import Terminal, decimal, percent, size
from fastfeed.jobs.job_view import render, starvation_colour
from fastfeed.jobs.runner_samples import by_name
from fastfeed.probes.gpu import readings

TOP_INTERVAL_S = 1.0  # as often as a job writes its black box
CPU_WINDOW_S = 0.5  # of the first frame
TOP_PROCESSES = 6
OTHERS = "`py-spy dump --pid PID` shows the threads of any Python process"


def view(
    pid: int | None = None,
    *,
    once: bool = False,
    as_json: bool = False,
    console: Console | None = None,
) -> None:
    """Show a job until its end or Ctrl-C.

    With `once`, or if the output is no terminal, show one frame. Without `pid`, show the only job
    of this user that runs, or list them if there are several. Raise OptionError with a text for the
    user.
    """
    console = console or Terminal()
    paths = running_boxes() if pid is None else [box_of(pid)]
    if len(paths) != 1:
        _list([one for one in map(running, paths) if one], console, as_json=as_json)
    elif as_json:
        console.file.write(json.dumps(figures_of(_first(paths[0]))) + "\n")
    elif once or not console.is_terminal:
        flight = _first(paths[0])
        load(flight)
        time.sleep(CPU_WINDOW_S)  # the use of CPUs is that of this time
        console.print(render(flight, console.width, use=load(flight)))
    else:
        _show_until_end(paths[0], console)


def running(path: Path) -> FlightRecord | None:
    """Return what a black box shows, or None once its process or its runners have ended."""
    with contextlib.suppress(OptionError):  # the file of a regular end is gone
        flight = read(path)
        return flight if flight.ending == "running" else None
    return None


def load(flight: FlightRecord) -> Table:
    """Return the load of the trainer and of its busiest workers, since the last call, and of the
    GPUs."""
    pid, rows = flight.header.pid, flight.table.rows if flight.table else ()
    names = {row.pid: row.place for row in rows if row.rss} | {pid: "trainer"}
    found: list[tuple[bool, float, psutil.Process, int]] = []
    for process in psutil.process_iter():  # which remembers processes and their seconds
        with contextlib.suppress(psutil.Error):
            if process.pid in names:
                share, memory = process.cpu_percent() / 100, process.memory_info().rss
                found.append((process.pid == pid, share, process, memory))
    found.sort(key=lambda one: one[:2], reverse=True)
    table = Table(box=None, padding=(0, 1), show_header=False)
    for _, share, process, memory in found[: 1 + TOP_PROCESSES]:
        use = f"{percent(share)} CPU"
        table.add_row(names[process.pid], f"pid {process.pid}", use, f"{size(memory)} memory")
    with contextlib.suppress(MissingExtra):  # `fastfeed doctor` tells how to see GPUs
        for gpu in readings(pid):
            used = f"{size(gpu.used_nbytes)} of {size(gpu.all_nbytes)} memory"
            own = f", {size(gpu.own_nbytes)} its own" if gpu.own_nbytes else ""
            table.add_row(f"GPU {gpu.number}", gpu.name, f"{percent(gpu.busy)} busy", used + own)
    return table


def running_boxes() -> list[Path]:
    """Return the black boxes of this user's jobs on this machine. Raise OptionError if there is
    none."""
    here = socket.gethostname()
    found = [path for path in boxes() if (job := running(path)) and job.header.host == here]
    if not found:
        raise OptionError(
            "no process of this user writes a black box: a job with a FeedRunner does. With "
            f"FASTFEED_BLACKBOX=DIR, set it here, too, or name it: fastfeed top PID. {OTHERS}"
        )
    return found


def box_of(pid: int) -> Path:
    """Return the black box that a process of this user writes. Raise OptionError if none."""
    try:
        opened = [Path(file.path) for file in psutil.Process(pid).open_files()]
    except psutil.NoSuchProcess as error:
        raise OptionError(f"there is no process {pid}") from error
    except psutil.AccessDenied as error:
        raise OptionError(f"process {pid} is another user's: run as that user. {OTHERS}") from error
    for path in opened:
        if path.suffix == SUFFIX and own_stat(path):
            return path
    raise OptionError(
        f"process {pid} writes no black box of this user: it has no FeedRunner that runs, or "
        f"FASTFEED_BLACKBOX=0, or its disk is full. {OTHERS}"
    )


def figures_of(flight: FlightRecord) -> dict[str, Any]:
    """Return the newest figures of a job as values for JSON."""
    rows = flight.table.rows if flight.table else ()
    return {
        **by_name(flight.header),
        "blackbox": flight.path,
        "runners": [
            by_name(samples[-1])
            | {"producers": [by_name(row) for row in rows if row.runner == number]}
            for number, samples in flight.last_minute.items()
        ],
        "events": list(map(by_name, flight.events)),
    }


def _first(path: Path) -> FlightRecord:
    flight = running(path)
    if flight is None:
        raise OptionError("the process has just ended, or its last runner has")
    return flight


def _show_until_end(path: Path, console: Console) -> None:
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            first = _first(path)
            load(first)
            live.update(render(first, console.width), refresh=True)
            time.sleep(CPU_WINDOW_S)
            while (flight := running(path)) is not None:
                live.update(render(flight, console.width, use=load(flight)), refresh=True)
                time.sleep(TOP_INTERVAL_S)
            console.print("the process has ended, or its last runner", style="bold")
    except KeyboardInterrupt:
        return


def _list(jobs: list[FlightRecord], console: Console, *, as_json: bool) -> None:
    if as_json:
        console.file.write(json.dumps({"jobs": list(map(figures_of, jobs))}) + "\n")
        return
    table = Table(box=None, padding=(0, 1))
    for name in ("PID", "steps/s", "starvation", "runners", "command"):
        table.add_column(name, justify="left" if name == "command" else "right")
    for flight in sorted(jobs, key=lambda job: job.header.pid):
        lasts = [samples[-1] for samples in flight.last_minute.values()]
        first = max(lasts, key=lambda sample: sample.batches, default=None)
        starvation = None if first is None else first.starvation
        table.add_row(
            str(flight.header.pid),
            decimal(None if first is None else first.steps_per_second),
            Text(percent(starvation), style=starvation_colour(starvation)),
            str(len(lasts)),
            flight.header.command,
        )
    console.print(table, Text("several jobs run: name one, fastfeed top PID", "bright_black"))
