"""Small elements of `top` and `postmortem`: bars, lines over time, numbers with units."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

SPARKS = "▁▂▃▄▅▆▇█"
COLOURS = {
    "making": "green",
    "waits for room": "blue",
    "waits for input": "yellow",
    "waits for the next pass": "bright_black",
    "starting": "bright_black",
    "finished": "bright_black",
    "dead": "bold red",
}


def spark(values: Sequence[float | None], *, top: float | None = None) -> str:
    """Return values over time as text, the highest one (or `top`) a full block; a gap where none is
    known."""
    most = top or max((v for v in values if v is not None), default=0.0) or 1.0
    return "".join(
        "·" if v is None else SPARKS[min(len(SPARKS) - 1, max(0, int(v / most * len(SPARKS))))]
        for v in values
    )


def bar(share: float | None, width: int = 20, *, style: str = "green") -> Text:
    """Return a share (0 to 1) as a bar."""
    if share is None:
        return Text("·" * width, style="bright_black")
    full = round(min(1.0, max(0.0, share)) * width)
    return Text("█" * full, style=style) + Text("░" * (width - full), style="bright_black")


def percent(share: float | None) -> str:
    """Return a share as whole percent."""
    return "–" if share is None else f"{share * 100:.0f} %"


def decimal(value: float | None, unit: str = "") -> str:
    """Return a number with its significant digits."""
    if value is None:
        return "–"
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}{' ' + unit if unit else ''}"


def size(nbytes: float | None) -> str:
    """Return bytes with a unit."""
    if nbytes is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return (
                f"{nbytes:.0f} {unit}"
                if unit in ("B", "kB") or nbytes >= 100
                else f"{nbytes:.1f} {unit}"
            )
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def lasting(seconds: float) -> str:
    """Return a time span, as 2 h 05 min, 3 min 20 s or 12 s."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def starving(share: float | None) -> str:
    """Return the colour of a starvation: input-bound from 5 %, strongly from 20 %."""
    return (
        "bright_black"
        if share is None
        else "green"
        if share < 0.05
        else "yellow"
        if share < 0.2
        else "red"
    )


def state(name: str) -> Text:
    """Return what a producer does, in its colour."""
    return Text(name, style=COLOURS.get(name, ""))
