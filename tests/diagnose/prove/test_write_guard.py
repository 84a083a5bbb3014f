"""Nothing of the user's is changed by a run, whoever writes, by whatever name."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fastfeed.diagnose.prove import workspace
from tests.diagnose.prove.test_workspace import LARGE, NATIVE, asked, made, project, write_in

__all__ = ["project"]  # a fixture


def state(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """What the files below a folder hold, their modes and times."""
    return {
        str(one.relative_to(folder)): (one.read_bytes(), one.stat().st_mode, one.stat().st_mtime_ns)
        for one in sorted(folder.rglob("*"))
        if one.is_file()
    }


@pytest.fixture
def disk(project: Path, tmp_path: Path) -> Path:
    """A folder elsewhere that the project has a link to, with files of which one is large."""
    found = tmp_path / "disk"
    (found / "below").mkdir(parents=True)
    (found / "last.pt").write_text("old")
    (found / "below" / "one.pt").write_text("old")
    (found / "large.pt").write_bytes(LARGE)
    (project / "logs").symlink_to(found)
    return found


REMOVALS = [
    "import os; os.system('rm -rf logs/*')",
    "c.unlink(b'logs/last.pt')",
    "c.rename(b'logs/last.pt', b'logs/other.pt')",
    "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-c', \"import os; os.remove('logs/last.pt')\"])",
]
WAYS = [
    "import shutil; shutil.rmtree('logs/below')",
    "import os; os.chmod('logs/large.pt', 0o777)",
    "c.chmod(b'logs/large.pt', 0o777)",
    "import pathlib; pathlib.Path('data.bin').touch()",
    "import os; os.utime('logs/large.pt', (1, 1))",
    "import os; os.link('data.bin', 'other.bin'); open('other.bin', 'w').write('new')",
    "import os; os.chdir('logs'); open('large.pt', 'w')",
    "native('logs/../esc.txt', 'w')",
    "open('logs/../esc.txt', 'w')",
    "native('logs/large.pt', 'w')",
]


@asked
@pytest.mark.parametrize(
    ("way", "expanded"),
    [(way, expanded) for way in (*REMOVALS, *WAYS) for expanded in (True, False)],
)
def test_a_folder_elsewhere_stays(
    project: Path,
    disk: Path,
    tmp_path: Path,
    way: str,
    expanded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not expanded:  # a folder of many files stays a link
        monkeypatch.setattr(workspace, "TREE_FILES", 1)
    before = state(tmp_path / "disk"), state(project)
    room = made(tmp_path)
    write_in(room, room.copy(), NATIVE + way, check=False)
    assert (state(tmp_path / "disk"), state(project)) == before
    assert not (tmp_path / "esc.txt").exists()


OLDER = [
    "open({folder!r} + '/one.pt', 'w')",
    "open({folder!r} + '/one.pt', 'a')",
    "import os; os.remove({folder!r} + '/one.pt')",
    "import os; os.rename({folder!r} + '/one.pt', {folder!r} + '/new.pt')",
    "import os; os.replace({folder!r} + '/empty.pt', {folder!r} + '/one.pt')",
    "native({folder!r} + '/one.pt', 'w')",
    "c.unlink({folder!r}.encode() + b'/one.pt')",
    "import os; os.system('rm -rf ' + {folder!r})",
    "import os; os.system('mv ' + {folder!r} + '/one.pt ' + {folder!r} + '/two.pt')",
    "import os; open({folder!r} + '/x', 'w'); os.rename({folder!r}, {folder!r} + '.bak')",
    "import os; os.system('mv ' + {folder!r} + ' ' + {folder!r} + '.bak')",
    "import os; os.remove({folder!r} + '/last')",
    "import os; os.rename({folder!r} + '/empty.pt', {folder!r} + '/last')",
]


@asked
@pytest.mark.parametrize("way", OLDER)
def test_what_is_older_than_the_proof_stays_anywhere(
    project: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "PASSING_FOLDERS", ())
    monkeypatch.setattr(workspace, "gettempdir", lambda: "/nowhere")
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "one.pt").write_text("old")
    (folder / "empty.pt").write_text("")
    (folder / "last").symlink_to(folder / "one.pt")
    room = made(tmp_path)
    room._since_s += 1.0  # files have coarse times
    guard = write_in(room, room.copy(), NATIVE + way.format(folder=str(folder)), check=False)
    assert (folder / "one.pt").read_text() == (folder / "last").read_text() == "old"
    assert (folder / "last").is_symlink()
    assert "--prove-env" in guard.refused or "rm" not in way


@asked
def test_what_a_run_has_made_elsewhere_may_change(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "PASSING_FOLDERS", ())
    monkeypatch.setattr(workspace, "gettempdir", lambda: "/nowhere")
    folder = tmp_path / "experiment"
    (folder / "cache").mkdir(parents=True)
    (folder / "cache" / "index").write_text("old")
    room = made(tmp_path)
    room._since_s -= 1.0
    for word in ("one", "two"):
        way = f"open({str(folder)!r} + '/best.pt', 'w').write({word!r})"
        write_in(room, room.copy(), way)
        assert (folder / "best.pt").read_text() == word
    room._since_s += 3.0
    write_in(room, room.copy(), f"open({str(folder)!r} + '/cache/index', 'w').write('new')")
    assert (folder / "cache" / "index").read_text() == "new"


OUT_OF_THE_COPY = [
    "import pathlib; pathlib.Path('data.bin').resolve().write_bytes(b'new')",
    "open({project!r} + '/data.bin', 'w')",
    "native({project!r} + '/log.txt', 'w')",
    "open({project!r} + '/new.txt', 'w')",
    "import sqlite3\none = sqlite3.connect('study.db')\n"
    "with one:\n    one.execute('insert into seen values (1)')",
]


@asked
@pytest.mark.parametrize("way", OUT_OF_THE_COPY)
def test_a_name_that_leads_out_of_the_copy_is_refused(
    project: Path, tmp_path: Path, way: str
) -> None:
    one = sqlite3.connect(project / "study.db")
    with one:
        one.execute("create table seen (number, text)")
        one.executemany("insert into seen values (?, ?)", [(n, "x" * 500) for n in range(400)])
    one.close()
    before = state(project)
    room = made(tmp_path)
    guard = write_in(room, room.copy(), NATIVE + way.format(project=str(project)), check=False)
    assert state(project) == before
    assert "sqlite" not in way or "--prove-env" in guard.refused


@asked
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_the_output_of_a_program_is_not_that_of_the_proof(
    project: Path, tmp_path: Path, name: str
) -> None:
    """Such as `fastfeed diagnose --prove ... > log.txt` in the folder of the script."""
    room = made(tmp_path)
    code = "import subprocess; subprocess.run(['sh', '-c', 'echo 1 > {}'], stdout=-1, check=True)"
    spare = os.dup(1)
    try:
        with open(project / "log.txt", "w") as log:
            os.dup2(log.fileno(), 1)
        write_in(room, room.copy(), code.format(name))
    finally:
        os.dup2(spare, 1)
        os.close(spare)


@asked
@pytest.mark.parametrize(
    "way",
    [
        "open('/proc/self/cwd/data.bin', 'r+b').write(b'new')",
        "native('/proc/self/cwd/data.bin', 'r+', b'new')",
        "import os; open(os.environ['PWD'] + '/data.bin', 'w').write('new')",
    ],
)
def test_other_names_of_the_copy_are_in_it(
    project: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PWD", str(project))
    room = made(tmp_path)
    run = room.copy()
    write_in(room, run, NATIVE + way)
    assert (project / "data.bin").read_bytes() == LARGE
    assert b"new" in (run.cwd / "data.bin").read_bytes()


@asked
def test_many_processes_write_to_one_link(project: Path, tmp_path: Path) -> None:
    (project / "data.bin").write_bytes(LARGE * 200)
    room = made(tmp_path)
    run = room.copy()
    code = (
        "import os\nfor n in range(8):\n    if not os.fork():\n"
        "        with open('data.bin', 'r+b', 0) as file:\n"
        "            file.seek(n); file.write(b'n')\n"
        "        os._exit(0)\n"
        "assert {os.wait()[1] for n in range(8)} == {0}\n"
    )
    write_in(room, run, code)
    assert (run.cwd / "data.bin").read_bytes()[:9] == b"nnnnnnnnx"
    assert (project / "data.bin").read_bytes() == LARGE * 200


@asked
def test_a_bad_address_is_an_answer(project: Path, tmp_path: Path) -> None:
    room = made(tmp_path)
    code = (
        "import ctypes\nfor bad in (2**64 - 1, 1, 2**47):\n"
        "    assert c.open(ctypes.c_void_p(bad), 1) == -1\n"
        "open('empty/one', 'w').write('new')"
    )
    write_in(room, room.copy(), NATIVE + code)


@asked
def test_a_virtual_environment_of_the_project_may_be_written_to(
    project: Path, tmp_path: Path
) -> None:
    room = made(tmp_path)
    write_in(room, room.copy(), f"open({str(project / '.venv' / 'one.pyc')!r}, 'w').write('new')")
    assert (project / ".venv" / "one.pyc").read_text() == "new"


def test_the_repository_of_a_worktree_is_not_the_runs(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str, folder: Path = project) -> str:
        who = ("-c", "user.name=one", "-c", "user.email=one@example.org")
        done = subprocess.run(
            ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
        )
        return done.stdout

    git("init", "-q")
    git("add", "train.py")
    git("commit", "-qm", "first")
    tree = tmp_path / "tree"
    git("worktree", "add", "-q", str(tree))
    monkeypatch.chdir(tree)
    monkeypatch.setenv("GIT_DIR", git("rev-parse", "--git-dir", folder=tree).strip())
    run = made(tmp_path).copy()
    assert not (run.cwd / ".git").exists()
    assert "GIT_DIR" not in run.environment
    code = "import subprocess; subprocess.run('git add -A; git commit -qm x', shell=True)"
    subprocess.run([sys.executable, "-c", code], cwd=run.cwd, check=True, env=run.environment)
    monkeypatch.delenv("GIT_DIR")
    assert git("log", "--oneline", folder=tree).count("\n") == 1


def test_variables_lead_into_the_copy(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the copy leaves out, such as a virtual environment, stays where it is."""
    monkeypatch.setenv("OUT_DIR", str(project / "out"))
    monkeypatch.setenv("PATHS", os.pathsep.join([f"{project}/.venv/bin", f"{project}/lib"]))
    (project / ".venv" / "bin").mkdir()
    run = made(tmp_path).copy()
    assert run.environment["OUT_DIR"] == f"{run.cwd}/out"
    assert run.environment["PATHS"] == os.pathsep.join([f"{project}/.venv/bin", f"{run.cwd}/lib"])
