"""Numbers and states as reports write them; an unknown number is a dash."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import wraps

NO_VALUE = "–"
Form = Callable[[float | None], str]
MAX_STATES = 4  # of a thread
MIN_STATE = 0.03  # share of its time
STATE_WORDS = {
    "python": "Python",
    "native": "native code",
    "gil": "waits for the interpreter lock",
    "runnable": "waits for a core",
    "disk": "waits for the disk",
    "sleep": "sleeps",
    "socket": "waits at a socket",
    "lock": "waits for a lock or other threads",
    "pipe": "waits at a pipe",
    "full": "finds the buffer full",
    "empty": "waits for input",
    "other": "off the core",
}


def _or_dash(form: Callable[[float], str]) -> Form:
    @wraps(form)
    def told(number: float | None) -> str:
        return NO_VALUE if number is None or not math.isfinite(number) else form(number)

    return told


@_or_dash
def percent(share: float) -> str:
    """Return a share (0 to 1) as "71 %"; near 0 and 1 with a digit more, "0.4 %"."""
    digits = 1 if 0 < share < 0.01 or 0.99 < share < 1 else 0
    return f"{100 * share:.{digits}f} %"


@_or_dash
def duration(seconds: float) -> str:
    """Return seconds as "52.1 ms", "340 µs" or "1.90 s"."""
    size = abs(seconds)
    if size >= 0.9995:
        return f"{seconds:.1f} s" if size >= 10 else f"{seconds:.2f} s"
    if size >= 0.0009995:
        return f"{seconds * 1e3:.0f} ms" if size >= 0.1 else f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs" if size else "0 ms"


@_or_dash
def factor(number: float) -> str:
    """Return a speed-up as "3.4x"."""
    return f"{number:.{0 if number >= 19.5 else 1 if number >= 1.95 else 2}f}x"


@_or_dash
def rate(number: float) -> str:
    """Return a rate with three digits."""
    size = abs(number)
    return f"{number:,.{0 if size >= 99.5 else 1 if size >= 9.95 else 2}f}"


@_or_dash
def nbytes(number: float) -> str:
    """Return bytes as "9.6 MB"."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(number) >= one:
            return f"{number / one:.1f} {unit}"
    return f"{number:.0f} B"


def ranged(form: Form, number: float | None, *, ends: Iterable[float | None]) -> str:
    """Return a number with its interval, as "71 % (68 % to 74 %)", if that is known and visible."""
    low, high = map(form, ends)
    shown = form(number)
    return shown if NO_VALUE in (low, high) or low == high else f"{shown} ({low} to {high})"


def doing(busy: Mapping[str, float], words: Mapping[str, str] = STATE_WORDS) -> str:
    """Return what a thread does, by shares of its time: "sleeps 62 %, Python 20 %"."""
    shown = sorted(busy.items(), key=lambda item: -item[1])[:MAX_STATES]
    told = [f"{words.get(s, s)} {percent(share)}" for s, share in shown if share >= MIN_STATE]
    return ", ".join(told) or "not observed"
