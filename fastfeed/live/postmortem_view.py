"""A flight record on a terminal: its end, the last minute, the producers and the events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
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
from fastfeed.live.record_lines import ProducerTable, RunnerSample
from fastfeed.live.watched import work_in_flight

MAX_COLUMNS, FULL_WIDTH = 60, 112  # one a second; half of them on a narrower terminal
METRICS: dict[str, Callable[[float | None], str]]
METRICS = {"steps/s": decimal, "starvation": percent, "queue depth": decimal, "making": decimal}
METRICS |= {"no room": decimal, "memory": size}
SHOWN_EVENTS, SHOWN_PRODUCERS = 12, 32
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


def render(flight: FlightRecord, width: int) -> RenderableType:
    """Return the whole view for a terminal of this width."""
    columns = MAX_COLUMNS if width >= FULL_WIDTH else MAX_COLUMNS // 2
    parts: list[RenderableType] = [_headline(flight)]
    for runner, samples in flight.last_minute.items():
        parts.append(_runner_title(runner, samples[-1]))
        parts.append(_over_time(history(samples, end_ns=flight.end_ns, columns=columns)))
    if not flight.last_minute:
        parts.append(Text("It ended before anything was seen of its runners.", "bright_black"))
    if flight.table is not None and flight.table.rows:
        parts.append(_producers(flight.table))
    parts.append(_events(flight))
    if flight.damaged:
        parts.append(Text(f"{flight.damaged} damaged line(s) cannot be read.", "yellow"))
    return Group(*parts)


def history(samples: list[RunnerSample], *, end_ns: int, columns: int) -> list[list[float | None]]:
    """Return each of METRICS over the last minute, as means of the samples that cover a column."""
    lines: list[list[list[float | None]]] = [[[] for _ in range(columns)] for _ in METRICS]
    for before, now in pairwise(samples):
        elapsed, steps = now.elapsed_s - before.elapsed_s, now.batches - before.batches
        speed = starvation = None
        if elapsed > 0 and steps >= 0:  # else it is another feed
            speed = steps / elapsed
            starvation = min(1.0, max(0.0, now.wait_s - before.wait_s) / elapsed)
        values = (speed, starvation, now.depth, now.making, now.blocked, now.rss)
        first, last = (int((end_ns - s.time_ns) / 1e9 * columns / SHOWN_S) for s in (now, before))
        for age in range(first, min(columns, max(first + 1, last))):
            for line, value in zip(lines, values, strict=True):
                line[-1 - age].append(value)
    return [[_mean(found) for found in line] for line in lines]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None


def _headline(flight: FlightRecord) -> RenderableType:
    header = flight.header
    style, words = HEADLINES[flight.ending]
    process = f" (pid {header.pid} on {header.host}) "
    headline = Text.assemble((name_of(header.command), "bold"), process, (words, style))
    lifetime = duration((flight.end_ns - header.time_ns) / 1e9)
    times = f"from {clock(header.time_ns)} to {clock(flight.end_ns)}, {lifetime}"
    hint = [Text(KILLED_HINT)] if flight.ending == "killed" else []
    source = Text(f"{header.command}\n{flight.path}", style="bright_black")
    lines = (headline, Text(times, style="bright_black"), *hint, source)
    title, colour = "fastfeed postmortem", style.split()[-1]
    return Panel(Group(*lines), title=title, title_align="left", border_style=colour)


def _over_time(lines: Sequence[Sequence[float | None]]) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(f"the last {SHOWN_S:g} s", no_wrap=True)
    for heading in ("least", "mean", "most", "end"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (name, format_value), values in zip(METRICS.items(), lines, strict=True):
        known = [v for v in values if v is not None]
        is_share = format_value is percent
        line = sparkline(values, top=1.0 if is_share else None)
        style = starvation_colour(_mean(values)) if is_share else "cyan"
        summary = [min(known), _mean(known), max(known), known[-1]] if known else [None] * 4
        table.add_row(name, Text(line, style=style), *(format_value(v) for v in summary))
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
        place = f"worker {row.worker}, pid {row.pid}" if is_process else f"thread {row.tid}"
        state = status.STATES[row.state] if row.state < len(status.STATES) else "unknown"
        work = (f"{row.batches:,}", work_in_flight(row), row.where)
        memory = size(row.rss) if row.rss else ""
        table.add_row(str(row.runner), str(row.number), place, producer_state(state), *work, memory)
    return Group(title, with_remainder(table, producers.total - len(rows)))


def _events(flight: FlightRecord) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_header=False)
    for event in flight.events[-SHOWN_EVENTS:]:
        before_end_s = (flight.end_ns - event.time_ns) / 1e9
        is_bad = "feed has ended" not in event.text and any(w in event.text for w in BAD_NEWS)
        runner = "" if event.runner < 0 else f"runner {event.runner}"
        text = Text(event.text, style="red" if is_bad else "")
        table.add_row(clock(event.time_ns), f"{-before_end_s:.1f} s", runner, text)
    return Group(Text("\nwhat happened", style="bold"), table)
