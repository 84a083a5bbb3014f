"""What is given to a job: processes, the lock, delays, and workers that are stopped."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import psutil
import pytest

from fastfeed.core.stats import StageRow
from fastfeed.core.status import MAKING, PROCESS, THREAD, ProducerStatus
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.interventions import doses
from fastfeed.diagnose.interventions.doses import DoseHelper
from fastfeed.steps.timeline import Loop, Step, Timeline

LIMIT_S = 60
PROGRAM = """
import os, subprocess, sys
from fastfeed.diagnose.interventions.doses import DoseHelper
helper = DoseHelper()
helper.start()
worker = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
with helper.block(600, cores=1):
    print(worker.pid, flush=True)
    sys.stdin.readline()
with helper.block(600, workers=[os.pidfd_open(worker.pid)], share=0.999):
    print(flush=True)
    sys.stdin.readline()
"""


def until(is_so: Callable[[], object]) -> None:
    """Return when something is so, which no event tells."""
    limit_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < limit_s


def is_stopped(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def process_of(script: int) -> psutil.Process:
    """The process beside a script, which is no child of it; its own children look alike."""
    every = {
        one.pid: one
        for one in psutil.process_iter(["cmdline", "ppid"])
        if (line := one.info["cmdline"]) and line[-1] == str(script) and "dose_process" in line[-2]
    }
    (found,) = (one for one in every.values() if one.info["ppid"] not in every)
    return found


def await_end(pid: int) -> None:
    """Return when a process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = select.poll()
    ended.register(fd, select.POLLIN)
    try:
        assert ended.poll(1000 * LIMIT_S), f"process {pid} runs"
    finally:
        os.close(fd)


def started() -> subprocess.Popen[bytes]:
    """A worker that ends with its input."""
    worker = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(b"\n")
    worker.stdin.flush()
    worker.stdout.readline()
    return worker


@pytest.fixture
def helper() -> Iterator[DoseHelper]:
    found = DoseHelper()
    found.start()
    pid = process_of(os.getpid()).pid
    yield found
    found.close()
    await_end(pid)


def named(*pids: int, kind: int = PROCESS) -> Loop:
    """A loop whose loader names these workers."""
    status = [
        ProducerStatus(*(kind, MAKING, 0, pid, pid, 0, -1, -1, StageRow(), "")) for pid in pids
    ]
    return Loop("for batch in loader", "torch", 1, producers=lambda: status)


def test_busy_cores_end_with_their_block(helper: DoseHelper) -> None:
    process = process_of(os.getpid())
    for count in (1, 2):
        with doses.busy_cores(helper, count).give(LIMIT_S, 0.01):
            until(lambda count=count: len(process.children()) == count)  # type: ignore[misc]
            burners = process.children()
        assert not any(one.is_running() for one in burners)
    assert helper.cpu_s > 0
    assert process.pid not in [one.pid for one in psutil.Process().children(recursive=True)]


def test_a_block_has_a_limit(helper: DoseHelper) -> None:
    """Also where its end is late."""
    process = process_of(os.getpid())
    with helper.block(0.2, cores=1):
        until(process.children)
        await_end(process.children()[0].pid)


def test_everything_ends_with_a_script_that_is_killed() -> None:
    """In both kinds of blocks; a worker that was stopped goes on."""
    for lines in (1, 2):
        script = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert script.stdin is not None and script.stdout is not None
        worker, process = int(script.stdout.readline()), process_of(script.pid)
        until(process.children)
        burners = process.children()
        if lines == 2:
            script.stdin.write(b"\n")
            script.stdin.flush()
            script.stdout.readline()
            until(partial(is_stopped, worker))
        script.kill()
        script.communicate()
        for pid in (worker, process.pid, *(one.pid for one in burners)):
            await_end(pid)  # the worker reads the end of its input, once it goes on


def test_only_workers_that_the_script_started_are_stopped(helper: DoseHelper) -> None:
    worker = started()
    loop = named(worker.pid, os.getppid(), os.getpid())
    assert doses.worker_pids(loop) == [worker.pid]
    assert doses.worker_pids(named(worker.pid, kind=THREAD)) == []
    assert doses.worker_pids(Loop("", "", 1)) == []
    with doses.stopped_workers(helper, loop, share=0.9).give(LIMIT_S, 0.01):
        until(partial(is_stopped, worker.pid))
    assert not is_stopped(worker.pid)
    worker.communicate()


def test_workers_go_on_without_the_process_that_stops_them(helper: DoseHelper) -> None:
    worker = started()
    process = process_of(os.getpid())
    with (
        pytest.raises(OSError),  # noqa: PT011
        doses.stopped_workers(helper, named(worker.pid), share=0.9).give(LIMIT_S, 0.01),
    ):
        process.kill()
        await_end(process.pid)
        os.kill(worker.pid, signal.SIGSTOP)
    worker.communicate()  # it reads the end of its input
    assert worker.returncode == 0


def test_signals_do_not_end_it(helper: DoseHelper) -> None:
    process_of(os.getpid()).terminate()
    with helper.block(LIMIT_S, cores=1):
        pass


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without = DoseHelper()
    assert "could not be started" in doses.busy_cores(without, 1).refusal
    with pytest.raises(ConnectionError), without.block(1.0):
        pass
    monkeypatch.setattr(doses, "quota", lambda: 0.5)
    assert "allows 0.5 cores" in doses.busy_cores(without, 1).refusal
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        assert "SIGCHLD" in doses.stopped_workers(without, named(), share=0.25).refusal
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert "SIGCHLD" not in doses.stopped_workers(without, named(), share=0.25).refusal
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert "no lock" in doses.held_lock(0.25).refusal


def test_no_core_is_free() -> None:
    """The processes got less than they would have taken."""

    class Channel:
        def send(self, *_: object) -> None: ...
        def sendmsg(self, *_: object) -> None: ...
        def recv(self, _: int) -> bytes:
            return b"0.0"

    helper = DoseHelper()
    helper._channel = Channel()  # type: ignore[assignment]
    dose = doses.busy_cores(helper, 2)
    with dose.give(1.0, 0.01):
        pass
    assert dose.remark == "not so many cores were free: they got 0.0"


def test_the_lock_is_held_for_a_share_of_the_time() -> None:
    waits: list[float] = []
    dose = doses.held_lock(0.25)
    with dose.give(1.0, 0.01):
        assert dose.hold(lambda seconds: not waits.append(seconds), 0.1)  # type: ignore[func-returns-value]
    assert waits == [pytest.approx(3 * sys.getswitchinterval())]


def test_a_delay_is_on_the_thread_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    log = HookLog(Timeline())
    loop = log.add_loop("train", Loop("train", "session", threading.get_ident()))
    other = log.add_loop("other", Loop("other", "session", threading.get_ident()))
    monkeypatch.setattr(doses.time, "sleep", delays.append)
    step = Step(0.0, 1.0, 0.0)
    with doses.held_loop(log, loop, share=0.5).give(LIMIT_S, 0.2):
        log.add_step(loop, step)
        log.add_step(other, step)
        thread = threading.Thread(target=log.add_step, args=(loop, step))
        thread.start()
        thread.join()
    log.add_step(loop, step)
    with doses.held_loop(log, loop, share=0.5).give(-1.0, 0.2):
        log.add_step(loop, step)
    assert delays == [0.1]
    assert len(loop.steps) == 4
