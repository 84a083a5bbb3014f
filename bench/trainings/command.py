"""Six whole trainings, each with the loaders of its framework and with fastfeed, in turn.

    python -m bench.trainings [--output build/trainings] [--rounds 3] [NAME ...]
    python -m bench.trainings --output FOLDER --quick [NAME ...]
    python -m bench.trainings --output FOLDER --report

Each run is a fresh process. It ends when the mean loss has reached the target of its training, or
after a number of steps. Runs are added to trainings.json as they end, so that an interrupted
comparison goes on. MNIST, photographs and drawings come from $FASTFEED_DATA, or from ../shared/data
beside the repository; without them, data are made.
"""

from __future__ import annotations

import argparse
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.results import SCHEMA, machine, read, write
from bench.trainings.figures import report
from bench.trainings.training import NAMES, Form, Training, training_of
from bench.trainings.turns import measured

KIND = "trainings"
PACKAGES = ("fastfeed", "numpy", "tensorflow-cpu", "tensorflow", "keras", "torch", "lightning")
PACKAGES += ("jax", "grain", "opencv-python-headless")
Document = dict[str, Any]


def main() -> None:
    """Run the trainings that are named, or print what was measured."""
    given = _parsed()
    path = given.output / f"{KIND}.json"
    if not given.report:
        document = read(path) if path.exists() else new_document()
        for name in given.names:
            run_rounds_of(name, document, given)
    print(report(read(path)))


def new_document() -> Document:
    """Return a document without runs."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    first = {"schema": SCHEMA, "kind": KIND, "machine": machine(), "versions": versions}
    return {**first, "trainings": {}, "rows": []}


def run_rounds_of(name: str, document: Document, given: argparse.Namespace) -> None:
    """Run the forms of a training that a document lacks, each round from another form on, and with
    a seed of its own.

    Raise SystemExit if the document is of another target, or of other sizes.
    """
    training = training_of(name)
    forms = [form for form in training.forms if not training.missing(form)]
    about = described(training, quick=given.quick)
    if document["trainings"].setdefault(name, about) != about:
        raise SystemExit(f"{given.output} has runs of {name} with other forms or another target")
    for turn in range(given.rounds):
        shift = turn % max(len(forms), 1)
        for form in forms[shift:] + forms[:shift]:
            runs = row_of(document, name, form=form)["runs"]
            if len(runs) <= turn:
                runs.append(measured(name, form.name, quick=given.quick, seed=turn))
                write(document, given.output)
                text = f"{name}, {form.name}: {told(runs[-1])}"
                print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def described(training: Training, *, quick: bool) -> dict[str, Any]:
    """Return what must be the same for all runs of a training."""
    lacking = {form.name: training.missing(form) for form in training.forms}
    return {
        "title": training.title,
        "target": training.target,
        "cap": training.cap,
        "quick": quick,
        "forms": [form.name for form in training.forms],
        "not_installed": {name: names for name, names in lacking.items() if names},
    }


def row_of(document: Document, name: str, *, form: Form) -> dict[str, Any]:
    """Return the row of a form, which is added if it is not there."""
    rows: list[dict[str, Any]] = document["rows"]
    for row in rows:
        if (row["training"], row["form"]) == (name, form.name):
            return row
    about = {"training": name, "form": form.name, "ours": form.ours, "lines": form.lines}
    rows.append({**about, "runs": []})
    return rows[-1]


def told(run: dict[str, Any]) -> str:
    """Return a run as a line for the terminal."""
    if "failed" in run:
        return f"failed: {run['failed']}"
    what = "" if run["reached"] else f", the target was not reached (mean loss {run['loss']:.3f})"
    waited = "" if run["starvation"] is None else f", waited {100 * run['starvation']:.0f} %"
    rate = "" if run["steps_per_s"] is None else f", {run['steps_per_s']:.1f} steps/s"
    return f"{run['seconds']:.1f} s, {run['steps']} steps{rate}{waited}{what}"


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.trainings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (all)")
    parser.add_argument("--output", type=Path, default=Path("build") / KIND)
    parser.add_argument("--rounds", type=int, help="runs of each form (3; quick: 1)")
    parser.add_argument("--quick", action="store_true", help="three steps: does everything run?")
    parser.add_argument("--report", action="store_true", help="print what was measured")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown trainings {unknown}; there are {', '.join(NAMES)}")
    given.names = given.names or NAMES
    given.rounds = given.rounds or (1 if given.quick else 3)
    return given
