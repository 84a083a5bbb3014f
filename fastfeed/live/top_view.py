"""The screen of `fastfeed top`."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fastfeed.live.drawing import bar, decimal, lasting, percent, size, starving, state
from fastfeed.live.job_view import JobView, ProcessUse
from fastfeed.live.postmortem import name_of

PRODUCERS = 24
THREADS = 20
PROCESSES = 6


def draw(frame: JobView) -> RenderableType:
    """Return the whole screen."""
    parts: list[RenderableType] = [_processes(frame)]
    for runner in frame.runners:
        parts += [_runner(runner), _producers(runner)]
    if frame.threads:
        parts.append(_threads(frame))
    parts += [Text(sentence, style="yellow") for sentence in frame.missing]
    words = Text.assemble(
        (name_of(" ".join(frame.command.split()[1:])), "bold"), f"  pid {frame.pid}"
    )
    words.append(f"  up {lasting(frame.up_s)}")
    return Panel(Group(*parts), title=words, title_align="left", border_style="cyan")


def listing(jobs: dict[int, dict[str, Any]]) -> RenderableType:
    """Return the jobs that answer, to choose from."""
    table = Table(box=None, padding=(0, 1))
    for name in ("PID", "steps/s", "starvation", "runners", "command"):
        table.add_column(name, justify="left" if name == "command" else "right")
    for pid, answer in sorted(jobs.items()):
        first = max(answer["runners"], key=lambda r: r["steps"], default=None)
        recent = first["recent"] if first else {"steps_per_second": None, "starvation": None}
        share = Text(percent(recent["starvation"]), style=starving(recent["starvation"]))
        command = " ".join(answer["command"])
        table.add_row(
            str(pid),
            decimal(recent["steps_per_second"]),
            share,
            str(len(answer["runners"])),
            command,
        )
    return Group(
        table, Text("several jobs answer: name one, fastfeed top PID", style="bright_black")
    )


def _processes(frame: JobView) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_header=False)
    busiest = sorted(frame.processes[1:], key=lambda p: -(p.cpu or 0.0))
    for use in (*frame.processes[:1], *busiest[:PROCESSES]):
        memory = f"{size(use.rss)} memory"
        table.add_row(use.what, f"pid {use.pid}", bar(use.cpu, 12, style="cyan"), _cpu(use), memory)
    if len(busiest) > PROCESSES:
        rest = busiest[PROCESSES:]
        cpu = sum(p.cpu or 0.0 for p in rest)
        table.add_row(
            f"{len(rest)} more",
            "",
            "",
            f"{cpu * 100:.0f} % CPU",
            f"{size(sum(p.rss for p in rest))} memory",
        )
    for gpu in frame.gpus:
        own = f", {size(gpu.own_nbytes)} its own" if gpu.own_nbytes else ""
        memory = f"{size(gpu.used_nbytes)} of {size(gpu.all_nbytes)} memory{own}"
        table.add_row(
            f"GPU {gpu.number}",
            gpu.name,
            bar(gpu.busy, 12, style="magenta"),
            f"{percent(gpu.busy)} busy",
            memory,
        )
    return table


def _cpu(use: ProcessUse) -> str:
    return "– CPU" if use.cpu is None else f"{use.cpu * 100:.0f} % CPU"


def _runner(runner: dict[str, Any]) -> RenderableType:
    now = runner["now"]
    starvation = now["starvation"]
    table = Table(box=None, padding=(0, 1), show_header=False)
    words = " ".join(f"{name}={value}" for name, value in runner["options"].items())
    head = Text.assemble(
        "\n",
        (f"runner {runner['runner']}", "bold"),
        f" {runner['state']}  ",
        (words, "bright_black"),
    )
    rate = f"{decimal(now['steps_per_second'])} steps/s, {size(now['bytes_per_second'])}/s"
    table.add_row(
        "speed", "", f"{rate}; {runner['steps']:,} steps, {runner['records']:,} records so far"
    )
    waits = "" if now["wait_ms"] is None else f", {decimal(now['wait_ms'])} ms a step"
    style = starving(starvation)
    table.add_row(
        "starvation",
        bar(starvation, style=style),
        Text(f"{percent(starvation)}{waits}", style=style),
    )
    used = None if starvation is None else 1 - starvation
    table.add_row(
        "AU", bar(used, style="green"), f"{percent(used)} of the time the step could work"
    )
    depth, room = runner["depth"], max(1, runner["room"])
    extra = f", {size(runner['depth_nbytes'])}" if runner["depth_nbytes"] else ""
    table.add_row(
        "queue", bar(depth / room, style="blue"), f"{depth} ready, room for {room}{extra}"
    )
    for name, text in (
        ("errors", "errors passed over"),
        ("copied", "batches copied, for the loop holds the slots"),
    ):
        if runner[name]:
            table.add_row(name, "", f"{runner[name]} {text}")
    if runner["error"]:
        table.add_row("failed", "", Text(runner["error"].splitlines()[0], style="red"))
    return Group(head, table)


def _producers(runner: dict[str, Any]) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for name in ("#", "in", "state", "busy", "", "batches/s", "in hand", "at"):
        table.add_column(name, justify="right" if name in ("#", "", "batches/s") else "left")
    for one in runner["producers"][:PRODUCERS]:
        process = one["kind"] == "process"
        place = f"worker {one['worker']} (pid {one['pid']})" if process else f"thread {one['tid']}"
        cells = (
            str(one["producer"]),
            place,
            state(one["state"]),
            bar(one["busy"], 8),
            percent(one["busy"]),
        )
        table.add_row(*cells, decimal(one["batches_per_second"]), one["hand"], one["where"])
    left = len(runner["producers"]) - PRODUCERS
    return Group(table, Text(f"  and {left} more", style="bright_black")) if left > 0 else table


def _threads(frame: JobView) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for name in ("thread", "", "at (the user's line)", "inside"):
        table.add_column(name)
    for thread in frame.threads[:THREADS]:
        does = (
            Text("GIL", "red")
            if thread.owns_gil
            else Text("runs", "green")
            if thread.active
            else Text("waits", "blue")
        )
        table.add_row(
            thread.name, does, thread.own or "–", "" if thread.inner == thread.own else thread.inner
        )
    left = len(frame.threads) - THREADS
    return Group(table, Text(f"  and {left} more", style="bright_black")) if left > 0 else table
