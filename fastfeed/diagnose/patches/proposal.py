"""What patches get and give: a case, and proposals of changes."""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fastfeed.diagnose.diagnosis import Diagnosis, Recommendation
from fastfeed.diagnose.patches.call_site import CallSite
from fastfeed.diagnose.patches.names import below, path_of, stored_outside
from fastfeed.diagnose.patches.notebook import NOTEBOOK, Notebook
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called
from fastfeed.diagnose.proof import SAME, UNKNOWN, WORDS

RUNNER = "FeedRunner"
PRODUCERS = re.compile(r"\b(processes|threads|num_workers)=([0-9]+)")
# Of a change that runs the same code in the same order: equal seeds must give equal batches.
ALIKE = (SAME, UNKNOWN)
COMPARED = WORDS[: WORDS.index(UNKNOWN)]  # of a change whose batches must be seen
ALONE = "threads=1"  # options of a runner that does so, ahead of the step
# Calls in a run's copy of the script; see ticks.py.
SHOWING = "__import__('fastfeed.diagnose.prove.ticks', fromlist=['*']).{}"
IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Proposal:
    """A change: its title, edits of the user's files, and the advice that it follows, if any.

    `instead`: other forms of the same change, to be tried if this one fails to run or makes other
    batches. `shows`: edits that show the batches of the loop, before and after the change, where no
    hook sees them; `shows_before`: only before it. `makes`: it says who makes the batches, so that
    one such change is enough.
    `rarer`: the script then does something less often, so that its user gets other results.
    `casts`: batches have another dtype on purpose. `reorders`: their order is another one, seen or
    not. `allows`: what its batches may be, of WORDS.
    `freezes`: what random numbers decide would be the same in each epoch. `alone`: edits of the
    same change with one producer. Several of them may make other batches than the script does, but
    the same as this one: then no batch depends on those that were made before it. `single`: edits
    of the same change with one thread, where each of its producers has a whole stream. Unless they
    share out its records, the batches of this thread may depend on none of those before. `shares`:
    these producers are threads, which share the random generators of the process. `room`: a
    change that leaves these producers the cores that the step takes and does not use.
    """

    title: str
    edits: tuple[Edit, ...]
    advice: Recommendation | None = None
    instead: tuple[Proposal, ...] = ()
    shows: tuple[Edit, ...] = ()
    shows_before: tuple[Edit, ...] = ()
    makes: bool = False
    rarer: bool = False
    casts: bool = False
    reorders: bool = False
    allows: tuple[str, ...] = WORDS[:-1]
    freezes: bool = False
    alone: tuple[Edit, ...] = ()
    single: tuple[Edit, ...] | None = None
    shares: bool = False
    room: Proposal | None = None


class Patch(Protocol):
    """One kind of change."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        """Yield the changes of this kind that fit."""


class PatchCase:
    """A diagnosis beside the source of the script: `files` by their full names, and the calls that
    made what feeds it."""

    def __init__(
        self,
        diagnosis: Diagnosis,
        *,
        files: Mapping[str, SourceFile],
        calls: Sequence[CallSite],
        script: str,
    ) -> None:
        self.diagnosis = diagnosis
        self.files = files
        self.script = script  # the full name of the file that runs, "" for another form
        self.failed: list[str] = []  # patches that could not read the files, and why
        self._calls = calls

    def note_failure(self, patch: Patch, error: Exception) -> None:
        """Note that a patch could not read the files."""
        what = f"{type(error).__name__}: {error}"
        self.failed.append(f"{type(patch).__name__}: it cannot read this script ({what})")

    @property
    def cores(self) -> int:
        """Number of cores."""
        return self.diagnosis.evidence.machine.cores

    def advice(self, *knobs: str) -> Recommendation | None:
        """Return the first advice that turns one of these knobs."""
        known = (*self.diagnosis.recommendations, *self.diagnosis.may_cost)
        return next((one for one in known if one.knob in knobs), None)

    def count(self, advice: Recommendation | None) -> int:
        """Return the number that an advice names, else that of the cores."""
        return int(advice.value) if advice is not None and advice.value.isdigit() else self.cores

    def sites(self, *names: str) -> Iterator[tuple[CallSite, SourceFile, ast.Call]]:
        """Yield the calls of these names that feed the loop, or that feed none of which it is
        known."""
        loop = self.diagnosis.evidence.loop
        where = loop.where if loop is not None else ""
        known = [one for one in self._calls if one.name in names]
        feeding = [one for one in known if one.used_at and one.used_at == where]
        for site in dict.fromkeys(feeding or [one for one in known if not one.used_at]):
            file, last = self.files.get(site.file), site.name.removeprefix("tf.data ")
            calls = file.calls_at(site.line, *CALLED.get(site.name, (last,))) if file else []
            if file is not None and calls:
                yield site, file, calls[0]

    def loop_line(self) -> tuple[SourceFile, int] | None:
        """Return the file of the loop and its line; None if it is not the user's own."""
        loop = self.diagnosis.evidence.loop
        name, _, line = (loop.where if loop is not None else "").rpartition(":")
        known = self._named(name) if loop is not None and line.isdigit() else []
        for file in known:
            if loop is not None and loop.text.strip() in ("", file.line(int(line))):
                return file, int(line)
        return None

    def is_told(
        self, file: SourceFile, *, by: ast.FunctionDef, besides: Set[str] = frozenset()
    ) -> bool:
        """Return True if the function of the loop, or the file if it is in none, reads what a
        function stores for it, such as a count; `besides` what goes anyway."""
        at = self.loop_line()
        if at is None or at[0] is not file:
            return False
        around = [one for one in file.around(at[1], ast.FunctionDef) if one is not by]
        scope = around[0] if around else file.tree
        calls = [one for one in ast.walk(file.tree) if isinstance(one, ast.Call)]
        calls = [one for one in calls if called(one) == by.name]
        stored, given = stored_outside(by), dict[str, ast.expr]()
        for call in calls:
            given |= dict(zip((one.arg for one in by.args.args), call.args, strict=False))
            given |= {one.arg: one.value for one in call.keywords if one.arg is not None}
        stored -= {one.arg for one in by.args.args} - set(given)  # which no call here gives
        stored = {path_of(given[one]).partition(".")[0] if one in given else one for one in stored}
        inside = set(below((*calls, by)))
        names = (one for one in ast.walk(scope) if isinstance(one, ast.Name))
        reads = {one.id for one in names if one not in inside and isinstance(one.ctx, ast.Load)}
        return bool((stored - file.modules - besides) & reads)

    def file_named(self, name: str) -> SourceFile | None:
        """Return the file with this name in reports; None if there is none, or more than one."""
        found = self._named(name)
        return found[0] if len(found) == 1 else None

    def _named(self, name: str) -> list[SourceFile]:
        end = os.sep + name.removeprefix(os.sep)
        return [file for path, file in self.files.items() if path.endswith(end)]

    def runner_import(self, file: SourceFile, *others: str) -> tuple[Edit, ...]:
        """Return the edits that import FeedRunner, and others, for a whole file, none if the file
        does so. What imports it in a function goes: the name would belong to that function."""
        known = [one for one in ast.walk(file.tree) if isinstance(one, ast.ImportFrom)]
        there = [name for one in known if one in file.tree.body for name in _aliases(one)]
        names = [name for name in (RUNNER, *others) if (name, None) not in there]
        if not names:
            return ()
        inner = (file.left_out(one) for one in known if _aliases(one) == [(RUNNER, None)])
        line = f"from fastfeed import {', '.join(names)}"
        return (*top_of(file, [line]), *(edit for edit in inner if edit is not None))


