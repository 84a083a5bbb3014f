"""Input that a loop makes between its steps, made ahead in a FeedRunner."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from typing import NamedTuple

from fastfeed.diagnose.patches.drawn_seed import drawn_seed
from fastfeed.diagnose.patches.names import (
    LOOPS,
    OWNER,
    SCOPES,
    advanced,
    bound,
    called_on,
    changed,
    leaves,
    own,
    path_of,
    read,
    read_first,
    touches,
    whole_paths,
)
from fastfeed.diagnose.patches.proposal import (
    ALIKE,
    SHOWING,
    PatchCase,
    Proposal,
    fresh,
    imported_by,
    producers_ahead,
    top_of,
)
from fastfeed.diagnose.patches.source_file import Edit, SourceFile, called
from fastfeed.diagnose.proof import OTHER_DRAWS

Loop = ast.For | ast.While
# Iterators that only count or show what they iterate over.
AROUND = ("enumerate", "tqdm")
# Keeps the items that a runner has read, in order.
READ_ITEMS = """\
{queue} = collections.deque()

def {reads}(items):
    for item in items:
        {queue}.append(item)
        yield item
"""
MADE_AHEAD = "makes the input ahead of the step"  # end of the titles
COUNTED = ("range", "trange")
# Calls whose results are no batches.
NO_BATCHES = (*COUNTED, *AROUND, "list", "sorted", "reversed", "zip", "len")


class SerialLoop:
    """A FeedRunner over what the statements of a loop's body make, or over what it iterates over.

    The statements that make the input are found by samples of the loop's thread. They move into a
    function, with those that make what they read. What the rest of the body writes, they may not
    read.
    """

    def proposals(self, case: PatchCase) -> Iterator[Proposal]:
        found = made_in_loop(case)
        seen = case.diagnosis.evidence
        if found is None or seen.loop is None:
            return
        if seen.loop.kind in ("torch", "runner", "keras", "tf.data"):
            return
        file, loops, made = found
        apart = made is not None and made.apart
        shows = _shown(file, loops[0], made=made)
        sinks = [f".{one}()" for one in ("torch", "jax") if one in imported_by(file)]
        for kind, count, advice in producers_ahead(case, most=0 if apart else 1):
            forms: list[Proposal] = []
            for sink in (*sinks, ""):
                edits, alone = (
                    made.edits(case, f"{kind}={n}", sink=sink)
                    if made is not None
                    else _around(file, loops[0], options=f"{kind}={n}", sink=sink)
                    for n in (count, 1)
                )
                if edits:
                    title = f"FeedRunner(..., {kind}={count}){sink} {MADE_AHEAD}"
                    around = case.runner_import(file)
                    one = Proposal(title, (*around, *edits), advice, shows=shows, makes=True)
                    allows = (*ALIKE, OTHER_DRAWS) if apart else ALIKE
                    apart_alone = (*around, *alone) if apart else ()
                    threads = apart and kind == "threads"
                    forms.append(replace(one, allows=allows, alone=apart_alone, shares=threads))
            if forms:
                first, *others = forms
                yield replace(first, instead=tuple(others))


def made_in_loop(case: PatchCase) -> tuple[SourceFile, list[Loop], MadeInput | None] | None:
    """Return the loops around the step, the innermost first, and the statements of its body that
    make its input; None for a loop that is not the user's own."""
    at = case.loop_line()
    loops: list[Loop] = at[0].around(at[1], ast.For, ast.While) if at is not None else []
    if at is None or not loops:
        return None
    file, line = at
    lines = [part.place.line for part in case.diagnosis.evidence.parts_of("input")]
    return file, loops, MadeInput.of(file, loops, lines=lines, step=line)


