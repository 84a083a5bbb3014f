"""A job on a terminal: its runners, or the threads of any Python, and messages for the rest."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fastfeed import FeedRunner, OptionError
from fastfeed.live import threads_of_job as spy
from fastfeed.live import top
from fastfeed.live.drawing import duration, size, sparkline
from fastfeed.live.top import JobView, JobWatcher, ProcessUse, draw, view
from fastfeed.probes import pyspy
from tests.helpers.dying import state_of, until
from tests.live.places import Folders, answer, ones

SPIN = """
import threading, time
def load():
    time.sleep(1000)
threading.Thread(target=load, name="loader", daemon=True).start()
print("ready", flush=True)
def step():
    while True:
        pass
step()
"""


def console(width: int = 130) -> Console:
    return Console(width=width, file=io.StringIO(), force_terminal=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[int]:
    """Start a Python process without a runner."""
    (tmp_path / "spin.py").write_text(SPIN)
    process = subprocess.Popen([sys.executable, tmp_path / "spin.py"], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    yield process.pid
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "SOCKET_INTERVAL_S", 0.0)


def test_the_only_job(folders: Folders) -> None:
    with FeedRunner(ones, threads=2, order="any") as runner:
        stream = iter(runner)
        for _ in range(6):
            next(stream)
        answer(steps=5)
        out = console()
        view(console=out, once=True)
        text = text_of(out)
        for words in (
            f"pid {os.getpid()}",
            "trainer",
            "runner 0 runs",
            "threads=2",
            "starvation",
            "AU",
            "queue",
            "5 steps",
        ):
            assert words in text
        assert text.count("thread ") == 2
        narrow = console(80)
        view(os.getpid(), console=narrow)
        assert max(map(len, text_of(narrow).splitlines())) <= 80
        out = console()
        view(console=out, as_json=True)
        told = json.loads(text_of(out))
        assert told["pid"] == os.getpid() and told["runners"][0]["steps"] == 5
        watcher = JobWatcher(os.getpid())
        for _ in range(3):
            job = watcher.observe()
            assert job is not None
            console().print(draw(job))
    with pytest.raises(OptionError, match="no process of this user has a FeedRunner"):
        view(console=console())


def test_several_jobs_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = {"steps_per_second": 48.0, "starvation": 0.31}
    runner = {"steps": 7, "recent": recent}
    monkeypatch.setattr(
        top.socket,
        "jobs",
        lambda: {n: {"pid": n, "command": ["train.py"], "runners": [runner]} for n in (41, 42)},
    )
    out = console()
    view(console=out)
    assert all(words in text_of(out) for words in ("41", "42", "31 %", "fastfeed top PID"))
    out = console()
    view(console=out, as_json=True)
    assert len(json.loads(text_of(out))["jobs"]) == 2


def test_a_job_that_ends(other: int, folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spy, "threads_of", lambda pid: [])
    watcher = JobWatcher(other)
    assert watcher.observe() is not None
    os.kill(other, 9)
    until(lambda: state_of(other) == "Z", "its end")
    assert watcher.observe() is None


def test_ctrl_c_ends_it(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with FeedRunner(ones) as runner:
        next(iter(runner))
        answer(runner=0)
        monkeypatch.setattr(top.time, "sleep", interrupted)
        out = Console(width=130, file=io.StringIO(), force_terminal=True)
        view(console=out)
        assert "runner 0" in text_of(out)


@pytest.mark.skipif(not pyspy.find(), reason="needs py-spy")
def test_any_other_python(other: int, folders: Folders) -> None:
    try:
        threads = spy.threads_of(other)
    except OptionError as error:
        pytest.skip(str(error))
    found = {t.name: t for t in threads}
    assert found["MainThread"].user_line.startswith("step spin.py:")
    assert found["loader"].user_line == "load spin.py:4"
    # py-spy knows the kernel's thread ids, and so which thread sleeps, from Python 3.11 on.
    assert found["loader"].active == (sys.version_info < (3, 11))
    out = console()
    view(other, console=out)
    assert "loader" in text_of(out) and "no FeedRunner answers" in text_of(out)


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "py-spy"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setattr(pyspy, "find", lambda: str(program))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1",
            "cannot read process .*no permission.*root",
        ),
        (
            "echo 'Error: Failed to find python version from target process' >&2; exit 1",
            "is no Python process",
        ),
        ("echo 'Error: out of luck' >&2; exit 1", "cannot read process .*out of luck"),
        ("exit 1", "did not say why"),
        ("echo '[{]'", "cannot be read"),
        ("echo '[{}]'", "cannot be read"),
    ],
)
def test_what_py_spy_cannot_see(
    body: str, said: str, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, body)
    with pytest.raises(OptionError, match=said) as caught:
        view(os.getpid(), console=console())
    assert "\n" not in str(caught.value)


def test_what_is_missing(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "find", lambda: "")
    with pytest.raises(OptionError, match="only with py-spy: pip install py-spy"):
        view(os.getpid(), console=console())
    with pytest.raises(OptionError, match="there is no process"):
        view(2**22 + 1, console=console())


def test_what_is_not_known_yet_is_drawn() -> None:
    gone: dict[str, float | None] = dict.fromkeys(
        ("steps_per_second", "starvation", "bytes_per_second", "wait_ms")
    )
    producer = {
        "producer": 0,
        "kind": "process",
        "state": "dead",
        "worker": 1,
        "pid": 9,
        "tid": 0,
        "hand": "item 3",
    }
    producer |= {"where": "", "busy": None, "batches_per_second": None}
    runner = {
        "runner": 0,
        "state": "failed",
        "error": "worker 1 died\nat",
        "options": {},
        "steps": 0,
        "records": 0,
    }
    runner |= {"depth": 0, "room": 0, "depth_nbytes": 0, "errors": 2, "copied": 0, "now": gone}
    runner |= {"producers": [producer] * 30}
    uses = [ProcessUse(n, f"worker {n}", None, 2**30) for n in range(12)]
    out = console()
    out.print(
        draw(JobView(1, "python train.py", 3700.0, uses, [runner], missing=["the GPU is not seen"]))
    )
    for words in (
        "train.py",
        "up 1 h 01 min",
        "worker 1 died",
        "2 errors passed over",
        "and 6 more",
        "5 more",
        "GPU is not",
    ):
        assert words in text_of(out)


def test_numbers_as_they_are_drawn() -> None:
    assert [size(n) for n in (0, 999, 1500, 2_500_000, 140_000_000_000)] == [
        "0 B",
        "999 B",
        "2 kB",
        "2.5 MB",
        "140 GB",
    ]
    assert [duration(s) for s in (0.4, 75, 7384)] == ["0 s", "1 min 15 s", "2 h 03 min"]
    assert (
        sparkline([0.0, None, 1.0, 2.0]) == "▁·▅█"
        and sparkline([0.1, 1.0], top=1.0) == "▁█"
        and sparkline([]) == ""
    )
