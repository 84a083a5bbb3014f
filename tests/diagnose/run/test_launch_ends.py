"""Ends of a diagnosis: by time, with the script, and with a dead feed."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from fastfeed.diagnose.run.lifecycle import WatchPlan
from fastfeed.probes.pyspy import dump
from tests.diagnose.observing import Printing, launched, observed

LOOP = """
import os, sys, time
from fastfeed import watch
def main(count):
    for i in watch(range(count)):
        time.sleep(0.002)
        if i == 30 and sys.argv[1:] == ["crash"]: raise ValueError("mine")
        if i == 30 and sys.argv[1:] == ["os._exit"]: os._exit(4)
        if i == 30 and sys.argv[1:] == ["fork"] and os.fork() == 0: count = 0; break
    print("done", i, flush=True)
try:
    main(1000 if sys.argv[1:] == ["time"] else 60)
finally:
    print("finally")
"""
BROKEN = f"""
from fastfeed.diagnose.run.launch import Launch
def deaths(launch): raise RuntimeError("broken")
Launch._deaths = deaths
{LOOP}
"""
DEAD = """
import queue, sys, threading
from fastfeed import watch
ready, gate = queue.Queue(2), threading.Event()
threading.excepthook = lambda given: print("mine", given.exc_type.__name__, flush=True)
def produce():
    for i in range(20): ready.put(i)
    if sys.argv[1] == "dead": raise ValueError("the disk is gone")
    gate.wait()
    ready.put(None)
threading.Thread(target=produce, daemon=True).start()
"""
TOLD = """
import sys
class Told:  # calls `act` as soon as the report is there, and passes it on
    def __init__(self, act): self.to, self.act = sys.stderr, act
    def flush(self): self.to.flush()
    def write(self, text):
        self.to.write(text)
        if '"died": ["' in text: self.act()
"""
KILLED = """
import multiprocessing, os, signal, sys
def produce(ready):
    for i in range(30): ready.put(i)
    ready.close(); ready.join_thread()
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    ready = fork.Queue()
    process = fork.Process(target=produce, args=(ready,), daemon=True)
    process.start()
    for i in range(30): ready.get()
    if sys.argv[1] == "waits for ever": ready.get()
    process.join()
    if sys.argv[1] == "elsewhere": raise ValueError("of its own")
    ready.get(timeout=0.01)
"""
STUCK = """
import multiprocessing, signal, time
def produce(ready):
    for i in range(60):
        time.sleep(0.02)
        ready.put(i)
    signal.pause()
if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    ready = fork.Queue()
    process = fork.Process(target=produce, args=(ready,), daemon=True)
    process.start()
    print(process.pid, flush=True)
    while True: ready.get()
"""
SILENT = (
    TOLD
    + """
import multiprocessing, threading
def produce(ready, gate):
    for i in range(20): ready.put(i)
    if sys.argv[1] == "blocked": gate.wait()
if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    ready, gate, told = fork.Queue(), fork.Event(), threading.Event()
    fork.Process(target=produce, args=(ready, gate), daemon=True).start()
    threading.Thread(target=lambda: told.wait() and ready.put(None)).start()
    sys.stderr = Told(told.set)
    while ready.get() is not None: pass
    gate.set()
"""
)
CTRL_C = (
    TOLD
    + """
import multiprocessing, os, signal
def produce(ready, gate):
    for i in range(20): ready.put(i)
    gate.wait()
def press():
    for pid in (process.pid, os.getpid()): os.kill(pid, signal.SIGINT)
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fork = multiprocessing.get_context("fork")
    ready, gate = fork.Queue(), fork.Event()
    process = fork.Process(target=produce, args=(ready, gate), daemon=True)
    process.start()
    sys.stderr = Told(press)
    try:
        while True: ready.get()
    finally: process.join()
