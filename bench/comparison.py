"""Write docs/comparison.md from features.json and from the JSON of the measurements.

    python -m bench.comparison            # writes the page
    python -m bench.comparison --check    # exits with 1 if the page is another one

Everything that has the same unit, table and number of workers is one contest: the best row of
fastfeed against the best row of everybody else. No figure stands in the text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.fault_words import fault_table, sooner
from bench.report import lined, wrapped
from bench.results import read
from bench.rounds import ROOT
from bench.trainings.same_steps import seconds_of, usual_steps
from tests.scenarios.labels import LABELS

COMPARISON = ROOT / "docs" / "comparison.md"
FIGURES = ROOT / "bench" / "results"
FEATURES, PROFILERS, TRAININGS = "features", "profilers", "trainings"
PUBLIC = "public_profilers"
NEAR = 0.05  # of a share that is lost
README = "../bench/results/README.md"
# what is measured, and the section of bench/results/README.md that has the whole table
SECTIONS = {
    "transport": ("worker processes", "transport"),
    "scaling": ("parallel producers", "scaling"),
    "startup": ("start and memory", "start-memory-and-end"),
    "photos": ("decode, crop and flip", "photographs-with-augmentation"),
    "streams": ("epochs", "epochs-order-resume-and-shuffle"),
    "shuffle": ("shuffle of records", "epochs-order-resume-and-shuffle"),
    "sinks": ("TensorFlow and Keras", "frameworks"),
    "arrays": ("MNIST in memory", "arrays-and-migrations"),
    "migrations": ("the same script", "arrays-and-migrations"),
}
WITH_ROWS = ("transport", "scaling", "startup", "photos", "streams", "shuffle", "sinks")
LESS_IS_BETTER = {"s", "ms", "µs", "ms a step", "MB", "times the median"}
REFERENCES = {"bare ring", "bare loop", "one memcpy", "memcpy, 5 pairs in turn", "step alone"}
REFERENCES |= {"step alone, waiting in between", "threads that sleep"}
FAULTS = "faults"
LEFT_OVER = "left after the trainer was killed"
DALI_FED, DALI_ALONE = "fastfeed, dali-cpu", "dali, alone"
TWO_WORKERS = "photographs, workers: 2"
HANDED = ("from_generator", "from_generator, aligned", "numpy_function over a counter")
# In these tables only such rows do the same work: beginning of the title, ours, others.
PAIRS = {
    "sinks": (
        ("Handing over", "runner.dataset()", (*HANDED, "dlpack over a counter")),
        ("5 ms of Python", "runner.dataset()", ("from_generator",)),
        ("Keras fit", "runner.dataset(), processes=1", ("from_generator",)),
        ("A session", "session, shuffled", ("queue of records, shuffled",)),
        ("A session", "session, order kept", ("queue of records, order kept",)),
    ),
    "photos": (
        (TWO_WORKERS, DALI_FED, (DALI_ALONE,)),
        (TWO_WORKERS, "fastfeed, augment in threads", ("thread pool",)),
        (TWO_WORKERS, "fastfeed, augment in threads", ("spdl",)),
        (TWO_WORKERS, "fastfeed, augment in processes", ("thread pool",)),
        (TWO_WORKERS, "fastfeed, augment in processes", ("spdl",)),
    ),
}
ARRAYS = ("fastfeed, arrays", "fastfeed, arrays, 2 threads", "fastfeed, arrays, 2 processes")
ARRAY_LIBRARIES = ("tf.data from_tensor_slices", "DataLoader of a TensorDataset")
ARRAY_CASES = (
    ("arrays, shuffled", ARRAYS),
    (
        "arrays from a cache, others from memory",
        ('fastfeed, cache="ram"', "fastfeed, cache in a folder"),
    ),
    ("records, shuffled", ("fastfeed, ready records one by one",)),
)
SCRIPTS = {
    "dataloader": "DataLoader",
    "from_generator": "from_generator",
    "pydataset": "Keras PyDataset",
    "queue": "queue of TensorFlow 1",
}
OVERLAP = ", ranges overlap"
CALL, EMPTY = "dataset_call", "map of an empty Python function"
SESSION = "A session of TensorFlow 1, "
# what is told, the document and its table, our row, and the row without what is told
COSTS = (
    ("`dataset()`, 100 KB", CALL, "100 KB from", ("runner.dataset()", "fastfeed")),
    ("TensorFlow's call of an empty function, 100 KB", CALL, "100 KB from", (EMPTY, "fastfeed")),
    ("`dataset()`, 9.6 MB", "sinks", "9.6 MB from", ("runner.dataset()", "fastfeed")),
    ("`dataset()`, 38.5 MB", "sinks", "38.5 MB from", ("runner.dataset()", "fastfeed")),
    ("`torch()`, 9.6 MB", "sinks", "9.6 MB into", ("runner.torch()", "fastfeed")),
    ("`jax()`, 9.6 MB", "sinks", "9.6 MB into", ("runner.jax()", "fastfeed")),
    *(
        (f"session, {batches}, {order}", "sinks", SESSION + batches, sides)
        for batches in (
            "28x28x1 float32, batches of 32",
            "28x28x1 float32, batches of 128",
            "224x224x3 uint8, batches of 64",
        )
        for order in ("shuffled", "order kept")
        for sides in ((f"session, {order}", f"loop, {order}"),)
    ),
    *(
        (f"a producer beside a Keras step, {one}", "sinks", "Keras fit", sides)
        for one in ("processes=1", "threads=1")
        for sides in ((f"runner.dataset(), {one}", "a cached batch"),)
    ),
    *(
        (f"order kept, {kind}", "streams", f"order under stragglers, {kind}", sides)
        for kind in ("threads", "processes")
        for sides in (("fastfeed", "fastfeed, any order"),)
    ),
)


@dataclass(frozen=True)
class Entrant:
    """A row: a name and one value for each run."""

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def told(self) -> str:
        return f"{self.name}: {spread(self.values)}"


@dataclass(frozen=True)
class Contest:
    """The best row of fastfeed against the best of the others."""

    kind: str
    what: str
    unit: str
    workers: int
    ours: Entrant
    other: Entrant

    @property
    def factor(self) -> float:
        """How many times better fastfeed is."""
        ratio = self.ours.median / self.other.median
        return 1 / ratio if self.unit in LESS_IS_BETTER else ratio

    @property
    def apart(self) -> bool:
        """The ranges do not overlap, and both are of several runs."""
        ours, other = self.ours.values, self.other.values
        several = min(len(ours), len(other)) > 1
        return several and (min(ours) > max(other) or max(ours) < min(other))


def figure(value: float) -> str:
    """Three digits, or all before the point: 0.0123, 12.3, 12,345."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: Iterable[float]) -> str:
    """The median, and lowest to highest."""
    found = sorted(values)
    return f"{figure(statistics.median(found))} ({figure(found[0])} to {figure(found[-1])})"


