"""What other users plant does no harm, nor do escape sequences in names and texts."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Group
from rich.live import Live
from rich.text import Text

from fastfeed.cli import main
from fastfeed.core.unix import resource
from fastfeed.errors import OptionError, ProducerFailed, clean
from fastfeed.live import threads_of_job
from fastfeed.live.blackbox import SUFFIX, BlackBox, boxes, prune
from fastfeed.live.drawing import Terminal
from fastfeed.live.folders import socket_folders
from fastfeed.live.postmortem import read
from fastfeed.live.server import Server
from fastfeed.live.socket import jobs, serve
from fastfeed.live.threads_of_job import SampledThread
from fastfeed.live.top import JobView, draw, listing
from tests.live.places import Folders

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
    kind: str, folders: Folders, tmp_path: Path
) -> None:
    folders.state.mkdir(parents=True)
    target = tmp_path / "own"
    BlackBox(str(target)).close(False)
    path = folders.state / f"planted{SUFFIX}"
    planted(path, kind, target)
    os.utime(path, (0, 0), follow_symlinks=False)
    assert boxes() == []
    with pytest.raises(OptionError, match="there is no black box"):
        read()
    prune(time.time())
    assert path.is_symlink() or path.exists()


@pytest.mark.parametrize("kind", ["link", pytest.param("folder", marks=as_root)])
def test_black_boxes_in_a_planted_folder_are_neither_read_nor_removed(
    kind: str, folders: Folders, tmp_path: Path
) -> None:
    folders.state.parent.mkdir(parents=True)
    theirs = tmp_path / "theirs" if kind == "link" else folders.state
    theirs.mkdir()
    BlackBox(str(theirs / f"1{SUFFIX}")).close(False)
    os.utime(theirs / f"1{SUFFIX}", (0, 0))
    if kind == "link":
        folders.state.symlink_to(theirs)
    else:
        os.chown(theirs, STRANGER, -1)
    assert boxes() == []
    prune(time.time())
    assert [p.name for p in theirs.iterdir()] == [f"1{SUFFIX}"]


@as_root
def test_a_black_box_is_not_written_into_another_users(tmp_path: Path) -> None:
    path = tmp_path / "box"
    BlackBox(str(path)).close(False)
    os.chown(path, STRANGER, -1)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="no black box of this user"):
        BlackBox(str(path))
    assert path.read_bytes() == before


def test_a_pipe_is_no_black_box_and_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OptionError, match="is no black box"):
        read(tmp_path / "pipe")


FORGE = """
import json, os, socket, sys
path = sys.argv[1]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
os.chown(path, int(sys.argv[2]), -1)
os.seteuid(int(sys.argv[3]))
listener.listen()
print(flush=True)
while True:
    client, _ = listener.accept()
    client.sendall(json.dumps({"pid": 1, "runners": []}).encode())
    client.close()
