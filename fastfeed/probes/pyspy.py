"""Stacks from outside, by py-spy: of child processes, and of the holder of this process's
interpreter lock."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fastfeed.probes.places import Place, Places, without_start
from fastfeed.probes.thread_names import kernel_number

SAMPLES_PER_S = 50  # samples a second: starting costs as much as 100 of them
RECORD_S = 1  # whole seconds
MAX_CORE_SHARE = 0.004  # of a core
MAX_SAMPLED_CHILDREN = 4  # that are sampled
DUMP_S = 5.0
PYTHON_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
THREAD_LINE = re.compile(r"^thread \((0x[0-9A-Fa-f]+|\d+)\)", re.MULTILINE)
PERMISSION = re.compile(r"permission|not permitted|sudo|ptrace", re.IGNORECASE)
PTRACE = "/proc/sys/kernel/yama/ptrace_scope"


class StackSample(NamedTuple):
    """A stack, the innermost place last, and the innermost file's full name."""

    places: tuple[Place, ...]
    file: str


class StackSamples:
    """Samples of one process: `seen[tid]` counts stacks of a thread, `looks` counts samples."""

    def __init__(self) -> None:
        self.looks = 0
        self.error = ""
        self._seen: dict[int, Counter[StackSample]] = defaultdict(Counter)
        self._unread: list[tuple[str, Places, dict[str, int]]] = []

    def add(self, raw: str, places: Places, *, looks: int, pid: int) -> None:
        """Add py-spy's folded stacks of a process; they are parsed on demand, not while the script
        trains."""
        self.looks += looks
        self._unread.append(
            (
                raw,
                places,
                {tid: kernel_number(pid, int(tid, 0)) for tid in set(THREAD_LINE.findall(raw))},
            )
        )

    @property
    def seen(self) -> dict[int, Counter[StackSample]]:
        """The stacks of each thread."""
        while self._unread:
            raw, places, tids = self._unread.pop()
            self._read(raw, places, tids=tids)
        return self._seen

    def _read(self, raw: str, places: Places, *, tids: Mapping[str, int]) -> None:
        for line in raw.splitlines():
            text, _, count = line.rpartition(" ")
            thread, *frames = text.split(";")
            known = THREAD_LINE.match(thread)
            if known and count.isdigit():
                self._seen[tids[known[1]]][_stack(frames, places)] += int(count)

    def shares(self) -> dict[int, float]:
        """Return by thread the share of the samples that contain it."""
        return (
            {tid: sum(counts.values()) / self.looks for tid, counts in self.seen.items()}
            if self.looks
            else {}
        )


def _stack(frames: Sequence[str], places: Places) -> StackSample:
    found, last = [], ""
    for frame in frames:
        parts = PYTHON_FRAME.match(frame)
        if parts:
            last = parts["file"]
            found.append(places.named(parts["function"], last, line=int(parts["line"])))
    return StackSample(without_start(found), last)


