"""A source file of the user's: its syntax tree, and edits that leave the rest of its text alone.

Edits are spans of the original text. So those of several patches apply together, in any order, as
long as no two of them change the same span.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from fastfeed.errors import OptionError

Statement = TypeVar("Statement", bound=ast.AST)
BLANKS = frozenset(
    (
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
        *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    )
)


class Edit(NamedTuple):
    """Replacement of the characters from `begin` to `end` by `text`; `file` is a full name."""

    file: str
    begin: int
    end: int
    text: str


class SourceFile:
    """A Python file. Raise SyntaxError or UnicodeDecodeError for another text."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.encoding, self.text = self._read(path)
        self.tree = ast.parse(self.text, self.name)
        self.newline = "\r\n" if "\r\n" in self.text else "\n"
        self._lines = self.text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def _read(self, path: Path) -> tuple[str, str]:
        """Return the encoding and the text."""
        data = path.read_bytes()
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        return encoding, data.decode(encoding)

    def stored(self, edits: Iterable[Edit] = ()) -> str:
        """Return the text of the file with edits, as `edited` does."""
        return edited(self.text, edits)

    @cached_property
    def _parents(self) -> Mapping[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def modules(self) -> frozenset[str]:
        """The names of imported modules: a call of their functions changes none of them."""
        found = (node for node in ast.walk(self.tree) if isinstance(node, ast.Import))
        names = (one for node in found for one in node.names)
        return frozenset(one.asname or one.name.partition(".")[0] for one in names)

    def line(self, number: int) -> str:
        """Return a line, without blanks around it; "" if there is none."""
        return self._lines[number - 1].strip() if 0 < number <= len(self._lines) else ""

    def source(self, node: ast.AST) -> str:
        """Return the text of a node."""
        begin, end = self.span(node)
        return self.text[begin:end]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return the begin and the end of a node in the text."""
        at: ast.expr = node  # type: ignore[assignment]  # statements and keywords have lines, too
        return (
            self._offset(at.lineno, at.col_offset),
            self._offset(at.end_lineno or at.lineno, at.end_col_offset or 0),
        )

    def calls_at(self, line: int, *names: str) -> list[ast.Call]:
        """Return the calls that contain a line, of functions with one of these last names; the
        shortest come first."""
        found = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and called(node) in names
            and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        return sorted(found, key=lambda node: len(self.source(node)))

    def loads(self, path: str) -> list[ast.Name | ast.Attribute]:
        """Return the nodes that read a name, or an attribute of `self`, which others may read by
        the name of their object."""
        name, of_self = path.rpartition(".")[2], "." in path
        found: list[ast.Name | ast.Attribute] = []
        for one in ast.walk(self.tree):
            if isinstance(one, ast.Name) and not of_self:
                found += [one] * (one.id == name and isinstance(one.ctx, ast.Load))
            elif isinstance(one, ast.Attribute) and of_self and one.attr == name:
                known = getattr(one.value, "id", "") in self.modules
                found += [one] * (not known and isinstance(one.ctx, ast.Load))
        return found

    def around(self, line: int, *kinds: type[Statement]) -> list[Statement]:
        """Return the nodes of these kinds that contain a line, the innermost first."""
        found = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0)  # type: ignore[attr-defined]
        ]
        return sorted(found, key=lambda node: -node.lineno)  # type: ignore[attr-defined]

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the statement that contains a node."""
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain a node, the innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def indent(self, statement: ast.AST) -> str | None:
        """Return the blanks before a statement; None if it does not begin its line."""
        begin, _ = self.span(statement)
        line = self.text[self.text.rfind("\n", 0, begin) + 1 : begin]
        return line if not line.strip() else None

    def lines_of(self, statements: Iterable[ast.stmt]) -> list[str] | None:
        """Return the lines of statements without their common indentation, with comments but for
        that of the first one, whose line stays; None if they cannot be moved: they share lines with
        others, or hold strings of several lines."""
        found: list[str] = []
        for one in statements:
            indent, (begin, end) = self.indent(one), self.span(one)
            text = self.text[begin : self.end_of_line(one) if found else end]
            strings = (n for n in ast.walk(one) if isinstance(n, (ast.Constant, ast.JoinedStr)))
            if indent is None or any(n.lineno != n.end_lineno for n in strings):
                return None
            found += [line.removeprefix(indent).rstrip("\r") for line in text.split("\n")]
        return found

    def end_of_line(self, node: ast.AST) -> int:
        """Return the end of the line that a node ends in, behind its comment."""
        end = self.span(node)[1]
        found = self.text.find(self.newline, end)
        return len(self.text) if found < 0 else found

    def replaced(self, node: ast.AST, text: str) -> Edit:
        """Return the edit that puts `text` in the place of a node."""
        return Edit(self.name, *self.span(node), text)

    def inserted(self, statement: ast.stmt, lines: Iterable[str]) -> Edit | None:
        """Return the edit that puts lines before a statement; None if it begins no line."""
        indent = self.indent(statement)
        if indent is None:
            return None
        begin = self.span(statement)[0] - len(indent)
        text = "".join(f"{indent if line else ''}{line}{self.newline}" for line in lines)
        return Edit(self.name, begin, begin, text)

    def removed(self, statement: ast.stmt) -> Edit | None:
        """Return the edit that removes the lines of a statement; None if it shares one."""
        begin, end = self.span(statement)
        indent, after = self.indent(statement), self.text[end:].split("\n", 1)[0]
        if indent is None or after.strip().startswith(";"):
            return None
        return Edit(self.name, begin - len(indent), end + len(after) + 1, "")

    def left_out(self, statement: ast.stmt) -> Edit | None:
        """Return the edit that removes a statement, or puts `pass` in the place of all that its
        block holds; None if it shares a line."""
        around = self._parents[statement]
        blocks = [getattr(around, name, []) for name in ("body", "orelse", "finalbody")]
        return (
            self.replaced(statement, "pass") if [statement] in blocks else self.removed(statement)
        )

    def with_keyword(self, call: ast.Call, name: str, *, value: str, position: int = -1) -> Edit:
        """Return the edit that gives a call the keyword `name`, which may be its argument number
        `position` by now."""
        given = {one.arg: one.value for one in call.keywords if one.arg is not None}
        if name in given:
            return self.replaced(given[name], value)
        if 0 <= position < len(call.args):
            return self.replaced(call.args[position], value)
        more = next((one.value for one in call.keywords if one.arg is None), None)
        if more is not None:  # it may be among them
            begin, end = self.span(more)
            text = f"{{**{self.text[begin:end]}, {name!r}: {value}}}"
            return Edit(self.name, begin, end, text)
        last, end = self._last_token(call)
        comma = {"(": "", ",": " "}.get(last, ", ")
        return Edit(self.name, end, end, f"{comma}{name}={value}")

    def _last_token(self, call: ast.Call) -> tuple[str, int]:
        """Return the last token before the closing parenthesis of a call, and its end."""
        text, (begin, _) = self.source(call), self.span(call)
        # in a parenthesis of its own, where indentation means nothing
        tokens = tokenize.generate_tokens(io.StringIO(f"({text})").readline)
        known = [one for one in tokens if one.type not in BLANKS]
        (row, column), lines = known[-3].end, text.split("\n")
        column -= row == 1
        return known[-3].string, begin + sum(len(line) + 1 for line in lines[: row - 1]) + column

    def _offset(self, line: int, column: int) -> int:
        """Return the place of a column, which counts bytes of UTF-8."""
        text = self._lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode())
        return self._starts[line - 1] + column


def called(call: ast.Call) -> str:
    """Return the last name of the function that is called, "" if it has none."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with edits; those of one place keep their order.

    Raise OptionError if two of them change the same span.
    """
    position, parts = 0, []
    for one in sorted(dict.fromkeys(edits), key=lambda edit: (edit.begin, edit.end)):
        if one.begin < position:
            raise OptionError(f"two changes of the same place of {one.file}")
        parts += [text[position : one.begin], one.text]
        position = one.end
    return "".join([*parts, text[position:]])
