"""Deaths of child processes and threads; and threads of the diagnosis, which the script does not
see."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fastfeed.diagnose.evidence import DeadProducer
from fastfeed.diagnose.hooks import child_exits as children
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.run import watchdog
from fastfeed.diagnose.run.hidden_thread import HiddenThread
from fastfeed.diagnose.run.watchdog import Watchdog, format_stack, record_thread_deaths
from fastfeed.probes.family import exit_text
from fastfeed.steps.timeline import Timeline
from tests.helpers.dying import until


@pytest.fixture(autouse=True)
def children_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is kept beyond its test, such as a fork server, is no producer here."""
    find = watchdog._find_processes
    before = {pid for pid, _ in find()}
    monkeypatch.setattr(
        watchdog, "_find_processes", lambda: [one for one in find() if one[0] not in before]
    )


@pytest.mark.parametrize(
    ("code", "text"), [(3, "exit code 3"), (-9, "SIGKILL"), (-77, "signal 77")]
)
def test_exit_codes_in_words(code: int, text: str) -> None:
    assert exit_text(code) == text


class Popen:
    """A process as in multiprocessing, which ends at the second poll."""

    def __init__(self, pid: int, code: int) -> None:
        self.pid, self.returncode, self._codes = pid, None, [None, code, code]

    def poll(self, flag: int = 0) -> Any:
        self.returncode = self._codes.pop(0) if self._codes else self.returncode
        return self.returncode


def test_a_process_that_multiprocessing_waits_for() -> None:
    import multiprocessing.popen_fork as known

    assert callable(known.Popen.poll), "what is patched"
    log = HookLog(Timeline())
    undo = children.install(SimpleNamespace(Popen=Popen), log)
    try:
        found = [
            [process.poll(), process.poll(0), process.poll()]
            for process in (Popen(7, -6), Popen(8, 0))
        ]
    finally:
        undo()
    assert found == [[None, -6, -6], [None, 0, 0]]
    assert [dead.text for dead in log.died] == ["process 7 ended: SIGABRT"], (
        "once, and only where it failed"
    )


def test_a_process_that_nobody_waits_for() -> None:
    log = HookLog(Timeline())
    dog = Watchdog(log, threading.get_ident(), dead_s=1e9)
    process = subprocess.Popen([sys.executable, "-c", "import os; os._exit(9)"])
    log.waiting[threading.get_ident()] = time.perf_counter() - 60.0

    def seen() -> bool:
        assert dog.check(time.perf_counter(), None) is None
        return bool(log.died)

    until(seen, "the end of the process")
    assert [dead.text for dead in log.died] == [f"process {process.pid} ended: exit code 9"]
    assert process.wait() == 9, "it is still the script's to wait for"


