"""Every test proves that it left nothing behind: no thread, child process, file descriptor or
shared memory."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from hypothesis import settings

# A busy machine is no failure. Where others judge by one run, it is the same at each; elsewhere
# each looks further.
settings.register_profile("suite", settings.get_profile("default"), deadline=None)
settings.register_profile(
    "ci", settings.get_profile("suite"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "suite")
LIMIT_S = 30.0  # of a failure: what goes away by itself does so in a moment
# What every runner has by itself, tests/live switches on: elsewhere it would fill this user's own
# folders.
for switch in ("FASTFEED_BLACKBOX", "FASTFEED_SOCKET"):
    os.environ.setdefault(switch, "0")
# Opened once and kept: by the C library and TensorFlow (devices, CPU lists) and by Python (shared
# objects, modules).
KEPT_OPEN = ("/dev/", "/sys/", "/proc/", "/usr/", "anon_inode:[eventfd]", "anon_inode:[eventpoll]")
FAILED = pytest.StashKey[bool]()


def threads() -> set[str]:
    """Python's own threads; TensorFlow's native ones show up only as dummies."""
    alive = threading.enumerate()
    return {
        f"thread {t.name} ({t.ident})" for t in alive if not isinstance(t, threading._DummyThread)
    }


def processes() -> set[str]:
    """Children, and their children."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # none: which psutil reads of all processes of the machine
        return set()
    return {f"process {p.pid}" for p in psutil.Process().children(recursive=True)}


def descriptors() -> set[str]:
    """What is open; pipes and sockets have a number of their own."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the one that listed the folder
            continue
        if not target.startswith(KEPT_OPEN) and "site-packages" not in target:
            found.add(f"file descriptor {target}")
    return found


def shared_memory() -> set[str]:
    """Named shared memory of this machine; any TensorFlow that is being loaded, also beside us, has
    a file there."""
    names = os.listdir("/dev/shm")
    return {f"/dev/shm/{name}" for name in names if not name.startswith("tmp_tf_gcs_fs_pointer_")}


KINDS: tuple[Callable[[], set[str]], ...] = (threads, processes, descriptors, shared_memory)


def left_behind(before: list[set[str]], limit_s: float = LIMIT_S) -> list[str]:
    """What is there and was not there before, after it had `limit_s` to go away."""
    deadline = time.monotonic() + limit_s
    while left := sorted(
        thing for kind, had in zip(KINDS, before, strict=True) for thing in kind() - had
    ):
        if time.monotonic() > deadline:
            return left
        gc.collect()  # a forgotten runner may be part of a cycle
        time.sleep(0.01)
    return []


def pytest_collection_finish() -> None:
    """Takes TensorFlow's tuner away from every iterator over a tf.data dataset, which keras makes,
    too.

    The destructor of an iterator wakes it a moment before it sets what ends it: now and then it
    sleeps on, for up to a minute, in whichever test the garbage is collected.
    """
    made = sys.modules.get("tensorflow.python.data.ops.dataset_ops")
    if made is None:
        return
    plain = made.DatasetV2._apply_debug_options

    def untuned(dataset: Any) -> Any:
        options = made.options_lib.Options()
        options.autotune.enabled = False
        return plain(dataset).with_options(options)

    made.DatasetV2._apply_debug_options = untuned


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that passed and left something; a failed one is still held by its traceback."""
    before = [kind() for kind in KINDS]
    yield
    if request.node.stash.get(FAILED, True):
        return
    left = left_behind(before)
    assert not left, f"left behind by {request.node.name}: {', '.join(left)}"


@pytest.fixture
def untraced() -> Iterator[None]:
    """Remove this thread's trace function for a test, and prove that the test left none."""
    before = sys.gettrace()
    sys.settrace(None)
    yield
    assert sys.gettrace() is None, "a trace function was left"
    sys.settrace(before)
