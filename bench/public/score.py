"""Answers of the diagnosis against the truths of public scripts: arithmetic and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.public.recipe import Recipe
from bench.public.truths import expected, input_helps

Row = dict[str, Any]
POINTS, PERCENT, LOSES = 0.05, 0.15, 0.98


def score(recipe: Recipe, measured: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Return what is right and wrong in an answer; None where there is no truth."""
    verdict, right = said.get("verdict"), expected(recipe, measured)
    gain = measured["gain"]["free"]
    advised = [one for one in said.get("recommendations") or [] if _recommended(one)]
    tried = [(one, true) for one in advised if (true := _tried(one, measured)) is not None]
    speedup = said.get("speedup_if_input_free")
    return {
        "expected": right,
        "verdict": verdict,
        "right": verdict in right,
        "told": not input_helps(measured) and str(verdict).startswith("input."),
        "fine": _known_finely(measured),
        "starvation": _off(measured["lost_to_input"], said.get("starvation")),
        "lost": _off(measured["lost_to_input"], said.get("lost_to_input")),
        "speedup": None if speedup is None else speedup / max(gain, 1.0) - 1,
        "loses": [one["value"] for one, true in tried if true < LOSES],
        "inside": [one["interval"][0] <= true <= one["interval"][1] for one, true in tried],
    }


def _recommended(one: Row) -> bool:
    return one.get("predicted_speedup", 1.0) >= 1.0 and bool(one.get("interval"))


def _tried(one: Row, measured: dict[str, Any]) -> float | None:
    """Return the measured gain of a recommendation that a variant applied, or None."""
    value = str(one.get("value")).partition(" ")[0]  # "10x the steps"
    found: float | None = measured["gain"].get(f"{one.get('knob')}={value}")
    return found


def _known_finely(measured: dict[str, Any]) -> bool:
    """Return True if the rounds agree about the gain of a ready batch as far as it is judged."""
    low, high = (max(1.0, one) for one in measured["range"]["free"])
    return 1 / low - 1 / high <= POINTS


def _off(true: float, said: float | None) -> float | None:
    return None if said is None else said - true


def table(rows: Sequence[tuple[Recipe, Row]]) -> str:
    """Return the truths of scripts, as Markdown."""
    lines = [
        "| script | half | framework | kind | now, steps/s | free | quiet | changes | right |",
        "|---|---|---|---|--:|--:|--:|---|---|",
    ]
    for recipe, row in rows:
        if "truth" not in row:
            continue
        measured = row["truth"]
        changes = ", ".join(
            f"{name} {_range(measured, name)}"
            for name in recipe.changes
            if name in measured["gain"]
        )
        lines.append(
            f"| {recipe.name} | {row['half']} | {recipe.framework} | {recipe.kind} "
            f"| {measured['steps_per_second']['now']:.4g} | {_range(measured, 'free')} "
            f"| {_range(measured, 'quiet')} | {changes} | {', '.join(expected(recipe, measured))} |"
        )
    return "\n".join(lines)


def _range(measured: dict[str, Any], name: str) -> str:
    if name not in measured["gain"]:
        return ""
    low, high = measured["range"][name]
    return f"{measured['gain'][name]:.2f} ({low:.2f}-{high:.2f})"


def answers(rows: Sequence[tuple[Recipe, Row]]) -> str:
    """Return what was said about each script, and the sums, as Markdown."""
    lines = [
        "| script | right | said | starvation | lost | speed-up | remarks |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    scores: list[dict[str, Any]] = []
    for recipe, row in rows:
        for said in row.get("said", []):
            if "truth" not in row:
                continue
            found = score(recipe, row["truth"], said)
            scores.append(found)
            lines.append(_line(recipe.name, found, said))
    return "\n".join([*lines, "", *sums(scores)])


def _line(name: str, found: dict[str, Any], said: Row) -> str:
    remarks = [
        "wrong" if not found["right"] else "",
        "input advised without need" if found["told"] else "",
        f"loses: {found['loses']}" if found["loses"] else "",
        str(said.get("failed") or said.get("abstained") or "")[:60],
    ]
    cells = [
        "" if found[key] is None else f"{100 * found[key]:+.0f}"
        for key in ("starvation", "lost", "speedup")
    ]
    return (
        f"| {name} | {found['expected'][0]} | {found['verdict']} | {' | '.join(cells)} "
        f"| {'; '.join(one for one in remarks if one)} |"
    )


def sums(scores: Sequence[dict[str, Any]]) -> list[str]:
    """Return the sums as list items."""
    inside = [one for found in scores for one in found["inside"]]

    def within(key: str, most: float) -> str:
        known = [(abs(one[key]) <= most, one["fine"]) for one in scores if one[key] is not None]
        fine = [near for near, finely in known if finely]
        return f"{sum(near for near, _ in known)} of {len(known)} ({sum(fine)} of {len(fine)})"

    return [
        f"- verdict right: {sum(found['right'] for found in scores)} of {len(scores)}",
        f"- told to change an input without trouble: {sum(found['told'] for found in scores)}",
        f"- starvation within 5 points: {within('starvation', POINTS)}; lost_to_input: "
        f"{within('lost', POINTS)}",
        f"- speed-up without input within 15 %: {within('speedup', PERCENT)}",
        f"- changes that lose more than 2 %: {sum(len(found['loses']) for found in scores)}",
        f"- gain inside the interval: {sum(inside)} of {len(inside)}",
        "",
        "In brackets: of the scripts whose rounds differ by at most 5 points in what input costs.",
    ]
