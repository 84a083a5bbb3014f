"""Time limits for the calls of a sink, and detection of resources that it leaves behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

import psutil

SCENE_THREAD = "check_sink"  # name of the thread of a scene
CLEANUP_LIMIT_S = 3.0  # time limit for everything that ends by itself
# Opened once and kept: by the C library and the frameworks (devices, CPU lists) and by Python
# (shared objects).
KEPT_OPEN = ("/dev/", "/sys/", "/proc/", "/usr/", "anon_inode:[eventpoll]")


class Hung(Exception):
    """A call did not return; the text has the stack of every thread."""


def run_within(limit_s: float, work: Callable[[], None], *, unblock: Callable[[], None]) -> None:
    """Run `work` in a thread of its own and raise what it raises.

    After `limit_s` seconds call `unblock` and raise Hung.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=run, name=SCENE_THREAD, daemon=True)
    thread.start()
    try:
        thread.join(limit_s)
        if thread.is_alive():
            raise Hung(
                f"the call did not return within {limit_s:g} s; stacks of all threads:\n{stacks()}"
            )
    finally:
        if thread.is_alive():
            unblock()
            thread.join(CLEANUP_LIMIT_S)
    if errors:
        raise errors.pop()


def stacks() -> str:
    """Return the stack of every other thread, that of the hanging scene first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    frames.pop(threading.get_ident())
    found = [
        (str(names.get(ident, ident)), traceback.format_stack(frame))
        for ident, frame in frames.items()
    ]
    found.sort(key=lambda one: one[0] != SCENE_THREAD)
    return "\n".join(f"thread {name}:\n{''.join(stack).rstrip()}" for name, stack in found)


def until(done: Callable[[], bool], limit_s: float) -> bool:
    """Poll `done` and return True once it is; return False after `limit_s` seconds.

    Unreachable objects are collected before each poll.
    """
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            return False
        gc.collect()
        time.sleep(0.005)
    return True


def resources() -> set[str]:
    """Return the current threads, processes and file descriptors."""
    alive = [t for t in threading.enumerate() if not isinstance(t, threading._DummyThread)]
    children = psutil.Process().children(recursive=True)
    return (
        {f"thread {t.name} ({t.ident})" for t in alive}
        | {f"process {p.pid}" for p in children}
        | _descriptors()
    )


def _descriptors() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the descriptor that listed the folder
            continue
        kept = target.startswith(KEPT_OPEN) and not target.startswith("/dev/shm")
        if not kept and "site-packages" not in target:
            found.add(f"file descriptor {number}: {target}")
    return found