BEHIND = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
child.communicate(b"\\n")
"""


@pytest.mark.parametrize("alive", [True, False])
def test_a_worker_behind_a_fork_server_may_still_produce(
    alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no child of the script. As long as it lives, the script is not ended."""
    log, ident = HookLog(Timeline()), threading.get_ident()
    monkeypatch.setattr(watchdog, "_is_waiting", lambda frame: True)
    monkeypatch.setattr(Watchdog, "_is_busy", lambda self: False)
    log.saw_death(DeadProducer("thread reader", "thread reader ended:\nValueError: 1"))
    log.waiting[ident] = 100.0
    name = "from multiprocessing.forkserver import main"
    server = subprocess.Popen(
        [sys.executable, "-c", BEHIND, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        worker = int(server.stdout.readline())
        if not alive:
            server.communicate("\n", timeout=60)
        stall = Watchdog(log, ident, dead_s=8.0).check(200.0, None)
    finally:
        if server.returncode is None:
            server.communicate("\n", timeout=60)
    if alive:
        assert stall is None or not stall.proven
    else:
        assert stall is not None and stall.proven
    assert worker not in [pid for pid, _ in watchdog._find_processes()]


def test_who_is_terminated_did_not_stop_the_feed() -> None:
    log = HookLog(Timeline())
    ends = [children.dead_process(pid, code) for pid, code in ((1, 1), (2, -9), (3, 11))]
    ends.append(DeadProducer("thread reader", "thread reader ended:\nValueError: 1"))
    for dead in (children.dead_process(4, -15), *ends):
        log.saw_death(dead)
    found = Watchdog(log, threading.get_ident(), dead_s=8.0).deaths()
    assert [dead.text for dead in found] == [dead.text for dead in ends]


def test_a_thread_that_ends_by_an_exception(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = HookLog(Timeline())
    told: list[Any] = []
    undo = record_thread_deaths(log)
    try:
        monkeypatch.setattr("threading.excepthook", told.append)

        def fails(error: BaseException) -> None:
            raise error

        for error in (ValueError("mine"), SystemExit(1)):
            thread = threading.Thread(target=fails, args=(error,), name="reader")
            thread.start()
            thread.join()
    finally:
        undo()
    assert len(told) == 2, "the script's own hook is called"
    (dead,) = log.died
    text = dead.text
    assert text.startswith("thread reader ended:\nTraceback") and text.endswith("ValueError: mine")
    assert "in fails" in text and "threading.py" not in text


def test_threads_that_the_script_does_not_see() -> None:
    log = HookLog(Timeline())
    count, idents, looks = threading.active_count(), [], []

    def work() -> None:
        idents.append(threading.get_ident())
        while thread.pause(0.001):
            looks.append(threading.active_count())
        raise OSError("the last words")

    thread = HiddenThread(log, work, name="a look")
    thread.start()
    until(lambda: bool(looks), "a look")
    assert log.ours == set(idents) == {thread.ident}
    assert threading.active_count() == count == looks[0]
    thread.stop(join_s=10.0)
    assert not log.ours
    assert log.missing == ["a look: OSError: the last words"]
    thread.stop()


def test_a_stack_in_words() -> None:
    assert "in test_a_stack_in_words" in format_stack(sys._getframe())


@pytest.mark.parametrize(("exit_code", "dead"), [(-9, True), (-15, False)])
def test_a_pool_that_lost_what_is_waited_for_is_dead_though_others_are_busy(
    exit_code: int, dead: bool
) -> None:
    import multiprocessing.pool

    names: dict[str, Any] = {}
    exec(compile("def next(wait):\n    wait()\n", multiprocessing.pool.__file__, "exec"), names)
    over = threading.Event()
    thread = threading.Thread(target=names["next"], args=(over.wait,))
    thread.start()
    try:
        log = HookLog(Timeline())
        log.saw_death(children.dead_process(9, exit_code))
        dog = Watchdog(log, thread.ident or 0, dead_s=8.0)
        log.waiting[thread.ident or 0] = 100.0
        dog._is_busy = lambda: True  # type: ignore[method-assign]
        until(
            lambda: watchdog._is_waiting(sys._current_frames().get(thread.ident or 0)), "the wait"
        )
        assert [dog.check(now_s, None) for now_s in (100.0, 102.0, 107.0)] == [None, None, None]
        found = dog.check(109.0, None)
    finally:
        over.set()
        thread.join()
    assert (found is not None) == dead
    if found is not None:
        assert found.died[0].text.endswith(watchdog.LOST_WORK)


@pytest.mark.parametrize(("quota", "busy"), [(1.0, False), (0.2, True), (0.05, True)])
def test_who_uses_all_of_a_small_quota_works(
    quota: float, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less than a core for a container, its processes use a twentieth of one at most."""
    log, used_s = HookLog(Timeline()), itertools.count(step=0.05)
    monkeypatch.setattr(watchdog, "one_core", lambda: quota)
    monkeypatch.setattr(watchdog, "_cpu_s", lambda processes: next(used_s))
    dog = Watchdog(log, 0, dead_s=8.0)
    log.waiting[0] = 100.0
    log.saw_death(children.dead_process(9, -9))
    stalls = [dog.check(float(now_s), None) for now_s in range(100, 130)]
    assert any(stalls) != busy