def producers_ahead(
    case: PatchCase, *, most: int = 0
) -> Iterator[tuple[str, int, Recommendation | None]]:
    """Yield the kinds and numbers of producers that may help, with the advice that names them, the
    advised kind first: as many as are advised, and one for each core; at most `most`, if given."""
    advice = case.advice("processes", "threads")
    counts = dict.fromkeys(min(most or n, n) for n in (case.count(advice), case.cores))
    kinds = ["threads", "processes"]
    if advice is not None and advice.knob == "processes":
        kinds.reverse()
    for kind, count in [*((kinds[0], n) for n in counts), (kinds[1], max(counts))]:
        told = advice is not None and f"{kind}={count}" == f"{advice.knob}={advice.value}"
        yield kind, count, advice if told else None


# Last names of the functions that a call site may call, by its name.
CALLED = {
    "Thread": ("start",),
    "Process": ("start",),
    "Pool": ("ThreadPoolExecutor", "ProcessPoolExecutor", "Pool", "ThreadPool"),
    "fit": ("fit", "fit_generator"),
}


def imported_by(file: SourceFile) -> dict[str, str]:
    """Return the names of the packages that a file imports, by the package."""
    found: dict[str, str] = {}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                package, dot, _ = one.name.partition(".")
                if not dot or not one.asname:  # a module below it has an alias of its own
                    found[package] = one.asname or package
                found.setdefault(package, "")
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.setdefault(node.module.split(".")[0], "")
    return found


def _aliases(statement: ast.ImportFrom) -> list[tuple[str, str | None]]:
    return [(one.name, one.asname) for one in statement.names]


def top_of(file: SourceFile, lines: Sequence[str], *, first: bool = False) -> tuple[Edit, ...]:
    """Return the edit that puts lines behind the imports of a file, or with `first` before them;
    none without a place."""
    body = list(file.tree.body)
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    while body and isinstance(body[0], ast.ImportFrom) and body[0].module == "__future__":
        body = body[1:]
    imports = list(itertools.takewhile(lambda one: isinstance(one, IMPORTS), body))
    if imports and not first:
        end = file.end_of_line(imports[-1])
        return (Edit(file.name, end, end, "".join(file.newline + line for line in lines)),)
    edit = file.inserted(body[0], lines) if body else None
    return (edit,) if edit is not None else ()


def fresh(file: SourceFile, name: str) -> str:
    """Return a name that a file does not use yet."""
    used = {node.id for node in ast.walk(file.tree) if isinstance(node, ast.Name)}
    used |= {node.arg for node in ast.walk(file.tree) if isinstance(node, ast.arg)}
    used |= {node.name for node in ast.walk(file.tree) if isinstance(node, ast.FunctionDef)}
    used |= {n.asname or n.name for n in ast.walk(file.tree) if isinstance(n, ast.alias)}
    return name if name not in used else fresh(file, f"{name}_")


def read_sources(paths: Iterable[Path]) -> dict[str, SourceFile]:
    """Return the sources that can be read, by their full names."""
    found = {}
    for path in paths:
        try:
            file = Notebook(path) if path.suffix == NOTEBOOK else SourceFile(path)
            if file.encoding == "utf-8":  # as the diff is
                found[str(path)] = file
        except (OSError, SyntaxError, ValueError):
            continue  # of another Python, or of none: the script does not run it either
    return found