class MadeInput(NamedTuple):
    """Statements of a loop that make its input, and the names that the loop takes from them."""

    file: SourceFile
    loops: list[Loop]  # around them, the innermost first
    statements: list[ast.stmt]
    taken: list[str]
    carried: list[str]  # names that they keep from one iteration to the next
    apart: bool  # they read what the loop iterates over, so that each iteration stands for itself
    step: int  # number of the statement of the body that takes a batch, if it is known
    used: set[str]  # names that the rest of the body and of its function reads

    @classmethod
    def of(
        cls, file: SourceFile, loops: list[Loop], *, lines: Iterable[int], step: int
    ) -> MadeInput | None:
        """Return the statements at these lines, else those that make what the step at a line
        reads, with what they need; None without any, or if they cannot move."""
        loop, body = loops[0], loops[0].body
        making = {i for i, one in enumerate(body) for line in lines if _holds(one, line)}
        at = next((i for i, one in enumerate(body) if _holds(one, step)), len(body))
        if not making - {at}:
            taken_by = read([body[at]]) if at < len(body) else set()
            making = {i for i in range(at) if set(bound([body[i]])) & taken_by and _calls(body[i])}
        chosen = _needed(body, making - {at})
        statements = [body[i] for i in sorted(chosen)]
        rest: list[ast.AST] = [one for i, one in enumerate(body) if i not in chosen]
        rest += [loop.test] if isinstance(loop, ast.While) else []
        if not statements or leaves(body[min(chosen) : max(chosen) + 1]):
            return None
        written, needed = set(bound(statements)), read_first(statements)
        used = read(rest) | _read_elsewhere(file, loop)
        taken = [name for name in dict.fromkeys(bound(statements)) if name in used]
        # what they fill in place, the step would read while they fill it again
        filled = changed(statements) - (written - needed)
        filled |= advanced(statements) & read(rest) - (written - needed)
        touched = set(bound(rest)) | (changed(rest) - file.modules) | advanced(rest)
        target = _targets(loop)
        apart = bool(read(statements) & target)
        asked = not apart and _asked_elsewhere(
            called_on(statements), [*rest, *_tests(loops)], but=file.modules | (written - needed)
        )
        if not taken or filled & used or needed & touched or asked or _catches(file, loop):
            return None
        # an iteration that ends before them may guard them from its item
        early = leaves(body[: max(chosen)], by=(ast.Continue, ast.Break, ast.Return))
        if apart and (early or advanced(statements) & needed):
            return None
        carried = sorted(needed & written - target)
        return cls(file, loops, statements, taken, carried, apart, at, used)

    def edits(self, case: PatchCase, options: str, *, sink: str) -> tuple[Edit, ...]:
        """Return the edits, none if the text does not allow them."""
        file, loop = self.file, self.loops[0]
        lines = file.lines_of(self.statements)
        if lines is None:
            return ()
        if isinstance(loop, ast.For) and self.apart:
            options += drawn_seed(case, file, body=self.statements, options=options)
            return self._of_items(loop, lines, options=options, sink=sink)
        makes, batches = fresh(file, "make_batch"), fresh(file, "made_batches")
        kept = ", ".join(f"{name}={name}" for name in self.carried)
        names = ", ".join(self.taken)
        head = [f"def {makes}({f'*, {kept}' if kept else ''}):", "    while True:"]
        head += [f"        {one}" for one in lines] + [f"        yield {names}"]
        feed = f"{batches} = iter(FeedRunner({makes}, {options}){sink})"
        return self._with(
            file.inserted(self._outermost(), ["", *head, "", feed, ""]), taken=f"next({batches})"
        )

    def _of_items(
        self, loop: ast.For, lines: list[str], *, options: str, sink: str
    ) -> tuple[Edit, ...]:
        """Return the edits that make what a loop iterates over the items of a runner. What else of
        its body reads an item gets it from a queue, as the runner has read it."""
        file, target, source = self.file, self.file.source(loop.target), loop.iter
        changes = changed(loop.body) - file.modules
        touched = {*bound(loop.body), *changes, *advanced(loop.body)}
        early = leaves(loop.body, by=(ast.Break, ast.Return))
        if self.carried or read([source]) & touched or (early and not _begins_anew(source)):
            return ()
        makes, made = fresh(file, "make_batch"), fresh(file, "made_batch")
        item = target if isinstance(loop.target, ast.Name) else fresh(file, "item")
        unpacked = [f"{target} = {item}"] * (item != target)
        head = [f"def {makes}({item}):", *(f"    {one}" for one in (*unpacked, *lines))]
        head.append(f"    return {', '.join(self.taken)}")
        text = file.source(source)
        text = f"({text})" if isinstance(source, ast.Tuple) else text
        items, around = f"iter({text})", list[Edit | None]()
        if _targets(loop) & self.used:
            queue, reads = fresh(file, "items_read"), fresh(file, "read_items")
            head = [*READ_ITEMS.format(queue=queue, reads=reads).split("\n"), *head]
            items = f"{reads}({text})"
            around = [file.inserted(loop.body[0], [f"{target} = {queue}.popleft()"])]
            if imported_by(file).get("collections") != "collections":
                around += top_of(file, ["import collections"])
        return self._with(
            file.inserted(loop, ["", *head, ""]),
            file.replaced(loop.target, made),
            file.replaced(source, f"FeedRunner({items}, transform={makes}, {options}){sink}"),
            *around,
            taken=made,
        )

    def _with(self, *edits: Edit | None, taken: str) -> tuple[Edit, ...]:
        """Return edits with those that put what is `taken` in the place of the statements; none if
        the text does not allow one."""
        first, *others = self.statements
        found = [
            *edits,
            self.file.replaced(first, f"{', '.join(self.taken)} = {taken}"),
            *(self.file.removed(one) for one in others),
        ]
        return tuple(found) if None not in found else ()  # type: ignore[arg-type]

    def shown(self) -> tuple[Edit, ...]:
        """Return the edit that shows what the statements make, and what else of the body the
        statement reads that takes it, before that one."""
        body = self.loops[0].body
        first = body.index(self.statements[-1]) + 1
        takes = (i for i in range(first, len(body)) if read([body[i]]) & set(self.taken))
        at = self.step if first <= self.step < len(body) else next(takes, first)
        if at == len(body):
            return ()
        beside = bound(one for one in body[:at] if not hasattr(one, "body"))
        used = read([body[at]])
        names = dict.fromkeys([*self.taken, *(name for name in beside if name in used)])
        edit = self.file.inserted(body[at], [SHOWING.format(f"batch(({', '.join(names)},))")])
        return (edit,) if edit is not None else ()

    def _outermost(self) -> ast.stmt:
        """Return the outermost loop of the same function that writes nothing of what is read."""
        found: Loop = self.loops[0]
        needed = read_first(self.statements)
        moved = {id(node) for one in self.statements for node in ast.walk(one)}
        for loop in self.loops[1:]:
            between = [node for node in self.file.ancestors(found) if isinstance(node, SCOPES)]
            others = [n for n in own(loop) if isinstance(n, ast.stmt) and id(n) not in moved]
            others = [n for n in others if not hasattr(n, "body")]
            written = {*bound([*others, *_heads(loop)]), *changed(others), *advanced(others)}
            changes = {name.partition(".")[0] for name in written} - self.file.modules - {OWNER}
            if needed & (written | changes) or any(scope in ast.walk(loop) for scope in between):
                break
            found = loop
        return found


