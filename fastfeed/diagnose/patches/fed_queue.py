"""A FeedRunner in place of a queue of the graph that threads of the script fill."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fastfeed.diagnose.patches.fed_loop import (
    argument,
    dtype_text,
    fed_by,
    owner_of,
    package_of,
    tuple_of,
)
from fastfeed.diagnose.patches.names import own, path_of
from fastfeed.diagnose.patches.proposal import RUNNER, PatchCase, Proposal
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called
from fastfeed.diagnose.patches.started_workers import Filling, fillings_of

FIFO, SHUFFLED = "FIFOQueue", "RandomShuffleQueue"
SIZED = {"enqueue_many": "", "enqueue": "records=True, "}  # options with a number of records


class FedQueue:
    """`get_inputs()` in place of `dequeue_many`, and `start(session)` in place of the threads.

    What the function of the threads feeds to the operation that fills the queue, it yields.
    """

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        loop = case.diagnosis.evidence.loop
        files = dict.fromkeys(file for _, file, _ in case.sites("Thread"))
        found = [one for file in files for one in _queues_of(file)]
        if loop is None or loop.kind != "session" or len(found) != 1:
            return
        (fed,) = found
        more = ["Shuffle"] * (called(fed.queue) == SHUFFLED)
        for words, advice, allows in fed.filling.options(case, besides=""):
            edits = fed.edits(words)
            if edits:
                title = (
                    f"get_inputs() of {RUNNER}({fed.filling.name}, {words}) in place of the queue"
                )
                edits = (*case.runner_import(fed.file, *more), *edits)
                mixed = bool(more or fed.filling.start.size)
                yield Proposal(title, edits, advice, makes=True, reorders=mixed, allows=allows)


class _FedQueue(NamedTuple):
    """A queue of the graph, what fills it, and who takes from it."""

    file: SourceFile
    filling: Filling
    store: ast.Assign  # of the queue
    queue: ast.Call
    enqueue: ast.Assign
    put: ast.Expr  # the run that fills it
    values: list[ast.expr]  # that it feeds, in the order of the queue's components
    places: list[str]  # the placeholders of these
    take: ast.Call  # `queue.dequeue_many(...)`
    sized: str  # options of the batches that it gives
    closes: list[ast.stmt]

    def edits(self, words: str) -> tuple[Edit, ...]:
        """Return the edits, none if the text does not allow them."""
        file, filling, run = self.file, self.filling, self.put.value
        assert isinstance(run, ast.Call) and isinstance(self.take.func, ast.Attribute)
        name, session = path_of(self.store.targets[0]), owner_of(run)
        gone = {path_of(self.enqueue.targets[0]), *self.places, filling.outer(session)}
        without = {one for one in filling.given if filling.outer(one) in gone}
        source = filling.call(without=without, put=self.put)
        options = f"{words}, {self.sized}{self._order()}{self._dtypes()}"
        one = "[0]" if len(self.values) == 1 else ""
        taken = f"{file.source(self.take.func.value)}.get_inputs(){one}"
        yielded = f"yield {tuple_of(map(file.source, self.values))}"
        found = [
            file.replaced(self.queue, f"{RUNNER}({source}, {options})"),
            file.left_out(self.enqueue),
            file.replaced(self.put, yielded),
            file.replaced(self.take, taken),
            file.replaced(filling.start.statement, f"{name}.start({filling.outer(session)})"),
            *(file.left_out(one) for one in filling.start.calls),
            *(file.replaced(one, f"{name}.stop()") for one in self.closes),
        ]
        return tuple(found) if None not in found else ()  # type: ignore[arg-type]

    def _order(self) -> str:
        if called(self.queue) == FIFO:
            return "shuffle=False"
        names = ("capacity", "min_after_dequeue")
        given = [argument(self.queue, name, position=n) for n, name in enumerate(names)]
        known = [(name, one) for name, one in zip(names, given, strict=True) if one is not None]
        texts = (f"{name}={self.file.source(one)}" for name, one in known)
        return f"shuffle=Shuffle({', '.join(texts)})"

    def _dtypes(self) -> str:
        """Return the option that casts as the queue does, "" if its dtypes are not known."""
        position = 1 + (called(self.queue) == SHUFFLED)
        given = argument(self.queue, "dtypes", position=position)
        if not isinstance(given, (ast.List, ast.Tuple)):
            return ""
        package = package_of(self.file, self.queue).removesuffix(".queue")
        texts = [dtype_text(self.file, one, package=package) for one in given.elts]
        return f", dtypes={tuple_of(texts)}" if all(texts) else ""


def _queues_of(file: SourceFile) -> Iterator[_FedQueue]:
    """Yield the queues of a file that one function fills."""
    for store in ast.walk(file.tree):
        if isinstance(store, ast.Assign) and len(store.targets) == 1:
            queue = store.value
            if isinstance(queue, ast.Call) and called(queue) in (FIFO, SHUFFLED):
                found = _queue_of(file, store, queue)
                if found is not None:
                    yield found


def _queue_of(file: SourceFile, store: ast.Assign, queue: ast.Call) -> _FedQueue | None:
    """Return a queue with what uses it; None if it is used in another way."""
    methods: dict[str, list[ast.Call]] = {}
    for use in _loads(file, path_of(store.targets[0])):
        attribute, call, *_ = file.ancestors(use)
        if not isinstance(attribute, ast.Attribute) or getattr(call, "func", None) is not attribute:
            return None
        assert isinstance(call, ast.Call)
        methods.setdefault(attribute.attr, []).append(call)
    closes = [file.statement_of(one) for one in methods.pop("close", [])]
    puts = [one for one in SIZED if one in methods]
    takes = [one for one in ("dequeue_many", "dequeue") if one in methods]
    if (
        len(methods) != 2
        or len(puts) != 1
        or len(takes) != 1
        or sum(map(len, methods.values())) != 2
    ):
        return None
    (enqueue,), (take,) = methods[puts[0]], methods[takes[0]]
    made = file.statement_of(enqueue)
    sized = ""
    if takes[0] == "dequeue_many" and len(take.args) == 1:
        # as the operation does, which leaves out what does not fill a batch
        sized = f"{SIZED[puts[0]]}batch_size={file.source(take.args[0])}, "
        sized += 'last_batch="drop", '
    elif called(queue) != FIFO or puts[0] != "enqueue":
        return None
    if not isinstance(made, ast.Assign) or made.value is not enqueue or not enqueue.args:
        return None
    if not all(isinstance(one, ast.Expr) for one in closes):
        return None
    given = enqueue.args[0]
    parts = given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]
    places = [path_of(one) for one in parts]
    fed = [found for one in fillings_of(file) if (found := _fed_in(one, made, places)) is not None]
    if len(fed) != 1:
        return None
    filling, put, values = fed[0]
    return _FedQueue(*(file, filling, store, queue, made, put, values, places, take, sized, closes))


def _fed_in(
    filling: Filling, enqueue: ast.Assign, places: list[str]
) -> tuple[Filling, ast.Expr, list[ast.expr]] | None:
    """Return the one run of a function that fills a queue, and what it feeds to these placeholders;
    None without one, or if others run the operation, too."""
    name = path_of(enqueue.targets[0])
    runs = [
        (node, node.value)
        for one in filling.function.body
        for node in own(one)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if called(node.value) == "run" and node.value.args
        if filling.outer(path_of(node.value.args[0])) == name
    ]
    if len(runs) != 1:
        return None
    put, run = runs[0]
    known = {id(node) for one in (put, filling.start.statement) for node in ast.walk(one)}
    if any(id(one) not in known for one in _loads(filling.file, name)):
        return None
    fed = {filling.outer(path_of(key)): value for key, value in fed_by(run) or ()}
    if not owner_of(run) or sorted(fed) != sorted(places):
        return None
    return filling, put, [fed[one] for one in places]


def _loads(file: SourceFile, path: str) -> list[ast.Name | ast.Attribute]:
    """Return the nodes that read a name, or an attribute of `self`, which others may read by the
    name of their object."""
    owner, _, name = path.rpartition(".")
    if not owner:
        return [one for one in file.loads() if isinstance(one, ast.Name) and one.id == name]
    known = (one for one in file.loads() if isinstance(one, ast.Attribute) and one.attr == name)
    return [one for one in known if path_of(one).partition(".")[0] not in file.modules]
