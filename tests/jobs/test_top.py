"""A running job on a terminal, as its black box shows it, and messages for the rest."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fastfeed import FeedRunner, OptionError
from fastfeed.jobs import top
from fastfeed.jobs.blackbox import BlackBox
from fastfeed.jobs.top import view
from fastfeed.probes.gpu import GpuReading
from tests.jobs.flights import flight, ones, sample


def console(width: int = 130, *, terminal: bool = False) -> Console:
    return Console(width=width, file=io.StringIO(), force_terminal=terminal)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def other() -> Iterator[int]:
    """Start a process without a runner."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOP_INTERVAL_S", "CPU_WINDOW_S"):
        monkeypatch.setattr(top, name, 0.0)


def test_the_only_job(folder: Path) -> None:
    with FeedRunner(ones, threads=2, order="any") as runner:
        stream = iter(runner)
        for _ in range(6):
            next(stream)
        flight(batches=5)
        out = console()
        view(console=out, once=True)
        text = text_of(out)
        for words in (f"pid {os.getpid()}", "is running", "trainer", "runner 0 runs", "threads=2"):
            assert words in text
        assert "starvation" in text and "5 batches" in text and text.count("thread ") == 2
        narrow = console(80)
        view(os.getpid(), console=narrow)
        assert max(map(len, text_of(narrow).splitlines())) <= 80
        out = console()
        view(console=out, as_json=True)
        told = json.loads(text_of(out))
        assert told["pid"] == os.getpid() and told["runners"][0]["batches"] == 5
        assert len(told["runners"][0]["producers"]) == 2
        (path,) = top.running_boxes()
        assert top.running(path) is not None
    assert top.running(path) is None
    with pytest.raises(OptionError, match="has just ended"):
        top._first(path)
    with pytest.raises(OptionError, match="no process of this user writes a black box"):
        view(console=console())


def test_a_black_box_in_a_given_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FASTFEED_BLACKBOX", str(tmp_path / "flights"))
    with FeedRunner(ones) as runner:
        next(iter(runner))
        flight()
        monkeypatch.delenv("FASTFEED_BLACKBOX")
        with pytest.raises(OptionError, match="FASTFEED_BLACKBOX=DIR, set it here"):
            view(console=console())
        out = console()
        view(os.getpid(), console=out)
        assert "runner 0 runs" in text_of(out)


def test_several_jobs_are_listed(folder: Path) -> None:
    boxes = [BlackBox() for _ in range(2)]
    for box in boxes:
        box.write(sample(1, time_ns=time.time_ns(), starvation=0.31, steps_per_second=48.0))
    out = console()
    view(console=out)
    assert all(words in text_of(out) for words in ("48", "31 %", "fastfeed top PID"))
    out = console()
    view(console=out, as_json=True)
    assert len(json.loads(text_of(out))["jobs"]) == 2
    for box in boxes:
        box.close(False)


def test_it_ends_with_the_job_or_by_ctrl_c(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with FeedRunner(ones) as runner:
        next(iter(runner))
        flight()
        with monkeypatch.context() as patched:
            patched.setattr(top.time, "sleep", interrupted)
            out = console(terminal=True)
            view(console=out)
            assert "runner 0" in text_of(out)
        monkeypatch.setattr(top.time, "sleep", lambda _: runner.stop())
        out = console(terminal=True)
        view(console=out)
        assert "has ended" in text_of(out)


def test_gpus_are_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GpuReading(0, "H100", 0.5, 10**9, 80 * 10**9, 10**9)
    monkeypatch.setattr(top, "readings", lambda pid: [gpu])
    with FeedRunner(ones) as runner:
        next(iter(runner))
        flight()
        out = console()
        view(console=out)
    assert "H100" in text_of(out) and "50 % busy" in text_of(out)
    assert "1.0 GB of 80.0 GB memory, 1.0 GB its own" in text_of(out)


def test_other_processes(other: int, folder: Path) -> None:
    with pytest.raises(OptionError, match="no black box of this user.*py-spy dump --pid"):
        view(other, console=console())
    with pytest.raises(OptionError, match="there is no process"):
        view(2**22 + 1, console=console())
