"""Training script in a process (and a session) of its own, whose end is observed from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.dying import LONG_S, gone, kept

GONE_S = 2.0  # the promise
ROOT = Path(__file__).parents[2]
PRELUDE = """
import ctypes, gc, multiprocessing, os, signal, subprocess, sys, threading, time
import numpy as np
from pathlib import Path
from fastfeed import FeedRunner, FeedStopped

# A job in the background inherits the first ignored, one below nohup the second.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

def endless():
    while True:
        yield np.full((4, 100), os.getpid())

def children(task):
    try:
        return [int(c) for c in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
        return []

def below(pid):
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):  # so has the process
        return []
    every = [c for task in tasks for c in children(task)]
    return every + [g for c in every for g in below(c)]

def say(*words):
    '''A whole line at once, also beside a child that speaks.'''
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def say_tree(count):
    '''Tells the pids of all descendants, once there are `count`.'''
    end_s = time.monotonic() + 60
    while len(found := below(os.getpid())) < count:
        assert time.monotonic() < end_s, f"{count} descendants, not {found}"
        time.sleep(0.002)
    say("tree", *found)

def started(source=endless, processes=2, **options):
    '''A runner that has delivered, and its iterator; everybody knows the processes.'''
    runner = FeedRunner(source, processes=processes, **options)
    stream = iter(runner)
    next(stream)
    say_tree(processes + 1)
    return runner, stream
"""


@dataclass
class Ended:
    """End of a script, and its output."""

    code: int
    out: list[str]
    err: str

    def tracebacks(self) -> int:
        """Return the number of tracebacks, where chained ones count as one. None may come from an
        exception that cannot be caught."""
        assert "Exception ignored" not in self.err
        assert "fatal" not in self.err.lower()
        chained = self.err.count(
            "During handling of the above exception, another exception occurred"
        )
        return self.err.count("Traceback (most recent call last)") - chained


class Script:
    """Runs `code` after PRELUDE. Its lines "tree ..." name processes that must be gone when it has
    ended."""

    def __init__(self, code: str, *arguments: str, python: tuple[str, ...] = ()) -> None:
        text = PRELUDE + textwrap.dedent(code)
        self._process = subprocess.Popen(
            [sys.executable, *python, "-c", text, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.lines: list[str] = []

    def line(self, start: str) -> str:
        """Wait for a line that begins so; the test's own limit ends a wait in vain."""
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self.lines.append(text.strip())
            if text.startswith(start):
                return text[len(start) :].strip()
        raise AssertionError(f"no line {start!r}: {self.lines}, {self.ended().err}")

    def signal(self, number: int) -> None:
        """Send a signal to the script alone."""
        os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to its whole process group, as a terminal does."""
        os.killpg(self.pid, number)

    @staticmethod
    def signal_other(pid: int, number: int) -> None:
        """Send a signal to a process that the script has named."""
        os.kill(pid, number)

    def gone(self) -> None:
        """Wait until every named process has ended, for two seconds at most."""
        self._process.poll()
        kept(lambda: all(map(gone, self.tree())), f"the end of {self.tree()}", GONE_S)

    def tree(self) -> list[int]:
        """Return every process that the script has named."""
        return [
            int(word) for line in self.lines if line.startswith("tree") for word in line.split()[1:]
        ]

    def ends_quietly(self, last: str | None = None, *, code: int = 0) -> Ended:
        """Check that it ends with this code and this last line, and prints no error."""
        ended = self.ended()
        assert (ended.code, ended.err) == (code, "")
        assert last is None or ended.out[-1] == last
        return ended

    def ended(self) -> Ended:
        """Wait for the end of the script and of all its processes, for two seconds at most."""
        out, err = self._process.communicate(timeout=LONG_S)
        self.lines += out.splitlines()
        self.gone()
        return Ended(self._process.returncode, self.lines, err)

    def kill(self) -> None:
        """Kill what is left of a failed test."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.communicate()


Start = Callable[..., Script]
