"""A FeedRunner in place of a queue of the graph that threads of the script fill."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fastfeed.diagnose.patches.names import OWNER, last_of, own, path_of, read, read_first
from fastfeed.diagnose.patches.proposal import ALONE, COMPARED, RUNNER, PatchCase, Proposal
from fastfeed.diagnose.patches.session_graph import (
    Pair,
    argument,
    array_of,
    fed_by,
    is_changed,
    own_names,
    owner_of,
    package_of,
    repeats,
    scope_of,
    shown_as_fed,
    tuple_of,
)
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called
from fastfeed.diagnose.patches.started_workers import Filling, fillings_of

FIFO, SHUFFLED = "FIFOQueue", "RandomShuffleQueue"


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
        run = fed.put.value
        assert isinstance(run, ast.Call)
        shown = shown_as_fed(fed.file, run, keys=(key for key, _ in fed.pairs))
        imports = case.runner_import(fed.file, *more)
        for words, advice, whole in fed.filling.options(case, besides=fed.gone):
            edits = fed.edits(words + fed.filling.seed(case, words))
            if edits:
                title = (
                    f"get_inputs() of {RUNNER}({fed.filling.name}, {words}) in place of the queue"
                )
                yield Proposal(
                    title,
                    (*imports, *edits),
                    advice,
                    shows_before=shown,
                    makes=True,
                    reorders=bool(more or fed.filling.start.size),
                    allows=COMPARED,
                    single=(*imports, *fed.edits(ALONE)) if whole else None,
                )


class _FedQueue(NamedTuple):
    """A queue of the graph, what fills it, and who takes from it."""

    file: SourceFile
    filling: Filling
    store: ast.Assign  # of the queue
    queue: ast.Call
    enqueue: ast.Assign
    put: ast.Expr  # the run that fills it
    pairs: list[Pair]  # that it feeds, in the order of the queue's components
    take: ast.Call  # `queue.dequeue_many(...)`
    size: ast.expr | None  # of what is taken; None for batches as they are put
    closes: list[tuple[str, ast.stmt]]  # its name there, and what ends it

    @property
    def gone(self) -> set[str]:
        """The names that only the filling of the queue needs."""
        run = self.put.value
        assert isinstance(run, ast.Call)
        outer = self.filling.outer
        places = {outer(path_of(key)) for key, _ in self.pairs}
        session = owner_of(run)
        return {path_of(self.enqueue.targets[0]), *places, session, outer(session)}

    def edits(self, words: str) -> tuple[Edit, ...]:
        """Return the edits, none if the text does not allow them."""
        file, filling, run = self.file, self.filling, self.put.value
        assert isinstance(run, ast.Call) and isinstance(self.take.func, ast.Attribute)
        name = path_of(self.store.targets[0])
        without = {one for one in filling.given if filling.outer(one) in self.gone}
        source = filling.call(without=without, put=self.put)
        # as dequeue_many does, which leaves out what does not fill a batch
        cut = f'batch_size={file.source(self.size)}, last_batch="drop", ' if self.size else ""
        values = self._values()
        once = (self.store, self.take, filling.start.statement)  # as a runner is made and started
        if not values or self._is_changed(source) or any(repeats(file, one) for one in once):
            return ()
        if not self._alone(without):
            return ()
        taken = f"{file.source(self.take.func.value)}.get_inputs()"
        taken += "[0]" if len(values) == 1 else ""
        begun = f"{name}.start({filling.outer(owner_of(run))})"
        inner = set(ast.walk(filling.function))
        found = [
            file.replaced(
                self.queue, f"{RUNNER}({source}, {words}, epochs=1, {cut}{self._order()})"
            ),
            file.left_out(self.enqueue),
            file.replaced(self.put, f"yield {tuple_of(values)}"),
            file.replaced(self.take, taken),
            file.replaced(filling.start.statement, begun),
            *(file.left_out(one) for one in filling.start.calls),
            *(
                file.left_out(end) if end in inner else file.replaced(end, f"{queue}.stop()")
                for queue, end in self.closes
            ),
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

    def _values(self) -> list[str]:
        """Return the texts of arrays of what is fed, as the queue casts it; none if its dtypes are
        not known."""
        position = 1 + (called(self.queue) == SHUFFLED)
        given = argument(self.queue, "dtypes", position=position)
        dtypes = given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]
        if len(dtypes) != len(self.pairs):
            return []
        package = package_of(self.file, self.queue)
        found = [
            array_of(self.file, value, dtype=dtype, package=package)
            for (_, value), dtype in zip(self.pairs, dtypes, strict=True)
        ]
        return found if all(found) else []

    def _alone(self, parameters: set[str]) -> bool:
        """Return True if only the statements that go read these parameters of the function."""
        gone = [self.put, *(end for _, end in self.closes)]
        inside = {id(node) for one in gone for node in ast.walk(one)}
        names = (one for one in ast.walk(self.filling.function) if isinstance(one, ast.Name))
        return all(id(one) in inside for one in names if one.id in parameters)

    def _is_changed(self, source: str) -> bool:
        """Return True if what the producers read is bound or changed after the queue is made."""
        file, function = self.file, self.filling.function
        parameters = {one.arg for one in ast.walk(function) if isinstance(one, ast.arg)}
        names = read_first(function.body) - parameters
        names |= read([ast.parse(source, mode="eval").body]) - {"worker"}
        if self.size is not None:  # it is read where the queue is made
            names |= read([self.size])
            inner, outer = scope_of(file, self.take), scope_of(file, self.store)
            if inner is not outer and read([self.size]) & own_names(inner):
                return True
            stores = (one for one in ast.walk(file.tree) if isinstance(one, ast.Attribute))
            kept = [one.attr for one in stores if isinstance(one.ctx, ast.Store)]
            if any(kept.count(last_of(one)) > 1 for one in read([self.size]) if "." in one):
                return True
        gone = {OWNER, *(one.partition(".")[0] for one in self.gone)}
        needed = {one.partition(".")[0] for one in names} - gone
        besides = [function, self.filling.start.statement, self.enqueue]
        scopes = {file.tree: None, scope_of(file, self.store): self.store}
        return any(
            is_changed(file, needed, scope=scope, since=since, besides=besides)
            for scope, since in scopes.items()
        )


def _queues_of(file: SourceFile) -> Iterator[_FedQueue]:
    """Yield the queues of a file that one function fills."""
    for store in ast.walk(file.tree):
        if isinstance(store, ast.Assign) and len(store.targets) == 1:
            queue = store.value
            if isinstance(queue, ast.Call) and called(queue) in (FIFO, SHUFFLED):
                found = _queue_of(file, store, queue=queue)
                if found is not None:
                    yield found


def _queue_of(file: SourceFile, store: ast.Assign, *, queue: ast.Call) -> _FedQueue | None:
    """Return a queue with what uses it; None if it is used in another way."""
    methods: dict[str, list[ast.Call]] = {}
    for use in file.loads(path_of(store.targets[0])):
        attribute, call, *_ = file.ancestors(use)
        if not isinstance(attribute, ast.Attribute) or getattr(call, "func", None) is not attribute:
            return None
        assert isinstance(call, ast.Call)
        methods.setdefault(attribute.attr, []).append(call)
    closes = [_run_of(file, one) for one in methods.pop("close", [])]
    pair = ("enqueue_many", "dequeue_many")
    if set(methods) != set(pair):
        pair = ("enqueue", "dequeue")  # of batches as they are
    if set(methods) != set(pair) or [len(methods[one]) for one in pair] != [1, 1]:
        return None
    (enqueue,), (take,) = (methods[one] for one in pair)
    many = pair[0] == "enqueue_many"
    size, made = argument(take, "n", position=0) if many else None, file.statement_of(enqueue)
    if (many and size is None) or (not many and called(queue) != FIFO) or None in closes:
        return None
    if not isinstance(made, ast.Assign) or made.value is not enqueue or not enqueue.args:
        return None
    given = enqueue.args[0]
    parts = given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]
    fed = [_fed_in(one, made, places=list(map(path_of, parts))) for one in fillings_of(file)]
    known = [one for one in fed if one is not None]
    if len(known) != 1:
        return None
    ends = [one for one in closes if one is not None]
    return _FedQueue(*(file, known[0][0], store, queue, made, *known[0][1:], take, size, ends))


def _run_of(file: SourceFile, close: ast.Call) -> tuple[str, ast.stmt] | None:
    """Return the name of a queue and the statement that runs nothing but its end; None if another
    does."""
    statement = file.statement_of(close)
    call = statement.value if isinstance(statement, ast.Expr) else None
    alone = isinstance(call, ast.Call) and call.args == [close]
    return (owner_of(close), statement) if alone else None


def _fed_in(
    filling: Filling, enqueue: ast.Assign, *, places: list[str]
) -> tuple[Filling, ast.Expr, list[Pair]] | None:
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
    if any(id(one) not in known for one in filling.file.loads(name)):
        return None
    fed = {filling.outer(path_of(key)): (key, value) for key, value in fed_by(run)}
    if not owner_of(run) or sorted(fed) != sorted(places):
        return None
    return filling, put, [fed[one] for one in places]
