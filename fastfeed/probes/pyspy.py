"""Stacks of child processes, and of the holders of interpreter locks, sampled by py-spy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from fastfeed.probes import procfs
from fastfeed.probes.beside import start_beside
from fastfeed.probes.places import Place, Places, without_start

SAMPLES_PER_S = 50  # a start costs as much as 100 samples
RECORD_S = 1  # whole seconds
MAX_CORE_SHARE = 0.004
OUTSIDE_CORE_SHARE = 0.02  # for a job that is watched from outside: there are no other stacks
MAX_SAMPLED_CHILDREN = 4
DUMP_S = 10.0
PYTHON_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
THREAD_LINE = re.compile(r"^thread \((0x[0-9A-Fa-f]+|\d+)\)", re.MULTILINE)
PERMISSION = re.compile(r"permission|not permitted|sudo|ptrace", re.IGNORECASE)
PTRACE = "/proc/sys/kernel/yama/ptrace_scope"
HELPER = "pyspy_helper.py"
Stack = tuple[Place, ...]


class StackSamples:
    """Samples of one process: `looks` counts them, and `seen[tid]` counts stacks of a thread, the
    outermost place first."""

    def __init__(self) -> None:
        self.looks = 0
        self.error = ""
        self._seen: dict[int, Counter[Stack]] = defaultdict(Counter)
        self._unread: list[tuple[str, Places, dict[str, int]]] = []

    def add(self, raw: str, places: Places, *, looks: int, pid: int) -> None:
        """Add folded stacks of a process from py-spy.

        They are parsed on demand, because the script is training now.
        """
        self.looks += looks
        tids = {
            tid: procfs.kernel_number(pid, int(tid, 0)) for tid in set(THREAD_LINE.findall(raw))
        }
        self._unread.append((raw, places, tids))

    @property
    def seen(self) -> dict[int, Counter[Stack]]:
        """The stacks of each thread."""
        while self._unread:
            raw, places, tids = self._unread.pop()
            for line in raw.splitlines():
                text, _, count = line.rpartition(" ")
                thread, *frames = text.split(";")
                known = THREAD_LINE.match(thread)
                if known and count.isdigit():
                    self._seen[tids[known[1]]][_stack(frames, places)] += int(count)
        return self._seen

    def shares(self) -> dict[int, float]:
        """Return by thread the share of the samples that contain it."""
        if not self.looks:
            return {}
        return {tid: sum(counts.values()) / self.looks for tid, counts in self.seen.items()}


def _stack(frames: Sequence[str], places: Places) -> Stack:
    known = filter(None, map(PYTHON_FRAME.match, frames))
    return without_start(
        places.named(one["function"], one["file"], line=int(one["line"])) for one in known
    )


class PySpy:
    """Requests samples from a helper process, one window of one process after another.

    `job`: a process that is watched from outside; by default it is this process.
    """

    def __init__(
        self, places: Places, *, program: str | None = None, job: int | None = None
    ) -> None:
        self._places = places
        self._job = job
        self.program = find() if program is None else program
        # By pid: stacks of the lock's holders, and of all threads.
        self.holders: dict[int, StackSamples] = defaultdict(StackSamples)
        self.all: dict[int, StackSamples] = defaultdict(StackSamples)
        self.cpu_s = 0.0
        self._requests = 0
        self._sampled: list[int] = []
        self._epoch = self._request_epoch = 0  # begin() drops the answers to earlier requests
        self._busy = False
        self._unparsed = b""
        self._to = self._from = -1
        if self.program:
            self._start()

    def _start(self) -> None:
        inner, self._to = os.pipe()
        self._from, outer = os.pipe()
        helper = Path(__file__).with_name(HELPER)
        share = MAX_CORE_SHARE if self._job is None else OUTSIDE_CORE_SHARE
        words = str(share), str(self._job or os.getpid())
        started = start_beside(helper, *words, stdin=inner, stdout=outer)
        os.close(inner)
        os.close(outer)
        if started:
            os.set_blocking(self._from, False)
        else:
            self.stop()

    def begin(self) -> None:
        """Drop earlier samples."""
        self.holders.clear()
        self.all.clear()
        self._epoch += 1
        self._requests = 0
        self.cpu_s = 0.0

    def poll(self, children: Sequence[int]) -> None:
        """Take an answer, if there is one, and send the next request, without a wait."""
        if not self.program:
            return
        self._receive()
        if not self._busy and self._epoch:
            self._request(children)

    def _request(self, children: Sequence[int]) -> None:
        """Request stacks and lock holders of a few children, which represent the others."""
        kept = [pid for pid in self._sampled if pid in children]
        new = [pid for pid in children if pid not in kept]
        self._sampled = kept + new[: MAX_SAMPLED_CHILDREN - len(kept)]
        targets = [(pid, gil) for pid in self._sampled for gil in (False, True)]
        targets += [(os.getpid(), True)] if self._job is None else []
        readable = [target for target in targets if not self._error(target[0])]
        if not readable:
            return
        pid, gil = readable[self._requests % len(readable)]
        self._requests += 1
        request = {
            "program": self.program,
            "pid": pid,
            "gil": gil,
            "seconds": RECORD_S,
            "rate": SAMPLES_PER_S,
        }
        try:
            os.write(self._to, json.dumps(request).encode() + b"\n")
            self._busy, self._request_epoch = True, self._epoch
        except OSError:
            self.program = ""

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._unparsed += os.read(self._from, 1 << 20)
        line, newline, rest = self._unparsed.partition(b"\n")
        if not newline:
            return
        self._unparsed, self._busy = rest, False
        answer = json.loads(line)
        self.cpu_s += answer["cpu_s"]
        if self._request_epoch == self._epoch:
            pid = answer["pid"]
            stacks = (self.holders if answer["gil"] else self.all)[pid]
            stacks.error = answer["error"]
            if not stacks.error:
                stacks.add(answer["raw"], self._places, looks=RECORD_S * SAMPLES_PER_S, pid=pid)

    def _error(self, pid: int) -> str:
        return self.all[pid].error or self.holders[pid].error

    def stop(self) -> None:
        """End the helper, by closing its input."""
        for fd in (self._to, self._from):
            if fd >= 0:
                os.close(fd)
        self._to = self._from = -1
        self.program = ""

    def missing(self, children: Sequence[int]) -> list[str]:
        """Return the processes that could not be sampled, each with the reason."""
        if not self.program:
            install = "py-spy is not installed (pip install py-spy)"
            texts = [f"who holds the interpreter lock is estimated: {install}"]
            return texts + [f"stacks of child processes: {install}"] * bool(children)
        errors = {pid: self._error(pid) for pid in (os.getpid(), *children)}
        denied = [f"{pid} ({reason(error)})" for pid, error in errors.items() if error]
        texts = [f"py-spy could not read process {', '.join(denied)}"] if denied else []
        left = [pid for pid in children if not self.all[pid].looks and not errors[pid]]
        if left:
            texts.append(f"stacks of {len(left)} of {len(children)} child processes: no time left")
        return texts


def watchers_of(pid: int) -> list[int]:
    """Return the helpers that sample a process for a diagnosis: the third word is its pid."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        words = procfs.text_of(f"/proc/{name}/cmdline").split("\0")
        helper = [i for i, word in enumerate(words) if word.endswith(f"/{HELPER}")]
        if helper and words[helper[0] + 3 : helper[0] + 4] == [str(pid)]:
            found.append(int(name))
    return found


