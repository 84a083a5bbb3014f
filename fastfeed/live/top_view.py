"""The screen of `fastfeed top`."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fastfeed.live.drawing import (
    bar,
    decimal,
    duration,
    percent,
    producer_state,
    size,
    starvation_colour,
    with_remainder,
)
from fastfeed.live.job_view import JobView
from fastfeed.live.postmortem import name_of

# rows on the screen
TOP_PRODUCERS = 24
TOP_THREADS = 20
TOP_PROCESSES = 6
THREAD_STATES = {"GIL": "red", "runs": "green", "waits": "blue"}


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
