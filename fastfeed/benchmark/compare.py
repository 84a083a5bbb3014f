"""Two results of `fastfeed bench`, or two of `fastfeed diagnose`: faster, slower, or no difference
seen."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import numpy as np

from fastfeed.benchmark.report import BENCH_SCHEMA
from fastfeed.diagnose.diagnosis import DIAGNOSIS_SCHEMA
from fastfeed.errors import OptionError

BENCH, DIAGNOSIS = "fastfeed bench --output", "fastfeed diagnose --json"
SCHEMAS = {BENCH: BENCH_SCHEMA, DIAGNOSIS: DIAGNOSIS_SCHEMA}
SAME_WORK = ("workload", "data", "consumer")
Json = dict[str, Any]
Key = tuple[str, int, int]
FASTER, SLOWER, NO_DIFFERENCE, NO_SPREAD = (
    "faster",
    "slower",
    "no difference seen",
    "unknown: one run has no spread",
)
CONFIDENCE = 0.95
GRID = 400  # steps of an integral


@dataclass(frozen=True)
class Line:
    """A setting, or the whole: its rates (steps/s) before and after, and their ratio."""

    name: str
    before: float
    after: float
    ratio: Ratio


@dataclass(frozen=True)
class ResultComparison:
    """The lines, with the whole as the last one; other differences; and what makes the lines
    doubtful."""

    lines: tuple[Line, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def slower(self) -> bool:
        """True if the whole or any setting is slower."""
        return any(line.ratio.verdict == SLOWER for line in self.lines)


def compare(before: Path, after: Path) -> ResultComparison:
    """Compare two files. Raise OptionError if they are no results, or differ in kind or schema."""
    (kind, old), (other, new) = _read(before), _read(after)
    if kind != other:
        raise OptionError(
            f"must be two results of one kind: {before} is of {kind}, {after} of {other}"
        )
    return (_benches if kind == BENCH else _diagnoses)(old, new)


def _read(path: Path) -> tuple[str, Json]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"cannot read {path}: {error.strerror}; needed a file of {BENCH} or {DIAGNOSIS}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is no JSON file: {error}") from error
    kind = _kind(found)
    if kind is None:
        raise OptionError(
            f"{path} is neither a result of {BENCH} (its bench.json) nor of {DIAGNOSIS}"
        )
    if found.get("schema") != SCHEMAS[kind]:
        raise OptionError(
            f"{path} is of schema {found.get('schema')!r} of {kind}, and this fastfeed compares "
            f"schema {SCHEMAS[kind]}: measure again, or compare with the fastfeed that wrote it"
        )
    return kind, found


def _kind(found: Any) -> str | None:
    if not isinstance(found, dict):
        return None
    if "verdict" in found and "causes" in found:
        return DIAGNOSIS
    return BENCH if isinstance(found.get("settings"), list) and "workload" in found else None


def _benches(old: Json, new: Json) -> ResultComparison:
    before, after = _settings(old), _settings(new)
    both = [key for key in before if key in after]
    if not both:
        raise OptionError(
            f"no setting is in both: {_names(before)} against {_names(after)}; measure the same "
            "ones"
        )
    pairs = {key: Pair(before[key], after[key]) for key in both}
    lines = [
        Line(_name(key), _geometric(p.before), _geometric(p.after), ratio(p))
        for key, p in pairs.items()
    ]
    if len(pairs) > 1:
        lines.append(
            Line("all settings", *_whole(list(pairs.values())), overall(list(pairs.values())))
        )
    notes = [
        *(
            f"different {name}: {old.get(name)} against {new.get(name)}"
            for name in _differing(old, new, *SAME_WORK)
        ),
        *_plans(old, new),
        *_machines(old, new, "processor", "cores", "gpu", "kernel"),
        *(f"only before: {_name(key)}" for key in before if key not in after),
        *(f"only after: {_name(key)}" for key in after if key not in before),
    ]
    if any(min(len(p.before), len(p.after)) < 2 for p in pairs.values()):
        notes.append(
            "one run has no spread, and no difference can be told from chance: take --repeats 3 or "
            "more"
        )
    return ResultComparison(tuple(lines), (), tuple(notes))


def _settings(found: Json) -> dict[Key, tuple[float, ...]]:
    """Return steps/s of every repeat of every setting."""
    try:
        return {
            (str(s["kind"]), int(s["processes"]), int(s["threads"])): tuple(
                w["steps"] / w["wall_s"] for w in s["windows"]
            )
            for s in found["settings"]
        }
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise OptionError(
            f"a setting of a result lacks what {BENCH} writes: {error!r}; measure again"
        ) from error


def _plans(old: Json, new: Json) -> Iterator[str]:
    one, other = old.get("plan") or {}, new.get("plan") or {}
    for name in _differing(one, other, "batch_size", "seconds", "steps"):
        yield f"different {name}: {one.get(name)} against {other.get(name)}"


def _machines(old: Json, new: Json, *names: str) -> Iterator[str]:
    one, other = old.get("machine") or {}, new.get("machine") or {}
    for name in _differing(one, other, *names):
        values = f"{one.get(name)} against {other.get(name)}"
        yield f"different machines ({name}: {values}): the ratio is theirs too"


def _differing(one: Json, other: Json, *names: str) -> list[str]:
    return [name for name in names if one.get(name) != other.get(name)]


def _diagnoses(old: Json, new: Json) -> ResultComparison:
    before, after = _rate(old), _rate(new)
    (low, high), (new_low, new_high) = _range(old), _range(new)
    found = Ratio(after / before, new_low / high, new_high / low)
    changes = [
        f"verdict: {_both(old.get('verdict') or 'abstained', new.get('verdict') or 'abstained')}"
    ]
    starved = [one.get("starvation") for one in (old, new)]
    if None not in starved:
        changes.append(f"starvation: {_both(*(f'{share:.1%}' for share in starved))}")
    notes = list(_machines(old, new, "cores", "memory_nbytes"))
    if old.get("script") != new.get("script"):
        notes.append(f"different scripts: {old.get('script')} against {new.get('script')}")
    return ResultComparison((Line("steps/s", before, after, found),), tuple(changes), tuple(notes))


def _rate(found: Json) -> float:
    rate = found.get("steps_per_second")
    if not isinstance(rate, (int, float)) or rate <= 0:
        raise OptionError(
            "a diagnosis without steps/s cannot be compared: it abstained, or saw no steps"
        )
    return float(rate)


def _range(found: Json) -> tuple[float, float]:
    """Return the quartiles of the steps/s over windows of the observed time."""
    low, high = ((found.get("figures") or {}).get("steps_per_second_range") or (None, None))[:2]
    return (low, high) if low and high else (math.nan, math.nan)


def _both(before: str, after: str) -> str:
    return f"{before}, as before" if before == after else f"{before} -> {after}"


def _geometric(rates: tuple[float, ...]) -> float:
    return math.exp(math.fsum(map(math.log, rates)) / len(rates))


def _whole(pairs: list[Pair]) -> tuple[float, float]:
    before = tuple(_geometric(pair.before) for pair in pairs)
    return _geometric(before), _geometric(tuple(_geometric(pair.after) for pair in pairs))


def _name(key: Key) -> str:
    kind, processes, threads = key
    who = f"{threads} thread{'s' * (threads != 1)}"
    who = f"{processes} process{'es' * (processes != 1)} x {who}" if processes else who
    return who if kind == "fastfeed" else f"{who}, {kind}"


def _names(settings: dict[Key, Any]) -> str:
    return ", ".join(map(_name, settings)) or "none"


def lines_of(found: ResultComparison) -> list[str]:
    """Return the comparison for the terminal: a line for each setting, the changes, the notes, and
    the conclusion."""
    width = max(len(line.name) for line in found.lines)
    text = [
        f"{line.name:<{width}}  {line.before:9.1f} -> {line.after:9.1f} steps/s  "
        f"{_said(line.ratio)}"
        for line in found.lines
    ]
    return [*text, *found.changes, *(f"note: {note}" for note in found.notes)]


def _said(found: Ratio) -> str:
    if math.isnan(found.low):
        return f"{found.value:.3f}x: {found.verdict}"
    return f"{found.value:.3f}x ({found.low:.3f} to {found.high:.3f}): {found.verdict}"


@dataclass(frozen=True)
class Ratio:
    """A speed-up (the ratio of the geometric means), with its 95 % interval; nan if there is
    none."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """FASTER or SLOWER if the interval does not include 1, UNKNOWN if there is none."""
        if math.isnan(self.low):
            return NO_SPREAD
        if self.low > 1:
            return FASTER
        return SLOWER if self.high < 1 else NO_DIFFERENCE


@dataclass(frozen=True)
class Pair:
    """The rates of one setting on either side, one for each repeat, all above 0."""

    before: tuple[float, ...]
    after: tuple[float, ...]


def ratio(pair: Pair) -> Ratio:
    """Return how many times as fast `after` is."""
    return overall([pair])


def overall(pairs: Sequence[Pair]) -> Ratio:
    """Return the geometric mean of the pairs' ratios.

    The interval is Welch's (unequal variances, Satterthwaite's degrees of freedom) over the
    logarithms of the rates: independent of which side comes first, and of the order of repeats and
    pairs. It needs two repeats.
    """
    sides = [
        [math.log(rate) for rate in side] for pair in pairs for side in (pair.before, pair.after)
    ]
    gains = [
        fmean(after) - fmean(before) for before, after in zip(sides[::2], sides[1::2], strict=True)
    ]
    middle = math.fsum(gains) / len(gains)
    if min(map(len, sides)) < 2:
        return Ratio(math.exp(middle), math.nan, math.nan)
    errors = [(variance(side) / len(side) / len(pairs) ** 2, len(side) - 1) for side in sides]
    squared = math.fsum(error for error, _ in errors)
    if squared < 1e-24:  # all repeats are equal: the rest is rounding
        middle = 0.0 if abs(middle) < 1e-12 else middle
        return Ratio(math.exp(middle), math.exp(middle), math.exp(middle))
    freedom = squared**2 / math.fsum(error**2 / count for error, count in errors)
    reach = students_t(freedom) * math.sqrt(squared)
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def students_t(freedom: float) -> float:
    """Return the two-sided 95 % quantile of Student's t for `freedom` (1 or more) degrees of
    freedom."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < CONFIDENCE:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def _within(t: float, freedom: float) -> float:
    """Return the share of Student's t between -t and t. With t = sqrt(freedom) tan(a) its density
    is a power of a cosine, which Simpson's rule integrates."""
    end = math.atan(t / math.sqrt(freedom))
    heights = np.cos(np.linspace(0, end, GRID + 1)) ** (freedom - 1)
    inner = 4 * heights[1:-1:2].sum() + 2 * heights[2:-1:2].sum()
    area = float(heights[0] + inner + heights[-1]) * end / (3 * GRID)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return 2 * area * math.exp(scale) / math.sqrt(math.pi)