def _tests(loops: Iterable[Loop]) -> list[ast.AST]:
    """Return what decides how long loops, and those around them, go on."""
    return [one.test for loop in loops for one in own(loop) if isinstance(one, (ast.While, ast.If))]


def _asked_elsewhere(owners: Set[str], nodes: Iterable[ast.AST], *, but: Set[str]) -> bool:
    """Return True if nodes read an object whose methods make the input, but for those with these
    names: what it says, such as a count of epochs, would be ahead."""
    own_ones = [one for one in owners if one.partition(".")[0] not in but]
    paths = whole_paths(nodes)
    return any(touches(one, path) for one in own_ones for path in paths)


def _heads(loop: Loop) -> list[ast.AST]:
    """Return what the loops within a loop, and itself, bind in their heads."""
    found: list[ast.AST] = [node.target for node in own(loop) if isinstance(node, LOOPS)]
    items = [node.items for node in own(loop) if isinstance(node, (ast.With, ast.AsyncWith))]
    return [*found, *(item.optional_vars for of in items for item in of if item.optional_vars)]


def _catches(file: SourceFile, loop: Loop) -> bool:
    """Return True if the end of an iterator may be caught around a loop: it would come from a
    producer then."""
    for node in file.ancestors(loop):
        if isinstance(node, SCOPES):
            return False
        if isinstance(node, ast.Try) and any(
            path_of(one.type or ast.Name("", ast.Load())) != "KeyboardInterrupt"
            for one in node.handlers
        ):
            return True
    return False


