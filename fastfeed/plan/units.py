"""Numbers with the units that people write, and back."""

from __future__ import annotations

import re
from collections.abc import Callable

from fastfeed.benchmark.workloads import seconds_from
from fastfeed.errors import OptionError
from fastfeed.options.option_values import parse_bytes

PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15}
DECIMALS = ("", "k", "M", "G", "T", "P")


def count(text: str, name: str) -> float:
    """Return the number in 1024, 25.6M, 1.2e6, 14 million or 22.8G."""
    words = text.lower().replace("flops", "").replace("flop", "").replace("/s", "")
    words = words.replace("million", "m").replace("billion", "g").replace("_", "")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgbtp]?)\s*", words)
    if match is None:
        raise OptionError(f"{name}={text!r}: must be a number, such as 1024, 25.6M or 14 million")
    return _positive(float(match[1]) * PREFIXES[match[2]], text, name=name)


def nbytes(text: str, name: str) -> float:
    """Return the bytes in 300GB or 512 MiB."""
    return float(parse_bytes(text, name))


def seconds(text: str, name: str) -> float:
    """Return the seconds in 8ms, 0.3s, 54min or 1h; a whole number is milliseconds."""
    return _positive(seconds_from(text, name), text, name=name)


def share(text: str, name: str) -> float:
    """Return the share in 30% or 0.3, from 0 to 1."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise OptionError(f"{name}={text!r}: must be a share of 0 to 100%, such as 30% or 0.3")
    return value


def rate(text: str, name: str) -> float:
    """Return the bytes a second in 10Gbit/s or 500MB/s."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(bit/s|bps|B/s)\s*", text)
    if match is None:
        raise OptionError(f"{name}={text!r}: must be a rate, such as 10Gbit/s or 500MB/s")
    value = float(match[1]) * PREFIXES[match[2].lower()]
    return _positive(value if match[3] == "B/s" else value / 8, text, name=name)


def money(text: str, name: str) -> float:
    """Return the dollars in 1.46 or $1.46."""
    return count(text.removeprefix("$"), name)


def shape(text: str, name: str) -> tuple[int, ...]:
    """Return the shape in 224x224x3."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise OptionError(f"{name}={text!r}: must be a shape, such as 224x224x3")
    return tuple(map(int, text.split("x")))


def steps(text: str, name: str) -> tuple[tuple[float, float], ...]:
    """Return batches and seconds in 32:164ms,64:292ms; batch 0 in 8ms: that of the plan."""
    found = []
    for part in text.split(","):
        size, _, time = part.rpartition(":")
        found.append((count(size, name) if size else 0.0, seconds(time.strip(), name)))
    if len({size for size, _ in found}) < len(found) or (len(found) > 1 and not found[0][0]):
        raise OptionError(f"{name}={text!r}: several times need a batch each: 32:164ms,64:292ms")
    return tuple(found)


def text(text: str, _: str) -> str:
    """Return the word as it is."""
    return text


def word(*words: str) -> Callable[[str, str], str]:
    """Return a parser that takes one of these words."""

    def parse(text: str, name: str) -> str:
        if text not in words:
            raise OptionError(f"{name}={text!r}: must be one of {', '.join(words)}")
        return text

    return parse


def said(value: float, unit: str) -> str:
    """Return the value with its unit, in three digits."""
    if unit == "s":
        for size, name in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s")):
            if value >= size * (2 if size > 1 else 1):
                return f"{value / size:.3g} {name}"
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"
    if unit == "$":
        return f"${value:,.2f}"
    if unit == "%":
        return f"{value:.1%}"
    if unit in ("B", "B/s", "FLOP/s") or value >= 1e6:
        return _prefixed(value, unit)
    number = f"{value:.3g}" if 0 < value < 1000 else f"{value:,.0f}"
    return f"{number} {unit}".strip()


def plain(value: object) -> str:
    """Return a figure as a user may write it."""
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _prefixed(value: float, unit: str) -> str:
    power = 0
    while abs(value) >= 999.5 and power < len(DECIMALS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.3g} {DECIMALS[power]}{unit}".strip()


def _positive(value: float, text: str, *, name: str) -> float:
    if not 0 < value < float("inf"):
        raise OptionError(f"{name}={text!r}: must be a finite number > 0, or left out")
    return value
