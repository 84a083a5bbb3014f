"""The seed of a runner whose processes draw what the script drew from generators that it seeds."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from fastfeed.diagnose.patches.names import below, path_of, reached
from fastfeed.diagnose.patches.proposal import PatchCase
from fastfeed.diagnose.patches.source_file import SourceFile

# What draws a seed from the generator of a module, by package.
DRAWS = {
    "numpy": ("numpy.random", "int({}.random.randint(2**31))"),
    "random": ("random", "{}.getrandbits(31)"),
}
SEED_ALL = ("utils.set_random_seed", "seed_everything")  # of Keras and of Lightning
PROCESSES = "processes="  # begin of an option


def drawn_seed(
    case: PatchCase,
    file: SourceFile,
    *,
    body: Iterable[ast.stmt] | None,
    options: str,
    made_in: SourceFile | None = None,
) -> str:
    """Return the option of a runner in a file that draws its seed from a generator which the script
    seeds, and from which statements of the file `made_in` draw, if they go to processes by its
    `options`, so that these draw the same when the script runs again; "" if not. None for the
    statements: it is not known if they draw, or the runner does, for its order."""
    if PROCESSES not in options and body is not None:
        return ""
    files, statements = case.files.values(), list(body or ())
    bodies = [(made_in or file, statements)]
    bodies += [(one, function.body) for one, function in reached(files, statements)]
    names = {one: _full_names(one) for one in files}
    drawn = {name for one, parts in bodies for name in map(names[one], below(parts))}
    every = {name for one in files for name in map(names[one], ast.walk(one.tree))}
    seeds_all = any(one.endswith(SEED_ALL) for one in every)
    top = [alias for one in file.tree.body if isinstance(one, ast.Import) for alias in one.names]
    for alias in top:
        module, draw = DRAWS.get(alias.name, ("", ""))
        draws = body is None or any(_draws(one, module) for one in drawn)
        if module and draws and (seeds_all or f"{module}.seed" in every):
            return f", seed={draw.format(alias.asname or alias.name)}"
    return ""


def _full_names(file: SourceFile) -> Callable[[ast.AST], str]:
    """Return what gives the full name of the function that a node calls, "" for another node."""
    known: dict[str, str] = {}
    for node in ast.walk(file.tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            known |= {one.asname or one.name: f"{package}{one.name}" for one in node.names}

    def full_name(node: ast.AST) -> str:
        first, dot, rest = path_of(getattr(node, "func", node)).partition(".")
        return f"{known.get(first, first)}{dot}{rest}" if isinstance(node, ast.Call) else ""

    return full_name


def _draws(function: str, module: str) -> bool:
    """Return True for a function that draws from the generator of a module: its classes, and
    `default_rng`, make others."""
    owner, _, last = function.rpartition(".")
    return owner == module and last.islower() and last not in ("seed", "default_rng")
