"""Copies of the folder that a script runs in: each run has its own, and the user's is not written
to.

Small files are copied. A large one is a link to the original, which becomes a copy as soon as the
run opens it for writing (own_files.py).
"""

from __future__ import annotations

import os
import re
import select
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

from fastfeed.diagnose.patches.notebook import NOTEBOOK
from fastfeed.diagnose.patches.proposal import read_sources
from fastfeed.diagnose.patches.source_file import Edit, edited
from fastfeed.diagnose.prove.own_files import OWN_PLACE, Bounds
from fastfeed.diagnose.run.script import Script
from fastfeed.errors import OptionError, StateError

COPIED_NBYTES = 1 << 16  # of a file that is copied; larger ones are linked, unless they are code
MAX_FILES = 200_000  # of a folder: making so many links takes a few seconds
TREE_FILES = 20_000  # of a working tree that is copied beside the folder of the script
LEFT_OUT = ("__pycache__", ".git", "pyvenv.cfg")  # a virtual environment has the last one
# A proof makes a dozen short runs: they are none in the user's accounts of experiments.
TRACKERS = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:{run}/mlruns",
    "WANDB_DIR": "{run}",
}
GIT = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # variables that name the user's repository
RUN = "{run}"  # in values of --prove-env: the folder of the run
PASSING_FOLDERS = ("/tmp", "/var/tmp", "/dev", "/proc", "/sys", "/run")
INPUT_PAUSE_S = 1.0  # in which nothing comes from a pipe that is open
INPUT_LIMIT_S = 30.0  # after which what has come is all of it
MAX_INPUT_NBYTES = 1 << 28  # of standard input
COPIED_AT_MOST = 1 << 28  # bytes of a folder; what is left is linked


