"""A working copy of a script: the checkout's files, the substitutions of a variant, data."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.public.recipe import Edit, Recipe, Variant, after
from bench.public.written_data import write

STANDINS = Path(__file__).resolve().parent / "standins"
ROOT = Path(__file__).resolve().parents[2]
HOOKED = ("torch", "session", "keras")
SKIPPED = shutil.ignore_patterns("*.pyc", "__pycache__", ".git", "*.ckpt*")


class Unprepared(Exception):
    """A script that cannot be copied or changed; the text says why in one line."""


@dataclass(frozen=True)
class Prepared:
    """A script that is ready to run: in `folder`, with `script` after the word `python`."""

    folder: Path
    script: tuple[str, ...]
    environment: dict[str, str]


def prepare(
    recipe: Recipe,
    variant: str,
    *,
    checkouts: Path,
    output: Path,
    timing: dict[str, float] | None = None,
) -> Prepared:
    """Copy a script and apply a variant; with `timing` (warmup, seconds) its steps are counted.

    Steps are counted only for the truth; under the diagnosis the script has no other code in it.
    """
    source = checkouts / recipe.repository.replace("/", "+")
    script = source / recipe.path
    if not script.is_file():
        raise Unprepared(f"{recipe.name}: no {recipe.path} in {source}")
    folder = output / recipe.name / variant
    shutil.rmtree(folder, ignore_errors=True)
    home = _copy(source, script.parent, folder, recipe)
    chosen = recipe.variants[variant]
    edits = [*recipe.edits, *chosen.edits]
    if timing and recipe.count not in HOOKED:
        edits.append(_counting(recipe.count))
    _apply(recipe, edits, home, script.name)
    data = output / recipe.name / "data"
    data.mkdir(parents=True, exist_ok=True)
    if recipe.data:
        _link_data(recipe, home, output / recipe.name / "files")
    settings = _settings(recipe, chosen, folder, data, timing)
    words = (recipe.args if chosen.args is None else chosen.args).split()
    return Prepared(
        home, (script.name, *words), {**_environment(recipe, settings), **chosen.environment}
    )


def _copy(source: Path, home: Path, folder: Path, recipe: Recipe) -> Path:
    """Copy the script's folder, and those that it needs, to the same places below `folder`."""
    below = home.relative_to(source)
    for part in (below, *map(Path, recipe.needs)):
        shutil.copytree(source / part, folder / part, dirs_exist_ok=True, ignore=SKIPPED)
    (folder / ".git").mkdir(exist_ok=True)  # as in a clone: a proof looks for its root
    return folder / below


def _link_data(recipe: Recipe, home: Path, made: Path) -> None:
    """Write a script's data once, and link them into every copy."""
    inner = made / "a" / "b" / "c"  # a script may look for its data above its own folder
    if not (made / "complete").exists():
        inner.mkdir(parents=True, exist_ok=True)
        for kind in recipe.data:
            write(kind, inner, recipe.rows)
        (made / "complete").touch()
    for path in made.rglob("*"):
        if path.is_file() and path.name != "complete":
            target = Path(os.path.normpath(home / os.path.relpath(path, inner)))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            os.link(path, target)


def _apply(recipe: Recipe, edits: list[Edit], home: Path, script: str) -> None:
    for edit in edits:
        path = home / (edit.file or script)
        text, found = re.subn(
            edit.pattern,
            edit.replacement,
            path.read_text(encoding="utf-8"),
        )
        if not found:
            raise Unprepared(f"{recipe.name}: nothing matches {edit.pattern!r}")
        path.write_text(text, encoding="utf-8")


def _counting(count: str | Edit) -> Edit:
    return count if isinstance(count, Edit) else after(count)


def _settings(
    recipe: Recipe, chosen: Variant, folder: Path, data: Path, timing: dict[str, float] | None
) -> Path:
    path = folder / "settings.json"
    found = {"rows": recipe.rows, "data": str(data), "switches": list(chosen.switches)}
    if timing:
        count = recipe.count if recipe.count in HOOKED else ""
        found |= {**timing, "out": str(folder / "tally"), "count": count}
    path.write_text(json.dumps(found))
    return path


def _environment(recipe: Recipe, settings: Path) -> dict[str, str]:
    home = settings.parent / Path(recipe.path).parent
    root = recipe.environment.get("PYTHON_ROOT", "")
    path = [str(STANDINS), *([os.path.normpath(home / root)] if root else []), str(ROOT)]
    return {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "MPLBACKEND": "Agg",
        "PYTHONUNBUFFERED": "",
        **recipe.environment,
        "PUBLIC_SETTINGS": str(settings),
        "PYTHONPATH": os.pathsep.join(path),
    }
