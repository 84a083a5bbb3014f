"""Numbers and names as the reports write them; an unknown value (nan) is a dash."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from fastfeed.diagnose.diagnosis import Account, Diagnosis, Doubt, Figures
from fastfeed.diagnose.evidence import Evidence

NO_VALUE = "–"
MAX_UNSEEN = 0.02  # share of the watched time that may be in no account
# The parts of a step's time in the order of a bar: their names, and their fill without colours.
PARTS = {
    "step": ("step", "█"),
    "wait": ("waits for input", "▓"),
    "host": ("host: Python of the loop", "▒"),
    "pause": ("pauses", "░"),
    "other": ("not known", "·"),
}
STATE_WORDS = {
    "python": "Python",
    "native": "native code",
    "gil": "waits for the interpreter lock",
    "runnable": "waits for a core",
    "disk": "disk",
    "sleep": "sleeps",
    "socket": "network",
    "lock": "lock",
    "pipe": "pipe",
    "full": "buffer behind it full",
    "empty": "nothing to do",
    "other": "off the core",
}
# Kinds of states: on a core, kept from one, waiting for something outside, not needed.
STATE_KINDS = {
    **dict.fromkeys(("python", "native"), "works"),
    **dict.fromkeys(("gil", "runnable"), "kept"),
    **dict.fromkeys(("disk", "sleep", "socket", "lock", "pipe", "other"), "waits"),
    **dict.fromkeys(("full", "empty"), "idle"),
}


class StepSegment(NamedTuple):
    """A part of a step's time: its share (0 to 1) of wall time and its seconds in a step (nan:
    unknown)."""

    kind: str
    label: str
    share: float
    seconds: float


def doubtful(doubt: Doubt | None) -> str:
    """Return between which verdicts the answer lies; "" if all judgements agree."""
    if doubt is None or not doubt.between:
        return ""
    return (
        f"The verdict is between {' and '.join(doubt.between)}: what is known of "
        "the step is too little for one; a longer watch (--seconds) tells more."
    )


def unseen(accounts: Iterable[Account]) -> str:
    """Return which part of the watched time is in no account; "" if it is next to nothing."""
    share = sum(one.share for one in accounts if one.name == "unseen")
    if share <= MAX_UNSEEN:
        return ""
    return f"{share:.0%} of the watched time lies before, after or beside the steps that count."


def device_gap(seen: Evidence) -> str:
    """Return what the accelerator's own clock says of the fetches; "" if it was not read."""
    gap = seen.device_gap
    if gap is None:
        return ""
    error = f" (give or take {percent(gap.error)})" if gap.error else ""
    return (
        f"Device gap: a fetch left the accelerator without work for {duration(gap.median_s)} "
        f"(p99 {duration(gap.p99_s)}), {percent(gap.share)} of the time{error}. The host's clock "
        "also counts waits in which the accelerator still computes."
    )


def split(figures: Figures) -> list[StepSegment]:
    """Return where a step's time goes, in the order of a bar; the shares add up to 1."""
    shares = {kind: figures.shares.get(kind, 0.0) for kind in PARTS}
    shares = {kind: share for kind, share in shares.items() if known(share) and share > 0}
    total = sum(shares.values())
    if not shares:
        return []
    if total < 0.995:
        shares["other"] = shares.get("other", 0.0) + 1 - total
    a_step_s = figures.seconds / figures.steps if figures.steps else math.nan
    scale = max(total, 1.0)
    return [
        StepSegment(kind, PARTS[kind][0], part / scale, part / scale * a_step_s)
        for kind, part in shares.items()
    ]


def told_figures(diagnosis: Diagnosis) -> Figures | None:
    """Return the figures of the steps; None if, without a verdict, their waits are hidden."""
    loop = diagnosis.evidence.loop
    hidden = diagnosis.verdict is None and loop is not None and loop.waits == "hidden"
    return None if hidden else diagnosis.figures


def known(number: float | None) -> bool:
    """Return True if it is a number."""
    return number is not None and math.isfinite(number)


def tone(diagnosis: Diagnosis) -> str:
    """Return how bad it is: "unknown" (no verdict), "good" (the step is the limit), "bad" (input
    is) or "fair" (everything else)."""
    if diagnosis.verdict is None:
        return "unknown"
    if diagnosis.verdict == "step.bound":
        return "good"
    return "bad" if diagnosis.verdict.startswith(("input.", "feed.")) else "fair"


def percent(share: float | None) -> str:
    """Return a share (0 to 1) as "71 %"; "0.4 %" below one."""
    if share is None or not math.isfinite(share):
        return NO_VALUE
    return f"{100 * share:.1f} %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def percents(ends: tuple[float, float]) -> str:
    """Return an interval of shares as "68 to 74 %"; "" if an end is unknown, or both are equal."""
    if not all(map(known, ends)):
        return ""
    low, high = (f"{100 * end:.0f}" for end in ends)
    return f"{low} to {high} %" if low != high else ""


def duration(seconds: float | None) -> str:
    """Return seconds as "52.1 ms", "340 µs" or "1.90 s"."""
    if seconds is None or not math.isfinite(seconds):
        return NO_VALUE
    size = abs(seconds)
    if size >= 0.9995:
        return f"{seconds:.1f} s" if size >= 10 else f"{seconds:.2f} s"
    if size >= 0.0009995:
        return f"{seconds * 1e3:.0f} ms" if size >= 0.1 else f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs" if size else "0 ms"


def factor(number: float | None) -> str:
    """Return a speed-up as "3.4x"."""
    if number is None or not math.isfinite(number):
        return NO_VALUE
    return f"{number:.{_digits(number)}f}x"


def factors(ends: tuple[float, float]) -> str:
    """Return an interval of speed-ups as "3.0x to 3.7x"; "" if an end is unknown."""
    if not all(map(known, ends)):
        return ""
    digits = _digits(min(ends))
    return f"{ends[0]:.{digits}f}x to {ends[1]:.{digits}f}x"


def _digits(number: float) -> int:
    return 0 if number >= 19.5 else 1 if number >= 1.95 else 2


def rate(number: float | None) -> str:
    """Return a rate with three digits."""
    if number is None or not math.isfinite(number):
        return NO_VALUE
    return (
        f"{number:,.0f}"
        if abs(number) >= 99.5
        else f"{number:.1f}"
        if abs(number) >= 9.95
        else f"{number:.2f}"
    )


def size(nbytes: float | None) -> str:
    """Return bytes as "9.6 MB"."""
    if nbytes is None or not math.isfinite(nbytes):
        return NO_VALUE
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= one:
            return f"{nbytes / one:.1f} {unit}"
    return f"{nbytes:.0f} B"
