"""The black box exists from the first start on, and stays only after a failure."""

from __future__ import annotations

import errno
import gc
import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner
from fastfeed.errors import ProducerFailed
from fastfeed.jobs import blackbox, observer
from fastfeed.jobs.blackbox import BlackBox, boxes, in_use, prune, read
from tests.helpers.dying import LONG_S, until
from tests.helpers.scripts import ROOT
from tests.jobs.flights import flight, left, observing, ones


def broken() -> Any:
    yield from ()
    raise ValueError("no such picture")


def test_it_is_there_while_a_runner_runs(folder: Path) -> None:
    with FeedRunner(ones, threads=2) as runner:
        next(iter(runner))
        seen = flight(samples=3)
        path = Path(seen.path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert str(os.getpid()) in path.name and in_use(path)
        assert seen.ending == "running" and seen.header.pid == os.getpid()
        assert list(seen.last_minute) == [0]
        assert seen.events[0].text == "start threads=2"
        assert seen.table is not None and len(seen.table.rows) == 2
    assert left(folder) == [] and not observing()


def test_a_failure_is_kept(folder: Path) -> None:
    runner = FeedRunner(broken)
    with pytest.raises(ProducerFailed):
        next(iter(runner))
    runner.stop()
    (path,) = boxes()
    seen = read(path)
    assert seen.ending == "with an error" and not in_use(path)
    assert any("no such picture" in e.text and "failed" in e.text for e in seen.events)
    assert seen.events[-1].text == "stopped"


def test_in_a_given_folder_all_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = tmp_path / "new" / "flights"
    monkeypatch.setenv("FASTFEED_BLACKBOX", str(given))
    for _ in range(2):
        with FeedRunner(ones) as runner:
            next(iter(runner))
    assert left(folder) == [] and len(left(given)) == 2
    seen = read()
    assert seen.ending == "cleanly"
    assert [e.text for e in seen.events if e.text in ("start", "stopped")] == ["start", "stopped"]
    given.chmod(0o777)
    BlackBox().close(False)
    assert stat.S_IMODE(given.stat().st_mode) == 0o777 and len(boxes()) == 3


def test_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTFEED_BLACKBOX", "0")
    with FeedRunner(ones) as runner:
        next(iter(runner))
        assert not observing()
    assert left(folder) == [] and blackbox.box_folder() == folder


@pytest.mark.parametrize(
    "trouble", ["nowhere", "no home", "full at first", "full later", "full at the replacement"]
)
def test_trouble_costs_one_line(
    trouble: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    if trouble == "nowhere":
        monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    elif trouble == "no home":
        monkeypatch.setenv("XDG_STATE_HOME", "")
        monkeypatch.setattr("os.path.expanduser", str)
    elif trouble == "full at first":
        monkeypatch.setattr(blackbox, "_write", full)
    elif trouble == "full at the replacement":
        monkeypatch.setattr(blackbox.tempfile, "mkstemp", full)
        monkeypatch.setattr(blackbox, "GROWTH_NBYTES", 4096)
    caplog.set_level(logging.WARNING, "fastfeed")
    with FeedRunner(ones) as runner:
        stream = iter(runner)
        next(stream)
        if trouble == "full later":
            flight()
            monkeypatch.setattr(blackbox, "_write", full)
        until(lambda: caplog.records and not boxes(), "a line in the log")
        for _ in range(5):
            next(stream)
    assert len(caplog.records) == 1 and "black box" in caplog.text
    assert left(folder) == []


def test_a_defect_of_fastfeed_costs_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fastfeed.jobs.runner_samples.rss_of", lambda *_: 1 / 0)
    with FeedRunner(ones) as runner:
        stream = iter(runner)
        next(stream)
        until(lambda: not observing(), "the end of the thread")
        next(stream)
    assert len(caplog.records) == 1 and "the runners are no longer observed" in caplog.text
    (path,) = boxes()
    assert read(path).ending == "with an error"


def test_old_ones_are_removed(folder: Path) -> None:
    folder.mkdir(parents=True)
    for n in range(14):
        path = folder / f"{n:02d}.blackbox"
        path.write_bytes(b"")
        days = 8 if n == 13 else n / 100
        os.utime(path, (time.time() - days * 86400,) * 2)
    (folder / "00.blackbox.tmp12345").write_bytes(b"")  # of a replacement cut short
    os.utime(folder / "00.blackbox.tmp12345", (0, 0))
    living = BlackBox(folder)
    os.utime(living.path, (0, 0))
    prune(time.time())
    assert [p.name for p in boxes()] == [
        *(f"{n:02d}.blackbox" for n in range(10)),
        living.path.name,
    ]
    assert len(left(folder)) == 11
    living.close(False)
    os.utime(folder / "03.blackbox", (0, 0))
    prune(time.time())
    assert not (folder / "03.blackbox").exists()


def test_a_forgotten_runner_is_released(folder: Path) -> None:
    runner = FeedRunner(ones)
    stream = iter(runner)
    next(stream)
    flight()
    gc.disable()  # the runner is in no cycle, and its observer must not add one
    try:
        del runner, stream
        until(lambda: not observing(), "the end of the thread")
    finally:
        gc.enable()
    assert left(folder) == []


def test_an_ended_feed_is_released_and_the_next_one_observed(folder: Path) -> None:
    """An ended session may hold its runner forever."""
    records = [np.ones((4, 3))] * 3
    with FeedRunner(iter(records)) as runner:
        assert len(list(runner)) == 3
        until(lambda: not observing(), "the end of the thread")
        assert left(folder) == []
    with FeedRunner(records, records=False, epochs=1, threads=2) as again:
        for epoch in (1, 2):
            for n, _ in enumerate(again):
                if n == epoch:
                    break
            assert list(flight().last_minute) == [0]


def test_a_forgotten_failed_runner_is_released(folder: Path) -> None:
    """A second reference to the error would keep the runner alive: error -> frames -> runner."""

    def fail() -> None:
        with pytest.raises(ProducerFailed):
            next(iter(FeedRunner(broken)))

    fail()
    # the frames are a cycle
    until(lambda: gc.collect() * 0 or not observing(), "the end of the thread")


FORKS = """
import os, sys
from pathlib import Path
from fastfeed import FeedRunner
from fastfeed.jobs.blackbox import in_use, read
from tests.jobs.flights import flight, ones

with FeedRunner(ones) as runner:
    next(iter(runner))
    before = Path(flight().path)
    pid = os.fork()
    if not pid:
        runner.stop()
        held = {os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")}
        os._exit(0 if str(before) not in held else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert before.exists() and in_use(before)
    assert read(before).ending == "running"
"""


def test_a_forked_copy_leaves_it_alone(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S
    )
    assert done.returncode == 0, done.stderr


def test_at_the_interpreters_end_an_error_is_written_down(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FeedRunner(ones)
    stream = iter(runner)
    next(stream)
    flight()
    monkeypatch.setattr(sys, "last_value", RuntimeError("CUDA out of memory"), raising=False)
    observer._at_exit()
    assert not observing()
    (path,) = boxes()
    assert read(path).events[-1].text == "the process ends with RuntimeError: CUDA out of memory"
    assert read(path).ending == "with an error"
    runner.stop()