class Spy:
    """Requests samples from a helper process, one window of one process after another."""

    def __init__(self, places: Places, *, program: str | None = None) -> None:
        self._places = places
        self.program = find() if program is None else program
        # by pid: stacks of the lock's holders
        self.holders: dict[int, StackSamples] = defaultdict(StackSamples)
        self.all: dict[int, StackSamples] = defaultdict(StackSamples)
        self.cpu_s = 0.0
        self.helper_pid = 0
        self._turn = 0
        self._chosen: list[int] = []
        self._epoch = self._asked_in = 0  # answers to questions before begin() are dropped
        self._busy = False
        self._rest = b""
        self._to = self._from = -1
        if self.program:
            self._start()

    def _start(self) -> None:
        inner, self._to = os.pipe()
        self._from, outer = os.pipe()
        try:
            helper = str(Path(__file__).with_name("pyspy_helper.py"))
            command = [sys.executable, "-I", "-S", helper, str(os.getpid()), str(MAX_CORE_SHARE)]
            subprocess.run(
                command,
                stdin=inner,
                stdout=outer,
                stderr=subprocess.DEVNULL,
                check=True,
                timeout=30,
            )
            os.set_blocking(self._from, False)
        except (OSError, subprocess.SubprocessError):
            self.stop()
            self.program = ""
        finally:
            os.close(inner)
            os.close(outer)

    def begin(self) -> None:
        """Drop earlier samples."""
        self.holders.clear()
        self.all.clear()
        self._epoch += 1
        self._turn = 0
        self.cpu_s = 0.0

    def look(self, children: Sequence[int]) -> None:
        """Take an answer, if one has come, and ask the next question; never wait."""
        if not self.program:
            return
        self._take()
        if not self._busy and self._epoch:
            self._ask(children)

    def _ask(self, children: Sequence[int]) -> None:
        """Ask for stacks and lock holders of a few children, which stand for the others."""
        chosen = [pid for pid in self._chosen if pid in children]
        self._chosen = (
            chosen
            + [pid for pid in children if pid not in chosen][: MAX_SAMPLED_CHILDREN - len(chosen)]
        )
        turns = [(pid, gil) for pid in self._chosen for gil in (False, True)] + [
            (os.getpid(), True)
        ]
        known = [
            turn for turn in turns if not (self.all[turn[0]].error or self.holders[turn[0]].error)
        ]
        if not known:
            return
        pid, gil = known[self._turn % len(known)]
        self._turn += 1
        request = {
            "program": self.program,
            "pid": pid,
            "gil": gil,
            "seconds": RECORD_S,
            "rate": SAMPLES_PER_S,
        }
        try:
            os.write(self._to, json.dumps(request).encode() + b"\n")
            self._busy, self._asked_in = True, self._epoch
        except OSError:
            self.program = ""

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._rest += os.read(self._from, 1 << 20)
        line, found, rest = self._rest.partition(b"\n")
        if not found:
            return
        self._rest, self._busy = rest, False
        told = json.loads(line)
        self.cpu_s += told["cpu_s"]
        if self._asked_in == self._epoch:
            stacks = (self.holders if told["gil"] else self.all)[told["pid"]]
            stacks.error = told["error"]
            if not told["error"]:
                stacks.add(
                    told["raw"], self._places, looks=RECORD_S * SAMPLES_PER_S, pid=told["pid"]
                )

    def stop(self) -> None:
        """Let the helper end."""
        for fd in (self._to, self._from):
            if fd >= 0:
                os.close(fd)
        self._to = self._from = -1
        self.program = ""

    def missing(self, children: Sequence[int]) -> list[str]:
        """Return the processes that it could not sample, each with the reason."""
        if not self.program:
            install = "py-spy is not installed (pip install py-spy)"
            texts = [f"who holds the interpreter lock is estimated: {install}"]
            return texts + ([f"stacks of child processes: {install}"] if children else [])
        errors = {
            pid: self.all[pid].error or self.holders[pid].error for pid in (os.getpid(), *children)
        }
        denied = [f"{pid} ({reason(error)})" for pid, error in errors.items() if error]
        texts = [f"py-spy could not read process {', '.join(denied)}"] if denied else []
        left = [pid for pid in children if not self.all[pid].looks and not errors[pid]]
        return texts + (
            [f"stacks of {len(left)} of {len(children)} child processes: no time for them"]
            if left
            else []
        )


def find() -> str:
    """Return the py-spy of this environment, or the first on the path; "" if there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def dump(pid: int) -> list[str]:
    """Return the stack of the first thread of a process, a line for each frame, the innermost
    first; [] if py-spy fails."""
    program = find()
    if not program:
        return []
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DUMP_S
        )
    except (OSError, subprocess.SubprocessError):
        return []
    _, _, thread = done.stdout.partition("\nThread ")
    lines = thread.partition("\nThread ")[0].splitlines()[1:]
    return [line for line in lines if line.strip()]


def reason(error: str) -> str:
    """Return why py-spy failed, and what to change if permission is missing."""
    if not PERMISSION.search(error):
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        return lines[-1][:120] if lines else "no answer"
    with contextlib.suppress(OSError):
        scope = Path(PTRACE).read_text().strip()
        if scope != "0":
            return (
                f"no permission: kernel.yama.ptrace_scope is {scope}, 0 allows it, and so does root"
            )
    return (
        "no permission: run as its user, or as root, with CAP_SYS_PTRACE (in a container "
        "--cap-add SYS_PTRACE)"
    )
