"""The house style, where a machine can hold it: sizes, parameters, import direction, frameworks,
public names."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import fastfeed
from fastfeed import errors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fastfeed"
OURS = sorted(PACKAGE.rglob("*.py"))
ALL = OURS + [
    f for folder in ("tests", "examples", "bench") for f in sorted((ROOT / folder).rglob("*.py"))
]
Function = ast.FunctionDef | ast.AsyncFunctionDef

# Each floor may import from those above it; rooms of one floor do not import each other.
FLOORS = (
    ("errors",),
    ("core",),
    ("model", "steps", "probes", "samplers", "augment", "ranks"),
    ("options",),
    ("source", "ring"),
    ("producers",),
    ("producers.process",),
    ("producers.remote",),
    ("engine",),
    ("jobs", "sinks", "tune"),
    ("runner",),
    ("__init__", "keras"),
    ("testing", "diagnose.evidence"),
    ("diagnose.proof",),
    ("diagnose.diagnosis", "diagnose.evidence_file"),
    ("diagnose.hooks", "diagnose.sample", "diagnose.judge", "diagnose.anonymous"),
    ("diagnose.report", "diagnose.interventions", "diagnose.patches"),
    ("diagnose.run",),
    ("diagnose.prove",),
    ("benchmark",),
    ("plan",),
    ("cli",),
    ("__main__",),
)
# Packages whose __init__ is only their description.
LABELS = {"fastfeed.diagnose", "fastfeed.producers"}
FRAMEWORKS = {"tensorflow", "keras", "torch", "jax", "cv2", "matplotlib", "nvidia", "sklearn"}
FRAMEWORKS |= {"pynvml", "h5py", "ray", "prometheus_client", "tensorboard"}
# Only these files import a framework.
FRAMEWORK_FILES = tuple(
    f"sinks/{name}_" for name in ("session", "tf", "checkpoint", "keras", "torch", "jax")
)
FRAMEWORK_FILES += ("benchmark/", "probes/gpu", "augment/opencv", "augment/dali", "source/hdf5")
FRAMEWORK_FILES += ("plan/plan_command", "producers/remote/", "jobs/metrics")
# Sorted; at most 27, because `except` needs all 12 errors: 15 names for what users build.
PUBLIC = """
Augment BadImage Cache FeedError FeedOptions FeedRunner FeedStopped FeedTimeout FeedWarning
MissingExtra Mix OptionError Pad ProducerDied ProducerError ProducerFailed Remote Reorder Shard
Shuffle Skip Snapshot SpecError StateError Worker profile watch
"""


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


def functions(file: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree_of(file)) if isinstance(node, Function))


def too_long(file: Path) -> Iterator[str]:
    most = 150 if file.parent == ROOT / "examples" else 600
    if len(file.read_text().splitlines()) > most:
        yield f"more than {most} lines"


def long_functions(file: Path) -> Iterator[str]:
    for f in functions(file):
        if f.end_lineno - f.lineno + 1 > 50:
            yield f"line {f.lineno}: {f.name} has more than 50 lines"


def parameters(function: Function) -> tuple[list[ast.arg], list[ast.arg]]:
    """The positional ones without self and cls, and all."""
    args = function.args
    positional = [a for a in args.posonlyargs + args.args if a.arg not in ("self", "cls")]
    return positional, positional + args.kwonlyargs


def many_parameters(file: Path) -> Iterator[str]:
    """More than 6, or more than two before the first keyword-only one; __exit__ is called by
    Python, with three."""
    for function in functions(file):
        positional, every = parameters(function)
        if len(every) > 6 or (len(positional) > 2 and function.name != "__exit__"):
            yield f"line {function.lineno}: {function.name}({', '.join(a.arg for a in every)})"


def imports(node: ast.AST) -> Iterator[str]:
    """The dotted names of all imports, also inside functions, but not those that only a type
    checker runs."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "write absolute imports"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def floor(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def room_at(parts: tuple[str, ...]) -> str:
    """The room of a file or module inside fastfeed, by its path without the package's own name."""
    if not parts:
        return "__init__"
    if parts[0] == "diagnose" and len(parts) > 1:
        return f"diagnose.{parts[1]}"
    inner = parts[0] == "producers" and parts[1:2] in (("process",), ("remote",))
    return ".".join(parts[:2]) if inner else parts[0]


