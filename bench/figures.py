"""Write every table and picture that follows from the JSON in bench/results.

    python -m bench.figures

These are docs/comparison.md, docs/trainings.md, the pictures of docs, the tables of
bench/results/README.md with their pictures, the tables of pages of docs, the figures of README.md
and docs/proving.md, and in README.md and docs/tutorial.md what its proof says. A document has a
picture if there is one beside it.
"""

from __future__ import annotations

import importlib
import json
import re
import statistics
import sys
from typing import Any

from bench import comparison, fill, pictures, report, tutorial
from bench.comparison import FIGURES
from bench.report import wrapped
from bench.results import read
from bench.rounds import ROOT
from bench.trainings import figures as trainings

README = ROOT / "README.md"
PROOFS = ROOT / "docs" / "proving.md"
# Pages with tables of documents, and the function that makes the table of each.
TABLE_PAGES = [
    *(ROOT / "docs" / f"{name}.md" for name in ("data-parallel", "metric-learning", "jobs")),
    *(ROOT / "docs" / f"{name}.md" for name in ("how-it-measures", "scale-out")),
    FIGURES / "README.md",
]
TABLES = {
    "large_minibatch": ("data_parallel_studies", "table"),
    "slow_rank": ("data_parallel_studies", "table"),
    "async_parallel": ("async_results", "table"),
    "metric_rates": ("bench.metric_tables", "rates"),
    "metric_training": ("bench.metric_tables", "training"),
    "metric_learning": ("bench.metric_learning", "table"),
    "arrays": ("bench.arrays", "table"),
    "migrations": ("bench.migrations.__main__", "table"),
    "planning": ("bench.planning", "table"),
    "accuracy": ("bench.accuracy", "table"),
    "observer": ("bench.observer", "table"),
    "remote": ("bench.remote", "table"),
    "remote_promises": ("bench.remote", "promises"),
}
OF_ANOTHER = {
    "metric_rates": "metric_learning",
    "remote_promises": "remote",
}  # documents of another name
TABLE = re.compile(r"(<!-- table: (\w+) -->\n\n).*?(?=<!-- end -->)", re.DOTALL)
MARKED = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end -->)", re.DOTALL)
LEAST_GAIN = 1.05  # of a patch
PROVEN = 0.1  # share that a script loses to input, from which a patch is expected


def main() -> None:
    comparison.COMPARISON.write_text(comparison.page())
    trainings.PAGE.write_text(trainings.page())
    fill.fill_page(FIGURES / f"{kind}.json" for kind in fill.kinds(fill.PAGE.read_text()))
    for picture in sorted(FIGURES.glob("*.png")):
        report.plot(read(picture.with_suffix(".json")), FIGURES)
    pictures.draw_all()
    proof = _values("tutorial")
    README.write_text(tutorial.with_proof(with_figures(README.read_text()), proof))
    PROOFS.write_text(with_accuracy(PROOFS.read_text()))
    tutorial.PAGE.write_text(tutorial.with_proof(tutorial.PAGE.read_text(), proof))
    for page in TABLE_PAGES:
        page.write_text(with_tables(page.read_text()))


def with_tables(text: str) -> str:
    """Return a page with the tables of what was measured, some of which examples make."""
    sys.path.insert(0, str(ROOT / "examples"))

    def filled(found: re.Match[str]) -> str:
        name = found[2]
        module, function = TABLES[name]
        values = _values(OF_ANOTHER.get(name, name))
        made = getattr(importlib.import_module(module), function)(values)
        return f"{found[1]}{made.rstrip()}\n\n"

    return TABLE.sub(filled, text)


def with_figures(text: str) -> str:
    """Return the README with its figures."""
    return MARKED.sub(lambda _: "".join(f"{wrapped(f'- {line}')}\n" for line in figures()), text)


def with_accuracy(text: str) -> str:
    """Return docs/proving.md with what its proofs say of the labelled scripts."""
    return MARKED.sub(lambda _: wrapped(accuracy()) + "\n", text)


def accuracy() -> str:
    """Return how many scripts have a proof, and what it says beside a measurement by hand and
    beside the prediction."""
    rows = proofs()
    kept = [row for row in rows if row["kept"]]
    by_hand = [statistics.median(row["by_hand"]) for row in kept if row["by_hand"]]
    told = [row for row in kept if row["predicted_interval"]]
    inside = [row for row in told if _inside(row["speedup"], row["predicted_interval"])]
    proven = statistics.median(row["speedup"] for row in kept)
    return (
        f"Of [{len(rows)} scripts](../bench/evidence/proving.md) that lose a tenth or more of "
        f"their speed to input, a patch ran for {sum(row['tried'] > 0 for row in rows)}, and "
        f"{len(kept)} have a proven one. In the median, the proofs of these {len(kept)} say "
        f"{proven:.2f} times as fast. Measured by hand, without any watch, the same patches make "
        f"the scripts {statistics.median(by_hand):.2f} times as fast in the median, and "
        f"{sum(one > 1 for one in by_hand)} of {len(by_hand)} gain. The diagnosis had predicted "
        f"{len(told)} of the gains; {len(inside)} of the proofs lie inside its interval."
    )


def _inside(value: float, interval: list[float]) -> bool:
    return interval[0] <= value <= interval[1]


def proofs() -> list[dict[str, Any]]:
    """Return what was proven of the labelled scripts that lose a tenth or more to input."""
    return [row for row in _values("proving").values() if row["lost_to_input"] >= PROVEN]


def figures() -> list[str]:
    """Return the three figures of the README, each with its lowest and its highest."""
    arrays, moved = _values("arrays"), _values("migrations")["from_generator python"]
    own, other = arrays["fastfeed, arrays, 2 processes"], arrays["DataLoader of a TensorDataset"]
    rows = proofs()
    # what was measured by hand counts before the proof
    gains = [statistics.median(row["by_hand"] or [row["speedup"]]) for row in rows if row["kept"]]
    gains = [one for one in gains if one > LEAST_GAIN]
    ratios = [new / old for new, old in zip(moved["new"], moved["old"], strict=True)]
    minutes = [row["took_s"] / 60 for row in rows]
    return [
        f"MNIST from memory, shuffled, in batches of 128: {_spread(own, 1e-6)} million records/s; "
        f"a `DataLoader` of tensors makes {_spread(other, 1e-6)}.",
        "A script of tf.data with Python work in its batches, moved from `from_generator` to a "
        f"`FeedRunner`: {_spread(ratios)} times as fast.",
        f"Of {len(rows)} test scripts of this project that lose a tenth or more to their input, "
        f"`--prove` found a patch that gains for {len(gains)}, by hand {_spread(gains)} times as "
        f"fast. It took {_spread(minutes, digits=1)} minutes.",
    ]


def _spread(values: list[float], scale: float = 1.0, *, digits: int = 2) -> str:
    """Return "median (lowest to highest)"."""
    found = [scale * value for value in (statistics.median(values), min(values), max(values))]
    return "{} ({} to {})".format(*(f"{value:.{digits}f}" for value in found))


def _values(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIGURES / f"{kind}.json").read_text())
    return found


if __name__ == "__main__":
    main()
