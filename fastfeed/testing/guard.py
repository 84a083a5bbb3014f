"""A time limit for everything that a sink does, and a check of what it leaves behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

import psutil

SCENE = "check_sink"  # the thread of a scene
GONE_S = 3.0  # for what ends by itself soon after
# opened once and kept: by the C library and the frameworks (devices, CPU lists) and by Python
# (shared objects)
KEPT_OPEN = ("/dev/", "/sys/", "/proc/", "/usr/", "anon_inode:[eventpoll]")


class Hung(Exception):
    """A call has not returned; the text has the stack of every thread."""


def within(limit_s: float, work: Callable[[], None], *, unblock: Callable[[], None]) -> None:
    """Run `work` in a thread of its own and raise what it raises; after `limit_s` call `unblock`
    and raise Hung."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # passed on to the waiting thread
            errors.append(error)

    thread = threading.Thread(target=run, name=SCENE, daemon=True)
    thread.start()
    try:
        thread.join(limit_s)
        if thread.is_alive():
            raise Hung(
                f"no call returned within {limit_s:g} s; what every thread does:\n{stacks()}"
            )
    finally:
        if thread.is_alive():
            unblock()
            thread.join(GONE_S)
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
    found.sort(key=lambda one: one[0] != SCENE)
    return "\n".join(f"thread {name}:\n{''.join(stack).rstrip()}" for name, stack in found)


def until(done: Callable[[], bool], limit_s: float) -> bool:
    """Return True if a condition without an event came true within the limit; garbage is collected
    meanwhile."""
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            return False
        gc.collect()
        time.sleep(0.005)
    return True


def belongings() -> set[str]:
    """Return the present threads, processes and file descriptors."""
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
