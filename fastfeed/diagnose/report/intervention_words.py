"""Interventions in words: what each one does to the time from step to step."""

from __future__ import annotations

from collections.abc import Sequence

from fastfeed.diagnose.evidence import Intervention
from fastfeed.diagnose.report.words import percent, percents

SUBJECTS = {
    "lock": "another thread that holds the interpreter lock for {} of the time",
    "delay": "a delay of {} of the time from step to step",
    "producers": "worker processes that are stopped for {} of the time",
}


def lines_of(found: Sequence[Intervention]) -> list[str]:
    """Return a line for each intervention; those that were not measured share the last ones."""
    lines, left = [], dict[str, list[str]]()
    for one in found:
        if one.effect is None or one.interval is None:
            left.setdefault(one.note, []).append(_subject(one))
        else:
            subject, note = _subject(one), f"; {one.note}" if one.note else ""
            text = _effect(one, one.effect, interval=one.interval)
            lines.append(f"{subject[0].upper()}{subject[1:]} {text}{note}.")
    return lines + [f"Not measured: {', '.join(names)}: {why}." for why, names in left.items()]


def _subject(one: Intervention) -> str:
    if one.kind == "cores":
        return f"{one.dose:.0f} more busy core{'s' * (one.dose > 1)}"
    return SUBJECTS.get(one.kind, "a dose of {}").format(percent(one.dose))


def _effect(one: Intervention, effect: float, *, interval: tuple[float, float]) -> str:
    low, high = interval
    s = "" if one.kind == "producers" or (one.kind == "cores" and one.dose > 1) else "s"
    size, ends = percent(abs(effect)), percents(interval)
    if one.kind == "delay":
        limit = "is not the limit" if low > one.dose / 2 else "is the limit"
        return f"makes a step {size} longer ({ends}), so the input {limit}"
    if low <= 0 <= high:
        return f"change{s} nothing that can be seen ({ends})"
    return f"make{s} a step {size} {'slower' if effect > 0 else 'faster'} ({ends})"