def room_of(file: Path) -> str:
    return room_at(file.relative_to(PACKAGE).with_suffix("").parts)


@cache
def modules() -> dict[str, str]:
    """The room of every module, by its dotted name."""
    found = {}
    for file in OURS:
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = room_of(file)
    return found


def imported_room(name: str) -> str | None:
    """The room that an import of fastfeed goes to; a public name belongs to the package."""
    if name.split(".")[0] != "fastfeed":
        return None
    while name not in modules():
        name = name.rpartition(".")[0]
    return modules()[name]


def uphill_imports(file: Path) -> Iterator[str]:
    room = room_of(file)
    if room in ("__init__", "diagnose.__init__"):
        return
    # `import fastfeed` runs first for every module, and the name of a room is only its label
    names = {n for n in imports(tree_of(file)) if n != "fastfeed" and n not in LABELS}
    for other in sorted({r for r in map(imported_room, names) if r is not None} - {room}):
        if floor(other) >= floor(room):
            yield f"imports {other}"


@cache
def attributes_of(node: ast.ClassDef) -> set[str]:
    """The private names that a class gives itself: methods, class variables, attributes of self."""
    found = {n.name for n in node.body if isinstance(n, Function)}
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and ast.unparse(child.value) in ("self", "cls"):
            found.add(child.attr)
        if isinstance(child, ast.AnnAssign | ast.Assign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            found |= {t.id for t in targets if isinstance(t, ast.Name)}
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


@cache
def private_names() -> set[str]:
    """Every private attribute that a class of the package gives itself."""
    classes = [n for f in OURS for n in ast.walk(tree_of(f)) if isinstance(n, ast.ClassDef)]
    return set().union(*map(attributes_of, classes))


def private_access(file: Path) -> Iterator[str]:
    """Names of another class that begin with an underscore; a class may look into its like."""

    def visit(node: ast.AST, own: set[str]) -> Iterator[str]:
        if isinstance(node, ast.ClassDef):
            own = own | attributes_of(node)
        foreign = isinstance(node, ast.Attribute) and node.attr in private_names() - own
        if foreign and ast.unparse(node.value) not in ("self", "cls", "super()", "os", "sys"):
            yield f"line {node.lineno}: {ast.unparse(node)}"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, own)

    yield from visit(tree_of(file), set())


def strange_frameworks(file: Path) -> Iterator[str]:
    if not str(file.relative_to(PACKAGE)).startswith(FRAMEWORK_FILES):
        yield from {n.split(".")[0] for n in imports(tree_of(file))} & FRAMEWORKS