def _iterated(loop: Loop) -> ast.expr | None:
    """Return what makes the batches that a loop iterates over; None if nothing does."""
    source = loop.iter if isinstance(loop, ast.For) else None
    while isinstance(source, ast.Call) and called(source) in AROUND and source.args:
        source = source.args[0]
    if isinstance(source, ast.Call):
        return None if called(source) in NO_BATCHES else source
    return source if isinstance(source, (ast.Name, ast.Attribute)) else None


def shown_by_loop(case: PatchCase) -> tuple[Edit, ...]:
    """Return the edit that shows what the loop takes, where no hook sees it."""
    found, seen = made_in_loop(case), case.diagnosis.evidence.loop
    if found is None or seen is None or seen.kind in ("keras", "tf.data", "session"):
        return ()
    file, loops, made = found
    return _shown(file, loops[0], made=made)


def _shown(file: SourceFile, loop: Loop, *, made: MadeInput | None) -> tuple[Edit, ...]:
    """Return the edit that shows what the body of a loop makes, or what it iterates over."""
    if made is not None:
        return made.shown()
    names = ", ".join(dict.fromkeys(bound([loop.target]))) if isinstance(loop, ast.For) else ""
    edit = file.inserted(loop.body[0], [SHOWING.format(f"batch(({names},))")]) if names else None
    return (edit,) if edit is not None else ()


def _around(file: SourceFile, loop: Loop, *, options: str, sink: str) -> tuple[Edit, ...]:
    """Return the edit that makes a FeedRunner of what a loop iterates over."""
    source = _iterated(loop)
    early = leaves(loop.body, by=(ast.Break, ast.Return))
    if source is None or (early and not _begins_anew(source)):
        return ()
    text = file.source(source)
    made = f"lambda: {text}" if isinstance(source, ast.Call) else text
    return (file.replaced(source, f"FeedRunner({made}, {options}){sink}"),)


def _needed(body: list[ast.stmt], chosen: set[int]) -> set[int]:
    """Return the statements with those that write what they read: before them, and behind them as
    the next state of a counter."""
    found, before = set(chosen), set[int]()
    while found != before:
        before = set(found)
        for i, one in enumerate(body):
            later = read(body[j] for j in before if j > i)
            known = read_first([body[j] for j in sorted(before)])
            counts = not _calls(one) and set(bound([one])) & known
            if {*bound([one]), *changed([one])} & later or counts:
                found.add(i)
    return found


def _targets(loop: Loop) -> set[str]:
    return set(bound([loop.target])) if isinstance(loop, ast.For) else set()


def _read_elsewhere(file: SourceFile, loop: Loop) -> set[str]:
    """Return the names that are read outside of a loop's body: in its function, or in the whole
    file if the function shares its names."""
    inside = {id(node) for one in loop.body for node in ast.walk(one)}
    around = next((one for one in file.ancestors(loop) if isinstance(one, SCOPES)), file.tree)
    shared = any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(around))
    return {
        node.id
        for node in ast.walk(file.tree if shared else around)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside
    }


def _calls(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(statement))


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _begins_anew(source: ast.expr) -> bool:
    """Return True if the text shows that what is iterated over begins anew in each loop: items that
    were read ahead of the end of one are not missing in the next."""
    if isinstance(source, ast.Call):
        return called(source) in COUNTED or all(map(_begins_anew, source.args))
    return isinstance(source, (ast.Constant, ast.List, ast.Tuple, ast.ListComp))
