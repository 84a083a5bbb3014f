"""Fewer threads of PyTorch's operations, which leave cores to the producers of a change."""

from __future__ import annotations

import ast

from fastfeed.diagnose.patches.loader import TORCH, torch_of
from fastfeed.diagnose.patches.proposal import IMPORTS, PRODUCERS, PatchCase, Proposal
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called

LIMITING = "set_num_threads"


def room_for(case: PatchCase, one: Proposal) -> tuple[Edit, ...]:
    """Return the edits that limit the threads of the step to the cores that the producers of a
    change leave; none if the script limits them itself, or its loop is not one of PyTorch."""
    at, counts = case.loop_line(), PRODUCERS.findall(one.title)
    name = torch_of(at[0]) if at is not None and counts else ""
    if at is None or not name or any(map(_limits, case.files.values())):
        return ()
    threads = max(1, case.cores - max(1, int(counts[-1][1])))
    return _behind_imports(at[0], f"{name}.{LIMITING}({threads})")


def _limits(file: SourceFile) -> bool:
    return any(isinstance(one, ast.Call) and called(one) == LIMITING for one in ast.walk(file.tree))


def _behind_imports(file: SourceFile, line: str) -> tuple[Edit, ...]:
    """Return the edit that puts a line behind the import of torch and those that follow it."""
    last: ast.stmt | None = None
    for one in file.tree.body:
        if isinstance(one, ast.Import) and any(each.name == TORCH for each in one.names):
            last = one
        elif last is not None and not isinstance(one, IMPORTS):
            break
        last = one if last is not None else None
    if last is None:
        return ()
    end = file.end_of_line(last)
    return (Edit(file.name, end, end, file.newline + line),)
