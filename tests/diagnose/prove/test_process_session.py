"""Runs of which nothing goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastfeed.diagnose.prove.process_session import run_session
from fastfeed.probes.procfs import stat_of
from tests.helpers.dying import until

# Two processes that live on: one of the session, one with a session of its own.
STARTS = """\
import subprocess, sys, time
long = [sys.executable, "-c", "import time; time.sleep(300)"]
own = subprocess.Popen(long, start_new_session=True)
print(subprocess.Popen(long).pid, own.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def alive(pid: int) -> bool:
    return stat_of(pid).state not in ("", "Z")


def test_a_command_that_is_ended_takes_all_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = subprocess.Popen.wait

    def until_all_run(self: Any, timeout: float | None = None) -> int:
        if timeout is not None:
            until(lambda: (tmp_path / "out").read_text().endswith("\n"), "its processes to start")
            raise subprocess.TimeoutExpired(self.args, timeout)
        return wait(self)

    monkeypatch.setattr(subprocess.Popen, "wait", until_all_run)
    with (tmp_path / "out").open("wb") as output:
        code = run_session([sys.executable, "-c", STARTS, "300"], limit_s=1.0, stdout=output)
    started = [int(word) for word in (tmp_path / "out").read_text().split()]
    assert code is None
    assert len(started) == 2
    assert not any(map(alive, started))


def test_what_a_command_leaves_is_ended(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as output:
        code = run_session([sys.executable, "-c", STARTS, "0"], limit_s=60.0, stdout=output)
    started = [int(word) for word in (tmp_path / "out").read_text().split()]
    assert (code, len(started)) == (0, 2)
    assert not any(map(alive, started))


def test_a_command_that_ends_by_itself() -> None:
    assert run_session([sys.executable, "-c", "import sys; sys.exit(7)"], limit_s=60.0) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_is_started(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    popen = subprocess.Popen

    def interrupted(*args: Any, **options: Any) -> Any:
        started.append(popen(*args, **options))
        os.kill(os.getpid(), number)
        return started[0]

    before = signal.signal(number, signal.default_int_handler)
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_session([sys.executable, "-c", "import time; time.sleep(300)"], limit_s=60.0)
    finally:
        signal.signal(number, before)
    assert not alive(started[0].pid)
