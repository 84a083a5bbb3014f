"""What other users plant does no harm, nor do escape sequences in names and texts."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.live import Live
from rich.text import Text

from fastfeed.cli import main
from fastfeed.errors import OptionError, ProducerFailed, clean
from fastfeed.jobs.blackbox import (
    SUFFIX,
    BlackBox,
    boxes,
    prune,
    read,
)
from fastfeed.jobs.drawing import Terminal
from fastfeed.jobs.top import box_of, running_boxes
from tests.jobs.flights import producer, sample

STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
# title of the window, colour, clear, C1 control, carriage return, backspace, right-to-left override
HOSTILE = "a\x1b]0;owned\x07b\x1b[31mc\x1b[2Jd\x9b5me\rf\x08g\u202eh"
CONTROLS = {chr(n) for n in (*range(32), *range(127, 160), 0x202E)} - {"\n"}


def planted(path: Path, kind: str, target: Path) -> None:
    """Put a black box at a path: another user's, a link to this user's, or something else."""
    if kind == "link":
        path.symlink_to(target)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(target.read_bytes())
        os.chown(path, STRANGER, -1)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", pytest.param("file", marks=as_root)])
def test_a_planted_black_box_is_neither_read_nor_removed(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    folder.mkdir(parents=True)
    target = tmp_path / "own"
    box = BlackBox(tmp_path)
    box.close(True)
    box.path.rename(target)
    path = folder / f"planted{SUFFIX}"
    planted(path, kind, target)
    os.utime(path, (0, 0), follow_symlinks=False)
    assert boxes() == []
    with pytest.raises(OptionError, match="there is no black box"):
        read()
    prune(time.time())
    assert path.is_symlink() or path.exists()


def test_a_pipe_is_no_black_box_and_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OptionError, match="is no black box"):
        read(tmp_path / "pipe")


def test_names_in_a_black_box_do_not_reach_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", HOSTILE])
    box = BlackBox(tmp_path)
    box.event(0, f"failed {HOSTILE}")
    box.close(True)
    path = box.path.rename(tmp_path / f"box{HOSTILE}")
    done = CliRunner().invoke(main, ["postmortem", str(path)])
    assert done.exit_code == 0 and "owned" in done.output
    assert not CONTROLS & set(done.output)
    done = CliRunner().invoke(main, ["postmortem", str(tmp_path / HOSTILE)])
    assert done.exit_code == 2 and "cannot be read" in done.output
    assert not CONTROLS & set(done.output)


def test_names_in_a_running_job_do_not_reach_the_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", HOSTILE])
    box = BlackBox()
    texts = dict.fromkeys(("state", "error", "options"), HOSTILE)
    box.write(sample(1)._replace(time_ns=time.time_ns(), **texts))
    box.table([producer(1, place=HOSTILE, state=HOSTILE, hand=HOSTILE, where=HOSTILE)])
    for arguments in (["--once"], ["--once", str(os.getpid())]):
        done = CliRunner(env={"COLUMNS": "250"}).invoke(main, ["top", *arguments])
        assert done.exit_code == 0 and done.output.count("owned") >= 7
        assert not CONTROLS & set(done.output)
    box.close(False)
    out = io.StringIO()
    with Live(Text(HOSTILE), console=Terminal(file=out, force_terminal=True, width=99)):
        pass
    assert "\x1b]0" not in out.getvalue() and "\x1b[2J" not in out.getvalue()
    assert "\x1b[?25h" in out.getvalue()  # what rich itself writes stays


@as_root
def test_the_black_box_of_another_users_job_is_not_shown(folder: Path) -> None:
    box = BlackBox()
    os.chown(box.path, STRANGER, -1)
    with pytest.raises(OptionError, match="no process of this user"):
        running_boxes()
    with pytest.raises(OptionError, match="writes no black box of this user"):
        box_of(os.getpid())
    os.chown(box.path, os.geteuid(), -1)
    assert box_of(os.getpid()) == box.path
    box.close(False)


def test_the_text_of_every_error_is_clean() -> None:
    error = ProducerFailed("record 3", ValueError(HOSTILE))
    for text in (str(OptionError(f"got {HOSTILE}\nhere")), str(error)):
        assert "owned" in text and not CONTROLS & set(text)
    assert str(OptionError(f"é\n{clean(HOSTILE)}")).startswith("é\na\\x1b]0;owned")
