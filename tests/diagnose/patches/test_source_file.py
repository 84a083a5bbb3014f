"""Edits of source files leave everything else as it is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.patches.source_file import Edit, SourceFile, edited
from fastfeed.errors import OptionError

CALLS = [
    ("f(1)", "f(1, n=2)"),
    ("f()", "f(n=2)"),
    ("f(a=1,)", "f(a=1, n=2)"),
    ("f(\n    1,\n    a=3,  # why\n)", "f(\n    1,\n    a=3, n=2  # why\n)"),
    ("f((1))", "f((1), n=2)"),
    ("f(n=5)", "f(n=2)"),
    ("f('ü漢', [1])", "f('ü漢', [1], n=2)"),
    ("f(1, **more)", "f(1, **{**more, 'n': 2})"),
    ("x = (a\n        .g()\n    .f(1))", "x = (a\n        .g()\n    .f(1, n=2))"),
    ("(a\n    .f(\n  1,\n))", "(a\n    .f(\n  1, n=2\n))"),
    ("x = g(f(1)).h(2)", "x = g(f(1, n=2)).h(2)"),
]


def file_of(folder: Path, text: str) -> SourceFile:
    path = folder / "one.py"
    path.write_bytes(text.encode())
    return SourceFile(path)


@pytest.mark.parametrize(("before", "after"), CALLS)
def test_a_keyword_is_added_or_replaced(tmp_path: Path, before: str, after: str) -> None:
    file = file_of(tmp_path, f"# é\n{before}\n")
    (call, *_) = file.calls_at(2 + before.count("\n") // 2, "f")
    found = edited(file.text, [file.with_keyword(call, "n", value="2")])
    assert found == f"# é\n{after}\n"
    ast.parse(found)


def test_an_argument_by_its_position_is_replaced(tmp_path: Path) -> None:
    file = file_of(tmp_path, "f(a, 3)\n")
    (call,) = file.calls_at(1, "f")
    assert edited(file.text, [file.with_keyword(call, "n", value="2", position=1)]) == "f(a, 2)\n"


def test_lines_come_with_the_indentation_and_the_line_ends_of_the_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, "if True:\r\n    go()\r\n")
    (call,) = file.calls_at(2, "go")
    edit = file.inserted(file.statement_of(call), ["a = 1", "b = 2"])
    assert edit is not None
    assert edited(file.text, [edit]) == "if True:\r\n    a = 1\r\n    b = 2\r\n    go()\r\n"


def test_a_statement_that_shares_its_line_is_neither_moved_nor_removed(tmp_path: Path) -> None:
    file = file_of(tmp_path, "if True: go(); stay()\n")
    (call,) = file.calls_at(1, "go")
    statement = file.statement_of(call)
    assert file.inserted(statement, ["a = 1"]) is None
    assert file.removed(statement) is None
    assert file.lines_of([statement]) is None


def test_two_changes_of_one_place_are_refused() -> None:
    edits = [Edit("one.py", 0, 3, "a"), Edit("one.py", 2, 4, "b")]
    with pytest.raises(OptionError, match="two changes of the same place of one.py"):
        edited("abcdef", edits)


def test_a_text_of_another_encoding_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nf('é')\n".encode("latin-1"))
    file = SourceFile(path)
    (call,) = file.calls_at(2, "f")
    found = edited(file.text, [file.with_keyword(call, "n", value="2")])
    assert found.encode(file.encoding).endswith("f('é', n=2)\n".encode("latin-1"))


@given(st.data())
def test_edits_in_any_order_give_the_same_text(data: st.DataObject) -> None:
    text = data.draw(st.text("abc\n", min_size=1, max_size=20))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=6)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    edits = [Edit("", begin, end, f"<{n}>") for n, (begin, end) in enumerate(dict.fromkeys(spans))]
    expected = edited(text, edits)
    assert edited(text, data.draw(st.permutations(edits))) == expected
    kept = "".join(c for i, c in enumerate(text) if not any(b <= i < e for b, e in spans))
    assert "".join(c for c in expected if c not in "<>0123456789") == kept
