"""Doses: what takes cores, the interpreter lock or time from a loop for a block of its steps."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any

from fastfeed.core.machine import quota
from fastfeed.core.status import PROCESS
from fastfeed.core.unix import ON_LINUX
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.probes.beside import start_beside
from fastfeed.probes.family import descendants
from fastfeed.steps.timeline import Loop

Wait = Callable[[float], bool]  # wait so many seconds; return False when the diagnosis ends
HELPER_S = 1.0  # longest wait for an answer of the helper
STOP_S = 0.005  # for which a worker is stopped at a time
FREE_CORE = 0.8  # share of a core that a busy process gets if one is free


@dataclass
class Dose:
    """Something that is given to a loop for blocks of steps; for `amount` see `Intervention`.

    `give(limit_s, period_s)`: a block of at most `limit_s`, whose steps have that period without
    it. `hold`: what is done instead of a wait in a block. `refusal`: why it cannot be given.
    """

    kind: str
    amount: float
    give: Callable[[float, float], AbstractContextManager[None]]
    refusal: str = ""
    remark: str = ""  # about what was given
    hold: Callable[[Wait, float], bool] = lambda wait, seconds: wait(seconds)


class DoseHelper:
    """The process of dose_process.py, seen from the script."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self.missing = "the process that does it could not be started"  # why there is no answer
        self.cpu_s = 0.0  # on busy cores, in all blocks

    def start(self) -> None:
        """Start it, if that is possible on this system."""
        if ON_LINUX:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._channel.settimeout(HELPER_S)
            with theirs:
                program = Path(__file__).with_name("dose_process.py")
                self.missing *= not start_beside(program, stdin=theirs)

    @contextmanager
    def block(
        self, seconds: float, *, cores: int = 0, workers: Sequence[int] = (), share: float = 0.5
    ) -> Iterator[None]:
        """Keep cores busy, or stop workers, given as descriptors, for a share of the time."""
        channel, run_s = self._channel, STOP_S * (1 / share - 1)
        if channel is None:
            raise ConnectionError("the process that does it has ended")
        request = {"seconds": seconds, "cores": cores, "stop_s": STOP_S, "run_s": run_s}
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", workers))]
        quiet = socket.MSG_NOSIGNAL  # a script may let SIGPIPE end it
        channel.sendmsg([json.dumps(request).encode()], files, quiet)
        try:
            yield
        finally:
            channel.send(b"{}", quiet)
            self.cpu_s += float(json.loads(channel.recv(1 << 12)))

    def close(self) -> None:
        """End the process, also where children that were forked have this socket, too."""
        channel, self._channel = self._channel, None
        if channel is not None:
            with channel, contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)


def busy_cores(helper: DoseHelper, count: int) -> Dose:
    """So many processes that each keep a core busy."""

    @contextmanager
    def give(limit_s: float, period_s: float) -> Iterator[None]:
        begin_s, before_s = time.perf_counter(), helper.cpu_s
        with helper.block(limit_s, cores=count):
            yield
        got = (helper.cpu_s - before_s) / (time.perf_counter() - begin_s)
        if got < FREE_CORE * count:
            dose.remark = f"not so many cores were free: they got {got:.1f}"

    allowed = quota() or 1.0
    why = f"the control group allows {allowed:.2g} cores, which the loop needs" * (allowed < 1)
    dose = Dose("cores", count, give, why or helper.missing)
    return dose


def held_lock(share: float) -> Dose:
    """The interpreter lock, held by this thread for a share of the time, in slices of the switch
    interval, as by a thread that computes. It sleeps meanwhile, and so takes no core."""
    sleep, slice_s = ctypes.PyDLL(None).usleep, sys.getswitchinterval()  # PyDLL keeps the lock

    def hold(wait: Wait, seconds: float) -> bool:
        sleep(int(slice_s * 1e6))
        return wait(slice_s * (1 / share - 1))

    free = not getattr(sys, "_is_gil_enabled", lambda: True)()
    why = "this interpreter has no lock" * free
    return Dose("lock", share, lambda limit_s, period_s: nullcontext(), why, hold=hold)


def held_loop(log: HookLog, loop: Loop, *, share: float) -> Dose:
    """A delay of the loop's thread after each step, by a share of its period."""

    @contextmanager
    def give(limit_s: float, period_s: float) -> Iterator[None]:
        until_s = time.perf_counter() + limit_s

        def hold(stepped: Loop) -> None:
            if stepped is loop and get_ident() == loop.thread and time.perf_counter() < until_s:
                time.sleep(share * period_s)

        log.hold_loop(hold)
        try:
            yield
        finally:
            log.hold_loop(None)

    return Dose("delay", share, give)


def stopped_workers(helper: DoseHelper, loop: Loop, *, share: float) -> Dose:
    """Worker processes of the loop's loader, stopped for a share of the time, a slice at a time."""

    @contextmanager
    def give(limit_s: float, period_s: float) -> Iterator[None]:
        workers = [os.pidfd_open(pid) for pid in worker_pids(loop)]
        try:
            with helper.block(limit_s, workers=workers, share=share):
                yield
        finally:
            for fd in workers:  # also if the helper is gone
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGCONT)
                os.close(fd)

    handler: Any = signal.getsignal(signal.SIGCHLD)  # a worker that is stopped sends it
    own = callable(handler) and not getattr(handler, "__module__", "").startswith("torch.")
    return Dose("producers", share, give, "the script handles SIGCHLD" * own or helper.missing)


def worker_pids(loop: Loop) -> list[int]:
    """Return the processes that the loop's loader names as its own, and the script has started."""
    named = {one.pid for one in loop.producers() if one.kind == PROCESS} if loop.producers else ()
    return [one.pid for one in descendants(os.getpid()) if one.pid in named] if named else []
