"""A flight record on a terminal: its end, the last minute, the producers and the events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fastfeed.core import status
from fastfeed.core.stats import SlotCounts
from fastfeed.live.drawing import (
    decimal,
    duration,
    percent,
    producer_state,
    size,
    sparkline,
    starvation_colour,
    with_remainder,
)
from fastfeed.live.postmortem import SHOWN_S, FlightRecord, clock, name_of
from fastfeed.live.record_layout import ProducerTable, RunnerSample
from fastfeed.live.watched import work_in_flight

SPARKLINE_COLUMNS = 60  # one a second
FULL_WIDTH = (
    112  # characters of a table with such lines; narrower terminals get half of the columns
)
SHOWN_EVENTS = 12
SHOWN_PRODUCERS = 32
BAD_NEWS = ("failed", "has ended", "ends with")  # words of an event
HEADLINES = {
    "cleanly": ("green", "ended cleanly"),
    "with an error": ("red", "ended with an error"),
    "running": ("green", "is still running"),
    "killed": ("bold red", "did not end cleanly: it was killed or crashed and could not say why"),
}
KILLED_HINT = (
    "No Python code runs at such an end: SIGKILL (by a scheduler, a person, or the kernel for want "
    "of memory, which dmesg tells), os._exit, or a crash of native code."
)


class Second(NamedTuple):
    """A second of a runner's last minute, with None for what was not observed."""

    steps: float | None
    starvation: float | None
    depth: float | None
    making: float | None
    blocked: float | None
    rss: float | None


def render(flight: FlightRecord) -> RenderableType:
    """Return the whole view."""
    parts: list[RenderableType] = [_headline(flight)]
    parts += [RunnerHistory(flight, runner) for runner in flight.runners]
    if not flight.runners:
        parts.append(
            Text("It ended before anything was seen of its runners.", style="bright_black")
        )
    if flight.table is not None and flight.table.rows:
        parts.append(_producers(flight.table))
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
    """Return each of the last seconds, as the mean of the samples that cover it."""
    columns: list[list[Second]] = [[] for _ in range(SPARKLINE_COLUMNS)]
    for before, now in pairwise(samples):
        elapsed, steps = now.elapsed_s - before.elapsed_s, now.batches - before.batches
        same_feed = elapsed > 0 and steps >= 0
        waited = max(0.0, now.wait_s - before.wait_s)
        second = Second(
            steps / elapsed if same_feed else None,
            min(1.0, waited / elapsed) if same_feed else None,
            now.depth,
            now.making,
            now.blocked,
            now.rss,
        )
        first, last = (
            int((end_ns - s.time_ns) / 1e9 * SPARKLINE_COLUMNS / SHOWN_S) for s in (now, before)
        )
        for age in range(first, min(SPARKLINE_COLUMNS, max(first + 1, last))):
            columns[-1 - age].append(second)
    return [_mean_second(seconds) for seconds in columns]


def _mean_second(seconds: Sequence[Second]) -> Second:
    fields = range(len(Second._fields))
    return Second(*(_mean([second[field] for second in seconds]) for field in fields))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None


def _headline(flight: FlightRecord) -> RenderableType:
    header = flight.header
    style, words = HEADLINES[flight.ending]
    title = Text.assemble(
        (name_of(header.command), "bold"), f" (pid {header.pid} on {header.host}) ", (words, style)
    )
    lifetime = duration((flight.end_ns - header.started_ns) / 1e9)
    times = f"from {clock(header.started_ns)} to {clock(flight.end_ns)}, {lifetime}"
    lines = [title, Text(times, style="bright_black")]
    if flight.ending == "killed":
        lines.append(Text(KILLED_HINT))
    lines.append(Text(f"{header.command}\n{flight.path}", style="bright_black"))
    return Panel(
        Group(*lines),
        title="fastfeed postmortem",
        title_align="left",
        border_style=style.split()[-1],
    )


