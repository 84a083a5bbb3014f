"""Changes of a DataLoader of PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fastfeed.diagnose.patches.call_site import CallSite
from fastfeed.diagnose.patches.epochs import is_left_early
from fastfeed.diagnose.patches.names import OWNER, bound, changed, last_of, only_sets_up, path_of
from fastfeed.diagnose.patches.proposal import PatchCase, Proposal, top_of
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called
from fastfeed.diagnose.proof import SAME_RECORDS, WORDS

POSITIONS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
TORCH = "torch"
START = "worker_init_fn"
SPAWN = "spawn"
SERVER_IMPORT = 'multiprocessing.set_forkserver_preload(["torch"])'
PREFETCHED = 8  # batches ahead of each worker, where few slow ones stop the rest
# Arguments of a DataLoader that a FeedRunner has under another name, or needs none for.
CARRIED = {"batch_size", "shuffle", "drop_last", "collate_fn", "dataset", "generator"}
DROPPED = {"num_workers", "persistent_workers", "prefetch_factor", "pin_memory"}
DROPPED |= {"multiprocessing_context", "timeout", START}
# Attributes of a DataLoader that no TorchBatches has, and few other objects.
OF_LOADERS = {"dataset", "sampler", "batch_sampler", "collate_fn"}


class LoaderWorkers:
    """Another number of workers, that live on between epochs."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        advice = case.advice("num_workers") or case.advice("epochs")
        straggling = case.advice("order")
        counted = advice is not None and advice.knob == "num_workers"
        for site, file, call in case.sites("DataLoader"):
            now = int(site.fact("num_workers") or 0)
            counts = [case.count(advice), case.cores] if counted or not now else [now]
            counts += [case.cores] * (now > case.cores)
            # new workers would draw the same numbers, and random batches would not show it
            alike = site.fact("draws") == "True" and site.fact("starts") != "True"
            for count in dict.fromkeys(min(n, max(1, now)) if alike else n for n in counts):
                given = {} if count == now else {"num_workers": str(count)}
                if site.fact("persistent_workers") != "True" and not _changes(case, call):
                    given["persistent_workers"] = "True"
                if straggling is not None:
                    given["prefetch_factor"] = str(PREFETCHED)
                edits = [
                    file.with_keyword(call, name, value=value, position=POSITIONS.index(name))
                    if name in POSITIONS
                    else file.with_keyword(call, name, value=value)
                    for name, value in given.items()
                ]
                title = ", ".join(f"{name}={value}" for name, value in given.items())
                if edits:
                    told, makes = advice or straggling, count != now
                    whole = makes and _is_whole(site, file, call=call)
                    allows = SAME_RECORDS if whole else WORDS[:-1]
                    yield Proposal(title, tuple(edits), told, makes=makes, allows=allows)


class LoaderStart:
    """Workers that import torch once for all epochs, where each epoch needs new ones."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        for site, file, call in case.sites("DataLoader"):
            starts = site.fact("start") == SPAWN and int(site.fact("num_workers") or 0) > 0
            if starts and site.fact("persistent_workers") != "True" and _changes(case, call):
                value = "'forkserver'"
                workers = _workers_of(call)
                if not isinstance(workers, ast.Constant):  # none, at times: no start method then
                    value += f" if ({file.source(workers)}) else None"
                edits = (
                    *top_of(file, ["import multiprocessing", "", SERVER_IMPORT]),
                    file.with_keyword(call, "multiprocessing_context", value=value),
                )
                title = 'multiprocessing_context="forkserver", which imports torch once'
                yield Proposal(title, edits, case.advice("epochs"))


class LoaderRunner:
    """A FeedRunner in place of a DataLoader: batches in shared memory, epochs without a gap."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        advice, counted = case.advice("transport"), case.advice("num_workers")
        for site, file, call in case.sites("DataLoader"):
            if _is_read(case, file, call=call) or _changes(case, call):
                continue
            if site.fact("stream") == "True" and is_left_early(case):
                continue
            most = case.count(counted) if counted else int(site.fact("num_workers") or 1)
            for count in dict.fromkeys((most, min(most, case.cores))):
                found = runner_of(call, file, processes=count)
                if found and not _has_start(site, file, call=call):
                    edits = (*_torch_import(file), *case.runner_import(file))
                    edits = (*edits, file.replaced(call, found))
                    title = f"FeedRunner(..., processes={count}).torch() in place of DataLoader"
                    told = advice if count == most else None
                    allows = SAME_RECORDS if _is_whole(site, file, call=call) else WORDS[:-1]
                    yield Proposal(title, edits, told, makes=True, allows=allows)