"""


@as_root
@pytest.mark.parametrize(
    ("owner", "server", "found"), [(0, 0, 1), (STRANGER, STRANGER, 0), (0, STRANGER, 0)]
)
def test_a_socket_of_another_user_is_not_asked(
    owner: int, server: int, found: int, folders: Folders
) -> None:
    folders.run.mkdir(mode=0o700)
    path = folders.run / "1.sock"
    command = [sys.executable, "-c", FORGE, str(path), str(owner), str(server)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as forger:
        assert forger.stdout is not None and forger.stdout.readline()
        try:
            assert len(jobs()) == found
        finally:
            forger.kill()


def test_links_in_the_folder_of_sockets_are_left_alone(folders: Folders, tmp_path: Path) -> None:
    target = tmp_path / "precious.sock"
    target.write_text("precious")
    folders.run.mkdir(mode=0o777)
    for name in ("1.sock", f"{os.getpid()}.sock"):
        (folders.run / name).symlink_to(target)
    assert jobs() == {}
    listener, path = serve()
    listener.close()
    path.unlink()
    assert target.read_text() == "precious" and (folders.run / "1.sock").is_symlink()
    assert folders.run == next(socket_folders())


def shown(renderable: Any) -> str:
    """Return what a terminal without colours gets."""
    out = io.StringIO()
    Terminal(file=out, width=250, color_system=None).print(renderable)
    return out.getvalue()


def test_names_in_a_black_box_do_not_reach_the_terminal(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", HOSTILE])
    path = tmp_path / f"box{HOSTILE}"
    box = BlackBox(str(path))
    box.event(0, f"failed {HOSTILE}")
    box.close(True)
    done = CliRunner().invoke(main, ["postmortem", str(path)])
    assert done.exit_code == 0 and "owned" in done.output
    assert not CONTROLS & set(done.output)
    done = CliRunner().invoke(main, ["postmortem", str(tmp_path / HOSTILE)])
    assert done.exit_code == 2 and "cannot be read" in done.output
    assert not CONTROLS & set(done.output)


def hostile(value: Any) -> Any:
    """Return an answer of a socket whose every text is hostile."""
    if isinstance(value, dict):
        return {key: hostile(one) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) else value


RUNNER = {
    "runner": 0,
    "state": "runs",
    "options": {"threads": 1, "cache": "folder"},
    "steps": 3,
    "records": 9,
    "errors": 1,
    "copied": 1,
    "depth": 1,
    "depth_nbytes": 8,
    "room": 2,
    "error": "ValueError: it\nsays so",
    "recent": {"steps_per_second": 1.0, "starvation": 0.5},
    "now": {"starvation": 0.5, "steps_per_second": 1.0, "bytes_per_second": 2.0, "wait_ms": 3.0},
    "producers": [
        {
            "producer": 0,
            "kind": "thread",
            "tid": 3,
            "worker": 1,
            "pid": 2,
            "state": "making",
            "busy": 0.5,
            "batches_per_second": 2.0,
            "hand": "item 3",
            "where": "load train.py:3",
        }
    ],
}


def test_names_in_a_job_do_not_reach_the_terminal() -> None:
    thread = SampledThread(HOSTILE, 1, active=True, owns_gil=True, innermost=HOSTILE, user_line="")
    job = JobView(3, f"python {HOSTILE}", 2.0, [], [hostile(RUNNER)], [thread], [], [HOSTILE])
    text = shown(Group(draw(job), listing({3: {"runners": [RUNNER], "command": [HOSTILE]}})))
    assert text.count("owned") >= 8 and not CONTROLS & set(text)
    out = io.StringIO()
    with Live(Text(HOSTILE), console=Terminal(file=out, force_terminal=True, width=99)):
        pass
    assert "\x1b]0" not in out.getvalue() and "\x1b[2J" not in out.getvalue()
    assert "\x1b[?25h" in out.getvalue()  # what rich itself writes stays


def test_the_words_of_py_spy_do_not_reach_the_terminal(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: Callable[..., Any] = lambda *_, **__: subprocess.CompletedProcess(  # noqa: E731
        [], 1, "", f"{HOSTILE}: no"
    )
    monkeypatch.setattr(threads_of_job.pyspy, "find", lambda: "py-spy")
    monkeypatch.setattr(threads_of_job.subprocess, "run", answer)
    done = CliRunner().invoke(main, ["top", "--once", str(os.getpid())])
    assert done.exit_code == 2 and "owned" in done.output and not CONTROLS & set(done.output)


def test_the_text_of_every_error_is_clean() -> None:
    error = ProducerFailed("record 3", ValueError(HOSTILE))
    for text in (str(OptionError(f"got {HOSTILE}\nhere")), str(error)):
        assert "owned" in text and not CONTROLS & set(text)
    assert str(OptionError(f"é\n{clean(HOSTILE)}")).startswith("é\na\\x1b]0;owned")


def test_without_descriptors_a_server_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting client makes its listener ready again and again, while none can be accepted."""
    server = Server()
    listener = socket.create_server(("127.0.0.1", 0))
    server.listen(listener, lambda _: b"here")
    looks = 0
    select = server._selector.select

    def counted(timeout: float) -> Any:
        nonlocal looks
        looks += 1
        return select(timeout)

    monkeypatch.setattr(server._selector, "select", counted)
    with socket.create_connection(listener.getsockname()) as client:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            for _ in range(3):
                server.wait(time.perf_counter() + 0.1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert looks < 10
        client.setblocking(False)
        deadline = time.monotonic() + 60
        told = b""
        while not told and time.monotonic() < deadline:
            server.wait(time.perf_counter() + 0.01)
            try:
                told = client.recv(4)
            except BlockingIOError:
                continue
        assert told == b"here"
    server.close()
    assert listener.fileno() < 0


def test_a_server_that_rests_closes_its_listeners() -> None:
    server = Server()
    listener = socket.create_server(("127.0.0.1", 0))
    server.listen(listener, lambda _: None)
    with socket.create_connection(listener.getsockname()):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            server.wait(time.perf_counter() + 0.05)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    server.close()
    assert listener.fileno() < 0