class Run(NamedTuple):
    """One copy: how the script is started in it, where its roots are, and which files it has with
    changes."""

    folder: Path
    script: list[str]
    cwd: Path
    environment: dict[str, str]
    moved: dict[str, str]
    edited: list[str]

    def remove(self) -> None:
        """Delete the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Workspace:
    """The folders of a script, below which its copies are made in `scratch`.

    `environment`: more variables of each run. Raise OptionError for a script without a file, and
    for folders that hold too many files.
    """

    def __init__(self, script: Script, *, scratch: Path, environment: Mapping[str, str]) -> None:
        self._since_s = time.time()
        self._words = list(script.words)
        self._scratch = scratch = scratch.resolve()  # as the names of imported files are
        self._environment = dict(environment)
        self.cwd = Path.cwd()
        self.script = _file_of(script)
        self.stdin = _kept_input(scratch / "stdin")
        places = {self.cwd} if self.script is None else {self.cwd, self.script.parent}
        found = {_project_of(place) for place in places}
        self.roots = [one for one in sorted(found) if found.isdisjoint(one.parents)]
        self.base = Path(os.path.commonpath(self.roots))  # of the names in a diff
        self._apart: dict[str, set[str]] = {"environments": set(), "links": set()}
        self._files = {root: list(_files_of(root, self._apart)) for root in self.roots}
        files = (root / name for root, names in self._files.items() for name in names)
        # as they are now: an edit of the user's changes no run
        self.sources = read_sources(one for one in files if self._is_source(one))
        self.linked: dict[Path, tuple[int, int]] = {}  # originals, with their size and time
        self._count = 0

    def copy(self, edits: Iterable[Edit] = ()) -> Run:
        """Return a new copy, with edits of its sources. Raise OptionError if they contradict each
        other, SyntaxError if they make no Python."""
        self._count += 1
        folder = self._scratch / f"run{self._count}"
        changed: dict[str, list[Edit]] = {}
        for edit in edits:
            changed.setdefault(edit.file, []).append(edit)
        for root, target in self._targets(folder):
            self._copy(root, target, changed=changed)
        environment = {k: self._led(v, folder) for k, v in os.environ.items() if k not in GIT}
        environment |= {**TRACKERS, **self._environment}
        environment = {key: value.replace(RUN, str(folder)) for key, value in environment.items()}
        if "PYTHONPATH" in environment:
            parts = environment["PYTHONPATH"].split(os.pathsep)
            moved = [self._led(os.path.abspath(part), folder) for part in parts if part]
            environment["PYTHONPATH"] = os.pathsep.join(moved)
        words = [self._moved(word, folder) for word in self._words]
        here = Path(self._moved(str(self.cwd), folder))
        name = os.path.normpath(here / words[0])
        if self.script is not None and not name.startswith(f"{folder}{os.sep}"):
            words[0] = self._moved(str(self.script), folder)  # it was reached by a link
        return Run(
            folder,
            words,
            here,
            environment,
            {str(root): str(target) for root, target in self._targets(folder)},
            [self._moved(name, folder) for name in changed],
        )

    def original(self, run: Run, file: str) -> str:
        """Return the name of the user's file whose copy a run used."""
        for root, target in self._targets(run.folder):
            if file.startswith(f"{target}{os.sep}"):
                return str(root / os.path.relpath(file, target))
        return file

    def bounds(self, run: Run) -> Bounds:
        """Return what a run may change, and what is kept."""
        kept = {*map(str, self.roots), *map(os.path.realpath, self.roots), *self._apart["links"]}
        free, passing = sorted(self._apart["environments"]), (*PASSING_FOLDERS, gettempdir())
        return Bounds(str(run.folder), sorted(kept), free, self._since_s, passing)

    def check(self) -> None:
        """Raise StateError if a linked original has changed: native code has written to it."""
        for path, known in self.linked.items():
            if _stamp(path) != known:
                raise StateError(
                    f"{path} was written to while a copy of the script ran, and nothing more is "
                    f"tried: {OWN_PLACE}"
                )

    def _is_source(self, file: Path) -> bool:
        return is_code(file.name) or (file.suffix == NOTEBOOK and file.resolve() == self.script)

    def _targets(self, folder: Path) -> Iterator[tuple[Path, Path]]:
        for number, root in enumerate(self.roots):
            yield root, folder / str(number) / (root.name or "root")

    def _moved(self, word: str, folder: Path) -> str:
        """Return a word with the paths of a root in it as those in the copy: `--out=/project/out`,
        too."""
        for root, target in self._targets(folder):
            for name in {str(root), os.path.realpath(root)}:
                whole = rf"(?<![\w./-]){re.escape(name)}(?![\w.-])"
                word = re.sub(whole, lambda _: str(target), word)  # noqa: B023  # used at once
        return word

    def _led(self, value: str, folder: Path) -> str:
        """Return a variable whose paths of the project are those of the copy, if they are in it: a
        virtual environment is not."""
        parts = [(part, self._moved(part, folder)) for part in value.split(os.pathsep)]
        led = [new if os.path.exists(new) or not os.path.exists(old) else old for old, new in parts]
        return os.pathsep.join(led)

    def _is_copied(self, path: Path, root: Path) -> bool:
        """Return True for a real path of a root that its copies have."""
        return (
            root.resolve() in path.parents
            and not {*LEFT_OUT} & {*path.relative_to(root.resolve()).parts}
            and self._apart["environments"].isdisjoint(map(str, (path, *path.parents)))
        )

    def _may_copy(self, source: Path, *, left: int) -> bool:
        """Return True for a file that copies have, and not a link to it: a small one that can be
        read."""
        wanted = self._is_source(source) or (left > 0 and _is_small(source))
        return wanted and os.access(source, os.R_OK)

    def _copy(self, root: Path, target: Path, *, changed: Mapping[str, list[Edit]]) -> None:
        target.mkdir(parents=True)
        left = COPIED_AT_MOST
        for name in self._files[root]:
            source, copy = root / name, target / name
            if name.endswith(os.sep):
                copy.mkdir(parents=True, exist_ok=True)
            elif str(source) in changed:
                file, edits = self.sources[str(source)], changed[str(source)]
                compile(edited(file.text, edits), name, "exec", dont_inherit=True)
                copy.write_bytes(file.stored(edits).encode(file.encoding))
                shutil.copymode(source, copy)
            elif source.is_symlink() or not self._may_copy(source, left=left):
                real = source.resolve()
                copied = target / os.path.relpath(real, root.resolve())
                if source.is_symlink() and self._is_copied(real, root):
                    copy.symlink_to(copied)  # such as latest -> runs/5
                    continue
                copy.symlink_to(real)
                self._apart["links"] |= {str(real)} if source.is_symlink() else set()
                self.linked.setdefault(real, _stamp(real))
            else:
                shutil.copy2(source, copy)
                left -= copy.stat().st_size