def _workers_of(call: ast.Call) -> ast.expr:
    """Return the number of workers that a call of DataLoader gives."""
    given = {one.arg: one.value for one in call.keywords} | dict(
        zip(POSITIONS, call.args, strict=False)
    )
    return given.get("num_workers", ast.Constant(0))


def _torch_import(file: SourceFile) -> tuple[Edit, ...]:
    """Return the edits that import torch for a whole file, behind what it imports of it."""
    if _torch_of(file):
        return ()
    imports = [one for one in file.tree.body if isinstance(one, ast.ImportFrom)]
    parts = [one for one in imports if f"{one.module}.".startswith(f"{TORCH}.") and not one.level]
    if not parts:
        return top_of(file, [f"import {TORCH}"])
    _, end = file.span(parts[0])
    return (Edit(file.name, end, end, f"\nimport {TORCH}"),)


def _torch_of(file: SourceFile) -> str:
    """Return the name of torch in a whole file; "" if it has none."""
    imports = [one for one in file.tree.body if isinstance(one, ast.Import)]
    names = [one for statement in imports for one in statement.names if one.name == TORCH]
    return names[0].asname or TORCH if names else ""


def _is_whole(site: CallSite, file: SourceFile, *, call: ast.Call) -> bool:
    """Return True if each worker of a loader reads all of its data, which is an epoch for each of
    them. Where random numbers decide the batches, no comparison shows it."""
    return site.fact("whole") == "True" and not _has_start(site, file, call=call)


def _has_start(site: CallSite, file: SourceFile, *, call: ast.Call) -> bool:
    """Return True if a function of the script does at the start of each worker what those of a
    FeedRunner do not do anyway."""
    given = [one.value for one in call.keywords if one.arg == START]
    known = len(given) == 1 and only_sets_up(file, given[0])
    return site.fact("starts") == "True" and not known


def _is_read(case: PatchCase, file: SourceFile, *, call: ast.Call) -> bool:
    """Return True if a file may read attributes of a loader: of what it is assigned to, by its last
    name, or those that hardly anything but a loader has."""
    names, nodes, others = _held_by(file, call), _nodes(case), _of_others(case, call)
    methods = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    others |= {f"{name}.{one}" for name in _other_loaders(case, names) for one in OF_LOADERS}
    return any(
        last_of(path_of(node.value)) in names
        or (node.attr in OF_LOADERS - methods and path_of(node) not in others)
        for node in nodes
        if isinstance(node, ast.Attribute)
    )


def _other_loaders(case: PatchCase, names: set[str]) -> set[str]:
    """Return what holds other loaders than `names`, and is no parameter, which may be any."""
    parameters = {node.arg for node in _nodes(case) if isinstance(node, ast.arg)}
    held = {
        name
        for file in case.files.values()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call) and called(node) == "DataLoader"
        for name in bound([file.statement_of(node)])
    }
    return held - names - parameters


