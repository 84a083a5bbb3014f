"""The state of a thread, by what the kernel and its stack say."""

from __future__ import annotations

import math
import os
import resource
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core.unix import TICKS_S
from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample import states
from fastfeed.probes import family, lock, procfs
from fastfeed.probes.machine_log import pools_of
from tests.helpers.dying import until

SHARE = st.floats(0, 1)
SAMPLED = [s for s in ev.TASK_STATES if s not in (ev.PYTHON, ev.NATIVE, ev.RUNNABLE)] + [
    states.CORE
]


@pytest.mark.parametrize(
    ("call", "more", "state"),
    [
        ("running", {}, states.CORE),
        ("read", {"target": "file", "disk": True}, ev.DISK),
        ("read", {"target": "file"}, ev.OTHER),
        ("read", {"target": "socket"}, ev.SOCKET),
        ("write", {"target": "pipe"}, ev.PIPE),
        ("sleep", {}, ev.SLEEP),
        ("recv", {"target": "socket"}, ev.SOCKET),
        ("poll", {"target": "pipe"}, ev.PIPE),
        ("child", {}, ev.PIPE),
        ("futex", {}, ev.LOCK),
        ("futex", {"late": True}, ev.LOCK),
        ("futex", {"wants_gil": True, "late": True}, ev.LOCK_PYTHON),
        ("futex", {"wants_gil": True}, states.CORE),  # it waits for the sampler
        ("call 999", {}, ev.OTHER),
        ("", {}, states.CORE),  # without permission for /proc/*/syscall
    ],
)
def test_state_of_a_moment(call: str, more: dict[str, Any], state: str) -> None:
    assert states.state_of(call, **more) == state


def test_a_futex_of_the_interpreter_is_its_lock() -> None:
    """Threads that compute wait for the interpreter lock, and others for one of their own."""
    over, held = threading.Event(), threading.Lock()
    reader = procfs.DescriptorReader()  # it keeps the lock

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    def wait() -> None:
        with held:
            pass

    threads = [threading.Thread(target=one, name=one.__name__) for one in (compute, wait)]
    held.acquire()
    for thread in threads:
        thread.start()
    try:

        def wants_gil(thread: threading.Thread) -> bool | None:
            """None: it waits for nothing."""
            files = procfs.ThreadFiles(os.getpid(), thread.native_id or 0)
            files.keep()
            call, first = procfs.call_of(files.read("syscall", reader))
            files.close()
            return first in lock.runtime_addresses() if call == "futex" else None

        until(lambda: wants_gil(threads[0]), "the wait for the interpreter lock")
        until(lambda: wants_gil(threads[1]) is False, "the wait for the other lock")
    finally:
        over.set()
        held.release()
        for thread in threads:
            thread.join()


@given(SHARE, SHARE, SHARE, st.dictionaries(st.sampled_from(SAMPLED), st.integers(1, 99)))
def test_shares_add_up(cpu: float, queued: float, python: float, counts: dict[str, int]) -> None:
    busy = states.shares(counts, cpu=cpu, queued=queued, python=python)
    assert math.isclose(sum(busy.values()), 1.0, abs_tol=1e-9)
    assert set(busy) <= set(ev.TASK_STATES)
    assert busy.get(ev.PYTHON, 0.0) <= cpu + 1e-9


def test_samples_divide_only_the_time_off_the_core() -> None:
    busy = states.shares(
        {states.CORE: 90, ev.SLEEP: 5, ev.SOCKET: 5}, cpu=0.4, queued=0.1, python=0.3
    )
    want = {ev.PYTHON: 0.3, ev.NATIVE: 0.1, ev.RUNNABLE: 0.1, ev.SLEEP: 0.25, ev.SOCKET: 0.25}
    assert busy == pytest.approx(want)


def test_a_helper_that_waits_for_its_queue_has_nothing_to_do() -> None:
    counts = {ev.LOCK: 2, ev.PIPE: 1, ev.SLEEP: 1}
    busy = states.shares(counts, cpu=0.0, queued=0.0, python=0.0)
    assert busy == pytest.approx({ev.EMPTY: 0.75, ev.SLEEP: 0.25})
    loop = states.shares(counts, cpu=0.0, queued=0.0, python=0.0, helper=False)
    assert loop == pytest.approx({ev.LOCK: 0.5, ev.PIPE: 0.25, ev.SLEEP: 0.25})


