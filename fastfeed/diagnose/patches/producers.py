"""Other numbers of producers, of a FeedRunner or of the script's own threads and processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fastfeed.diagnose.patches.names import (
    LOOPS,
    below,
    bound,
    functions_of,
    last_of,
    only_seeds,
    path_of,
)
from fastfeed.diagnose.patches.proposal import PatchCase, Proposal, producers_ahead, top_of
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called
from fastfeed.diagnose.patches.started_workers import WORKERS, started_by
from fastfeed.diagnose.proof import SAME_RECORDS, WORDS
from fastfeed.options import AUTO
from fastfeed.producers.process.forkserver import ONE_THREAD

COUNTS = ("threads", "processes")
COUNTING = ("range", "Barrier")


class RunnerOptions:
    """Other options of a FeedRunner that the script has: as many producers as are advised, and
    others that may gain, too."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        for _, file, call in case.sites("FeedRunner"):
            yield from _other_counts(case, file, call=call)
            bounds = [one.value for one in call.keywords if one.arg in ("prefetch", "memory")]
            if bounds and case.advice("order") is not None:
                edits = tuple(file.replaced(one, "None") for one in bounds)
                yield Proposal("prefetch and memory by default", edits, case.advice("order"))
            for knob, value in (("order", '"any"'), ("dtypes", '"float32"'), ("cache", '"ram"')):
                advice = case.advice(knob)
                if advice is not None and (knob, advice.value) != ("dtypes", "final"):
                    edit = file.with_keyword(call, knob, value=value)
                    casts, freezes = knob == "dtypes", knob == "cache"
                    yield Proposal(f"{knob}={value}", (edit,), advice, casts=casts, freezes=freezes)


def _other_counts(case: PatchCase, file: SourceFile, *, call: ast.Call) -> Iterator[Proposal]:
    """Yield other numbers of threads and of processes of a FeedRunner."""
    known: dict[str | None, ast.expr] = {one.arg: one.value for one in call.keywords}
    written = set(known)
    if None not in known:  # they are not among those of a dict
        known = {"threads": ast.Constant(1), "processes": ast.Constant(0), **known}
    now = {name: one.value for name, one in known.items() if isinstance(one, ast.Constant)}
    one = (now.get("threads"), now.get("processes")) in ((1, 0), (1, 1))
    source = (
        call.args[0]
        if call.args
        else next((one.value for one in call.keywords if one.arg == "source"), None)
    )
    whole = one and source is not None and _has_streams(case, file, source=source)
    here = (file.with_keyword(call, "processes", value="0"),) * (now.get("processes") == 1)
    for kind, count, advice in producers_ahead(case):
        # unless advised, "auto" stays, and so do the threads of a worker process
        stays = AUTO in now.values() or (kind == "threads" and now.get("processes") != 0)
        if (stays and not advice) or now.get(kind) == count:
            continue
        edits = [file.with_keyword(call, kind, value=str(count))]
        if kind == "processes":  # threads are then those of each process
            edits += [file.with_keyword(call, "threads", value="1")] * ("threads" in written)
        yield Proposal(
            f"{kind}={count}", tuple(edits), advice, makes=True, single=here if whole else None
        )


def _has_streams(case: PatchCase, file: SourceFile, *, source: ast.expr) -> bool:
    """Return True for what may be a callable, which gives each producer a stream. One that takes a
    `worker` is asked for its share."""
    if isinstance(source, ast.Call) and called(source) == "partial" and source.args:
        source = source.args[0]
    if isinstance(source, ast.Call):
        return False  # several share what it returns
    makers = [one.args for each in case.files.values() for one in functions_of(each, source)]
    makers += [source.args] if isinstance(source, ast.Lambda) else []
    names = {one.arg for maker in makers for one in ast.walk(maker) if isinstance(one, ast.arg)}
    return "worker" not in names


class StartedProducers:
    """Another number of threads or processes that a loop of the script starts."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        advice = case.advice(*COUNTS)
        if advice is None or not advice.value.isdigit():
            return
        kind = "Process" if advice.knob == "processes" else "Thread"
        for _, file, call in case.sites(kind):
            counted, may_share_out = counted_around(file, call)
            if counted is not None:
                title = f"{kind.lower()}s: {file.source(counted)} -> {advice.value}"
                # A thread that gets its number may read its share, and the shares of another number
                # may leave some out; one that ends may read everything, as often as there are
                # threads. Only the batches show that they do not, random ones never.
                allows = SAME_RECORDS if may_share_out else WORDS[:-1]
                edit = file.replaced(counted, advice.value)
                yield Proposal(title, (edit,), advice, makes=True, allows=allows)
        for _, file, call in case.sites("Pool"):
            edit = _sized(file, call, value=advice.value)
            yield Proposal(f"a pool of {advice.value}", (edit,), advice)


class PoolThreads:
    """One thread in each pool of native libraries of the producers."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        file = case.files.get(case.script)
        for knob in ("cv2.setNumThreads", "OMP_NUM_THREADS"):
            advice = case.advice(knob)
            if advice is None or file is None:
                continue
            line = f"cv2.setNumThreads({advice.value})"
            lines, first = ["import cv2", line], False
            if knob == "OMP_NUM_THREADS":
                line = f'os.environ["{knob}"] = "{advice.value}"'
                # an earlier value of the script itself would win
                lines, first = ["import os", f"{line}  # before numpy and the like load"], True
            own = _set_by(file, value=advice.value) if first else ()
            yield Proposal(line, (*top_of(file, lines, first=first), *own), advice)


