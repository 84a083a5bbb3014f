"""One sink on trial with one kind of producers: shared helpers of the scenes, time limits for its
calls, detection of resources that it leaves behind, and the findings."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from fastfeed.runner.runner import FeedRunner
from fastfeed.testing.promises import Finding, SinkTraits
from fastfeed.testing.verdict import ReceivedElement, received

HANG_HINTS = {
    "fast consumer": (
        "\nIf the sink needs batches beyond the one that it hands out, declare SinkTraits(ahead=1)"
    )
}
Open = Callable[[FeedRunner], Iterable[Any]]
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


@dataclass
class Trial:
    """State of the battery for one sink; `open` makes the sink of a runner.

    `current` is the promise that an exception or a hang would break now.
    """

    open: Open
    to_numpy: Callable[[Any], Any] | None
    traits: SinkTraits
    limit_s: float
    options: Mapping[str, Any]  # of every runner
    processes: int = 0
    current: str = "structure"
    # `current` at the time of the hang, because the scene continues once it is unblocked
    hung: str = ""
    checked: dict[str, None] = field(default_factory=dict)  # used as an ordered set
    findings: list[Finding] = field(default_factory=list)
    runners: list[FeedRunner] = field(default_factory=list)  # of the running scene
    unblock: Callable[[], None] = lambda: None  # releases producers that the scene blocks
    error: BaseException | None = None  # an unexpected exception

    def use_processes(self, count: int) -> None:
        """Use so many worker processes, or producer threads for 0, in the next scenes."""
        self.processes = count

    def begin(self, promise: str) -> None:
        """Set the promise that the scene checks now."""
        self.current = promise

    def unblock_with(self, unblock: Callable[[], None]) -> None:
        """Set what releases the producers that the scene blocks."""
        self.unblock = unblock

    def play(self, scene: Callable[[Trial], None]) -> bool:
        """Run a scene under the limit; return True if the next one may follow.

        No scene can run after a hang.
        """
        before = resources()
        try:
            run_within(self.limit_s, lambda: scene(self), unblock=self._give_up)
        except Hung as hang:
            hint = HANG_HINTS.get(self.hung, "")
            self.add_finding("no hang", f"while checking {self.hung!r}: {hang}{hint}")
            return False
        except Exception as error:  # the sink raised where no error was due
            self.add_finding(self.current, "".join(traceback.format_exception(error)).rstrip())
            self.error = error
            return False
        finally:
            self._end()
        if "nothing left" not in [f.promise for f in self.findings]:  # once is enough
            until(lambda: resources() <= before, CLEANUP_LIMIT_S)
            self.judge("nothing left", ", ".join(sorted(resources() - before)))
        return True

    def runner(self, source: Any, **options: Any) -> FeedRunner:
        """Return a runner with this trial's producers, for `with`."""
        runner = FeedRunner(source, **{"processes": self.processes, **self.options, **options})
        self.runners.append(runner)
        return runner

    def take(self, iterator: Iterator[Any]) -> ReceivedElement | None:
        """Return a copy of the next element, or None at the end."""
        for element in iterator:
            return self.copy(element)
        return None

    def copy(self, element: Any) -> ReceivedElement:
        """Return a copy of an element's current content."""
        return received(element, self.to_numpy)

    def judge(self, promise: str, happened: str) -> None:
        """Note that a promise was checked, and what happened instead, if it was broken."""
        self.checked[promise] = None
        if happened:
            self.add_finding(promise, happened)

    def add_finding(self, promise: str, happened: str) -> None:
        """Note a broken promise; only its first failure is kept, which is the most informative."""
        producers = "process producers" if self.processes else "thread producers"
        if all((f.promise, f.producers) != (promise, producers) for f in self.findings):
            self.findings.append(Finding(promise, producers, happened))

    def still_lent(self, runner: FeedRunner) -> str:
        """Describe the batches that are still lent although all elements are gone, if any.

        Producer threads lend no memory.
        """
        if until(lambda: runner.snapshot().slots.lent == 0, CLEANUP_LIMIT_S):
            return ""
        return f"{runner.snapshot().slots.lent} batches are still lent ({runner.snapshot().slots})"

    def _give_up(self) -> None:
        self.hung = self.current
        self.unblock()
        self._end()

    def _end(self) -> None:
        for runner in self.runners:
            runner.stop()
        self.runners.clear()