class RunnerHistory:
    """A runner's last minute, in full or half width."""

    def __init__(self, flight: FlightRecord, runner: int) -> None:
        self._flight = flight
        self._runner = runner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        samples = self._flight.last(self._runner)
        seconds = seconds_of(samples, self._flight.end_ns)
        if options.max_width < FULL_WIDTH:
            pairs = zip(seconds[::2], seconds[1::2], strict=True)
            seconds = [_mean_second(pair) for pair in pairs]
        yield _runner_title(self._runner, samples[-1])
        yield _over_time(seconds)


def _over_time(seconds: list[Second]) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(f"the last {SHOWN_S:g} s", no_wrap=True)
    for name in ("least", "mean", "most", "end"):
        table.add_column(name, justify="right", no_wrap=True)
    starvation = [s.starvation for s in seconds]
    rows: tuple[tuple[str, list[float | None], Callable[[float | None], str], str], ...] = (
        ("steps/s", [s.steps for s in seconds], decimal, "cyan"),
        ("starvation", starvation, percent, starvation_colour(_mean(starvation))),
        ("queue depth", [s.depth for s in seconds], decimal, "cyan"),
        ("making", [s.making for s in seconds], decimal, "cyan"),
        ("no room", [s.blocked for s in seconds], decimal, "cyan"),
        ("memory", [s.rss for s in seconds], size, "cyan"),
    )
    for name, values, format_value, style in rows:
        known = [v for v in values if v is not None]
        summary = (
            min(known, default=None),
            _mean(known),
            max(known, default=None),
            known[-1] if known else None,
        )
        line = sparkline(values, top=1.0 if values is starvation else None)
        table.add_row(name, Text(line, style=style), *map(format_value, summary))
    return table


def _runner_title(runner: int, now: RunnerSample) -> Text:
    state = status.FEED_STATES[now.state] if now.state < len(status.FEED_STATES) else ""
    slots = SlotCounts(now.free, now.filling, now.ready, now.lent)
    text = f"\nrunner {runner} {state}: {now.batches:,} batches, {now.records:,} records, "
    text += f"{size(now.nbytes)} taken"
    if now.elapsed_s:
        text += f", waited {duration(now.wait_s)} of {duration(now.elapsed_s)}"
    if slots.all:
        text += f"; {slots}"
    if now.errors:
        text += f"; {now.errors} errors passed over"
    return Text(text, style="bold")


def _producers(producers: ProducerTable) -> RenderableType:
    title = Text(f"\nproducers at {clock(producers.time_ns)}", style="bold")
    table = Table(box=None, padding=(0, 1))
    for name in ("runner", "producer", "in", "state", "batches", "in hand", "at", "memory"):
        is_number = name in ("runner", "producer", "batches", "memory")
        table.add_column(name, justify="right" if is_number else "left")
    rows = producers.rows[:SHOWN_PRODUCERS]
    for row in rows:
        is_process = row.kind in (status.PROCESS, status.REMOTE)
        state = status.STATES[row.state] if row.state < len(status.STATES) else "unknown"
        table.add_row(
            str(row.runner),
            str(row.number),
            f"worker {row.worker}, pid {row.pid}" if is_process else f"thread {row.tid}",
            producer_state(state),
            f"{row.batches:,}",
            work_in_flight(row),
            row.where,
            size(row.rss) if row.rss else "",
        )
    return Group(title, with_remainder(table, producers.total - len(rows)))


def _events(flight: FlightRecord) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_header=False)
    for event in flight.events[-SHOWN_EVENTS:]:
        before_end_s = (flight.end_ns - event.time_ns) / 1e9
        is_bad = "feed has ended" not in event.text and any(w in event.text for w in BAD_NEWS)
        table.add_row(
            clock(event.time_ns),
            f"{-before_end_s:.1f} s",
            "" if event.runner < 0 else f"runner {event.runner}",
            Text(event.text, style="red" if is_bad else ""),
        )
    return Group(Text("\nwhat happened", style="bold"), table)