def _of_others(case: PatchCase, call: ast.Call) -> set[str]:
    """Return the dotted names of what is no attribute of a loader: of modules, of parsed arguments,
    of the data themselves, and what is stored, which a loader allows for none of them."""
    nodes = _nodes(case)
    modules = {name for file in case.files.values() for name in file.modules}
    known = [path_of(one) for one in nodes if isinstance(one, ast.Attribute)]
    stores = (one for one in nodes if isinstance(getattr(one, "ctx", None), ast.Store))
    parsed = {
        path_of(one.targets[0])
        for one in nodes
        if isinstance(one, ast.Assign)
        and isinstance(one.value, ast.Call)
        and called(one.value).startswith("parse_")
    }
    found = {path_of(one) for one in stores}
    found |= {f"{name}.{one}" for name in (_data_of(call), *parsed) for one in OF_LOADERS}
    return found | {one for one in known if one.partition(".")[0] in modules}


def _nodes(case: PatchCase) -> list[ast.AST]:
    return [node for file in case.files.values() for node in ast.walk(file.tree)]


def _held_by(file: SourceFile, call: ast.Call) -> set[str]:
    """Return the last names of what a loader is assigned to."""
    statement = file.statement_of(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {last_of(path_of(one)) for one in targets} | set(bound([statement])) - {""}


def _data_of(call: ast.Call) -> str:
    """Return the name of a loader's data; "" if they have none."""
    given = next((one.value for one in call.keywords if one.arg == "dataset"), None)
    return path_of(given or call.args[0]) if given or call.args else ""


def _changes(case: PatchCase, call: ast.Call) -> bool:
    """Return True if a file may change the data of a loader after it was made: workers that live on
    would not see it. It has their name, or takes them from a loader. What a dataset does to its own
    parts, its workers do, too."""
    data, others = _data_of(call).removeprefix(f"{OWNER}."), _of_others(case, call)
    for file in case.files.values():
        for node, path in [(n, path) for n in ast.walk(file.tree) for path in _touched_by(n)]:
            name = path.removeprefix(f"{OWNER}.")
            own = name != path and any(map(_is_dataset, file.ancestors(node)))
            loader, through, _ = f"{path}.".partition(".dataset.")
            held = bool(through) and f"{loader}.dataset" not in others
            if not own and ((data and name == data) or held):
                return True
    return False


def _is_dataset(node: ast.AST) -> bool:
    names = {getattr(one, "name", "") for one in getattr(node, "body", [])}
    return isinstance(node, ast.ClassDef) and bool(names & {"__getitem__", "__iter__"})


def _touched_by(node: ast.AST) -> Iterator[str]:
    """Yield the names of what a node may change: parts of it, or itself in a call whose result
    nobody takes."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        yield path_of(node.value)
    elif isinstance(node, ast.Expr):
        yield from changed([node])


def runner_of(call: ast.Call, file: SourceFile, *, processes: int) -> str:
    """Return the FeedRunner that does what a DataLoader does; "" if it has no such arguments."""
    given = {name: file.source(arg) for name, arg in zip(POSITIONS, call.args, strict=False)}
    given |= {one.arg or "**": file.source(one.value) for one in call.keywords}
    if len(call.args) > len(POSITIONS) or set(given) - CARRIED - DROPPED or "dataset" not in given:
        return ""
    words = [given["dataset"], f"batch_size={given.get('batch_size', '1')}"]
    words += [f"shuffle={given['shuffle']}"] if given.get("shuffle", "False") != "False" else []
    dropped = given.get("drop_last", "False")
    if dropped != "False":
        last = '"drop"' if dropped == "True" else f'"drop" if ({dropped}) else "keep"'
        words.append(f"last_batch={last}")
    if given.get("collate_fn", "None") != "None":
        words.append(f"collate={given['collate_fn']}")
    # As a DataLoader, which draws its own: a script that seeds torch draws the same again.
    drawn = f", generator={given['generator']}" if "generator" in given else ""
    words.append(f"seed=int({_torch_of(file) or TORCH}.randint(2**62, (){drawn}))")
    return f"FeedRunner({', '.join(words)}, processes={processes}).torch()"