"""
)
READS = "for i in watch(iter(ready.get, None)): pass\n"
HUNG = DEAD + READS
LATE = TOLD + DEAD + "sys.stderr = Told(gate.set)\n" + READS + "print('went on')\n"
SHORT = WatchPlan(seconds=1.0, warmup_s=0.2, dead_s=1.5)


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def reports(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the reports; nothing is collected after the last one."""
    assert "report" in said[-1] and said[-2] == {"stop": True}
    return [line for line in said if "report" in line]


def several_steps(said: list[dict[str, Any]]) -> list[bool]:
    return [line["steps"] > 5 for line in reports(said)]


def test_with_the_script(tmp_path: Path) -> None:
    path = script(tmp_path, LOOP)
    code, out, err, said = observed(path, "crash")
    assert (code, out, several_steps(said)) == (1, "finally\n", [True])
    assert err.endswith("ValueError: mine\n") and "launch.py" not in err
    code, out, err, said = observed(path, "os._exit")
    assert (code, out, err, several_steps(said)) == (4, "", "", [True])
    code, out, err, said = observed(path, "fork")
    assert (code, sorted(out.split()), err) == (
        0,
        ["30", "59", "done", "done", "finally", "finally"],
        "",
    )
    assert several_steps(said) == [True], "the child says nothing"


def test_by_time(tmp_path: Path) -> None:
    path = script(tmp_path, LOOP)
    code, out, err, said = observed(path, "time", plan=SHORT)
    assert (code, out, err) == (0, "done 999\nfinally\n", "")
    assert list(said[0]) == ["measure"]
    assert several_steps(said) == [True]
    assert said[-1]["loop"] == ["watch", "train.py:5", "exact", None]
    code, out, err, said = observed(
        path, "time", plan=WatchPlan(seconds=1.0, warmup_s=0.2, stop=True)
    )
    assert (code, out, err) == (0, "finally\n", "")
    assert several_steps(said) == [True]


def test_by_time_where_no_hook_sees_a_loop(tmp_path: Path) -> None:
    """The report is requested again and again, and then the script ends like any other."""
    path = script(
        tmp_path,
        "import time\ntry:\n    while True: time.sleep(0.001)\nfinally:\n    print('finally')\n",
    )
    code, out, err, said = observed(path, plan=WatchPlan(seconds=0.5, warmup_s=0.2, stop=True))
    assert (code, out, err) == (0, "finally\n", "")
    assert several_steps(said) == [False]


@pytest.mark.parametrize("ends", ["time", "itself"])
def test_what_fails_before_the_report_does_not_cost_it(ends: str, tmp_path: Path) -> None:
    plan = WatchPlan(seconds=1.0, warmup_s=0.2, stop=True)
    code, _, err, said = observed(script(tmp_path, BROKEN), ends, plan=plan)
    assert (code, err) == (0, "")
    assert several_steps(said) == [True]
    assert said[-1]["missing"] == ["measuring: RuntimeError: broken"]


TEARDOWN = """
import ctypes, time
class Held:
    def __del__(self): ctypes.PyDLL(None).pause()  # with the interpreter lock, as at its end
held = Held()
while True: time.sleep(0.001)
"""


def test_a_script_that_is_stopped_does_not_wait_for_the_end_of_its_interpreter(
    tmp_path: Path,
) -> None:
    code, out, err, _ = observed(
        script(tmp_path, TEARDOWN), plan=WatchPlan(seconds=0.5, warmup_s=0.2, stop=True)
    )
    assert (code, out, err) == (0, "", "")


def test_a_dead_feed(tmp_path: Path) -> None:
    code, out, err, said = observed(script(tmp_path, HUNG), "dead", plan=SHORT)
    assert (code, out, err) == (1, "mine ValueError\n", "")
    assert several_steps(said) == [True]
    (died,) = said[-1]["died"]
    assert "in produce" in died and died.endswith("ValueError: the disk is gone")
    assert "threading.py" not in died


def test_a_producer_that_is_killed(tmp_path: Path) -> None:
    code, out, err, said = observed(script(tmp_path, KILLED), "waits for ever", plan=SHORT)
    assert (code, out, err) == (1, "", "")
    assert len(reports(said)) == 1
    (died,) = said[-1]["died"]
    assert died.startswith("process ") and died.endswith(" ended: SIGKILL")


