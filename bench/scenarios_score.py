"""An answer of the diagnosis against the measured truth: pure arithmetic, and the tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tests.scenarios.labels import LABELS, Label

# a change that is said to help gains that much; one that cannot, no more than this
GAINS, SAME = 1.1, 1.05
MAX_SPREAD = 0.1  # of a script's own rounds, from which its figures are no measure of the diagnosis
ABSTAINED, FAILED = "abstained", "no answer"
Row = dict[str, Any]


def holds(label: Label, truth: dict[str, Any]) -> list[str]:
    """Return the contradictions between measured figures and the label; empty if it holds."""
    if label.dies:
        return []
    free, fixed = truth["speedup_if_input_free"], truth["speedup_if_fixed"]
    doubts = []
    if label.code.startswith("step.") and free > (SAME if label.code == "step.bound" else GAINS):
        doubts.append(f"with its input at hand it is {free:.2f} times as fast")
    if label.code.startswith("input.") and free < GAINS:
        doubts.append(f"with its input at hand it is only {free:.2f} times as fast")
    if label.code == "step.bound" and fixed > SAME:
        doubts.append(f"changed, it is {fixed:.2f} times as fast")
    if label.code != "step.bound" and fixed < GAINS:
        doubts.append(f"fixed, it is only {fixed:.2f} times as fast")
    return doubts


def score(label: Label, truth: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Return the errors of an answer: starvation in points, speed-ups in per cent.

    An error is None if there is no true value.
    """
    verdict = said.get("verdict")
    recommended = _recommended(label, said)
    interval, gain = (recommended or {}).get("interval"), truth.get("speedup_if_fixed")
    return {
        "verdict": verdict,
        "right": verdict is not None and verdict in (label.code, *label.also),
        "confident_wrong": verdict is not None and verdict not in (label.code, *label.also),
        "knob": recommended is not None if label.knob else None,
        "starvation_points": _points(truth.get("starvation"), said.get("starvation")),
        "speedup_percent": _percent(
            truth.get("speedup_if_input_free"), said.get("speedup_if_input_free")
        ),
        "gain_percent": _percent(gain, (recommended or {}).get("predicted_speedup")),
        "gain_inside": interval and gain and interval[0] <= gain <= interval[1],
    }


def steady(truth: dict[str, Any]) -> bool:
    """Return True if the rounds of every variant agree."""
    rates = [truth[kind]["all"] for kind in ("slow", "fixed", "free") if kind in truth]
    return all(max(found) <= (1 + MAX_SPREAD) * min(found) for found in rates)


def _recommended(label: Label, said: dict[str, Any]) -> dict[str, Any] | None:
    """The first recommendation that turns the right knob."""
    return next((r for r in said.get("recommendations") or [] if r.get("knob") in label.knob), None)


def _points(truth: float | None, said: float | None) -> float | None:
    return None if truth is None or said is None else 100 * (said - truth)


def _percent(truth: float | None, said: float | None) -> float | None:
    return None if not truth or said is None else 100 * (said / truth - 1)


def markdown(rows: Sequence[Row]) -> str:
    """The truths; and, of the rows that were diagnosed, the confusion table, the errors and the
    sums."""
    parts = [truths(rows)]
    scored = [row for row in rows if "score" in row]
    if scored:
        parts += [confusion(scored), errors(scored), summary(scored)]
    broken = [f"- {row['name']}: {row['failed']}" for row in rows if row.get("failed")]
    return "\n\n".join([*parts, *(["Failed:\n\n" + "\n".join(broken)] if broken else [])])


