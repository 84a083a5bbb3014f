"""Interventions in words: what each one does to the time from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastfeed.diagnose.report.formats import percent

Json = Mapping[str, Any]
SUBJECTS = {
    "lock": "another thread that holds the interpreter lock for {} of the time",
    "delay": "a delay of {} of the time from step to step",
    "producers": "worker processes that are stopped for {} of the time",
}


def lines_of(found: Sequence[Json]) -> list[str]:
    """Return a line for each intervention; those that were not measured share the last ones."""
    lines, left = [], dict[str, list[str]]()
    for one in found:
        if one["effect"] is None:
            left.setdefault(one["note"], []).append(_subject(one))
        else:
            subject, note = _subject(one), f"; {one['note']}" if one["note"] else ""
            text = _effect(one)
            lines.append(f"{subject[0].upper()}{subject[1:]} {text}{note}.")
    return lines + [f"Not measured: {', '.join(names)}: {why}." for why, names in left.items()]


def _subject(one: Json) -> str:
    if one["kind"] == "cores":
        return f"{one['dose']:.0f} more busy core{'s' * (one['dose'] > 1)}"
    return SUBJECTS.get(one["kind"], "a dose of {}").format(percent(one["dose"]))


def _effect(one: Json) -> str:
    kind, dose, effect, (low, high) = one["kind"], one["dose"], one["effect"], one["interval"]
    s = "" if kind == "producers" or (kind == "cores" and dose > 1) else "s"
    size, ends = percent(abs(effect)), f"{100 * low:.0f} to {percent(high)}"
    if kind == "delay":
        limit = "is not the limit" if low > dose / 2 else "is the limit"
        return f"makes a step {size} longer ({ends}), so the input {limit}"
    if low <= 0 <= high:
        return f"change{s} nothing that can be seen ({ends})"
    return f"make{s} a step {size} {'slower' if effect > 0 else 'faster'} ({ends})"
