"""The status socket: a line of JSON for clients of this user while the process has runners."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from pathlib import Path

import numpy as np
import pytest

from fastfeed import FeedRunner
from fastfeed.live import server
from fastfeed.live.folders import first_usable, make_private, socket_folders
from fastfeed.live.server import MAX_CLIENTS
from fastfeed.live.socket import ask, jobs, same_user
from tests.helpers.dying import until
from tests.live.places import Folders, answer, live_threads, ones


def connected(folders: Folders) -> socket.socket:
    conn = socket.socket(socket.AF_UNIX)
    conn.settimeout(60)
    conn.connect(str(folders.run / f"{os.getpid()}.sock"))
    return conn


def test_two_runners_and_nothing_left(folders: Folders) -> None:
    with FeedRunner(ones, threads=2) as first:
        next(iter(first))
        told = answer(state="runs", runner=0)
        path = folders.run / f"{os.getpid()}.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with FeedRunner([np.ones((4, 3))] * 9, records=False, threads=3) as second:
            stream = iter(second)
            assert [len(next(stream)) for _ in range(5)]
            told = answer(runner=1, steps=4)  # the first one is warm-up
            assert [(r["runner"], len(r["producers"])) for r in told["runners"]] == [(0, 2), (1, 3)]
            assert told["runners"][1]["options"] == {"threads": 3, "records": False}
            assert told["pid"] == os.getpid() and told["rss"] > 2**20
            assert list(jobs()) == [os.getpid()]
            assert len(live_threads()) == 1
        assert [r["runner"] for r in answer(runner=0)["runners"]] == [0]
        with FeedRunner(ones) as third:
            next(iter(third))
            # The number of the second one is free again.
            assert [r["runner"] for r in answer(runner=1)["runners"]] == [0, 1]
    assert not live_threads() and folders.left() == []
    assert ask(os.getpid()) is None and jobs() == {}


def test_a_follower_has_a_number_of_its_own(folders: Folders) -> None:
    with FeedRunner(ones, threads=2) as training:
        check = training.also([np.ones((4, 3))] * 3, records=False)
        next(iter(training))
        assert len(list(check)) == 3
        told = answer(runner=1, state="waits for the next pass")
        assert [r["runner"] for r in told["runners"]] == [0, 1]
    assert folders.left() == []


def test_slow_and_rude_clients(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CLIENT_TIMEOUT_S", 0.05)
    with FeedRunner(ones) as runner:
        next(iter(runner))
        answer(runner=0)
        waiting = [connected(folders) for _ in range(MAX_CLIENTS * 2)]  # none of them reads
        for conn in waiting[::2]:
            with contextlib.suppress(ConnectionError):  # the server has already closed it
                conn.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        assert answer(runner=0)
        for conn in waiting:
            conn.close()
    assert not live_threads()


def test_an_answer_larger_than_the_buffer_comes_whole(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fastfeed.live.service.Service._answer",
        lambda self: json.dumps({"runners": ["x" * 2**22]}).encode(),
    )
    with FeedRunner(ones) as runner:
        next(iter(runner))
        told = until(lambda: ask(os.getpid()), "an answer")
        assert len(told["runners"][0]) == 2**22


def test_only_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    assert same_user(one)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not same_user(one)
    one.close()
    other.close()


def test_folders_of_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "theirs"
    target.mkdir()
    link, file, ours = tmp_path / "link", tmp_path / "file", tmp_path / "ours"
    link.symlink_to(target)
    file.write_text("")
    ours.mkdir(mode=0o777)
    with pytest.raises(NotADirectoryError, match="no folder, or a link"):
        make_private(link)
    with pytest.raises(NotADirectoryError):
        make_private(file)
    assert stat.S_IMODE(make_private(ours).stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="belongs to user"):
        make_private(ours)
    with pytest.raises(OSError, match="belongs to user.*no folder"):
        first_usable(iter([ours, link]))


def test_sockets_in_foreign_folders_are_ignored(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FeedRunner(ones) as runner:
        next(iter(runner))
        answer(runner=0)
        folders.run.rename(folders.run.with_name("moved"))
        folders.run.symlink_to(folders.run.with_name("moved"))
        assert jobs() == {}
        folders.run.unlink()
        folders.run.with_name("moved").rename(folders.run)
        assert jobs()


def test_without_a_folder_for_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere/at/all")
    assert list(socket_folders()) == [Path(f"/tmp/fastfeed-{os.geteuid()}")]


def test_a_name_that_is_too_long(
    folders: Folders,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with FeedRunner(ones) as runner:
        next(iter(runner))
        until(lambda: caplog.records, "a line in the log")
    assert "too long" in caplog.text and len(caplog.records) == 1


def test_abandoned_sockets_are_removed(folders: Folders) -> None:
    make_private(folders.run)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folders.run / "99999.sock"))
    dead.close()
    with FeedRunner(ones) as runner:
        next(iter(runner))
        answer(runner=0)
        assert [name for name in folders.left() if name.endswith(".sock")] == [
            f"{os.getpid()}.sock"
        ]


def test_switched_off(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTFEED_SOCKET", "0")
    with FeedRunner(ones) as runner:
        next(iter(runner))
        until(lambda: folders.left(), "a black box")
        assert not folders.run.exists()
