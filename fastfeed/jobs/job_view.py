"""A job on a terminal, as its black box shows it: the last minute, the producers and the events."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fastfeed.core.stats import SlotCounts
from fastfeed.jobs.blackbox import SHOWN_S, FlightRecord, ProducerTable
from fastfeed.jobs.drawing import decimal, duration, percent, size, sparkline
from fastfeed.jobs.runner_samples import RunnerSample
from fastfeed.model.workload import INPUT_BOUND

MAX_COLUMNS, FULL_WIDTH = 60, 112  # one a second; half of them on a narrower terminal
METRICS: dict[str, Callable[[float | None], str]]
METRICS = {"steps/s": decimal, "starvation": percent, "queue depth": decimal, "making": decimal}
METRICS |= {"no room": decimal, "memory": size}
SHOWN_EVENTS, SHOWN_PRODUCERS = 12, 32
MIN_SHOWN = 0.005  # share of a stage
COLUMNS = ("runner", "#", "in", "state", "busy", "stages", "batches", "in hand", "at", "memory")
STRONGLY_INPUT_BOUND = 0.2  # of starvation
BAD_NEWS = ("failed", "has ended", "ends with")  # words of an event
STATE_COLOURS = {
    "making": "green",
    "waits for room": "blue",
    "waits for input": "yellow",
    "dead": "bold red",
}
HEADLINES = {
    "cleanly": ("green", "ended cleanly"),
    "with an error": ("red", "ended with an error"),
    "running": ("green", "is running"),
    "killed": ("bold red", "did not end cleanly: it was killed or crashed and could not say why"),
}
KILLED_HINT = (
    "No Python code runs at such an end: SIGKILL (by a scheduler, a person, or the kernel for want "
    "of memory, which dmesg tells), os._exit, or a crash of native code."
)


def render(flight: FlightRecord, width: int, *, use: RenderableType = "") -> RenderableType:
    """Return the whole view for a terminal of this width; `use`: the load of a running job."""
    columns = MAX_COLUMNS if width >= FULL_WIDTH else MAX_COLUMNS // 2
    parts = [_headline(flight, use)]
    for samples in flight.last_minute.values():
        parts.append(_runner_title(samples[-1]))
        parts.append(_over_time(history(samples, end_ns=flight.end_ns, columns=columns)))
    if not flight.last_minute:
        parts.append(Text("Nothing was seen of its runners.", "bright_black"))
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


def _headline(flight: FlightRecord, use: RenderableType) -> RenderableType:
    header = flight.header
    style, words = HEADLINES[flight.ending]
    script = next((word for word in header.command.split() if not word.startswith("-")), "python")
    process = f" (pid {header.pid} on {header.host}) "
    headline = Text.assemble((os.path.basename(script), "bold"), process, (words, style))
    lifetime = duration((flight.end_ns - header.time_ns) / 1e9)
    times = f"from {_clock(header.time_ns)} to {_clock(flight.end_ns)}, {lifetime}"
    hint = [Text(KILLED_HINT)] if flight.ending == "killed" else []
    source = Text(f"{header.command}\n{flight.path}", style="bright_black")
    lines = (headline, Text(times, style="bright_black"), *hint, source, *([use] if use else []))
    return Panel(
        Group(*lines), title="fastfeed", title_align="left", border_style=style.split()[-1]
    )


def _clock(time_ns: int) -> str:
    """Return a time as local clock time."""
    return time.strftime("%H:%M:%S", time.localtime(time_ns / 1e9))


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


def starvation_colour(share: float | None) -> str:
    """Return the colour of a starvation: green, yellow if input-bound, red if strongly so."""
    if share is None:
        return "bright_black"
    return "green" if share < INPUT_BOUND else "yellow" if share < STRONGLY_INPUT_BOUND else "red"


def _runner_title(now: RunnerSample) -> Text:
    slots = SlotCounts(now.free, now.filling, now.ready, now.lent)
    counts = f"{now.batches:,} batches, {now.records:,} records, {size(now.nbytes)} taken"
    if now.elapsed_s:
        counts += f", waited {duration(now.wait_s)} of {duration(now.elapsed_s)}"
    if slots.all:
        counts += f"; {slots}"
    if now.errors:
        counts += f"; {now.errors} errors passed over"
    if now.copied:
        counts += f"; {now.copied} batches copied, for the loop holds the slots"
    title = (f"\nrunner {now.runner} {now.state}: {counts}", "bold")
    waits = f"\nwaits for input: {percent(now.starvation)}, of which {_parts(now.waits)}"
    options, error = (f"\n{now.options}", "bright_black"), now.error.partition("\n")[0]
    error_line = (error and f"\n{error}", "red")
    return Text.assemble(title, waits if now.waits else "", options, error_line)


def _parts(shares: Mapping[str, float]) -> str:
    """Return shares by stage, the greatest first: "read 50 %, transform 9 %"."""
    shown = sorted(shares.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {percent(one)}" for name, one in shown if one >= MIN_SHOWN)


def _producers(producers: ProducerTable) -> RenderableType:
    title = Text(f"\nproducers at {_clock(producers.time_ns)}", style="bold")
    table = Table(box=None, padding=(0, 1))
    for name in COLUMNS:
        is_text = name in ("in", "state", "stages", "in hand", "at")
        table.add_column(name, justify="left" if is_text else "right")
    rows = producers.rows[:SHOWN_PRODUCERS]
    for row in rows:
        is_thread = row.place.startswith("thread")
        table.add_row(
            str(row.runner),
            str(row.producer),
            row.place if is_thread else f"{row.place}, pid {row.pid}",
            Text(row.state, style=STATE_COLOURS.get(row.state, "bright_black")),
            percent(row.busy),
            _parts(row.stages),
            f"{row.batches:,}",
            row.hand,
            row.where,
            size(row.rss) if row.rss else "",
        )
    hidden = producers.total - len(rows)
    rest = [Text(f"  and {hidden} more", style="bright_black")] if hidden > 0 else []
    return Group(title, table, *rest)


def _events(flight: FlightRecord) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_header=False)
    for event in flight.events[-SHOWN_EVENTS:]:
        before_end_s = (flight.end_ns - event.time_ns) / 1e9
        is_bad = "feed has ended" not in event.text and any(w in event.text for w in BAD_NEWS)
        runner = "" if event.runner < 0 else f"runner {event.runner}"
        text = Text(event.text, style="red" if is_bad else "")
        table.add_row(_clock(event.time_ns), f"{-before_end_s:.1f} s", runner, text)
    return Group(Text("\nwhat happened", style="bold"), table)