def truths(rows: Sequence[Row]) -> str:
    """Steps/s of the three variants, and what follows from them."""
    lines = [
        "| script | truth | framework | slow | fixed | free | starvation | if fixed | if input "
        "were free | doubts |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        truth, label = row.get("truth") or {}, LABELS[row["name"]]
        rates = [
            _cell((truth.get(v) or {}).get("steps_per_second"), "{:.1f}")
            for v in ("slow", "fixed", "free")
        ]
        cells = [
            *rates,
            _cell(truth.get("starvation"), "{:.0%}"),
            _cell(truth.get("speedup_if_fixed"), "{:.2f}x"),
            _cell(truth.get("speedup_if_input_free"), "{:.2f}x"),
            "; ".join(row.get("doubts", [])),
        ]
        lines.append(
            f"| {row['name']} | {label.code} | {label.framework} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


def confusion(rows: Sequence[Row]) -> str:
    """Truth by answer, as counts; a code that is accepted beside the label counts as the label."""
    pairs = [(row["code"], _answer(row)) for row in rows]
    true = list(
        dict.fromkeys(
            label.code for label in LABELS.values() if label.code in {t for t, _ in pairs}
        )
    )
    said = [*true, *sorted({answer for _, answer in pairs} - set(true))]
    lines = ["| truth \\ said | " + " | ".join(said) + " |", "|---|" + "--:|" * len(said)]
    for code in true:
        counts = [pairs.count((code, answer)) for answer in said]
        lines.append(f"| {code} | " + " | ".join(str(n) if n else "" for n in counts) + " |")
    return "\n".join(lines)


def _answer(row: Row) -> str:
    found = row["score"]
    return row["code"] if found["right"] else found["verdict"] or ABSTAINED


def errors(rows: Sequence[Row]) -> str:
    """Every script's own errors."""
    names = ("starvation_points", "speedup_percent", "gain_percent", "slowed")
    forms = ("{:+.1f}", "{:+.0f} %", "{:+.0f} %", "{:.1%}")
    lines = [
        "| script | truth | said | starvation, points | if input were free | change | slowed |",
        "|---|---|---|" + "--:|" * 4,
    ]
    for row in rows:
        found = row["score"]
        cells = [_cell(found.get(name), form) for name, form in zip(names, forms, strict=True)]
        said = found["verdict"] or ABSTAINED
        lines.append(f"| {row['name']} | {row['code']} | {said} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Return the number of correct answers, and the median and the largest error."""
    scores = [row["score"] for row in rows]
    right = sum(found["right"] for found in scores)
    bound = [found for row, found in zip(rows, scores, strict=True) if row["code"] == "step.bound"]
    lines = [
        f"- right: {right} of {len(scores)} ({right / len(scores):.0%}); abstained: "
        f"{sum(found['verdict'] is None for found in scores)}; step.bound called something else: "
        f"{sum(found['confident_wrong'] for found in bound)} of {len(bound)}"
    ]
    steady_scores = [row["score"] for row in rows if steady(row.get("truth") or {})]
    lines.append(
        f"- scripts whose own rounds agree within {MAX_SPREAD:.0%}: {len(steady_scores)}; of these:"
    )
    for name, text, most in (
        ("starvation_points", "starvation, points", 5.0),
        ("speedup_percent", "speed-up if input were free, %", 15.0),
        ("gain_percent", "gain of the change, %", 20.0),
        ("slowed", "slowed by the diagnosis (share)", 0.02),
    ):
        counted = scores if name == "slowed" else steady_scores
        sizes = [abs(found[name]) for found in counted if found.get(name) is not None]
        if sizes:
            within = f"within {most:g}: {sum(size <= most for size in sizes)} of {len(sizes)}"
            lines.append(
                f"- {text}: median {statistics.median(sizes):.3g}, largest {max(sizes):.3g}, "
                f"{within}"
            )
    inside = [found["gain_inside"] for found in steady_scores if found["gain_inside"] is not None]
    lines.append(f"- gain of the change inside its interval: {sum(inside)} of {len(inside)}")
    for variant, text, most in (("free", "without input", 15.0), ("fixed", "of the change", 20.0)):
        found = [
            one for row in rows if (one := _repeated(row.get("truth") or {}, variant)) is not None
        ]
        if found:
            same = sum(one <= most for one in found)
            lines.append(
                f"- the truth itself, speed-up {text}: rounds within {most:g} % of each other: "
                f"{same} of {len(found)}"
            )
    return "\n".join(lines)


def _repeated(truth: dict[str, Any], variant: str) -> float | None:
    """Return the spread of a speed-up over its rounds in per cent, or None after a single round."""
    pairs = [(truth.get(kind) or {}).get("all", []) for kind in (variant, "slow")]
    ratios = [one / slow for one, slow in zip(*pairs, strict=False)]
    return 100 * (max(ratios) / min(ratios) - 1) if len(ratios) > 1 else None


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
