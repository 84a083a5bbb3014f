"""Stacks from outside, child processes and roles, from recorded texts."""

from __future__ import annotations

import _thread
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import psutil
import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import Task
from fastfeed.diagnose.sample.children import (
    UNRELATED_CPU_S,
    ChildLog,
    Children,
    working_threads,
)
from fastfeed.diagnose.sample.sampler import SPY_EVERY, Sampler
from fastfeed.diagnose.sample.tasks import role_of, settle_roles
from fastfeed.diagnose.sample.thread_samples import ThreadLog
from fastfeed.errors import clean
from fastfeed.probes import family, procfs
from fastfeed.probes import machine_log as machine
from fastfeed.probes import pyspy as spy
from fastfeed.probes import pyspy_helper as spy_helper
from fastfeed.probes.places import Place, Places
from fastfeed.probes.procfs import Counters, DescriptorReader
from fastfeed.probes.pyspy import PySpy, StackSamples, reason
from tests.helpers.dying import until

RAW = f"""thread (12): MainThread;<module> ({__file__}:3);decode ({__file__}:5) 7
thread (0x0D): QueueFeederThread;wait (/usr/lib/python3/threading.py:327) 3
py-spy> Wrote raw flamegraph data
"""
MINE = Place("decode", "data.py", 41, True)
QUEUE = Place("get", "multiprocessing/queues.py", 110, False)
DENIED = (
    "Error: Failed to open process\n"
    "Reason: Permission Denied: Try running again with elevated permissions"
)


def test_folded_stacks() -> None:
    stacks = StackSamples()
    stacks.add(RAW, Places(), looks=10, pid=1)
    assert stacks.shares() == {12: 0.7, 13: 0.3}
    (stack,) = stacks.seen[12]
    assert [place.function for place in stack] == ["<module>", "decode"]
    assert stack[-1].line == 5
    assert StackSamples().shares() == {}


def test_why_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = tmp_path / "ptrace_scope"
    scope.write_text("1\n")
    monkeypatch.setattr(spy, "PTRACE", str(scope))
    assert "kernel.yama.ptrace_scope is 1" in reason(DENIED)
    scope.write_text("0\n")
    assert "CAP_SYS_PTRACE" in reason(DENIED)
    assert reason("Error: no such process\n\n") == "Error: no such process"
    assert reason("") == "no answer"


def test_what_is_missing() -> None:
    without = PySpy(Places(), program="")
    assert len(without.missing([])) == 1
    assert "pip install py-spy" in without.missing([7])[1]
    denied = PySpy(Places(), program="")
    denied.program = "py-spy"
    denied.all[7].error = DENIED
    denied.all[8].looks = 25
    assert len(denied.missing([7, 8])) == 1
    assert "process 7 (no permission" in denied.missing([7, 8])[0]
    assert denied.missing([8, 9])[0].startswith("stacks of 1 of 2 child processes")


def test_the_helper_tells_of_failures() -> None:
    """The helper runs the given command, and reports a command that cannot run."""
    request = {"program": "/nowhere/py-spy", "pid": 1, "rate": 25, "seconds": 1, "gil": True}
    told = spy_helper.answer(request)
    assert (told["raw"], told["gil"]) == ("", True)
    assert "nowhere" in told["error"]