def _set_by(file: SourceFile, *, value: str) -> Iterator[Edit]:
    """Yield the edits of numbers of threads that a file sets later, which would win."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            known = getattr(target.slice, "value", None) in ONE_THREAD
            if known and path_of(target) == "os.environ":
                yield file.replaced(node.value, f'"{value}"')
        elif isinstance(node, ast.Call) and path_of(node.func) == "torch.set_num_threads":
            yield from (file.replaced(one, value) for one in node.args)


def counted_around(file: SourceFile, call: ast.AST) -> tuple[ast.expr | None, bool]:
    """Return the number of `range` in the innermost loop around a call, and whether the records may
    depend on it: the loop's own number is read, other than as a seed, or what it starts ends. None
    without one, and if its name is read elsewhere."""
    for node in file.ancestors(call):
        if isinstance(node, ast.For):
            loops: list[ast.For | ast.comprehension] = [node]
            made: list[ast.AST] = list(node.body)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            loops, made = list(node.generators), [node.elt]
        else:
            continue
        for one in loops:
            source = one.iter
            if isinstance(source, ast.Name):  # threads that another loop has made
                return _counted_in(file, source.id)
            if isinstance(source, ast.Call) and called(source) == "range" and len(source.args) == 1:
                counted = source.args[0]
                names = set(bound([one.target]))
                loads = {part for part in below(made) if getattr(part, "id", "") in names}
                shares = bool(loads - _seeds_in(file, made)) or _ends(file, made)
                return None if _is_read_elsewhere(file, counted) else counted, shares
        return None, False
    return None, False


def _seeds_in(file: SourceFile, made: list[ast.AST]) -> set[ast.AST]:
    """Return the nodes of what threads get only as a seed."""
    started = [given for one in below(made) if (given := started_by(file, one))]
    return {
        part
        for function, given in started
        for name, value in given.items()
        if only_seeds(function, name)
        for part in ast.walk(value)
    }


def _ends(file: SourceFile, made: list[ast.AST]) -> bool:
    """Return True if threads run a function of the file that only loops over what ends, such as a
    generator of which that is true."""
    calls = [one for one in below(made) if isinstance(one, ast.Call) and called(one) in WORKERS]
    given = [one.value for call in calls for one in call.keywords if one.arg == "target"]
    names = {last_of(path_of(one)) for one in given}
    functions = [one for one in ast.walk(file.tree) if isinstance(one, ast.FunctionDef)]
    found: list[ast.FunctionDef] = []
    while more := [one for one in functions if one.name in names and one not in found]:
        found += more
        sources = [one.iter for one in below(more) if isinstance(one, LOOPS)]
        names |= {called(one) for one in below(sources) if isinstance(one, ast.Call)}
    return bool(found) and not any(
        isinstance(one, ast.While) or _is_asked(one) for one in below(found)
    )


def _is_asked(node: ast.AST) -> bool:
    """Return True for `iter(get, end)`, which asks others, and for `itertools.count()`."""
    return isinstance(node, ast.Call) and (
        called(node) == "count" or (called(node) == "iter" and len(node.args) == 2)
    )


def _is_read_elsewhere(file: SourceFile, counted: ast.expr) -> bool:
    """Return True if a file may use the number of threads elsewhere: its name, or an equal number
    that counts, too."""
    name, nodes = path_of(counted), list(ast.walk(file.tree))
    if isinstance(counted, ast.Constant):
        given = (part for one in nodes for part in _counting(one))
        numbers = (one for one in given if isinstance(one, ast.Constant))
        return any(one is not counted and one.value == counted.value for one in numbers)
    same = (n for n in nodes if isinstance(n, ast.expr) and path_of(n) == name)
    stored = (ast.Store, ast.Del)
    return bool(name) and any(
        one is not counted and not isinstance(getattr(one, "ctx", None), stored) for one in same
    )


def _counting(node: ast.AST) -> list[ast.expr]:
    """Return the parts of a node that may be a number of threads: `range(4)`, `n < 4`, `* 4`."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [node.left, node.right]
    return node.args if isinstance(node, ast.Call) and called(node) in COUNTING else []


def _counted_in(file: SourceFile, name: str) -> tuple[ast.expr | None, bool]:
    """Return the number of a list that a comprehension over `range` makes."""
    for node in ast.walk(file.tree):
        made = node.value if isinstance(node, ast.Assign) else None
        threads = isinstance(node, ast.Assign) and bound(node.targets) == [name]
        if threads and isinstance(made, ast.ListComp):
            return counted_around(file, made.elt)
    return None, False


def _sized(file: SourceFile, call: ast.Call, *, value: str) -> Edit:
    """Return the edit of the size of a pool, its first argument."""
    keyword = next(
        (one.arg for one in call.keywords if one.arg in ("max_workers", "processes")), ""
    )
    if keyword or call.args:
        return file.with_keyword(call, keyword or "max_workers", value=value, position=0)
    begin = file.span(call)[0] + len(file.source(call.func)) + 1
    return Edit(file.name, begin, begin, value + (", " if call.keywords else ""))
