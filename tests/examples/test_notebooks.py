"""The notebooks: clean as they are committed, and each runs from its first cell to its last."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.examples.conftest import ROOT

FOLDER = ROOT / "examples" / "notebooks"
PAGE = ROOT / "docs" / "notebooks.md"
NAMES = ("jax", "pytorch", "tensorflow_keras")
LIMIT_S = 200  # of a hang: a notebook takes less than a minute, TensorFlow another one to start
# A last cell, which tells the test what the story found.
TELL = """
import json, os
print(json.dumps([os.getpid(), fastfeed.__file__, before.json(), after.json()]))
"""


def cells_of(name: str) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    return cells


def source_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def is_install(cell: dict[str, Any]) -> bool:
    return "install" in cell["metadata"].get("tags", ())


def test_the_page_and_the_tests_know_every_notebook() -> None:
    assert tuple(sorted(file.stem for file in FOLDER.iterdir())) == NAMES
    linked = re.findall(r"\(\.\./examples/notebooks/(\w+)\.ipynb\)", PAGE.read_text())
    assert sorted(linked) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_clean(name: str) -> None:
    """It has a title, one cell that installs, code that Python can read, and no output."""
    cells = cells_of(name)
    assert 8 <= len(cells) <= 14
    assert cells[0]["cell_type"] == "markdown" and source_of(cells[0]).startswith("# ")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    (install,) = filter(is_install, code)
    assert install is code[0] and source_of(install).splitlines()[-1].startswith("%pip install ")
    for cell in code:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        ast.parse(re.sub("^%.*", "", source_of(cell), flags=re.MULTILINE))


@pytest.mark.parametrize("name", NAMES)
def test_the_links_of_a_notebook_lead_to_headings(name: str) -> None:
    text = "\n".join(map(source_of, cells_of(name)))
    links = re.findall(r"\]\((.*?)(?:#(.*?))?\)", text)
    assert len(links) > 4
    for path, heading in links:
        page = (FOLDER / path).resolve()
        assert page.is_relative_to(ROOT / "docs")
        titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        assert not heading or heading in {title.lower().replace(" ", "-") for title in titles}


@pytest.fixture
def of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in, where Jupyter keeps its files; the kernel imports this fastfeed."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name, value in (
        ("JUPYTER_PLATFORM_DIRS", "1"),
        ("PYTHONPATH", str(ROOT)),
        ("KERAS_BACKEND", "tensorflow"),
        ("TF_CPP_MIN_LOG_LEVEL", "2"),
    ):
        monkeypatch.setenv(name, value)
    return tmp_path


def executed(name: str, folder: Path) -> Any:
    """Return the notebook with the outputs of a run, and of TELL."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    notebook.cells.append(nbformat.v4.new_code_cell(TELL))
    client = nbclient.NotebookClient(
        notebook,
        timeout=LIMIT_S,
        kernel_name="python3",
        skip_cells_with_tag="install",
        resources={"metadata": {"path": str(folder)}},
    )
    asyncio.run(asyncio.wait_for(client.async_execute(), LIMIT_S))
    return notebook


def texts(notebook: Any) -> list[str]:
    """What each cell has printed."""
    return [
        "".join(one.text for one in cell.get("outputs", ()) if one.get("name") == "stdout")
        for cell in notebook.cells
    ]


def kinds(notebook: Any) -> list[str]:
    """The richest form of each shown object."""
    shown = [
        one.data for cell in notebook.cells for one in cell.get("outputs", ()) if "data" in one
    ]
    return [min(data, key=["text/html", "image/png", "text/plain"].index) for data in shown]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "module", "slow_loop"),
    [
        ("jax", "jax", "watch"),
        ("pytorch", "torch", "torch"),
        ("tensorflow_keras", "tensorflow", "keras"),
    ],
)
def test_a_notebook_runs(name: str, module: str, slow_loop: str, of_its_own: Path) -> None:
    """Both diagnoses saw the loops that the story tells of. How fast they were depends on the
    machine."""
    pytest.importorskip(module)
    pytest.importorskip("matplotlib")
    notebook = executed(name, of_its_own)
    pid, imported, before, after = json.loads(texts(notebook)[-1])
    assert not psutil.pid_exists(pid), "the kernel is left"
    assert Path(imported).is_relative_to(ROOT)
    for report in (before, after):
        assert report["figures"]["steps"] > 0 and report["steps_per_second"] > 0
        assert 0 <= report["starvation"] <= 1
    assert before["loop"]["kind"] == slow_loop and before["feed"] is None
    assert len(after["feed"]["producers"]) == 16
    assert kinds(notebook) == ["text/html", "text/html", "image/png"]
    chart = next(text for text in texts(notebook) if text.startswith("before: "))
    assert before["headline"] in chart and f"after: {after['headline']}" in chart
