"""Checks that every test leaves nothing behind: no thread, process, descriptor or shared memory."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings
from tqdm import tqdm

# A busy machine must not fail a test. Every run takes the same examples, so that a change fails no
# test by chance; `make explore` draws new ones.
settings.register_profile(
    "suite",
    settings.get_profile("default"),
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
)
settings.register_profile("explore", settings.get_profile("suite"), derandomize=False)
settings.load_profile("explore" if os.environ.get("EXPLORE") else "suite")
LIMIT_S = 30.0  # of a failure: what ends by itself does so at once
tqdm.monitor_interval = 0  # of a thread that the first bar starts, for as long as the process lives
# tests/jobs enables this default of every runner: elsewhere it would fill this user's own folder.
os.environ.setdefault("FASTFEED_BLACKBOX", "0")
# Opened once and kept: by the C library and TensorFlow (devices, CPU lists) and by Python (shared
# objects, modules).
KEPT_OPEN = ("/dev/", "/sys/", "/proc/", "/usr/", "anon_inode:[eventfd]", "anon_inode:[eventpoll]")
FAILED = pytest.StashKey[bool]()


def threads() -> set[str]:
    """Return Python's own threads; TensorFlow's native ones appear only as dummies."""
    alive = threading.enumerate()
    return {
        f"thread {t.name} ({t.ident})" for t in alive if not isinstance(t, threading._DummyThread)
    }


def processes() -> set[str]:
    """Return all descendants of this process."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no child: psutil reads them from all processes of the machine
        return set()
    return {f"process {p.pid}" for p in psutil.Process().children(recursive=True)}


def descriptors() -> set[str]:
    """Return the open descriptors; pipes and sockets have a number of their own."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor that listed the folder
            continue
        if not target.startswith(KEPT_OPEN) and "site-packages" not in target:
            found.add(f"file descriptor {target}")
    return found


def shared_memory() -> set[str]:
    """Return the named shared memory of this machine.

    A TensorFlow that is being imported, also in another process, has a file there.
    """
    names = os.listdir("/dev/shm")
    return {f"/dev/shm/{name}" for name in names if not name.startswith("tmp_tf_gcs_fs_pointer_")}


def is_others(thing: str) -> bool:
    """Return True for a semaphore of multiprocessing that only a process outside of this one's
    family has mapped: a test that runs at the same time."""
    if not thing.startswith("/dev/shm/sem."):
        return False
    family = {os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))}
    with contextlib.suppress(FileNotFoundError):
        # by its inode: the C library has opened it under another name
        mapped = re.compile(rb" %d +/dev/shm/sem\." % os.stat(thing).st_ino)
        for pid in set(psutil.pids()) - family:
            with contextlib.suppress(OSError):
                if mapped.search(Path(f"/proc/{pid}/maps").read_bytes()):
                    return True
    return False


KINDS: tuple[Callable[[], set[str]], ...] = (threads, processes, descriptors, shared_memory)


def left_behind(before: list[set[str]], limit_s: float = LIMIT_S) -> list[str]:
    """Return what is there, was not there before, and does not end within `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while left := sorted(
        thing
        for kind, had in zip(KINDS, before, strict=True)
        for thing in kind() - had
        if not is_others(thing)
    ):
        if time.monotonic() > deadline:
            return left
        gc.collect()  # an unreachable runner may be part of a cycle
        time.sleep(0.01)
    return []


def pytest_collection_finish() -> None:
    """Take TensorFlow's tuner away from every iterator over a tf.data dataset, also in Keras.

    The destructor of an iterator wakes the tuner a moment before it sets the flag that ends it. Now
    and then the tuner sleeps on for up to a minute, in any test in which the garbage is collected.
    """
    dataset_ops = sys.modules.get("tensorflow.python.data.ops.dataset_ops")
    if dataset_ops is None:
        return
    plain = dataset_ops.DatasetV2._apply_debug_options

    def untuned(dataset: Any) -> Any:
        options = dataset_ops.options_lib.Options()
        options.autotune.enabled = False
        return plain(dataset).with_options(options)

    dataset_ops.DatasetV2._apply_debug_options = untuned


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that passed and left something; a failed test's traceback holds its objects."""
    before = [kind() for kind in KINDS]
    yield
    if request.node.stash.get(FAILED, True):
        return
    left = left_behind(before)
    assert not left, f"left behind by {request.node.name}: {', '.join(left)}"