def test_who_held_the_lock_wants_it_back() -> None:
    python, native, waits = (
        lock.LockCandidate(0.02, True),
        lock.LockCandidate(0.02, False),
        lock.LockCandidate(0.0, True),
    )
    assert lock.holder_likelihoods([python, native, waits], 0.005) == pytest.approx(
        [10 / 11, 1 / 11, 0.0]
    )
    # One that only wanted it for a moment, beside one that is still on its way to wait.
    assert lock.holder_likelihoods([lock.LockCandidate(0.0001, True), native], 0.005)[1] > 0.9
    # No thread wants it: the holder released it by itself, after at least that time on a core.
    assert lock.holder_likelihoods([native, lock.LockCandidate(0.001, False)], 0.005) == [1.0, 0.0]
    assert lock.holder_likelihoods([], 0.005) == []
    assert lock.held_share(30.0, 40, samples=100, blind=0, cpu=0.25) == 0.25
    assert lock.held_share(30.0, 40, samples=100, blind=0, cpu=0.9) == 0.3
    assert lock.held_share(30.0, 40, samples=100, blind=50, cpu=0.9) == 0.6
    assert lock.held_share(30.0, 40, samples=100, blind=95, cpu=0.9) == 0.3, (
        "too few samples that tell"
    )
    assert lock.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert lock.quantile([], 0.5) is None


def test_numbers_of_the_kernel() -> None:
    stat = b"12 (a) b)) D 1 1 1 0 -1 64 77 0 0 0 250 50 0 0 20 0 2 0 99 0\n"
    found = procfs.times(stat, b"5000000000 2000000000 9\n")
    assert found == (5.0, 2.0, 9)
    assert procfs.times(stat, b"").cpu_s == 300 / TICKS_S
    assert procfs.state_char(stat) == "D"
    assert procfs.call_of(b"running\n") == (procfs.RUNNING, 0)
    assert procfs.call_of(b"") == ("", 0)
    assert procfs.call_of(b"99999 0x3 0x0 0x0 0x7f 0x7f\n") == ("call 99999", 3)
    assert found.plus(found).since(found) == found


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit code 0"), (3 << 8, "exit code 3"), (9, "SIGKILL")]
)
def test_how_a_process_ended(status: int, words: str) -> None:
    fields = " ".join(["0"] * 48)
    assert family.exit_of(f"7 (x) Z {fields} {status} 0".encode(), 7) == words
    assert family.exit_of(b"", 2**30) == "gone"


def test_native_pools() -> None:
    def broken() -> int:
        raise RuntimeError

    info = [
        {"internal_api": "openblas", "num_threads": 2},
        {"internal_api": "openblas", "num_threads": 4},
    ]
    modules = {
        "cv2": SimpleNamespace(getNumThreads=lambda: 8),
        "torch": SimpleNamespace(get_num_threads=broken),
        "threadpoolctl": SimpleNamespace(threadpool_info=lambda: info),
    }
    assert pools_of(modules) == {"OpenCV": 8, "openblas": 4}
    assert pools_of({}) == {}


def test_a_reader_reads_again_from_the_start(tmp_path: Any) -> None:
    file = tmp_path / "stat"
    file.write_bytes(b"one")
    reader = procfs.DescriptorReader()
    with open(file, "rb") as opened:
        assert reader.read(opened.fileno()) == b"one"
        file.write_bytes(b"two")
        assert reader.read(opened.fileno()) == b"two"
    assert reader.read(-1) == b""


def test_descriptors_are_left_to_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files stay open only while the script has many descriptors left; all can be read without
    that."""
    files = procfs.ThreadFiles(os.getpid(), threading.get_native_id())
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))
    files.keep()
    assert set(os.listdir("/proc/self/fd")) == before
    assert procfs.state_char(files.read("stat", procfs.DescriptorReader())) == "R"
    files.close()
    gone = procfs.ThreadFiles(2**30, 1)
    gone.keep()
    assert gone.read("stat", procfs.DescriptorReader()) == b""
    assert procfs.threads_of(2**30) == set()


def test_shares_of_a_thread_whose_samples_stand_for_no_time() -> None:
    busy = states.shares({ev.SLEEP: 0}, cpu=0.25, queued=0.0, python=0.25)
    assert busy == {ev.PYTHON: 0.25, ev.OTHER: 0.75}
