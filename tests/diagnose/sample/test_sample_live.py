"""A sampler beside threads and processes of each kind."""

from __future__ import annotations

import gc
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.evidence import Task
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.run.watchdog import record_thread_deaths
from fastfeed.diagnose.sample.sampler import Sampler
from fastfeed.diagnose.sample.states import CORE
from fastfeed.diagnose.sample.thread_samples import ThreadLog, Threads
from fastfeed.probes import family, procfs
from fastfeed.probes import pyspy as spy
from fastfeed.steps.timeline import Timeline
from tests.helpers.dying import until

SAMPLES = 25
NO_PYSPY = ""  # no py-spy
BURNS = "import time\nwhile time.process_time() < 0.3: pass"
CHILD = "import time\ndef fetch():\n    while True:\n        time.sleep(0.01)\nfetch()"


@contextmanager
def running(work: Callable[[], None], name: str, wake: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        wake()
        thread.join()


def sampled_tasks(sampler: Sampler, count: int = SAMPLES) -> dict[str, Task]:
    """The tasks by name, after `count` more samples."""
    sampler.begin()
    until(lambda: sampler.samples >= count, f"{count} samples")
    return {task.name: task for task in sampler.tasks()}


def dominant(task: Task) -> str:
    return max(task.busy, key=lambda state: task.busy[state])


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    with Sampler(program=NO_PYSPY) as found:
        yield found


def test_threads_that_wait(sampler: Sampler) -> None:
    held, over = threading.Lock(), threading.Event()
    server = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    inner, outer = os.pipe()
    full: queue.Queue[int] = queue.Queue(1)
    empty: queue.Queue[int] = queue.Queue()
    full.put(1)
    held.acquire()

    def naps() -> None:
        while not over.is_set():
            time.sleep(0.005)

    def serves() -> None:
        near.recv(1)

    kinds: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "locked": (lambda: held.acquire(), held.release),
        ev.SLEEP: (naps, over.set),
        ev.SOCKET: (serves, lambda: far.send(b"x")),
        ev.PIPE: (lambda: os.read(inner, 1), lambda: os.write(outer, b"x")),
        ev.FULL: (lambda: full.put(2), full.get),
        ev.EMPTY: (empty.get, lambda: empty.put(1)),
    }
    idle = dict.fromkeys(("locked", ev.PIPE, ev.FULL), ev.EMPTY)
    wanted = {name: idle.get(name, name) for name in kinds}
    with ExitStack() as stack:
        for name, (work, wake) in kinds.items():
            stack.enter_context(running(work, name, wake))
        tasks = sampled_tasks(sampler)

        def states() -> dict[str, str]:  # a thread that has just begun may wait for a core
            tasks.update((task.name, task) for task in sampler.tasks())
            return {name: dominant(tasks[name]) for name in kinds}

        until(lambda: states() == wanted, "the states of the threads")
    for thing in (server, near, far):
        thing.close()
    os.close(inner)
    os.close(outer)
    assert tasks["MainThread"].role == ev.TRAINER
    assert tasks[ev.SLEEP].role == ev.PRODUCER
    assert tasks[ev.SOCKET].role == ev.FOREIGN, "others move"
    top = tasks[ev.SOCKET].top()
    assert top is not None
    assert (top[0].function, top[0].users) == ("serves", True)


@pytest.mark.slow
def test_threads_that_work(sampler: Sampler) -> None:
    over, data = threading.Event(), bytes(4_000_000)

    def python() -> None:
        while not over.is_set():
            sum(i * i for i in range(1000))

    def native() -> None:
        while not over.is_set():
            zlib.crc32(data)

    with running(python, "python", over.set):
        task = sampled_tasks(sampler)["python"]
        late_s, late_p90_s = sampler.lock_delays()
    over.clear()
    assert task.share(ev.PYTHON) > task.share(ev.NATIVE)
    assert task.cpu_s > 0
    assert late_s is not None
    assert late_p90_s is not None
    assert late_p90_s >= late_s
    with running(native, "native", over.set):
        task = sampled_tasks(sampler)["native"]
    assert task.share(ev.NATIVE) > task.share(ev.PYTHON)
    assert sampler.overhead_s > 0
    assert sampler.machine().own_cpu > 0
    assert any("py-spy is not installed" in text for text in sampler.missing)


def test_nobody_sees_it() -> None:
    hook, threads = threading.excepthook, threading.active_count()
    sampler = Sampler(program=NO_PYSPY)
    sampler.start()
    until(lambda: sampler.samples, "a sample")
    assert threading.active_count() == threads
    assert not [task for task in sampler.tasks() if task.role == ev.FEEDER]
    sampler.stop()
    count = sampler.samples
    assert threading.excepthook is hook
    assert sampler.tasks(), "what was seen can still be asked for"
    assert sampler.samples == count


def test_a_thread_that_dies(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: said.append(args.thread.name))
    context = HookLog(Timeline())
    undo = record_thread_deaths(context)
    sampler.observe(ours=context.ours, deaths=context.deaths)

    def dies() -> None:
        raise ValueError("bad record 7")

    sampler.begin()
    thread = threading.Thread(target=dies, name="reader")
    thread.start()
    thread.join()
    undo()
    task = next(task for task in sampler.tasks() if task.name == "reader")
    assert "ValueError: bad record 7" in task.exit
    assert task.role == ev.PRODUCER
    assert said == ["reader"], "who printed it before still does"