def best(rows: list[Entrant], unit: str) -> Entrant:
    choose = min if unit in LESS_IS_BETTER else max
    return choose(rows, key=lambda row: row.median)


def entrants(rows: Iterable[dict[str, Any]], names: Iterable[str] | None = None) -> list[Entrant]:
    """The rows with values, all of them or those of these names."""
    kept = None if names is None else set(names)
    return [
        Entrant(row["peer"], tuple(row["values"]))
        for row in rows
        if row["values"] and (kept is None or row["peer"] in kept)
    ]


def groups(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The rows of one table and one number of workers; of a table the least and the most."""
    tables: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        tables.setdefault(row["table"], {}).setdefault(row["workers"], []).append(row)
    for by_workers in tables.values():
        full = [n for n, found in by_workers.items() if any(r["peer"] == "fastfeed" for r in found)]
        for workers in sorted({min(full, default=0), max(full, default=0)}):
            yield by_workers.get(workers, [])


def contest(kind: str, rows: list[dict[str, Any]], sides: tuple[list[Entrant], ...]) -> Contest:
    ours, others = sides
    unit, what = rows[0]["unit"], rows[0]["table"].partition(", workers:")[0]
    workers = max(row["workers"] for row in rows)
    return Contest(kind, what, unit, workers, best(ours, unit), best(others, unit))


def of_rows(kind: str, rows: list[dict[str, Any]]) -> Iterator[Contest]:
    """Compare what a document has measured."""
    pairs = PAIRS.get(kind, ())
    for title in dict.fromkeys(row["table"] for row in rows):
        for beginning, ours, others in pairs:
            if title.startswith(beginning):
                table = [row for row in rows if row["table"] == title]
                both = [row for row in table if row["peer"] in (ours, *others)]
                sides = entrants(both, [ours]), entrants(both, others)
                if all(sides):
                    yield contest(kind, both, sides)
    for group in groups([] if kind == "sinks" else rows):
        fair = [r for r in group if r["peer"] not in REFERENCES | {DALI_FED}]
        ours = [r for r in fair if r["peer"].startswith("fastfeed")]
        sides = entrants(ours), entrants(r for r in fair if r not in ours)
        if all(sides) and group[0]["table"] != LEFT_OVER:
            yield contest(kind, fair, sides)


def of_arrays(rates: dict[str, list[float]]) -> Iterator[Contest]:
    """Compare MNIST from memory: as arrays, and as ready records one by one."""
    rows = {name: Entrant(name, tuple(values)) for name, values in rates.items()}
    others = [rows[name] for name in ARRAY_LIBRARIES if name in rows]
    unit = "records/s"
    for what, names in ARRAY_CASES:
        ours = [rows[name] for name in names if name in rows]
        if ours and others:
            yield Contest("arrays", what, unit, 0, best(ours, unit), best(others, unit))


def of_migrations(rates: dict[str, dict[str, list[float]]]) -> Iterator[Contest]:
    """Compare scripts before and after their change to fastfeed."""
    work = {"sleep": "that sleeps", "python": "in Python"}
    for name, sides in rates.items():
        script, kind = name.split()
        ours = Entrant("fastfeed", tuple(sides["new"]))
        other = Entrant(SCRIPTS[script], tuple(sides["old"]))
        yield Contest("migrations", f"work {work[kind]}", "batches/s", 2, ours, other)


def of_training(
    title: str, rows: list[dict[str, Any]], *, same: bool = False
) -> dict[str, Contest]:
    """Compare the time to the target: the fixed and the automatic form with the best other one.
    `same`: for as many steps as the runs of all forms need."""
    times, steps = dict[str, list[Entrant]](), usual_steps(rows)
    for row in rows:
        runs = [run for run in row["runs"] if "failed" not in run]
        if runs and all(run["reached"] for run in runs):
            values = tuple(seconds_of(run, steps if same else run["steps"]) for run in runs)
            times.setdefault(row["ours"], []).append(Entrant(row["form"], values))
    if not (others := times.pop("", [])):
        return {}
    other = best(others, "s")
    return {
        ours: Contest(TRAININGS, title, "s", 0, forms[0], other) for ours, forms in times.items()
    }


def documents() -> dict[str, Any]:
    more = (CALL, FAULTS, PROFILERS, PUBLIC, TRAININGS)
    found: dict[str, Any] = {kind: read(FIGURES / f"{kind}.json") for kind in (*WITH_ROWS, *more)}
    for kind in ("arrays", "migrations"):
        found[kind] = json.loads((FIGURES / f"{kind}.json").read_text())
    return found


def contests(found: dict[str, Any]) -> list[Contest]:
    """Every contest, those with the greatest difference first."""
    every = [c for kind in WITH_ROWS for c in of_rows(kind, found[kind]["rows"])]
    every += [*of_arrays(found["arrays"]), *of_migrations(found["migrations"])]
    return sorted(every, key=lambda c: max(c.factor, 1 / c.factor), reverse=True)


def times(factor: float) -> str:
    """How much better the better one is."""
    more = max(factor, 1 / factor)
    return f"{figure(more)} times" if more >= 1.1 else f"{100 * (more - 1):.2g} %"


def contest_table(chosen: list[Contest], by: str) -> str:
    def line(one: Contest) -> list[str]:
        cells = [f"[{SECTIONS[one.kind][0]}]", f"{one.what}, {one.unit}", str(one.workers or "")]
        better = times(one.factor) if one.apart else f"{one.factor:.2f}"
        return [*cells, one.ours.told, one.other.told, better]

    return lined(["measured", "what", "workers", "fastfeed", "best other", by], map(line, chosen))


def training_losses(document: dict[str, Any]) -> dict[str, Any]:
    """The whole trainings whose target another form reaches first, and how many there are."""
    every: list[tuple[Contest, Contest]] = []
    for name, about in document["trainings"].items():
        rows = [row for row in document["rows"] if row["training"] == name]
        same = of_training(about["title"], rows, same=True)
        every += [(one, same[ours]) for ours, one in of_training(about["title"], rows).items()]
    slower = sorted((one for one in every if one[0].factor < 1), key=lambda one: one[0].factor)
    lines = ((c.what, c.ours.told, c.other.told, *map(ratio_told, (c, same))) for c, same in slower)
    head = ("training", "fastfeed", "best other", "times as long", "for the same steps")
    return {
        "table": lined(head, lines),
        "all": len(every),
        "slower": len(slower),
        "apart": sum(one.apart for one, _ in slower),
    }


def of_other(one: Contest) -> str:
    """The median of fastfeed, of that of the other one."""
    return f"{one.ours.median / one.other.median:.2f}"


def ratio_told(one: Contest) -> str:
    """That, and whether the ranges of the runs overlap."""
    return of_other(one) + ("" if one.apart else OVERLAP)


def call_shares(document: dict[str, Any]) -> dict[str, str]:
    """What a batch into `dataset()` takes, in µs: TensorFlow's call, and the rest."""
    rows = [row for row in document["rows"] if row["table"] == "Handing over 100 KB"]
    found = {one.name: one.median for one in entrants(rows)}
    whole, call = found["runner.dataset()"], found[EMPTY]
    return {
        "whole": figure(whole),
        "call": f"{figure(call)} µs ({100 * call / whole:.0f} %)",
        "own": f"{figure(whole - call)} µs ({100 - 100 * call / whole:.0f} %)",
        "loop": f"{figure(found['fastfeed'])} µs",
    }


def cost_table(found: dict[str, Any]) -> str:
    """What a sink or a promise costs: fastfeed with it and without it."""
    lines = []
    for told, kind, title, names in COSTS:
        rows = [row for row in found[kind]["rows"] if row["table"].startswith(title)]
        (ours,), (other,) = entrants(rows, names[:1]), entrants(rows, names[1:])
        one = Contest(kind, told, rows[0]["unit"], 0, ours, other)
        lines.append((f"{told}, {one.unit}", ours.told, other.told, ratio_told(one)))
    return lined(("what", "fastfeed", "without", "ratio"), lines)


def left_table(found: dict[str, Any]) -> str:
    rows = [row for row in found["startup"]["rows"] if row["table"] == LEFT_OVER]
    lines = ((row["peer"], row["also"], str(len(row["values"]))) for row in rows)
    return lined(("library", "processes, and memory", "runs"), lines)


def feature_table(table: dict[str, Any], sources: dict[str, str]) -> str:
    """The words of all cells, each with the label of its source, and then what they leave open."""
    columns = list(table["rows"][0]["cells"])
    lines, notes = [], []
    for row in table["rows"]:
        line, more = [row["feature"]], []
        for column in columns:
            word, _, note = row["cells"][column]["value"].partition(": ")
            source = row["cells"][column]["source"]
            label = sources.setdefault(source, f"s{len(sources) + 1}") if source else ""
            line.append(f"[{word}][{label}]" if source else word)
            more += [f"{column}: {note}"] if note else []
        lines.append(line)
        notes += [wrapped(f"- **{row['feature']}**. {'. '.join(more)}.")] if more else []
    return lined(("", *columns), lines) + "\n\n" + "\n".join(notes)


def lacking(table: dict[str, Any]) -> str:
    """The features that others have, and fastfeed has in part or not, with those that have them."""
    found = []
    for row in table["rows"]:
        words = {name: cell["value"].partition(": ")[0] for name, cell in row["cells"].items()}
        has = [name for name, word in words.items() if word == "yes"]
        if has and "fastfeed" not in has:
            found.append(f"{row['feature']} ({', '.join(has)})")
    return "; ".join(found)


def profiler_table(document: dict[str, Any]) -> str:
    """How often each tool is right about the limit of a script, and what else it says.

    A change counts where the tool names the limit.
    """
    header = ["", "right", "right where the truth is clear", "wrongly called input-limited"]
    header += ["missed", "names the limit and a change", "with its gain", "slower with it"]
    lines = []
    for tool in document["rows"][0]["tools"]:
        cells = [(row, row["tools"][tool]) for row in document["rows"]]
        cells = [(row, said) for row, said in cells if "failed" not in said]
        limited = [said for row, said in cells if row["limited"]]
        others = [said.get("limited") is True for row, said in cells if not row["limited"]]
        slowed = [100 * said["slowed"] for _, said in cells if said["slowed"] is not None]
        line = [
            [said["right"] for _, said in cells],
            [said["right"] for row, said in cells if row["clear"]],
            others,
            [said.get("limited") is not True for said in limited],
            [said["right"] and bool(said.get("change")) for said in limited],
            [said["right"] and bool(said.get("gain")) for said in limited],
        ]
        told = [f"{sum(found)} of {len(found)}" for found in line]
        lines.append((tool, *told, f"{spread(slowed)} %" if slowed else ""))
    return lined(header, lines)


def profiler_scores(document: dict[str, Any]) -> dict[str, int]:
    """How many scripts each tool is right about."""
    rows = document["rows"]
    return {tool: sum(row["tools"][tool]["right"] for row in rows) for tool in rows[0]["tools"]}


def profiler_losses(document: dict[str, Any]) -> str:
    """The tools that are right more often than fastfeed, or nothing."""
    scores = profiler_scores(document)
    own, every = scores["fastfeed"], len(document["rows"])
    better = [f"{tool} ({n})" for tool, n in scores.items() if n > own]
    if not better:
        return ""
    return f"Right more often than fastfeed ({own} of {every}): {', '.join(better)}"


def profiler_kinds(document: dict[str, Any]) -> str:
    """Whether fastfeed names the kind of limit that the label of a slow script has."""
    slow = [row for row in document["rows"] if row["limited"] and row["variant"] == "slow"]
    wrong = []
    for row in slow:
        label, said = LABELS[row["script"]], row["tools"]["fastfeed"]["said"].partition(":")[0]
        if said not in (label.code, *label.also):
            wrong.append(f"`{row['script']}` (`{said}` in place of `{label.code}`)")
    right = f"{len(slow) - len(wrong)} of the {len(slow)} slow variants that lose as much"
    return right + (f", and another one for {' and '.join(wrong)}" if wrong else "")


def profiler_errors(document: dict[str, Any]) -> str:
    """The scripts that each tool is wrong about, with the share that they lose."""
    items = []
    for tool in document["rows"][0]["tools"]:
        ran = [row for row in document["rows"] if "failed" not in row["tools"][tool]]
        wrong = [row for row in ran if not row["tools"][tool]["right"]]
        told = ", ".join(
            f"`{row['script']}` {row['variant']} ({100 * max(0.0, row['lost']):.0f} %"
            + ("" if row["tools"][tool].get("limited") is not None else ", nothing said")
            + ")"
            for row in wrong
        )
        failed = [row for row in document["rows"] if row not in ran]
        reasons = (f"`{row['script']}` ({row['tools'][tool]['failed']})" for row in failed)
        more = f" It gave no answer for {', '.join(reasons)}." if failed else ""
        items.append(wrapped(f"- **{tool}** is wrong about {told or 'none'}.{more}"))
    return "\n".join(items)


def profiler_facts(document: dict[str, Any]) -> dict[str, Any]:
    """What the text about the profilers says in figures."""
    rows, versions = document["rows"], document["versions"]
    return {
        **common_facts(document),
        "losses": profiler_losses(document),
        "kinds": profiler_kinds(document),
        "scripts": len({row["script"] for row in rows}),
        "of_scripts": sum(label.framework == "torch" for label in LABELS.values()),
        "close": sum(not row["clear"] for row in rows),
        "least": f"{100 * document['plan']['limited']:g} %",
        "between": " to ".join(f"{100 * share:g}" for share in document["plan"]["close"]),
        "from": {tool: f"{100 * share:g} %" for tool, share in document["plan"]["from"].items()},
        "cores": document["machine"]["cores"],
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def common_facts(document: dict[str, Any]) -> dict[str, Any]:
    """What the text about the profilers says of both kinds of scripts."""
    rows = document["rows"]
    return {
        "table": profiler_table(document),
        "errors": profiler_errors(document),
        "shares": profiler_shares(document),
        "not_run": "; ".join(f"{what} ({why})" for what, why in document["not_run"].items()),
        "rows": len(rows),
        "limited": sum(row["limited"] for row in rows),
        "seconds": f"{document['plan']['watched']:g}",
        "at": document["machine"]["at"].split()[0],
    }


def profiler_shares(document: dict[str, Any]) -> str:
    """How often each tool's share of a step that waits is near the share that is lost."""
    found = []
    for tool in document["rows"][0]["tools"]:
        told = [(row["tools"][tool].get("share"), row["lost"]) for row in document["rows"]]
        near = [abs(share - max(0.0, lost)) <= NEAR for share, lost in told if share is not None]
        found.append(f"{tool} {sum(near)} of {len(near)}")
    return ", ".join(found)


def addresses(sources: dict[str, str]) -> str:
    """What the labels of links stand for."""
    places = {label: f"{README}#{anchor}" for label, anchor in SECTIONS.values()}
    places |= {label: source for source, label in sources.items()}
    return "\n".join(f"[{label}]: {place}" for label, place in places.items())


def machines(found: dict[str, Any]) -> str:
    """The machine, the days and the number of runs of all documents."""
    about = [found[kind]["machine"] for kind in WITH_ROWS]
    days = sorted(one["at"].split()[0] for one in about)
    kinds = {f"{one['cores']} cores of {one['cpu']}, {one['memory_gib']} GiB" for one in about}
    faults = found[FAULTS]["machine"]["at"].split()[0]
    runs = sorted({found[kind]["plan"]["repeats"] for kind in WITH_ROWS})
    return (
        f"{' and '.join(sorted(kinds))}, {days[0]} to {days[-1]}, {runs[0]} to {runs[-1]} runs "
        f"for each figure of a table with libraries; each fault once, {faults}"
    )


def versions(found: dict[str, Any]) -> str:
    """Every version of a library that took part."""
    every: dict[str, set[str]] = {}
    for kind in WITH_ROWS:
        for name, version in found[kind]["versions"].items():
            every.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' and '.join(sorted(of))}" for name, of in sorted(every.items()))


def rendered(template: str, **values: Any) -> str:
    """The text of a page from its template below bench."""
    environment = Environment(
        loader=FileSystemLoader(ROOT / "bench"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["wrapped"] = wrapped
    return environment.get_template(template).render(values)


def page() -> str:
    """The text of docs/comparison.md."""
    found = documents()
    every = contests(found)
    features = read(FIGURES / f"{FEATURES}.json")
    worse = [c for c in every if c.apart and c.factor < 1]
    better = [c for c in every if c.apart and c.factor > 1]
    same = [c for c in every if not c.apart]
    sources: dict[str, str] = {}
    return rendered(
        "comparison.jinja",
        counts={"all": len(every), "worse": len(worse), "better": len(better), "same": len(same)},
        behind="; ".join(
            f"`{one.ours.name}` against `{one.other.name}` ({one.factor:.2f})"
            for one in same
            if one.factor < 1
        ),
        worse=contest_table(worse, "others are better by"),
        better=contest_table(better, "fastfeed is better by"),
        same=contest_table(same, "factor for fastfeed"),
        trainings=training_losses(found[TRAININGS]),
        call=call_shares(found[CALL]),
        costs=cost_table(found),
        left=left_table(found),
        faults=fault_table(found[FAULTS]),
        sooner=sooner(found[FAULTS]),
        lacking={t["name"]: lacking(t) for t in features["tables"]},
        machines=machines(found),
        versions=versions(found),
        at=features["at"],
        features={t["name"]: feature_table(t, sources) for t in features["tables"]},
        profilers=profiler_facts(found[PROFILERS]),
        public=common_facts(found[PUBLIC]),
        addresses=addresses(sources),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it differs")
    given = parser.parse_args()
    text = page()
    if not given.check:
        COMPARISON.write_text(text)
    elif not COMPARISON.exists() or COMPARISON.read_text() != text:
        print("docs/comparison.md differs: run python -m bench.comparison", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