def find() -> str:
    """Return the path of py-spy in this environment, else on PATH, or ""."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def dump(pid: int) -> list[str]:
    """Return the stack of the first thread of a process, or [] if py-spy fails.

    Each frame is a line, the innermost first.
    """
    program = find()
    if not program:
        return []
    command = [program, "dump", "--pid", str(pid), "--nonblocking"]
    null = subprocess.DEVNULL
    try:
        done = subprocess.run(command, stdin=null, capture_output=True, text=True, timeout=DUMP_S)
    except (OSError, subprocess.SubprocessError):
        return []
    _, _, thread = done.stdout.partition("\nThread ")
    lines = thread.partition("\nThread ")[0].splitlines()[1:]
    return [line for line in lines if line.strip()]


def ptrace_limit() -> str:
    """Return why the stacks of other processes cannot be read; empty if they can."""
    limit = _scope()
    return "" if os.geteuid() == 0 else limit


def _scope() -> str:
    with contextlib.suppress(OSError):
        scope = Path(PTRACE).read_text().strip()
        return "" if scope == "0" else f"kernel.yama.ptrace_scope is {scope}"
    return ""


def reason(error: str) -> str:
    """Return the reason of an error of py-spy, and what to change if a permission is missing."""
    if not PERMISSION.search(error):
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        return lines[-1][:120] if lines else "no answer"
    if limit := _scope():
        return f"no permission: {limit}, 0 allows it, and so does root"
    return (
        "no permission: run as its user, or as root, with CAP_SYS_PTRACE (in a container "
        "--cap-add SYS_PTRACE)"
    )
