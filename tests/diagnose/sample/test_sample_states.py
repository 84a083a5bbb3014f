"""The state of a thread, by what the kernel and its stack say."""

from __future__ import annotations

import math
import os
import resource
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.core.unix import TICKS_S
from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample import states
from fastfeed.diagnose.sample.states import ThreadView
from fastfeed.probes import family, lock, procfs
from fastfeed.probes.machine_log import pools_of

USER = ("decode", "/home/me/data.py")
SHARE = st.floats(0, 1)
SAMPLED = [s for s in ev.TASK_STATES if s not in (ev.PYTHON, ev.NATIVE, ev.RUNNABLE)] + [
    states.CORE
]


QUEUE = ("wait", "threading.py")
PUT, GET = ([QUEUE, (name, "queue.py"), USER] for name in ("put", "get"))
FEEDER = ("_feed", "multiprocessing/queues.py")
PIPE = ("_send", "multiprocessing/connection.py")
SESSION = ("_call_tf_sessionrun", "tensorflow/python/client/session.py")
WORKER = ("_worker", "concurrent/futures/thread.py")
ROOM = ("_wait_for_room", "/x/fastfeed/producers/reorder.py")


# The innermost frames, what they call, the call of the kernel, and what else is known.
@pytest.mark.parametrize(
    ("frames", "called", "call", "more", "state"),
    [
        ([USER], "", "running", {}, states.CORE),
        ([USER], "read", "read", {"target": "file", "disk": True}, ev.DISK),
        ([USER], "time.sleep", "sleep", {}, ev.SLEEP),
        ([USER], "sock.recv", "recv", {}, ev.SOCKET),
        ([USER], "f.read", "read", {"target": "socket"}, ev.SOCKET),
        ([USER], "f.read", "read", {"target": "pipe"}, ev.PIPE),
        ([USER], "select.poll", "poll", {}, ev.SOCKET),
        ([("_recv", PIPE[1]), USER], "read", "read", {"target": "socket"}, ev.PIPE),
        ([USER], "process.wait", "child", {}, ev.PIPE),
        ([USER], "__enter__", "futex", {"late": True}, ev.LOCK),
        ([USER], "lock.acquire", "futex", {}, ev.LOCK),
        ([USER], "", "futex", {"late": True}, ev.LOCK_PYTHON),
        ([USER], "np.dot", "futex", {"late": True}, ev.LOCK_PYTHON),
        ([USER], "np.dot", "futex", {}, ev.LOCK),
        ([USER], "os.preadv", "futex", {}, ev.DISK),  # it has read, and waits for the sampler
        ([USER], "os.preadv", "futex", {"late": True}, ev.LOCK_PYTHON),
        (PUT, "acquire", "futex", {}, ev.FULL),
        (GET, "acquire", "futex", {}, ev.EMPTY),
        (PUT, "acquire", "futex", {"trainer": True}, ev.EMPTY),
        ([USER], "items.get", "futex", {}, ev.EMPTY),
        ([USER], "dict.get", "futex", {"late": True}, ev.LOCK_PYTHON),
        ([QUEUE, FEEDER], "acquire", "futex", {}, ev.EMPTY),
        ([("_send", "connection.py"), FEEDER], "write", "write", {"target": "pipe"}, ev.FULL),
        ([PIPE], "write", "write", {"target": "socket"}, ev.FULL),
        ([SESSION, USER], "x", "futex", {}, ev.FULL),
        ([SESSION], "x", "futex", {"trainer": True}, ev.LOCK),
        ([ROOM], "wait", "futex", {}, ev.FULL),
        ([USER], "mystery", "call 999", {}, ev.OTHER),
        # Without permission for /proc/*/syscall only the stack is known.
        ([USER], "time.sleep", "", {}, ev.SLEEP),
        ([USER], "sock.recv", "", {}, ev.SOCKET),
        ([("readinto", "socket.py"), USER], "", "", {}, ev.SOCKET),
        ([USER], "lock.acquire", "", {}, ev.LOCK),
        (PUT, "acquire", "", {}, ev.FULL),
        ([("poll", PIPE[1])], "", "", {}, ev.PIPE),
        ([USER], "", "", {}, ev.OTHER),
        # A thread of a pool that sleeps in its work is not without work.
        ([WORKER], "work_queue.get", "futex", {}, ev.EMPTY),
        (
            [("download", "train.py"), ("run", WORKER[1]), WORKER],
            "time.sleep",
            "sleep",
            {},
            ev.SLEEP,
        ),
    ],
)
def test_state_of_a_moment(
    frames: list[tuple[str, str]], called: str, call: str, more: dict[str, Any], state: str
) -> None:
    assert states.state_of(ThreadView(frames, called, call, **more)) == state


def test_functions_of_a_feed_exist() -> None:
    """States are read from the names of fastfeed's own functions, which may be renamed."""
    root = Path(procfs.__file__).parents[1]
    texts = [
        file.read_text()
        for room in ("producers", "ring", "sinks")
        for file in (root / room).rglob("*.py")
    ]
    for name in states.FEED_FULL_FUNCTIONS | states.FEED_EMPTY_FUNCTIONS:
        assert any(f"def {name}(" in text for text in texts), name


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
    assert (found.cpu_s, found.queued_s, found.system_s, found.faults) == (
        5.0,
        2.0,
        50 / TICKS_S,
        77,
    )
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
