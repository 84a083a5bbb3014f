"""Copies of the folder of a script: what runs in one writes nothing of the user's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fastfeed.diagnose.patches.source_file import Edit, SourceFile
from fastfeed.diagnose.prove import workspace
from fastfeed.diagnose.prove.own_files import OwnFiles
from fastfeed.diagnose.prove.prove_command import diff_of
from fastfeed.diagnose.prove.workspace import COPIED_NBYTES, Run, Workspace
from fastfeed.diagnose.prove.write_guard import WriteGuard
from fastfeed.diagnose.run.script import Script
from fastfeed.errors import OptionError, StateError

LARGE = b"x" * (COPIED_NBYTES + 1)
# What a script does without Python's knowledge.
NATIVE = (
    "import ctypes\nc = ctypes.CDLL(None)\nc.fopen.restype = ctypes.c_void_p\n"
    "def native(name, mode, text=b''):\n"
    "    file = ctypes.c_void_p(c.fopen(name.encode(), mode.encode()))\n"
    "    assert c.fwrite(text, 1, len(text), file) == len(text) and not c.fclose(file)\n"
)
ASKS = (
    "from fastfeed.diagnose.prove.write_guard import _listener; raise SystemExit(_listener() < 0)"
)
asked = pytest.mark.skipif(
    bool(subprocess.run([sys.executable, "-c", ASKS]).returncode),
    reason="the kernel does not ask before a write",
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with code, a log and large data, as the working folder."""
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "train.py").write_text("import lib.one\nrun(1)\n")
    (folder / "lib" / "one.py").write_text("")
    (folder / "log.txt").write_text("before\n")
    (folder / "data.bin").write_bytes(LARGE)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "pyvenv.cfg").write_text("")
    monkeypatch.chdir(folder)
    return folder


def write_in(room: Workspace, run: Run, code: str, *, check: bool = True) -> WriteGuard:
    """Run code in a copy, as a script runs there; return the guard, closed."""
    bounds = room.bounds(run)
    with closing(WriteGuard(OwnFiles(bounds))) as guard:
        begin = (
            "from fastfeed.diagnose.prove.own_files import Bounds, OwnFiles\n"
            "from fastfeed.diagnose.prove.write_guard import ask_before_writes\n"
            f"ask_before_writes(OwnFiles(Bounds(*{tuple(bounds)!r})), {guard.descriptor})\n"
        )
        subprocess.run(
            [sys.executable, "-c", begin + code],
            cwd=run.cwd,
            check=check,
            env=run.environment,
            pass_fds=[guard.descriptor],
        )
    return guard


def made(tmp_path: Path, *words: str, **environment: str) -> Workspace:
    scratch = tmp_path / "runs"
    scratch.mkdir(exist_ok=True)
    return Workspace(Script(words or ("train.py",)), scratch=scratch, environment=environment)


def test_a_copy_has_everything_but_environments(project: Path, tmp_path: Path) -> None:
    run = made(tmp_path).copy()
    names = sorted(str(path.relative_to(run.cwd)) for path in run.cwd.rglob("*"))
    assert names == ["data.bin", "empty", "lib", "lib/one.py", "log.txt", "train.py"]
    assert (run.cwd / "data.bin").is_symlink()
    assert not (run.cwd / "log.txt").is_symlink()
    assert run.script == ["train.py"]


def test_links_within_the_project_stay_links_within_the_copy(project: Path, tmp_path: Path) -> None:
    """A script may replace one, such as that of its latest run."""
    (project / "latest").symlink_to("lib")
    (project / "best.bin").symlink_to("data.bin")
    (project / "python").symlink_to(".venv/pyvenv.cfg")
    room = made(tmp_path)
    run = room.copy()
    assert os.readlink(run.cwd / "latest") == str(run.cwd / "lib")
    assert os.readlink(run.cwd / "python") == str(project / ".venv" / "pyvenv.cfg")
    write_in(
        room,
        run,
        "import os\nos.unlink('latest'); os.symlink('empty', 'latest')\n"
        "open('best.bin', 'w').write('new')",
    )
    assert os.readlink(project / "latest") == "lib"
    assert (project / "data.bin").read_bytes() == LARGE


def test_links_of_many_files_are_expanded_only_as_long_as_few_are_made(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "TREE_FILES", 3)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / f"{number}.txt").write_text("")
        (project / f"to_{name}").symlink_to(tmp_path / name)
    run = made(tmp_path).copy()
    assert [(run.cwd / f"to_{name}").is_symlink() for name in ("one", "two")] == [False, True]


