"""The house style, where a machine can hold it: sizes, parameters, import direction, frameworks, public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastfeed
from fastfeed import errors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fastfeed"
OURS = sorted(PACKAGE.rglob("*.py"))
ALL = OURS + [f for folder in ("tests", "examples", "bench") for f in sorted((ROOT / folder).rglob("*.py"))]
Function = ast.FunctionDef | ast.AsyncFunctionDef

# Each room may import from itself and from those above it.
ROOMS = (
    (
        *("errors", "machine", "structure", "batch", "collate", "options", "stats", "model", "timeline"),
        *("augment", "passing", "watching", "worker", "plan", "samplers", "mix", "shuffle", "position"),
    ),
    ("ring",),
    ("source", "producers"),
    ("feed", "hints", "runs", "shuffled"),
    ("sinks", "live"),
    # "" is the package itself: its public names
    ("runner", "ending", "epoch", "frameworks", "passes", "state", "stream", "taken", ""),
    ("benchmark", "diagnose", "keras", "testing"),
    ("cli", "__main__"),
)
FRAMEWORKS = {"tensorflow", "keras", "torch", "jax", "cv2", "matplotlib", "nvidia", "sklearn", "pynvml"}
# Whoever lives here may import a framework.
FRAMEWORK_FILES = tuple(f"sinks/{name}_" for name in ("session", "tf", "checkpoint", "keras", "torch", "jax"))
FRAMEWORK_FILES += ("benchmark/", "live/gpu", "augment/opencv", "augment/dali")
# Sorted; at most 15.
PUBLIC = [
    *("FeedError", "FeedOptions", "FeedRunner", "FeedStopped", "FeedTimeout", "FeedWarning", "MissingExtra"),
    *("OptionError", "ProducerError", "Shuffle", "Snapshot", "SpecError", "StateError", "Worker", "watch"),
]


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


def functions(file: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree_of(file)) if isinstance(node, Function))


@pytest.fixture(params=ALL, ids=name_of)
def any_file(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(params=OURS, ids=name_of)
def our_file(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_files_are_short(any_file: Path) -> None:
    assert len(any_file.read_text().splitlines()) < 300


def test_functions_are_short(any_file: Path) -> None:
    lines = {f"{f.name}, line {f.lineno}": f.end_lineno - f.lineno + 1 for f in functions(any_file)}
    assert not {name: count for name, count in lines.items() if count >= 50}


def parameters(function: Function) -> tuple[list[ast.arg], list[ast.arg]]:
    """The positional ones without self and cls, and all."""
    args = function.args
    positional = [a for a in args.posonlyargs + args.args if a.arg not in ("self", "cls")]
    return positional, positional + args.kwonlyargs


def test_parameters_are_few_and_named(our_file: Path) -> None:
    """__exit__ is called by Python itself, with three."""
    found = []
    for function in functions(our_file):
        positional, every = parameters(function)
        if len(every) > 6 or (len(positional) > 2 and function.name != "__exit__"):
            found.append(f"line {function.lineno}: {function.name}({', '.join(a.arg for a in every)})")
    assert not found, "more than 6 parameters, or more than two before the first keyword-only one:\n" + "\n".join(found)


def imports(node: ast.AST) -> Iterator[str]:
    """The dotted names of all imports, also inside functions, but not those that only a type checker runs."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "write absolute imports"
        yield node.module or ""
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def level(room: str) -> int:
    return next(i for i, rooms in enumerate(ROOMS) if room in rooms)


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_room(name: str) -> str | None:
    """The room of fastfeed that an import goes to; a public name is the package's."""
    parts = name.split(".")
    if parts[0] != "fastfeed":
        return None
    known = {room for rooms in ROOMS for room in rooms}
    return parts[1] if len(parts) > 1 and parts[1] in known else ""


def test_imports_go_downhill(our_file: Path) -> None:
    room = room_of(our_file)
    if room == "__init__":
        return
    names = [n for n in imports(tree_of(our_file)) if n != "fastfeed"]  # the package alone always comes first
    rooms = {r for r in map(imported_room, names) if r is not None}
    assert not {r or "fastfeed" for r in rooms if level(r) > level(room)}


def test_every_room_is_known() -> None:
    known = {room for rooms in ROOMS for room in rooms} | {"__init__"}
    assert {room_of(f) for f in OURS} <= known


def test_frameworks_stay_in_their_own_files(our_file: Path) -> None:
    if str(our_file.relative_to(PACKAGE)).startswith(FRAMEWORK_FILES):
        return
    assert not {n.split(".")[0] for n in imports(tree_of(our_file))} & FRAMEWORKS


def test_only_the_command_line_prints(our_file: Path) -> None:
    calls = [n for n in ast.walk(tree_of(our_file)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    assert room_of(our_file) == "cli" or not [c.lineno for c in calls if c.func.id == "print"]


def test_nothing_is_asserted_of_users(our_file: Path) -> None:
    """An assert with a message is meant for somebody: that must be an error of its own."""
    assert not [n.lineno for n in ast.walk(tree_of(our_file)) if isinstance(n, ast.Assert) and n.msg is not None]


def test_public_names() -> None:
    assert sorted(fastfeed.__all__) == PUBLIC
    assert len(PUBLIC) <= 15
    assert all(getattr(fastfeed, name).__doc__ for name in PUBLIC)


def test_importing_fastfeed_imports_no_framework() -> None:
    code = f"import sys, fastfeed; print(sorted({FRAMEWORKS!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.OptionError, ValueError),
        (errors.SpecError, ValueError),
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
    assert not issubclass(errors.FeedWarning, errors.FeedError), "a warning is not caught with the errors"
