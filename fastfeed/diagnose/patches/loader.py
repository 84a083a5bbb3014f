"""Changes of a DataLoader of PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fastfeed.diagnose.patches.names import bound, changed, path_of
from fastfeed.diagnose.patches.proposal import PatchCase, Proposal
from fastfeed.diagnose.patches.source_file import SourceFile

POSITIONS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
PREFETCHED = 8  # batches ahead of each worker, where few slow ones stop the rest
# Arguments of a DataLoader that a FeedRunner has under another name, or needs none for.
CARRIED = {"batch_size", "shuffle", "drop_last", "collate_fn", "dataset"}
DROPPED = {"num_workers", "persistent_workers", "prefetch_factor", "pin_memory"}
DROPPED |= {"multiprocessing_context", "timeout"}


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
            for count in dict.fromkeys(counts):
                given = {} if count == now else {"num_workers": str(count)}
                if site.fact("persistent_workers") != "True" and not _changes(file, call):
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
                    yield Proposal(title, tuple(edits), advice or straggling, makes=count != now)


class LoaderRunner:
    """A FeedRunner in place of a DataLoader: batches in shared memory, epochs without a gap."""

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        advice = case.advice("transport", "epochs", "num_workers")
        counted = case.advice("num_workers")
        for site, file, call in case.sites("DataLoader"):
            if _is_read(file, call) or _changes(file, call):
                continue
            most = case.count(counted) if counted else int(site.fact("num_workers") or 1)
            for count in dict.fromkeys((most, min(most, case.cores))):
                found = runner_of(call, file, processes=count)
                if found:
                    edits = (*case.runner_import(file), file.replaced(call, found))
                    title = f"FeedRunner(..., processes={count}).torch() in place of DataLoader"
                    yield Proposal(title, edits, advice if count == most else None, makes=True)


def _is_read(file: SourceFile, call: ast.Call) -> bool:
    """Return True if a file reads attributes of what a loader is assigned to."""
    names = set(bound([file.statement_of(call)]))
    return any(
        isinstance(node, ast.Attribute) and path_of(node.value) in names
        for node in ast.walk(file.tree)
    )


def _changes(file: SourceFile, call: ast.Call) -> bool:
    """Return True if a file may change the data of a loader after it was made: workers that live on
    would not see it."""
    data = path_of(call.args[0]) if call.args else ""
    data = next((path_of(one.value) for one in call.keywords if one.arg == "dataset"), data)
    names = {f"{name}.dataset" for name in bound([file.statement_of(call)])} | {data} - {""}
    return bool(names & changed(file.tree.body) or names & _changed_in_functions(file))


def _changed_in_functions(file: SourceFile) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return changed(
        one for node in ast.walk(file.tree) if isinstance(node, kinds) for one in node.body
    )


def runner_of(call: ast.Call, file: SourceFile, *, processes: int) -> str:
    """Return the FeedRunner that does what a DataLoader does; "" if it has no such arguments."""
    given = {name: file.source(arg) for name, arg in zip(POSITIONS, call.args, strict=False)}
    given |= {one.arg or "**": file.source(one.value) for one in call.keywords}
    if len(call.args) > len(POSITIONS) or set(given) - CARRIED - DROPPED or "dataset" not in given:
        return ""
    words = [given["dataset"], f"batch_size={given.get('batch_size', '1')}"]
    words.append(f"shuffle={given.get('shuffle', 'False')}")
    dropped = given.get("drop_last", "False")
    if dropped != "False":
        last = '"drop"' if dropped == "True" else f'"drop" if {dropped} else "keep"'
        words.append(f"last_batch={last}")
    if given.get("collate_fn", "None") != "None":
        words.append(f"collate={given['collate_fn']}")
    return f"FeedRunner({', '.join(words)}, processes={processes}).torch()"