@pytest.mark.slow
def test_a_script_that_waits_for_ever_ends_with_its_workers(tmp_path: Path) -> None:
    """The script is to end with its report and does not return to Python; its worker would wait on
    unnoticed."""
    code, out, err, _ = observed(
        script(tmp_path, STUCK), plan=WatchPlan(seconds=1.5, warmup_s=0.2, stop=True)
    )
    assert (code, err) == (0, "")
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(out)).wait(30)


@pytest.mark.slow
def test_a_feed_that_is_blocked(tmp_path: Path) -> None:
    code, out, err, said = observed(
        script(tmp_path, LATE), "late", plan=WatchPlan(dead_s=1.0, warmup_s=0.2)
    )
    assert (code, out, err) == (0, "went on\n", "")
    blocked, last = reports(said)
    assert last["died"] == []
    (stack,) = [text for text in blocked["died"] if "in produce" in text]
    assert "gate.wait()" in stack


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says"), [("ended", "has ended, without an error"), ("blocked", "produce (")], ids=str
)
def test_processes_from_which_nothing_comes(tmp_path: Path, how: str, says: str) -> None:
    """One has ended without a report, one waits for an item; neither has failed."""
    code, out, err, said = observed(
        script(tmp_path, SILENT), how, plan=WatchPlan(dead_s=1.0, warmup_s=0.2)
    )
    assert (code, out, err) == (0, "", "")
    blocked, last = reports(said)
    assert last["died"] == []
    (text,) = [text for text in blocked["died"] if text.startswith("process ")]
    assert (says if how == "ended" or dump(os.getpid()) else "does nothing") in text, (
        "where py-spy may look"
    )


def test_a_blocked_feed_that_somebody_ends(tmp_path: Path) -> None:
    """The worker dies of the Ctrl-C, too, but that has not stopped the feed."""
    code, _, err, said = observed(
        script(tmp_path, CTRL_C), plan=WatchPlan(dead_s=1.0, warmup_s=0.2)
    )
    assert code == -signal.SIGINT and "KeyboardInterrupt" in err
    blocked, last = reports(said)
    assert last["died"] == blocked["died"] != []


def test_an_observation_that_fails(tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    """It runs in this process, and leaves nothing behind."""
    monkeypatch.setattr("sys.argv", ["fastfeed"])
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    monkeypatch.setitem(
        __import__("sys").modules, "__main__", __import__("sys").modules["__main__"]
    )

    class Fails(Printing):
        def watch(self, log: Any) -> None:
            raise OSError("no /proc")

        def report(self, recording: Any, *, rank: int | None = None) -> None:
            raise KeyError("a bug")

    plan = WatchPlan()
    launch, found = launched([script(tmp_path, "print('ran')"), "x"], plan, printing=Fails())
    try:
        assert launch.run(found.run) == 0
        launch.at_exit()
    finally:
        launch.close()
    out, err = capfd.readouterr()
    assert out == "ran\n"
    assert err.split("\n")[1].startswith(
        "fastfeed: the report failed: KeyError: 'a bug' (test_launch_ends.py:"
    )
    assert "--evidence FILE keeps what was seen, for a bug report\n" in err
    assert launch.log.missing[0] == "measuring: OSError: no /proc"


@pytest.mark.parametrize(("how", "count"), [("waiting", 1), ("elsewhere", 0)])
def test_a_crash_because_a_producer_is_gone(tmp_path: Path, how: str, count: int) -> None:
    """The feed died if the script's error comes out of it; another error has nothing to do with
    it."""
    code, _, err, said = observed(script(tmp_path, KILLED), how)
    assert (code, len(reports(said))) == (1, 1)
    assert ("Empty" in err) == bool(count)
    died = said[-1]["died"]
    assert len(died) == count and all(text.endswith("ended: SIGKILL") for text in died)