def test_py_spy_is_not_asked_before_it_is_wanted() -> None:
    """A request during the script's start would take time from the observed program."""
    with Sampler(program="/nowhere/py-spy") as sampler:
        sampler.begin(asking=False)
        until(lambda: sampler.samples >= 3 * SPY_EVERY, "samples")
        assert not [text for text in sampler.missing if "py-spy could not" in text]
        sampler.begin()
        until(lambda: any("py-spy could not" in text for text in sampler.missing), "its answer")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('thread (1): a (b:2) 3')", ("thread (1): a (b:2) 3\n", "")),
        ("import sys; sys.exit('Error: denied')", ("", "Error: denied\n")),
        (
            f"import sys; sys.exit('Error: {spy_helper.NO_STACKS} found')",
            ("Error: No stack counts found\n", ""),
        ),
    ],
)
def test_what_a_command_says(code: str, told: tuple[str, str]) -> None:
    folder = str(Path(spy_helper.__file__).parent)
    run = f"import sys; sys.path.insert(0, {folder!r}); import pyspy_helper as h\n"
    run += f"print(repr(h.run([sys.executable, '-c', {code!r}])))"
    # the helper's own standard input must stay open: its end means that nobody wants the answer
    with subprocess.Popen(
        [sys.executable, "-c", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as done:
        assert done.stdout is not None
        assert done.stdout.read().strip() == repr(told)


@contextlib.contextmanager
def waiting_child(code: str) -> Iterator[tuple[Children, subprocess.Popen[bytes], IO[bytes]]]:
    """A child that has printed a line and reads its input until that is closed."""
    command = [sys.executable, "-S", "-c", code]
    children = Children(DescriptorReader())
    with (
        contextlib.closing(children),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        yield children, child, child.stdin


def test_who_ended_before_the_beginning_and_is_awaited_after_it() -> None:
    """Its seconds are of before."""
    burn = (
        "import sys, time\nwhile time.process_time() < 0.3: pass\n"
        "print(flush=True)\nsys.stdin.read()"
    )
    with waiting_child(burn) as (children, child, stdin):
        children.refresh(0.0)
        stdin.close()
        until(
            lambda: procfs.state_char(procfs.text_of(f"/proc/{child.pid}/stat").encode()) == "Z",
            "its end",
        )
        children.begin()
        child.wait()
        children.refresh(1.0)
        assert children.uncounted_s() < 0.2


@pytest.mark.parametrize(
    ("line", "burns"), [("sum(range(1000))", True), ("print(sum(range(1000)), flush=True)", False)]
)
def test_who_takes_a_core_and_tells_nobody_anything_makes_no_batches(
    line: str, burns: bool
) -> None:
    """Its CPU seconds count as those of other processes, whichever process started it."""
    begins = f"import sys\nprint(flush=True)\nwhile True: {line}"
    command = [sys.executable, "-S", "-c", begins]
    children = Children(DescriptorReader())
    with contextlib.closing(children), subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            threading.Thread(target=child.stdout.read).start()
            children.begin()
            log = children.logs[child.pid]

            def busy() -> bool:
                children.refresh(1e-4)  # however seldom the child gets a core
                return log.total().cpu_s > UNRELATED_CPU_S

            until(busy, "some time on a core")
            assert log.is_unrelated == burns
            (made,) = children.tasks(PySpy(Places(), program=""))
            assert (made.role == ev.FOREIGN) == burns
        finally:
            child.kill()


def test_the_working_threads_of_a_process_are_those_in_the_users_code() -> None:
    """Others serve tensors, or feed a queue. Without stacks it is the main thread."""
    log = ChildLog(family.Descendant(12, 1, "python train.py", True, 0))
    stacks = StackSamples()
    assert working_threads(stacks, log) == [12]
    stacks.seen[13][(QUEUE,)] = 50
    assert working_threads(stacks, log) == [12]
    stacks.seen[14][(MINE,)] = 1
    assert working_threads(stacks, log) == [14]


def task(name: str, tid: int, *places: Place, role: str = ev.PRODUCER, **more: object) -> Task:
    return Task(name, 1, tid, role, 10.0, stacks={places: 1}, **more)  # type: ignore[arg-type]


def test_roles() -> None:
    assert role_of([(QUEUE,), (QUEUE, MINE)]) == ev.PRODUCER
    assert role_of([(QUEUE,)]) == ev.FOREIGN
    assert role_of([(QUEUE,)], died=True) == ev.PRODUCER


@pytest.fixture
def logs() -> dict[int, ThreadLog]:
    """A thread that wakes up, and one that does not."""
    found = {tid: ThreadLog(tid, name) for tid, name in ((1, "moves"), (2, "still"))}
    for log in found.values():
        log.files.close()
    found[1].last = Counters(runs=900)
    return found


def test_a_heartbeat_is_no_producer(logs: dict[int, ThreadLog]) -> None:
    trainer = task("trainer", 3, MINE, role=ev.TRAINER, busy={ev.NATIVE: 1.0})
    waiting = task("trainer", 3, MINE, role=ev.TRAINER, busy={ev.LOCK: 1.0})
    moves, still = task("moves", 1, MINE), task("still", 2, MINE)
    assert [t.role for t in settle_roles([trainer, moves, still], logs)] == [
        ev.TRAINER,
        ev.PRODUCER,
        ev.FOREIGN,
    ]
    assert settle_roles([trainer, still], logs)[1].role == ev.FOREIGN
    assert settle_roles([waiting, still], logs)[1].role == ev.PRODUCER, (
        "it may be the producer that hangs"
    )


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("Future.result", "concurrent/futures/_base.py"),
        ("get", "multiprocessing/pool.py"),
        ("next", "multiprocess/pool.py"),
    ],
)
def test_who_collects_what_a_pool_makes_is_no_producer(
    logs: dict[int, ThreadLog], function: str, file: str
) -> None:
    asks, puts = Place(function, file, 9, False), Place("put", "queue.py", 9, False)
    makes = task("ThreadPoolExecutor-0_0", 1, MINE)
    collects = task("loader", 2, MINE, busy={ev.EMPTY: 0.9})
    collects = replace(collects, stacks={(MINE, asks): 40, (MINE, puts): 50, (MINE,): 10})
    assert [t.role for t in settle_roles([makes, collects], logs)] == [ev.PRODUCER, ev.FEEDER]
    works = replace(collects, stacks={(MINE, asks): 10, (MINE, puts): 50, (MINE,): 40})
    works = replace(works, busy={ev.EMPTY: 0.6})
    assert settle_roles([makes, replace(works, tid=1)], logs)[1].role == ev.PRODUCER
    alone = replace(collects, tid=1)
    assert settle_roles([alone], logs)[0].role == ev.PRODUCER, "there is nobody else"


def test_other_processes() -> None:
    """Each with its pid and its command line, where it still has one."""
    me, gone = os.getpid(), 2**22 + 1
    before = {me: ("mine", 5.0), 2: ("ours", 1.0), 3: ("idle", 1.0)}
    after = {me: ("mine", 9.0), 2: ("ours", 9.0), 3: ("idle", 1.1), gone: ("new\x1b[2J", 2.0)}
    first, second = machine.noisy(before, after, own={2}, wall_s=10.0)
    assert second == (f"new\\x1b[2J (pid {gone})", 0.2)
    assert first[1] == pytest.approx(0.4)
    words = " ".join(psutil.Process().cmdline())[: machine.MAX_COMMAND]
    assert first[0] == clean(f"mine (pid {me}: {words})")
    assert 1 <= machine.cores() <= len(os.sched_getaffinity(0))


def test_the_kernel_s_number_of_a_thread_that_only_the_c_library_knows() -> None:
    """py-spy shows such threads before Python 3.11."""
    found: list[tuple[int, int]] = []

    def tell() -> None:
        found.append(
            (threading.get_native_id(), procfs.kernel_number(os.getpid(), threading.get_ident()))
        )

    thread = threading.Thread(target=tell)
    thread.start()
    thread.join()
    assert found[0][0] == found[0][1]
    assert procfs.kernel_number(os.getpid(), 4711) == 4711, "py-spy knows it"
    assert procfs.kernel_number(os.getpid(), 2**40) == 2**40, "nothing is there"
    assert procfs.kernel_number(2**22 - 1, 2**40) == 2**40, "nor that process"


def test_a_thread_that_is_gone_has_no_number() -> None:
    """Its descriptor may be no memory any more: reading it must not end the process."""
    assert procfs.tid_of(2**40) == 0, "nothing is there"
    assert procfs.tid_of(2**70) == 0


def test_a_thread_that_python_does_not_know_has_its_number() -> None:
    found: list[tuple[int, int]] = []
    lock = threading.Lock()
    lock.acquire()

    def look() -> None:
        found.append((threading.get_native_id(), procfs.tid_of(threading.get_ident())))
        lock.release()

    _thread.start_new_thread(look, ())
    assert lock.acquire(timeout=10)
    ((number, told),) = found
    assert told == number