def test_edits_change_the_copy_alone(project: Path, tmp_path: Path) -> None:
    file = SourceFile(project / "train.py")
    (call,) = file.calls_at(2, "run")
    run = made(tmp_path).copy([file.with_keyword(call, "n", value="2")])
    assert (run.cwd / "train.py").read_text() == "import lib.one\nrun(1, n=2)\n"
    assert (project / "train.py").read_text() == "import lib.one\nrun(1)\n"


def test_edits_that_make_no_python_are_refused(project: Path, tmp_path: Path) -> None:
    room = made(tmp_path)
    file = room.sources[str(project / "train.py")]
    (call,) = file.calls_at(2, "run")
    with pytest.raises(SyntaxError):
        room.copy([file.replaced(call, "run(")])
    with pytest.raises(OptionError, match="two changes of the same place"):
        room.copy([file.replaced(call, "run(2)"), file.replaced(call, "run(3)")])


def test_paths_of_the_project_lead_into_the_copy(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{project / 'lib'}{os.pathsep}/elsewhere")
    words = (str(project / "train.py"), f"--out={project}/out", f"a={project},b", f"{project}2")
    run = made(tmp_path, *words, OUT="{run}/out").copy()
    moved = [str(run.cwd / "train.py"), f"--out={run.cwd}/out", f"a={run.cwd},b", f"{project}2"]
    assert run.script == moved
    assert run.environment["PYTHONPATH"] == f"{run.cwd / 'lib'}{os.pathsep}/elsewhere"
    assert run.environment["OUT"] == f"{run.folder}/out"


def test_runs_are_no_experiments_of_an_account(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://tracking.example")
    run = made(tmp_path, WANDB_MODE="online").copy()
    assert run.environment["MLFLOW_TRACKING_URI"] == f"file:{run.folder}/mlruns"
    assert run.environment["NEPTUNE_MODE"] == "offline"
    assert run.environment["WANDB_MODE"] == "online"  # --prove-env


def test_a_script_elsewhere_is_copied_with_its_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    run = made(tmp_path, str(project / "train.py")).copy()
    assert Path(run.script[0]).read_text().startswith("import lib.one")
    assert run.cwd.name == "other"
    assert run.folder in Path(run.script[0]).parents


def test_a_script_finds_what_lies_beside_its_folder_in_the_working_tree(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "code").mkdir()
    (project / "train.py").rename(project / "code" / "train.py")
    monkeypatch.chdir(project / "code")
    alone = made(tmp_path).copy()
    assert not (alone.cwd / "../lib/one.py").exists()
    (project / ".git").mkdir()
    room = made(tmp_path)
    run = room.copy()
    assert (run.cwd / "../lib/one.py").read_text() == ""
    assert not (run.cwd / "../.git").exists()
    assert room.original(run, str(run.cwd / "train.py")) == str(project / "code" / "train.py")
    assert room.base == project
    write_in(room, run, "open('../data.bin', 'w').write('new')")
    assert (project / "data.bin").read_bytes() == LARGE
    monkeypatch.setattr(workspace, "TREE_FILES", 3)
    assert made(tmp_path).base == project / "code"


def test_a_script_behind_a_link_is_copied(project: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(project)
    run = made(tmp_path, str(tmp_path / "link" / "train.py"), f"{tmp_path}/link/out").copy()
    assert run.script[0] == str(run.cwd / "train.py")


@pytest.mark.parametrize(
    "write",
    [
        "open('kept/last.pt', 'w').write('new')",
        "import os; os.rename('kept/last.pt', 'kept/old.pt')",
        "import os; os.mkdir('kept/more')",
        "import os; os.remove('kept/last.pt')",
        "open('kept/below/one.pt', 'w').write('new')",
        pytest.param("native('kept/last.pt', 'w')", marks=asked),
        pytest.param("native('kept/below/more.pt', 'w')", marks=asked),
        pytest.param("import subprocess; subprocess.run(['mkdir', 'kept/more'])", marks=asked),
    ],
)
def test_a_folder_that_is_a_link_is_not_written_to(
    project: Path, tmp_path: Path, write: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "below").mkdir(parents=True)
    (elsewhere / "last.pt").write_text("old")
    (elsewhere / "below" / "one.pt").write_text("old")
    (project / "kept").symlink_to(elsewhere)
    room = made(tmp_path)
    run = room.copy()
    write_in(room, run, f"{NATIVE}{write}\nassert open('kept/below/one.pt').read()\n")
    found = {str(one.relative_to(elsewhere)) for one in elsewhere.rglob("*")}
    assert found == {"last.pt", "below", "below/one.pt"}
    assert {one.read_text() for one in elsewhere.rglob("*.pt")} == {"old"}
    room.check()


def test_an_edit_of_the_user_in_between_changes_no_run(project: Path, tmp_path: Path) -> None:
    room = made(tmp_path)
    file = room.sources[str(project / "train.py")]
    (call,) = file.calls_at(2, "run")
    (project / "train.py").write_text("# more\nimport lib.one\nrun(1)\n")
    run = room.copy([file.with_keyword(call, "n", value="2")])
    assert (run.cwd / "train.py").read_text() == "import lib.one\nrun(1, n=2)\n"
    run.remove()
    assert not run.folder.exists()


def test_what_is_installed_in_place_is_imported_from_the_copy(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastfeed.diagnose.prove.trial_run import import_from_copy

    packages = project / ".venv" / "lib"  # not copied
    packages.mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").touch()
    run = made(tmp_path).copy()
    finder = types.ModuleType("__editable___lib_finder")
    finder.MAPPING = {"lib": f"{project}/lib", "other": "/elsewhere"}
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    monkeypatch.setattr(sys, "path", [str(packages), f"{project}/lib", str(project)])
    import_from_copy(run.moved)
    assert sys.path == [str(packages), f"{run.cwd}/lib", str(run.cwd)]
    assert vars(finder)["MAPPING"] == {"lib": f"{run.cwd}/lib", "other": "/elsewhere"}


@pytest.mark.parametrize(
    "write",
    [
        "open('data.bin', 'r+b').write(b'new')",
        "open('data.bin', 'ab').write(b'new')",
        "import os; os.write(os.open('data.bin', os.O_WRONLY), b'new')",
        "import pathlib; pathlib.Path('data.bin').write_bytes(b'new')",
        pytest.param("native('data.bin', 'w', b'new')", marks=asked),
        pytest.param("native('data.bin', 'a', b'new')", marks=asked),
        pytest.param(
            "import threading\n"
            "one = threading.Thread(target=native, args=('data.bin', 'r+', b'new'))\n"
            "one.start(); one.join()",
            marks=asked,
        ),
        pytest.param(
            "import os, subprocess\nos.chdir('lib')\n"
            "subprocess.run('echo new >> ../data.bin', shell=True, check=True)",
            marks=asked,
        ),
        pytest.param(
            "import os\nat = os.open('lib', os.O_RDONLY)\n"
            "one = c.openat(at, b'../data.bin', os.O_WRONLY)\nassert os.write(one, b'new') == 3",
            marks=asked,
        ),
    ],
)
def test_a_run_writes_to_a_copy_of_large_data(project: Path, tmp_path: Path, write: str) -> None:
    room = made(tmp_path)
    run = room.copy()
    write_in(room, run, NATIVE + write)
    assert b"new" in (run.cwd / "data.bin").read_bytes()
    assert (project / "data.bin").read_bytes() == LARGE
    room.check()


def test_reading_large_data_copies_nothing(project: Path, tmp_path: Path) -> None:
    room = made(tmp_path)
    run = room.copy()
    write_in(room, run, f"{NATIVE}assert open('data.bin', 'rb').read(); native('data.bin', 'rb')")
    assert (run.cwd / "data.bin").is_symlink()


@asked
def test_what_is_too_large_for_a_copy_is_not_written_to(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = made(tmp_path)
    run = room.copy()
    free = types.SimpleNamespace(free=2 * len(LARGE) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    code = f"{NATIVE}assert not c.fopen(b'data.bin', b'a'); open('empty/one', 'w')"
    guard = write_in(room, run, code)
    assert re.search(r"data\.bin is opened for writing.* --prove-env NAME=VALUE", guard.refused)
    assert (project / "data.bin").read_bytes() == LARGE


def test_native_code_that_writes_to_the_original_is_noticed(project: Path, tmp_path: Path) -> None:
    room = made(tmp_path)
    run = room.copy()
    subprocess.run(["sh", "-c", "echo >> data.bin"], cwd=run.cwd, check=True)
    with pytest.raises(StateError, match=r"data\.bin was written to .* --prove-env"):
        room.check()


def test_a_folder_of_too_many_files_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "MAX_FILES", 3)
    with pytest.raises(OptionError, match="more than 3 files"):
        made(tmp_path)


@pytest.fixture
def given() -> Iterator[Callable[[int], None]]:
    """A function that makes a descriptor the standard input."""
    before = os.dup(0)
    yield lambda descriptor: os.dup2(descriptor, 0) and None
    os.dup2(before, 0)
    os.close(before)


def test_every_run_gets_all_of_a_file_in_standard_input(
    project: Path, tmp_path: Path, given: Callable[[int], None]
) -> None:
    with (project / "data.bin").open("rb") as file:
        given(file.fileno())
        assert made(tmp_path).stdin.read_bytes() == LARGE


@pytest.mark.parametrize("ended", [True, False])
def test_every_run_gets_what_a_pipe_has_brought(
    project: Path,
    tmp_path: Path,
    given: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    ended: bool,
) -> None:
    monkeypatch.setattr(workspace, "INPUT_PAUSE_S", 0.01)
    reader, writer = os.pipe()
    given(reader)
    os.write(writer, b"one\n")
    if ended:
        os.close(writer)
    assert made(tmp_path).stdin.read_bytes() == b"one\n"
    os.close(reader)
    if not ended:
        os.close(writer)


def test_a_pipe_that_never_pauses_is_not_waited_for(
    project: Path, tmp_path: Path, given: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "INPUT_LIMIT_S", 0.0)
    reader, writer = os.pipe()
    given(reader)
    os.write(writer, b"one\n")
    assert made(tmp_path).stdin.read_bytes() == b""
    os.close(reader)
    os.close(writer)


def test_a_file_that_cannot_be_read_is_a_link(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = project / "log.txt"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed)
    assert (made(tmp_path).copy().cwd / "log.txt").is_symlink()


def test_standard_input_without_an_end_is_refused(
    project: Path,
    tmp_path: Path,
    given: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workspace, "MAX_INPUT_NBYTES", 1000)
    with open("/dev/zero", "rb") as zeros, (project / "data.bin").open("rb") as file:
        given(file.fileno())
        with pytest.raises(OptionError, match="standard input holds more than 1,000 bytes"):
            made(tmp_path)
        given(zeros.fileno())  # neither a file nor a pipe
        assert made(tmp_path).stdin.read_bytes() == b""


@pytest.mark.parametrize("words", [("-c", "pass"), ("-",)])
def test_a_script_without_a_file_is_refused(
    project: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with pytest.raises(OptionError, match=r"write it to train\.py"):
        made(tmp_path, *words)


def test_the_notebook_that_runs_is_a_source_and_its_copy_a_notebook(
    project: Path, tmp_path: Path
) -> None:
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["n = 1\n", "print(n)"]}
    about = {"pictures": "x" * COPIED_NBYTES}  # no link: its folder is that of the imports
    text = json.dumps({"cells": [cell], "metadata": about, "nbformat": 4, "nbformat_minor": 5})
    for name in ("train.ipynb", "other.ipynb"):
        (project / name).write_text(text)
    room = made(tmp_path, "train.ipynb")
    notebook = str(project / "train.ipynb")
    assert set(room.sources) == {notebook, *map(str, project.rglob("*.py"))}
    edit = Edit(notebook, 4, 5, "22")
    copy = room.copy([edit]).cwd / "train.ipynb"
    assert copy.read_text() == text.replace("n = 1", "n = 22")
    assert (project / "train.ipynb").read_text() == text
    assert not (room.copy().cwd / "train.ipynb").is_symlink()
    assert '+{"cells"' in diff_of([edit], room.sources, base=project)


def test_python_before_the_script_is_no_part_of_it(project: Path, tmp_path: Path) -> None:
    found = made(tmp_path, "python3", "-u", "train.py", "7")
    assert (found.script, found.copy().script) == (project / "train.py", ["train.py", "7"])


def test_copies_have_the_names_that_imported_files_have(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "train.py").write_text("")
    script = Script((str(tmp_path / "train.py"),))
    folder = Workspace(script, scratch=tmp_path / "link", environment={}).copy().folder
    assert folder == folder.resolve()