@pytest.mark.parametrize("program", [NO_PYSPY, None])
def test_a_child_process(program: str | None) -> None:
    if program is None and not spy.find():
        pytest.skip("py-spy is not installed")
    with (
        Sampler(program=program) as sampler,
        subprocess.Popen([sys.executable, "-c", CHILD]) as child,
    ):
        try:
            until(
                lambda: child.pid in [kin.pid for kin in family.descendants(os.getpid())],
                "the child",
            )
            until(lambda: family.descendants(os.getpid())[0].python, "its exec")
            sampler.begin()

            def task() -> Task:
                return next(task for task in sampler.tasks() if task.pid == child.pid)

            def settled() -> bool:
                return dominant(task()) == ev.SLEEP and (task().sampled or program == NO_PYSPY)

            until(settled, "the child's sleep")
            seen = task()
            child.send_signal(signal.SIGKILL)
            until(lambda: task().exit, "the child's end")
            assert task().exit == "SIGKILL"
        finally:
            child.kill()
        assert seen.role == ev.PRODUCER
        if program is None:
            assert any(place.function == "fetch" for stack in seen.stacks for place in stack)
            assert sampler.overhead_s > 0
        else:
            assert (
                any("stacks of child processes" in text for text in sampler.missing) or task().exit
            )


def test_what_a_child_has_spent_before_it_was_seen(sampler: Sampler) -> None:
    """A child that is born and ends between two searches uses CPU time of the script, not of
    another process."""
    sampler.begin()
    begun_s = time.perf_counter()
    with sampler._mutex:  # the sampler pauses
        subprocess.run([sys.executable, "-c", BURNS], check=True)
    machine = sampler.machine()
    assert machine.own_cpu * (time.perf_counter() - begun_s) >= 0.3
    assert not sampler._children.logs


class Held:
    """An object that a thread's function holds."""


@pytest.mark.parametrize("moves_on", [True, False])
def test_a_call_belongs_to_its_stack(moves_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read without the interpreter lock, so a thread that waits for it may move on to
    another call."""
    first, there, second = threading.Event(), threading.Event(), threading.Event()
    held: list[weakref.ref[Held]] = []

    def work() -> None:
        mine = Held()
        held.append(weakref.ref(mine))
        first.wait()
        there.set()
        second.wait()

    def call_of(_: bytes) -> tuple[str, int]:
        if moves_on:
            first.set()
            assert there.wait(10)
        return "futex", 0

    thread = threading.Thread(target=work, name="moves on")
    thread.start()
    threads = Threads(procfs.DescriptorReader())
    try:
        polls: list[bool] = []

        def waits() -> bool:  # at two polls, so that it has moved on into the wait
            polls.append(bool(first._cond._waiters))  # type: ignore[attr-defined]
            return all(polls[-2:]) and len(polls) > 1

        until(waits, "the thread that waits")
        monkeypatch.setattr(procfs, "call_of", call_of)
        gc.disable()
        threads.sample(0.0, late_s=0.0, queued_s=0.0)
    finally:
        first.set()
        second.set()
        thread.join()
        gc.enable()
        threads.close()
    (sample,) = next(log for log in threads.logs.values() if log.name == "moves on").samples
    assert sample.state == (CORE if moves_on else ev.LOCK)
    assert held[0]() is None, "a sample keeps nothing"


@pytest.mark.parametrize(
    ("pool_s", "made_s", "compete"), [(8.5, 4.0, True), (8.5, 0.5, False), (1.0, 4.0, True)]
)
def test_whether_producers_take_time_on_the_cores(
    pool_s: float, made_s: float, compete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds of a native pool, of a producer and of the loop's thread."""
    sampler = Sampler(loop=1, program=NO_PYSPY)
    # which would find the threads of these tests
    monkeypatch.setattr(sampler, "refresh", lambda: None)
    for ident, cpu_s in ((0, pool_s), (1, 5.0), (2, made_s)):
        log = sampler._threads.logs[-ident] = ThreadLog(-ident, f"thread {ident}")
        log.ident, log.wall_s, log.last, log.gone = ident, 10.0, procfs.Counters(cpu_s=cpu_s), True
    assert sampler.producers_compete is compete


def test_what_a_thread_has_spent_before_it_ended(sampler: Sampler) -> None:
    """A thread that ends between two searches: each sample counts its CPU seconds, and all that it
    used are the script's."""
    begun_s = time.perf_counter()
    sampler.begin()
    first = sampler.samples

    def burn() -> None:
        while time.thread_time() < 0.3 or sampler.samples < first + 5:
            zlib.crc32(b"x" * 100)

    with running(burn, "burns", lambda: None):
        pass
    task = next(task for task in sampler.tasks() if task.name == "burns")
    assert task.cpu_s >= 0.2
    assert sampler.machine().own_cpu * (time.perf_counter() - begun_s) >= 0.29
    sampler.stop()
    spent_s = sum(one.cpu_s for one in sampler.tasks())
    until_s = time.thread_time() + 0.05
    while time.thread_time() < until_s:
        zlib.crc32(b"x" * 100)
    assert sum(one.cpu_s for one in sampler.tasks()) == spent_s, (
        "what comes after the end is not its own"
    )
