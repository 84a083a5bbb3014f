"""Two results of `fastfeed bench`, or two of `fastfeed diagnose`: faster, slower, or no difference
seen."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean, variance
from typing import Any

from fastfeed.benchmark.report import BENCH_SCHEMA
from fastfeed.benchmark.workloads import BY_PRODUCERS
from fastfeed.diagnose.diagnosis import DIAGNOSIS_SCHEMA
from fastfeed.errors import OptionError
from fastfeed.model.students_t import students_t
from fastfeed.model.workload import Producers

BENCH, DIAGNOSIS = "fastfeed bench --output", "fastfeed diagnose --json"
SCHEMAS = {BENCH: BENCH_SCHEMA, DIAGNOSIS: DIAGNOSIS_SCHEMA}
Json = dict[str, Any]
Rates = tuple[float, ...]  # of one side, one for each repeat, all above 0
FASTER, SLOWER, NO_DIFFERENCE, NO_SPREAD = (
    "faster",
    "slower",
    "no difference seen",
    "unknown: one run has no spread",
)


@dataclass(frozen=True)
class Ratio:
    """A speed-up (the ratio of the geometric means), with its 95 % interval; nan if there is
    none."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """FASTER or SLOWER if the interval does not include 1, NO_SPREAD if there is none."""
        if math.isnan(self.low):
            return NO_SPREAD
        if self.low > 1:
            return FASTER
        return SLOWER if self.high < 1 else NO_DIFFERENCE

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" ({self.low:.3f} to {self.high:.3f})"
        return f"{self.value:.3f}x{interval}: {self.verdict}"


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


def lines_of(found: ResultComparison) -> list[str]:
    """Return the comparison for the terminal: a line for each setting, the changes and the
    notes."""
    width = max(len(line.name) for line in found.lines)
    text = [
        f"{line.name:<{width}}  {line.before:9.1f} -> {line.after:9.1f} steps/s  {line.ratio}"
        for line in found.lines
    ]
    return [*text, *found.changes, *(f"note: {note}" for note in found.notes)]


def _read(path: Path) -> tuple[str, Json]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"cannot read {path}: {error.strerror}; needed a file of {BENCH} or {DIAGNOSIS}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is no JSON file: {error}") from error
    keys = set(found) if isinstance(found, dict) else set()
    if {"verdict", "causes"} <= keys:
        kind = DIAGNOSIS
    elif {"settings", "workload"} <= keys and isinstance(found["settings"], list):
        kind = BENCH
    else:
        raise OptionError(
            f"{path} is neither a result of {BENCH} (its bench.json) nor of {DIAGNOSIS}"
        )
    if found.get("schema") != SCHEMAS[kind]:
        raise OptionError(
            f"{path} is of schema {found.get('schema')!r} of {kind}, and this fastfeed compares "
            f"schema {SCHEMAS[kind]}: measure again, or compare with the fastfeed that wrote it"
        )
    return kind, found


def _benches(old: Json, new: Json) -> ResultComparison:
    before, after = _settings(old), _settings(new)
    pairs = {name: (before[name], after[name]) for name in before if name in after}
    if not pairs:
        raise OptionError(
            f"no setting is in both: {', '.join(before) or 'none'} against "
            f"{', '.join(after) or 'none'}; measure the same ones"
        )
    lines = [
        Line(name, geometric_mean(one), geometric_mean(other), ratio([(one, other)]))
        for name, (one, other) in pairs.items()
    ]
    if len(pairs) > 1:
        old_rate, new_rate = (
            geometric_mean(getattr(line, side) for line in lines) for side in ("before", "after")
        )
        lines.append(Line("all settings", old_rate, new_rate, ratio(list(pairs.values()))))
    notes = [
        *_different(old, new, "workload", "data", "consumer"),
        *_different(old.get("plan"), new.get("plan"), "batch_size", "seconds", "steps"),
        *_machines(old, new, "processor", "cores", "gpu", "kernel"),
        *(f"only before: {name}" for name in before if name not in after),
        *(f"only after: {name}" for name in after if name not in before),
    ]
    if any(line.ratio.verdict == NO_SPREAD for line in lines):
        notes.append(
            "one run has no spread, and no difference can be told from chance: take --repeats 3 or "
            "more"
        )
    return ResultComparison(tuple(lines), (), tuple(notes))


def _settings(found: Json) -> dict[str, Rates]:
    """Return steps/s of every repeat of every setting, by its name."""
    try:
        every = {
            _name(s): tuple(w["steps"] / w["wall_s"] for w in s["windows"])
            for s in found["settings"]
        }
        for rates in every.values():
            geometric_mean(rates)  # raises for none, and for zeros
        return every
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise OptionError(
            f"a setting of a result lacks what {BENCH} writes: {error!r}; measure again"
        ) from error


def _name(setting: Json) -> str:
    who = str(Producers(int(setting["threads"]), int(setting["processes"])))
    return who if setting["kind"] == BY_PRODUCERS else f"{who}, {setting['kind']}"


def _different(old: Json | None, new: Json | None, *names: str) -> Iterator[str]:
    one, other = old or {}, new or {}
    for name in names:
        if one.get(name) != other.get(name):
            yield f"different {name}: {one.get(name)} against {other.get(name)}"


def _machines(old: Json, new: Json, *names: str) -> Iterator[str]:
    for text in _different(old.get("machine"), new.get("machine"), *names):
        yield f"different machines ({text.removeprefix('different ')}): the ratio is theirs too"


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
    notes = [*_machines(old, new, "cores", "memory_nbytes"), *_different(old, new, "script")]
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


def ratio(pairs: Sequence[tuple[Rates, Rates]]) -> Ratio:
    """Return how many times as fast the second rates are: the geometric mean over the pairs.

    The interval is Welch's (unequal variances, Satterthwaite's degrees of freedom) over the
    logarithms of the rates: independent of which side comes first, and of the order of repeats and
    pairs. It needs two repeats.
    """
    sides = [[math.log(rate) for rate in side] for pair in pairs for side in pair]
    gains = [
        fmean(after) - fmean(before) for before, after in zip(sides[::2], sides[1::2], strict=True)
    ]
    middle = math.fsum(gains) / len(gains)
    if min(map(len, sides)) < 2:
        return Ratio(math.exp(middle), math.nan, math.nan)
    errors = [(variance(side) / len(side) / len(pairs) ** 2, len(side) - 1) for side in sides]
    squared = math.fsum(error for error, _ in errors)
    if squared < 1e-24:  # all repeats are equal: the rest is rounding
        middle, reach = (0.0 if abs(middle) < 1e-12 else middle), 0.0
    else:
        freedom = squared**2 / math.fsum(error**2 / count for error, count in errors)
        reach = students_t(freedom) * math.sqrt(squared)
    return Ratio(*(math.exp(middle + side) for side in (0.0, -reach, reach)))
