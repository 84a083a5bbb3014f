"""The tables of docs/metric-learning.md."""

from __future__ import annotations

from typing import Any

from bench.metric_learning import spread

REPORTED = "reported elsewhere, {}, no special tuning"


def rates(found: dict[str, Any]) -> str:
    """Return the table of rates."""
    made = [run["cnn"] for run in found["fastfeed"]]
    ours = spread(made)
    rows = [
        (
            REPORTED.format("one P100 GPU, batches of 64 pairs"),
            "ResNet-50, N-pair loss, fashion photographs",
            "20",
        ),
        (REPORTED.format("one Cloud TPU v2, batches of 1,024 pairs"), "the same", "1,100"),
        (
            "measured here, two CPU cores, batches of 64 pairs ([Speed](#speed))",
            "a CNN of four layers, 32 x 32 pixels",
            ours,
        ),
    ]
    return _table("where | network | pairs/s", "---|---|--:", rows)


def training(found: dict[str, Any]) -> str:
    """Return the table of recalls, and the losses."""
    rows = [(f"batches of {found['tested']}", f"{found['top1']:.3f}", f"{found['top5']:.3f}")]
    for name, values in sorted(found["recall"].items(), reverse=True):
        rows.append((name, *(f"{value:.3f}" for value in values)))
    loss = found["history"][-1]["loss"]
    return (
        f"{_table('of letters never seen | @1 | @5', '---|--:|--:', rows)}\n"
        f"The loss of letters never seen is {found['held_out_loss']:.3f}, that of the training "
        f"{loss:.3f}.\n"
    )


def _table(head: str, kinds: str, rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {head} |", f"|{kinds}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "".join(f"{line}\n" for line in lines)