def _file_of(script: Script) -> Path | None:
    """Return the file that runs; None for a module."""
    name = script.words[0]
    if script.how == "file":
        return Path(name).resolve()
    if script.how == "-m":
        return None
    raise OptionError(
        f"--prove changes the files of a script, and {script.name} has none: write it to train.py, "
        "and pass train.py"
    )


def _project_of(folder: Path) -> Path:
    """Return the working tree of git around a folder, where scripts find `../data` and `../lib`;
    the folder itself if there is none, or one of too many files for a copy in each run."""
    for tree in (folder, *folder.parents):
        if (tree / ".git").exists():
            few = sum(1 for _ in islice(_files_of(tree), TREE_FILES + 1)) <= TREE_FILES
            return tree if few else folder
    return folder


def _kept_input(path: Path) -> Path:
    """Write what standard input holds to a file, and return it: nothing for a terminal, and what
    has come so far for a pipe that stays open. Raise OptionError if it does not end."""
    with path.open("wb") as kept:
        try:
            mode = os.fstat(0).st_mode
        except OSError:
            return path  # closed
        size, end_s = 0, time.monotonic() + INPUT_LIMIT_S
        while stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and time.monotonic() < end_s):
            ready, _, _ = select.select([0], [], [], INPUT_PAUSE_S)
            data = os.read(0, 1 << 20) if ready else b""
            if not data:
                break
            size += kept.write(data)
            if size > MAX_INPUT_NBYTES:
                raise OptionError(
                    f"standard input holds more than {MAX_INPUT_NBYTES:,} bytes, and each run gets "
                    "a copy: pass the script a file in its place"
                )
    return path


def _files_of(root: Path, apart: dict[str, set[str]] | None = None) -> Iterator[str]:
    """Yield the names of files below a root, and of folders, which end with a separator. A link out
    of it to a folder of not so many files is such a folder, another link is a file.

    `apart` gets the full names of virtual `environments`, which are left out, and of what `links`
    lead to.
    """
    apart = apart or {"environments": set(), "links": set()}
    count, left, inside = 0, TREE_FILES, os.path.realpath(root) + os.sep
    for name in _walked(root, apart=apart):
        count += not name.endswith(os.sep)
        if count > MAX_FILES:
            raise OptionError(
                f"{root} holds more than {MAX_FILES:,} files, and each run gets a copy of the "
                "folder: run fastfeed in the folder of the script, with its data elsewhere"
            )
        link = root / name
        if not link.is_symlink():
            yield name
            continue
        real = os.path.realpath(link)
        apart["links"].add(real)
        out = os.path.isdir(real) and not real.startswith(inside) and not inside.startswith(real)
        inner = list(islice(_walked(Path(real), apart=apart), left + 1)) if out else []
        if out and len(inner) <= left:
            left -= len(inner)
            yield from (f"{name}{os.sep}", *(f"{name}{os.sep}{one}" for one in inner))
        else:
            yield name


def _walked(root: Path, *, apart: dict[str, set[str]]) -> Iterator[str]:
    """Yield the names below a root, with links as they are."""
    for folder, folders, files in os.walk(root):
        below = os.path.relpath(folder, root)
        prefix = "" if below == "." else below + os.sep
        known = {one: os.path.join(folder, one) for one in sorted(folders) if one not in LEFT_OUT}
        made = [one for one, path in known.items() if os.path.exists(f"{path}/{LEFT_OUT[-1]}")]
        apart["environments"] |= {os.path.realpath(known[one]) for one in made}
        folders[:] = [one for one in known if one not in made]
        links = [one for one in folders if os.path.islink(known[one])]
        yield from (f"{prefix}{one}{os.sep}" for one in folders if one not in links)
        # the file .git of a worktree names the repository
        yield from (prefix + one for one in (*sorted(files), *links) if one not in LEFT_OUT)


def is_code(name: str) -> bool:
    """Return True for the name of a Python file."""
    return name.endswith(".py")


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= COPIED_NBYTES


def _stamp(path: Path) -> tuple[int, int]:
    """Return what changes when a file is written to."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, 0 if path.is_dir() else found.st_mtime_ns
