"""A flight record on a terminal: how it ended, the last minute, what each producer did, what
happened."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fastfeed.core import status
from fastfeed.live.drawing import decimal, lasting, percent, size, spark, starving, state
from fastfeed.live.postmortem import LAST_S, FlightRecord, clock, name_of
from fastfeed.live.record_layout import RunnerSample
from fastfeed.live.watched import PRODUCER_KINDS, work_in_flight

COLUMNS = 60  # of a line over time: one a second
WIDE = 112  # characters of a table with such lines; narrower terminals get half of the columns
EVENTS = 12
BAD = ("failed", "has ended", "ends with")  # words of an event that is bad news
PRODUCERS = 32
HEADLINES = {
    "cleanly": ("green", "ended cleanly"),
    "with an error": ("red", "ended with an error"),
    "running": ("green", "is still running"),
    "killed": ("bold red", "did not end cleanly: it was killed or crashed and could not say why"),
}
HINT = (
    "No Python code runs at such an end: SIGKILL (by a scheduler, a person, or the kernel for want "
    "of memory, which dmesg tells), os._exit, or a crash of native code."
)


class Second(NamedTuple):
    """A second of a runner's last minute; None: nothing was observed."""

    steps: float | None
    starvation: float | None
    depth: float | None
    making: float | None
    blocked: float | None
    rss: float | None


def render(flight: FlightRecord) -> RenderableType:
    """Return the whole view."""
    parts: list[RenderableType] = [_headline(flight)]
    parts += [Runner(flight, runner) for runner in flight.runners]
    if not flight.runners:
        parts.append(
            Text("It ended before anything was seen of its runners.", style="bright_black")
        )
    if flight.table is not None and flight.table.rows:
        parts.append(_producers(flight))
    parts.append(_events(flight))
    if flight.damaged:
        parts.append(
            Text(
                f"{flight.damaged} record(s) cannot be read: the end came amidst their writing.",
                "yellow",
            )
        )
    return Group(*parts)


def seconds_of(samples: list[RunnerSample], end_ns: int) -> list[Second]:
    """Return one for each of the last seconds, the last one at the end."""
    found: list[list[Second]] = [[] for _ in range(COLUMNS)]
    for before, now in pairwise(samples):
        elapsed, steps = now.elapsed_s - before.elapsed_s, now.batches - before.batches
        whole = elapsed > 0 and steps >= 0  # else another feed of the same runner began
        starvation = min(1.0, max(0.0, now.wait_s - before.wait_s) / elapsed) if whole else None
        one = Second(
            steps / elapsed if whole else None,
            starvation,
            now.depth,
            now.making,
            now.blocked,
            now.rss,
        )
        first, last = (
            COLUMNS - 1 - int((end_ns - s.time_ns) / 1e9 * COLUMNS / LAST_S) for s in (before, now)
        )
        for place in range(max(0, min(first + 1, last)), last + 1):
            found[place].append(one)
    nothing = Second(*[None] * len(Second._fields))
    return [Second(*map(_mean, zip(*one, strict=True))) if one else nothing for one in found]