def prints(file: Path) -> Iterator[str]:
    calls = [
        n
        for n in ast.walk(tree_of(file))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    if room_of(file) != "cli":
        yield from (f"line {c.lineno}: print" for c in calls if c.func.id == "print")


def told_asserts(file: Path) -> Iterator[str]:
    """An assert with a message addresses a user, who needs an error class."""
    asserts = [
        n for n in ast.walk(tree_of(file)) if isinstance(n, ast.Assert) and n.msg is not None
    ]
    yield from (f"line {n.lineno}: assert" for n in asserts)


RULES = [
    *[(check, ALL) for check in (too_long, long_functions)],
    *[
        (check, OURS)
        for check in (
            many_parameters,
            uphill_imports,
            private_access,
            strange_frameworks,
            prints,
            told_asserts,
        )
    ],
]


@pytest.mark.parametrize(
    ("check", "files"), RULES, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_house_style(check: Callable[[Path], Iterator[str]], files: list[Path]) -> None:
    assert not [f"{name_of(file)}: {fault}" for file in files for fault in check(file)]


def test_every_room_is_known() -> None:
    known = {room for rooms in FLOORS for room in rooms} | {"diagnose.__init__"}
    assert {room_of(f) for f in OURS} <= known


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for file in OURS:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(file))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def constants(file: Path) -> Iterator[str]:
    """The names of the module's constants."""
    for node in tree_of(file).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        names = [n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        yield from (n.id for n in names if n.id.isupper())


def test_constants_have_one_meaning_each() -> None:
    """MODULES is the protocol of a hook, LOG the same logger everywhere."""
    places: dict[str, list[str]] = {}
    for file in OURS:
        for name in set(constants(file)) - {"MODULES", "LOG"}:
            places.setdefault(name, []).append(name_of(file))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_file_names_are_unique() -> None:
    names = [file.name for file in OURS if file.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))


def test_the_first_level_fits_on_a_screen() -> None:
    boxes = {file.relative_to(PACKAGE).parts[0] for file in OURS}
    assert len(boxes) <= 25, sorted(boxes)


def test_the_architecture_page_names_files_that_exist() -> None:
    """Paths in code spans, as seen from the root of the repository, the package or diagnose/."""
    roots = (ROOT, PACKAGE, PACKAGE / "diagnose")
    page = (ROOT / "docs/architecture.md").read_text()
    paths = set(re.findall(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|md|json|sh))`", page))
    assert paths
    assert not [p for p in sorted(paths) if not any((r / p).exists() for r in roots)]


def dotted(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_file_imports_itself_through_others() -> None:
    """Also not through imports inside functions, or those that only a type checker runs."""
    files = {dotted(file): file for file in [*OURS, *sorted((ROOT / "bench").rglob("*.py"))]}

    def module_of(name: str) -> str | None:
        while name and name not in files:
            name = name.rpartition(".")[0]
        return None if name == "fastfeed" else name or None

    graph: dict[str, set[str | None]] = {}
    for name, file in files.items():
        names = {
            f"{n.module}.{alias.name}"
            for n in ast.walk(tree_of(file))
            if isinstance(n, ast.ImportFrom) and n.module
            for alias in n.names
        }
        graph[name] = {*map(module_of, names)} - {None, name}
        if file.name == "__init__.py":  # a package and its own files are one thing
            graph[name] = {m for m in graph[name] if m and not m.startswith(f"{name}.")}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_public_names() -> None:
    assert sorted(fastfeed.__all__) == PUBLIC.split()
    assert len(fastfeed.__all__) <= 27
    assert all(getattr(fastfeed, name).__doc__ for name in fastfeed.__all__)


def imported(program: str, names: set[str]) -> set[str]:
    """Return the modules of these that a fresh interpreter has imported after the program."""
    code = f"import sys\n{program}\nprint(*{names!r} & set(sys.modules), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_importing_fastfeed_imports_no_framework() -> None:
    assert imported("from fastfeed import *", FRAMEWORKS | {"fastfeed.runner.runner"}) == {
        "fastfeed.runner.runner"
    }


def test_a_worker_imports_little() -> None:
    assert (
        imported(
            "import fastfeed.producers.process.main",
            FRAMEWORKS | {"fastfeed.runner.runner", "fastfeed.jobs"},
        )
        == set()
    )


def test_a_name_that_is_not_there() -> None:
    assert set(fastfeed.__all__) < set(dir(fastfeed))
    with pytest.raises(AttributeError, match="module 'fastfeed' has no attribute 'Feedrunner'"):
        _ = fastfeed.Feedrunner


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.OptionError, ValueError),
        (errors.SpecError, ValueError),
        (errors.BadImage, ValueError),
        (errors.StateError, RuntimeError),
        (errors.FeedStopped, RuntimeError),
        (errors.FeedTimeout, TimeoutError),
        (errors.ProducerFailed, errors.ProducerError),
        (errors.MissingExtra, ImportError),
    ],
)
def test_the_tree_of_errors(kind: type, base: type) -> None:
    assert issubclass(kind, errors.FeedError)
    assert issubclass(kind, base)
    assert not issubclass(errors.FeedWarning, errors.FeedError), (
        "a warning is not caught with the errors"
    )
