"""A notebook of Jupyter as a source file: the code of its cells, one after the other."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastfeed.diagnose.patches.source_file import Edit, SourceFile, edited
from fastfeed.errors import OptionError

NOTEBOOK = ".ipynb"
# Lines of IPython, such as %matplotlib inline, !ls and len?
COMMAND = re.compile(r"\s*([!?].|%{1,2}\s*\w|.*\?\s*$)")
# What times a statement that is no block.
TIMED = re.compile(r"%time(?=\s+\S)(?!\s+(for|while|with|if|try|def|class|async)\b)")
OF_PYTHON = re.compile(r"\s*%%(time|timeit|capture|prun)\b")  # the cell below it is Python
STYLES = tuple(itertools.product((1, 2, 4, None), (False, True), ("\n", "")))


class Notebook(SourceFile):
    """A notebook. The commands of IPython in its code are comments, and so are cells of another
    language.

    Raise OptionError for a file that is no notebook, SyntaxError for code that is no Python.
    """

    def _read(self, path: Path) -> tuple[str, str]:
        data = path.read_bytes()
        try:
            self._original = data.decode()
            cells = [_source(one) for one in _code_cells(json.loads(self._original))]
        except (ValueError, LookupError, TypeError):
            raise OptionError(f"{path} is no notebook of Jupyter, of version 4 or later") from None
        return "utf-8", "".join(f"{_python(one)}\n" for one in cells)

    def stored(self, edits: Iterable[Edit] = ()) -> str:
        """Return the text of the file with edits of the code, in the form that it has."""
        changes = list(edits)
        if not changes:
            return self._original
        notebook, begin = json.loads(self._original), 0
        for cell in _code_cells(notebook):
            source = f"{_source(cell)}\n"
            end = begin + len(source)
            last = end == len(self.text)
            own = [
                one._replace(begin=one.begin - begin, end=one.end - begin)
                for one in changes
                if begin <= one.begin and (one.begin < end or last)
            ]
            if own:
                text = edited(source, own).removesuffix("\n")
                cell["source"] = text if isinstance(cell["source"], str) else text.splitlines(True)
            begin = end
        return _dumped(notebook, self._style())

    def _style(self) -> tuple[int | None, bool, str]:
        """Return how JSON is written so that the rest of the file stays as it is."""
        notebook = json.loads(self._original)
        fitting = (one for one in STYLES if _dumped(notebook, one) == self._original)
        return next(fitting, STYLES[0])


def _dumped(notebook: Any, style: tuple[int | None, bool, str]) -> str:
    indent, ascii_only, end = style
    return json.dumps(notebook, indent=indent, ensure_ascii=ascii_only) + end


def _code_cells(notebook: Any) -> list[dict[str, Any]]:
    return [one for one in notebook["cells"] if one["cell_type"] == "code"]


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _python(source: str) -> str:
    """Return a cell with commands of IPython as comments, in the same number of characters."""
    lines = source.split("\n")
    first = next((one for one in lines if one.strip()), "")
    if first.lstrip().startswith("%%") and not OF_PYTHON.match(first):
        return "\n".join("#" + line[1:] if line else "" for line in lines)
    while True:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            at = (error.lineno or 0) - 1
            if not 0 <= at < len(lines) or not COMMAND.match(lines[at]):
                break  # the script says what is wrong with it
            blanks = lines[at][: -len(lines[at].lstrip())]
            command, timed = lines[at][len(blanks) :], TIMED.match(lines[at].lstrip())
            more = command.endswith("\\")
            if timed:
                lines[at] = f"{blanks}0;   {command[len('%time') :]}"
                continue
            # a block must not get empty
            empty = ("0#" if blanks else "#")[: len(command)]
            lines[at] = blanks + empty + command[len(empty) :]
            while more and at + 1 < len(lines):
                at, more = at + 1, lines[at + 1].endswith("\\")
                lines[at] = lines[at] and "#" + lines[at][1:]
        else:
            break
    return "\n".join(lines)
