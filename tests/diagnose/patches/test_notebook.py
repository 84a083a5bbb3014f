"""Notebooks as source files: what runs, and what an edit leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastfeed.diagnose.patches.notebook import Notebook
from fastfeed.diagnose.patches.source_file import Edit, edited
from fastfeed.errors import OptionError

LINES = st.lists(st.sampled_from(["x = 1", "y = 'ü漢'", "", "# é", "f(x)  # %d"]), max_size=4)
OUTPUT = {"output_type": "stream", "name": "stdout", "text": ["ä 1.50\n"]}


def code(source: str, *, lines: bool = True) -> dict[str, Any]:
    """Return a code cell, whose source is a list of lines or one text."""
    return {
        "cell_type": "code",
        "execution_count": 3,
        "metadata": {"x": 1e-07},
        "outputs": [OUTPUT],
        "source": source.splitlines(keepends=True) if lines else source,
    }


def write(path: Path, *cells: dict[str, Any], style: dict[str, Any] | None = None) -> Notebook:
    text = {"cell_type": "markdown", "metadata": {}, "source": ["# Träining"]}
    content = {"cells": [text, *cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    style = {"indent": 1, "ensure_ascii": False} if style is None else style
    path.write_bytes((json.dumps(content, **style) + "\n").encode())
    return Notebook(path)


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("%matplotlib inline\nx = 1", "#matplotlib inline\nx = 1"),
        ("!pip install 'a\nx = 1", "#pip install 'a\nx = 1"),
        ("for x in y:\n    !ls {x}", "for x in y:\n    0#s {x}"),
        ("%%time\nx = 1", "#%time\nx = 1"),
        ("! pip install \\\n   a\nx = 1", "# pip install \\\n#  a\nx = 1"),
        ("!{a} -m b\n% cd c\nlen?\n?len", "#{a} -m b\n# cd c\n#en?\n#len"),
        ("!a \\\n\n?", "#a \\\n\n#"),
        ("if x:\n  y\n  ?", "if x:\n  y\n  0"),
        ("%time for x in y: z", "#time for x in y: z"),
        (
            "%time x = f(1,\n  2)\nif x:\n  %time y = 2",
            "0;    x = f(1,\n  2)\nif x:\n  0;    y = 2",
        ),
        ("\n%%capture out\nx = 1", "\n#%capture out\nx = 1"),
        ("%%bash\nls\n\necho", "#%bash\n#s\n\n#cho"),
        ("x = (a\n  %b)", "x = (a\n  %b)"),
        ("x = '''\n%time\n'''", "x = '''\n%time\n'''"),
    ],
)
def test_commands_of_ipython_are_comments(tmp_path: Path, cell: str, python: str) -> None:
    assert write(tmp_path / "one.ipynb", code(cell), code("z = 2")).text == f"{python}\nz = 2\n"


def test_a_command_whose_result_is_used_is_an_error_that_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(SyntaxError) as caught:
        write(tmp_path / "one.ipynb", code("a = 1"), code("x = !ls"))
    assert (caught.value.filename, caught.value.lineno) == (str(tmp_path / "one.ipynb"), 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"cells": [], "n": "ü"}',  # in Latin-1
        "a = 1",
        "[]",
        "{}",
        '{"cells": [{"cell_type": "code"}]}',
        '{"worksheets": []}',
    ],
)
def test_another_file_is_no_notebook(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.ipynb").write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError, match=r"one\.ipynb is no notebook of Jupyter"):
        Notebook(tmp_path / "one.ipynb")


@given(
    cells=st.lists(st.tuples(LINES, st.booleans()), min_size=1, max_size=4),
    style=st.sampled_from([{"indent": 1}, {"indent": 2, "ensure_ascii": False}, {}]),
    data=st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_edit_changes_its_place_in_its_cell_and_nothing_else(
    tmp_path: Path, cells: list[tuple[list[str], bool]], style: dict[str, Any], data: st.DataObject
) -> None:
    made = [code("\n".join(lines), lines=as_list) for lines, as_list in cells]
    file = write(tmp_path / "one.ipynb", *made, style=style)
    number = data.draw(st.integers(0, len(file.text)))
    edit = Edit(file.name, number, number, data.draw(st.sampled_from(["a", "a\n", "\na"])))
    assert file.stored() == (tmp_path / "one.ipynb").read_text()
    before, after = json.loads(file.stored()), json.loads(file.stored([edit]))
    (tmp_path / "one.ipynb").write_text(file.stored([edit]))
    texts = ["".join(one["source"]) for one in after["cells"][1:]]
    changed = edited(file.text, [edit])
    assert changed in ("".join(f"{one}\n" for one in texts), "\n".join(texts))
    for old, new in zip(before["cells"], after["cells"], strict=True):
        assert type(old.pop("source")) is type(new.pop("source"))
    assert before == after
    kept = set(file.stored().split("\n"))
    assert not style or len(set(file.stored([edit]).split("\n")) - kept) <= 3


def test_a_notebook_runs_as_in_jupyter_with_no_file_of_its_own(tmp_path: Path) -> None:
    write(
        tmp_path / "one.ipynb",
        code("%matplotlib inline\nimport sys, inspect"),
        code("def f():\n    return 1\n\ndisplay(f(), sys.argv[1], '__file__' in globals())"),
        code("print(inspect.getsource(f), end='')"),
        code("print(n)"),
    )
    command = (sys.executable, "-c", "from fastfeed.cli import main; main()", "diagnose")
    done = subprocess.run(
        [*command, "--", "one.ipynb", "7"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "1\n7\nFalse\ndef f():\n    return 1\n"
    assert 'one.ipynb", line 8, in <module>' in done.stderr
    assert "NameError: name 'n' is not defined" in done.stderr
    (tmp_path / "two.ipynb").write_text("{}")
    bad = subprocess.run(
        [*command, "--", "two.ipynb"], cwd=tmp_path, capture_output=True, text=True
    )
    assert bad.returncode == 2
    assert "two.ipynb is no notebook" in bad.stderr
