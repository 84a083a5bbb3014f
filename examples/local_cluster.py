"""The processes of a cluster, all on this machine: what a scheduler does on many machines.

The examples of data parallelism start their ranks with it. A process that dies ends the others
after a moment in which they may report it, and no process outlives the one that started it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

REPORT_S = 45.0  # for the others to notice a death themselves: frameworks take 10 to 30 s
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
SPAWN = multiprocessing.get_context("spawn")  # a fork of a process with TensorFlow would hang


class RankDied(Exception):
    """A process of the cluster ended with an error, or did not end in time."""


def free_addresses(count: int) -> list[str]:
    """Return `count` addresses of this machine on which nobody listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def meet(addresses: list[str], rank: int, limit_s: float) -> None:
    """Return when every rank listens; raise TimeoutError with those that do not in time.

    Frameworks wait much longer for a rank that never comes (TensorFlow over ten minutes), and
    cannot be interrupted meanwhile. This rank listens at its address until the framework does.
    """
    deadline = time.monotonic() + limit_s
    missing = [n for n in range(len(addresses)) if n != rank]
    with socket.create_server(("", _port(addresses[rank]))):
        while missing:
            missing = [n for n in missing if not _listens(addresses[n])]
            if missing and time.monotonic() > deadline:
                absent = ", ".join(f"rank {n} at {addresses[n]}" for n in missing)
                raise TimeoutError(
                    f"one of {len(addresses)} ranks, and no answer within {limit_s:g} s from "
                    f"{absent}. Start all ranks, with the same list of addresses"
                )
            time.sleep(0.05)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _listens(address: str) -> bool:
    try:
        socket.create_connection((address.rpartition(":")[0], _port(address)), timeout=1).close()
    except OSError:
        return False
    return True


class LocalCluster:
    """Named processes; leaving `with` ends those that still run."""

    def __init__(self, limit_s: float) -> None:
        self._deadline = time.monotonic() + limit_s
        self._limit_s = limit_s
        self.processes: dict[str, Any] = {}

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
            process.close()

    def start(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        """Call `function(*args)` in a new process."""
        process = SPAWN.Process(target=_run, name=name, args=(function, args))
        self.processes[name] = process
        process.start()

    def wait(self, *names: str, survivors: bool = False) -> dict[str, int]:
        """Return the exit codes of these processes (all, if none is named) when they have ended.

        Raise RankDied if one fails, or if the time of the cluster is over. With `survivors` a
        process that was killed is none of the others' business.
        """
        left = {n: p for n, p in self.processes.items() if not names or n in names}
        codes: dict[str, int] = {}
        deadline = self._deadline
        while left and wait([p.sentinel for p in left.values()], deadline - time.monotonic()):
            for name in [n for n, p in left.items() if p.exitcode is not None]:
                codes[name] = left.pop(name).exitcode
                if codes[name] and not (survivors and codes[name] < 0):
                    deadline = min(deadline, time.monotonic() + REPORT_S)
        failed = {n: c for n, c in codes.items() if c and not (survivors and c < 0)}
        if failed or left:
            raise RankDied(self._report(failed, list(left)))
        return dict(sorted(codes.items()))

    def _report(self, failed: dict[str, int], left: list[str]) -> str:
        # who was killed is the cause, who ended with an error has noticed
        first = sorted(failed, key=lambda name: failed[name])
        said = [f"{name} {_ending(failed[name])}" for name in first]
        if left and failed:
            said.append(f"{', '.join(left)} did not notice within {REPORT_S:g} s and was ended")
        elif left:
            said.append(f"{', '.join(left)} did not end within {self._limit_s:g} s and was ended")
        return "; ".join(said)


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _run(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run in the new process."""
    # Linux ends it with the one that started it; a thread of ours would wait for the interpreter
    # lock, which TensorFlow holds while it looks for the other ranks
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != multiprocessing.parent_process().pid:  # it had ended before
        os._exit(1)
    function(*args)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # frameworks wait at exit for the other ranks, one of which may be gone