def _mean(values: tuple[float | None, ...]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None


def _headline(flight: FlightRecord) -> RenderableType:
    header = flight.header
    style, words = HEADLINES[flight.ending]
    title = Text.assemble(
        (name_of(header.command), "bold"), f" (pid {header.pid} on {header.host}) ", (words, style)
    )
    lived = lasting((flight.end_ns - header.started_ns) / 1e9)
    lines = [
        title,
        Text(
            f"from {clock(header.started_ns)} to {clock(flight.end_ns)}, {lived}",
            style="bright_black",
        ),
    ]
    if flight.ending == "killed":
        lines.append(Text(HINT))
    lines.append(Text(f"{header.command}\n{flight.path}", style="bright_black"))
    return Panel(
        Group(*lines),
        title="fastfeed postmortem",
        title_align="left",
        border_style=style.split()[-1],
    )


class Runner:
    """A runner's last minute, as wide as there is room."""

    def __init__(self, flight: FlightRecord, runner: int) -> None:
        self._flight = flight
        self._runner = runner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        samples = self._flight.last(self._runner)
        line = seconds_of(samples, self._flight.end_ns)
        if options.max_width < WIDE:
            line = [
                Second(*map(_mean, zip(*pair, strict=True)))
                for pair in zip(line[::2], line[1::2], strict=True)
            ]
        yield _runner_title(self._runner, samples[-1])
        yield _over_time(line)


def _over_time(line: list[Second]) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(f"the last {LAST_S:g} s", no_wrap=True)
    for name in ("least", "mean", "most", "end"):
        table.add_column(name, justify="right", no_wrap=True)
    share = [s.starvation for s in line]
    rows: tuple[tuple[str, list[float | None], Callable[[float | None], str], str], ...] = (
        ("steps/s", [s.steps for s in line], decimal, "cyan"),
        ("starvation", share, percent, starving(_mean(tuple(share)))),
        ("queue depth", [s.depth for s in line], decimal, "cyan"),
        ("making", [s.making for s in line], decimal, "cyan"),
        ("no room", [s.blocked for s in line], decimal, "cyan"),
        ("memory", [s.rss for s in line], size, "cyan"),
    )
    for name, values, shown, style in rows:
        known = [v for v in values if v is not None]
        ends = (
            min(known, default=None),
            _mean(tuple(known)),
            max(known, default=None),
            known[-1] if known else None,
        )
        over_time = Text(spark(values, top=1.0 if values is share else None), style=style)
        table.add_row(name, over_time, *map(shown, ends))
    return table


def _runner_title(runner: int, now: RunnerSample) -> Text:
    slots = now.free + now.filling + now.ready + now.lent
    text = f"\nrunner {runner} {status.FEED_STATES[now.state] if now.state < len(status.FEED_STATES) else ''}: "
    text += f"{now.batches:,} batches, {now.records:,} records, {size(now.nbytes)} taken"
    text += f", waited {lasting(now.wait_s)} of {lasting(now.elapsed_s)}" if now.elapsed_s else ""
    if slots:
        text += f"; {slots} slots: {now.free} free, {now.filling} filling, {now.ready} ready, {now.lent} lent"
    return Text(text + (f"; {now.errors} errors passed over" if now.errors else ""), style="bold")


def _producers(flight: FlightRecord) -> RenderableType:
    found = flight.table
    assert found is not None
    title = Text(f"\nproducers at {clock(found.time_ns)}", style="bold")
    table = Table(box=None, padding=(0, 1))
    for name in ("runner", "producer", "in", "state", "batches", "in hand", "at", "memory"):
        table.add_column(
            name, justify="right" if name in ("runner", "producer", "batches", "memory") else "left"
        )
    for row in found.rows[:PRODUCERS]:
        place = (
            f"worker {row.worker}, pid {row.pid}"
            if PRODUCER_KINDS[row.kind % 2] == "process"
            else f"thread {row.tid}"
        )
        named = status.STATES[row.state] if row.state < len(status.STATES) else "unknown"
        memory = size(row.rss) if row.rss else ""
        cells = (str(row.runner), str(row.number), place, state(named), f"{row.batches:,}")
        table.add_row(*cells, work_in_flight(row), row.where, memory)
    left = found.total - min(len(found.rows), PRODUCERS)
    return Group(
        title, table, *([Text(f" and {left} more", style="bright_black")] if left > 0 else [])
    )


def _events(flight: FlightRecord) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_header=False)
    for event in flight.events[-EVENTS:]:
        before = (flight.end_ns - event.time_ns) / 1e9
        who = "" if event.runner < 0 else f"runner {event.runner}"
        bad = (
            any(word in event.text for word in ("failed", "has ended", "ends with"))
            and "feed has ended" not in event.text
        )
        table.add_row(
            clock(event.time_ns),
            f"{-before:.1f} s",
            who,
            Text(event.text, style="red" if bad else ""),
        )
    return Group(Text("\nwhat happened", style="bold"), table)
