"""The reference names everything public: classes and functions, errors, verdicts, keys of JSON."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fastfeed import augment
from fastfeed.core.status import FEED_STATES, STATES
from fastfeed.diagnose.diagnosis import CODES
from fastfeed.jobs.blackbox import (
    FIELD_TYPES,
    KINDS,
    BlackBoxEnd,
    BlackBoxEvent,
    BlackBoxHeader,
    FlightRecord,
    ProducerTable,
    Record,
    line_of,
)
from fastfeed.jobs.doctor import examine, json_of
from fastfeed.jobs.runner_samples import ProducerSample
from fastfeed.jobs.top import figures_of
from fastfeed.plan.needs import LINES, make_plan
from fastfeed.plan.plan_command import PLAN_SCHEMA, plan_json
from fastfeed.plan.plan_figures import KNOWN, figures_from
from tests.helpers.pages import ROOT
from tests.jobs.flights import producer, sample

DOCS = ROOT / "docs"
REFERENCE = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
ERRORS = (DOCS / "errors.md").read_text()
JSON = (DOCS / "reference" / "json.md").read_text()
HEADINGS = re.findall(r"^      heading: '(\w+\(.*\))'$", REFERENCE, re.MULTILINE)
DIRECTIVE = re.compile(r"^::: (fastfeed[\w.]*)$", re.MULTILINE)
IMPORT = re.compile(r"\bfrom (fastfeed[\w.]*) import (\([\w\s,]+|[\w ,]+)")
MODULES = ("", ".augment", ".keras", ".ranks", ".samplers", ".testing")
OPTIONS = "fastfeed.options.feed_options.FeedOptions"  # docs/_site/options.py makes its tables
# what these return is documented, too
RETURNING = (
    "fastfeed.FeedRunner",
    "fastfeed.profile",
    "fastfeed.plan.balance.balanced_batch",
    "fastfeed.ranks.ShardServer",
)
PLAN = (
    "samples=1.28M stored=110KB sample=150KB batch=64 source=8ms step=32:164ms,64:292ms "
    "parameters=25.6M accelerators=8 per_machine=4 cores=32 ram=64GB interconnect=10Gbit/s"
)
TYPES = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "boolean",
    dict[str, float]: "object",
    dict[str, int]: "object",
}
TYPES |= {float | None: "number or null", tuple[ProducerSample, ...]: "list"}


@cache
def module_of(name: str) -> ast.Module | None:
    """Return the source of a module of fastfeed, without importing a framework for it."""
    path = ROOT.joinpath(*name.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.exists():
            return ast.parse(file.read_text())
    return None


@cache
def origins(module: str) -> dict[str, str]:
    """Return where the names come from that a module imports, also for a type checker alone."""
    nodes = ast.walk(module_of(module) or ast.Pass())
    found = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {a.asname or a.name: f"{node.module}.{a.name}" for node in found for a in node.names}


def origin(name: str) -> str:
    """Return the full name of a class, function or constant in the module that defines it."""
    module, _, own = name.rpartition(".")
    known = origins(module).get(own)
    return name if known is None or module_of(name) else origin(known)


def definition(name: str) -> ast.stmt | None:
    """Return what defines a name, None for a name that is not there."""
    module, _, own = origin(name).rpartition(".")
    for node in getattr(module_of(module), "body", []):
        targets = [getattr(target, "id", "") for target in getattr(node, "targets", [])]
        if own in (getattr(node, "name", ""), *targets):
            return node
    return None


def public_names(module: str) -> set[str]:
    """Return the names in `__all__`, else the public classes and functions that are defined in the
    module."""
    tree = module_of(module)
    assert tree is not None, module
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {origin(f"{module}.{name}") for name in ast.literal_eval(node.value)}
    kinds = (ast.ClassDef, ast.FunctionDef)
    own = [n.name for n in tree.body if isinstance(n, kinds) and n.name[0] != "_"]
    return {f"{module}.{name}" for name in own}


def errors() -> set[str]:
    tree = module_of("fastfeed.errors")
    assert tree is not None
    return {f"fastfeed.errors.{n.name}" for n in tree.body if isinstance(n, ast.ClassDef)}


def imported() -> set[str]:
    """Return what the pages and examples import, without the data of the benchmarks."""
    files = [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "examples").rglob("*.*")]
    texts = [file.read_text() for file in files if file.suffix in (".md", ".py", ".ipynb")]
    found = [match for text in texts for match in IMPORT.findall(text)]
    names = {
        f"{module}.{name.split()[0]}"
        for module, listed in found
        if not module.startswith("fastfeed.benchmark")
        for name in listed.strip("(").split(",")
        if name.split()
    }
    return {origin(name) for name in names if module_of(name) is None}


def returned(name: str, known: set[str]) -> set[str]:
    """Add the classes of fastfeed that a function, or the methods and fields of a class, return."""
    module, node = origin(name).rpartition(".")[0], definition(name)
    parts: list[Any] = node.body if isinstance(node, ast.ClassDef) else [node]
    fields = [part.annotation for part in parts if isinstance(part, ast.AnnAssign)]
    methods = [p for p in parts if isinstance(p, ast.FunctionDef) and p.name[0] != "_"]
    for hint in (*fields, *(method.returns for method in methods if method.returns)):
        for one in (n.id for n in ast.walk(hint) if isinstance(n, ast.Name)):
            kind = origin(f"{module}.{one}")
            if kind not in known and isinstance(definition(kind), ast.ClassDef):
                known.add(kind)
                known |= set() if kind == OPTIONS else returned(kind, known)
    return known


def public() -> set[str]:
    names = {"fastfeed.diagnose.run.block.BlockDiagnosis", *imported(), *errors()}
    for module in MODULES:
        names |= public_names(f"fastfeed{module}")
    for name in RETURNING:
        names |= returned(name, set())
    return names


def documented(reference: str = REFERENCE, page_of_errors: str = ERRORS) -> set[str]:
    """Return the names with an entry: a directive, of their own or of their module; a section for
    errors; the tables of options."""
    names = {OPTIONS} if "<!-- options -->" in reference else set()
    for name in DIRECTIVE.findall(reference):
        names |= public_names(name) if module_of(name) else {origin(name)}
    heads = re.findall(r"^## (\w+)$", page_of_errors, re.MULTILINE)
    return names | {f"fastfeed.errors.{head}" for head in heads}


def test_every_public_name_has_an_entry() -> None:
    assert not sorted(public() - documented())


def test_names_without_an_entry_are_found() -> None:
    shorter = REFERENCE.replace("::: fastfeed.ranks.ShardServer\n", "")
    shorter = shorter.replace("::: fastfeed.keras\n", "").replace("<!-- options -->", "")
    assert {name.rpartition(".")[2] for name in documented() - documented(shorter)} == {
        *("FeedCallback", "FeedOptions", "ShardServer", "StateCallback"),
    }
    fewer = documented(page_of_errors=ERRORS.replace("## BadImage\n", ""))
    assert public() - fewer == {"fastfeed.errors.BadImage"}
    named = {name.rpartition(".")[2] for name in public()}
    assert {"Affine", "FeedCheckpoint", "FeedStatus", "JobReport", "ProducerStatus"} <= named
    assert {"PROMISES", "Weighted", "balanced_batch", "watch"} <= named


@pytest.mark.parametrize("name", DIRECTIVE.findall(REFERENCE))
def test_what_the_reference_names_exists_and_is_described(name: str) -> None:
    node = module_of(name) or definition(name)
    assert node is not None
    if not isinstance(node, ast.Assign):
        assert ast.get_docstring(node)


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_arguments_of_image_operations(heading: str) -> None:
    call: Any = ast.parse(heading, mode="eval").body
    told = {argument.id: inspect.Parameter.empty for argument in call.args}
    told |= {one.arg: eval(ast.unparse(one.value)) for one in call.keywords}
    parameters = inspect.signature(getattr(augment, call.func.id)).parameters
    assert told == {name: one.default for name, one in parameters.items()}


@pytest.mark.parametrize("code", CODES)
def test_every_verdict_has_an_entry(code: str) -> None:
    page = (DOCS / "reference" / "verdicts.md").read_text()
    assert len(re.findall(rf"^(?:## |\| `){re.escape(code)}(?:$|` \|)", page, re.MULTILINE)) == 1


def section(head: str) -> str:
    """Return the text below a heading of the page about JSON, to the next heading."""
    (_, text) = re.split(rf"^##+ {re.escape(head)}$", JSON, flags=re.MULTILINE)
    return re.split("^#", text, flags=re.MULTILINE)[0]


def rows(head: str) -> dict[str, tuple[str, str]]:
    """Return the type and the meaning of each key in the table of a section."""
    found = re.findall(r"^\| `([\w.*\[\]]+)` \| (.+?) \| (.+) \|$", section(head), re.MULTILINE)
    return {key: (kind, meaning) for key, kind, meaning in found}


def paths(value: Any, at: str = "") -> Iterator[str]:
    """Yield every key with those above it. `chosen` is an item of `settings`."""
    if isinstance(value, dict) and at != "chosen":
        for key, one in value.items():
            path = f"{at}.{'*' if at == 'figures' else key}".lstrip(".")
            yield path
            yield from paths(one, path)
    elif isinstance(value, list):
        for one in value:
            yield from paths(one, f"{at}[]")


def test_the_keys_of_a_plan(tmp_path: Path) -> None:
    plan = make_plan(figures_from(PLAN.split()))
    found = json.loads(plan_json(plan, tmp_path).read_text())
    assert found["schema"] == PLAN_SCHEMA and found["chosen"] in found["settings"]
    described = rows("plan.json")
    assert list(described) == list(dict.fromkeys(paths(found)))
    assert described["schema"][1].startswith(f"{PLAN_SCHEMA},")
    topics = re.findall(r"`(\w+)`", described["needs[].topic"][1])
    assert sorted(topics) == sorted({"input", *(topic for topic, *_ in LINES)})


def test_the_units_of_figures() -> None:
    units: dict[str, set[str]] = {}
    for name, (unit, _) in KNOWN.items():
        units.setdefault("kind" if "|" in unit else unit, set()).add(name)
    table = re.findall(r"^\| .+ \| (.*`.*) \|$", section("Units of figures"), re.MULTILINE)
    named = [set(re.findall(r"`(\w+)`", line)) for line in table]
    assert sorted(map(sorted, named)) == sorted(map(sorted, units.values()))


HEADER = BlackBoxHeader(4242, 1, "node7", "0.1.0", "train.py")
EVENT = BlackBoxEvent(2, 0, "stopped")
TABLE = ProducerTable(3, 1, (producer(0),))
RECORDS = (HEADER, sample(1), EVENT, TABLE, BlackBoxEnd(4, False))


def test_the_keys_of_a_running_job() -> None:
    at = sample(1)
    job = FlightRecord("box", HEADER, "running", (at,), (EVENT,), TABLE, 0, at.time_ns)
    found = figures_of(job)
    (runner,) = found["runners"]
    assert set(rows("fastfeed top --json")) == {*found, "runners[].producers"}
    assert list(runner) == [*rows("RunnerSample"), "producers"]
    assert list(runner["producers"][0]) == list(rows("ProducerSample"))
    assert list(found["events"][0]) == list(rows("BlackBoxEvent"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_the_lines_of_a_black_box(record: Record) -> None:
    ((name, values),) = json.loads(line_of(record)).items()
    assert list(rows(name)) == list(values)
    assert {type(record) for record in RECORDS} == set(KINDS.values())


@pytest.mark.parametrize("kind", FIELD_TYPES, ids=lambda kind: kind.__name__)
def test_the_types_of_a_black_box(kind: Any) -> None:
    told = {key: words.partition(",")[0] for key, (words, _) in rows(kind.__name__).items()}
    assert told == {key: TYPES[hint] for key, hint in FIELD_TYPES[kind].items()}


def test_the_states_of_runners_and_producers() -> None:
    for kind, states in (("RunnerSample", FEED_STATES), ("ProducerSample", STATES)):
        assert sorted(re.findall("`([^`]+)`", rows(kind)["state"][1])) == sorted(states)


def test_the_findings_of_the_doctor() -> None:
    found = json.loads(json_of(examine()))
    assert {tuple(one) for one in found} == {tuple(rows("fastfeed doctor --json"))}
    named = re.findall("`([^`]+)`", section("fastfeed doctor --json"))
    assert not {one["name"] for one in found} - {*named}
