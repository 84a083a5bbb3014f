"""Keeps cores busy and stops worker processes for a training, in a process that is not its child.

A script may count and await its own children, and whatever ends it, its workers must go on. A
request is JSON on the socket that is standard input, with descriptors of workers. A block ends with
the next message, its time or the script, and is answered. This imports nothing of fastfeed.
"""

import contextlib
import ctypes
import itertools
import json
import os
import select
import signal
import socket
import sys
import time


def main(script: int) -> None:
    """Serve the process `script`, to its end or that of the socket."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel, news = socket.socket(fileno=0), select.poll()
    news.register(channel, select.POLLIN)
    news.register(os.pidfd_open(script), select.POLLIN)
    while any(fd == channel.fileno() for fd, _ in news.poll()):
        message, workers, _, _ = socket.recv_fds(channel, 1 << 12, 1 << 8)
        if not message:
            return
        if request := json.loads(message):
            channel.send(json.dumps(block(request, workers, news=news)).encode())


def block(request: dict, workers: list, *, news: select.poll) -> float:  # type: ignore[type-arg]
    """Give the doses of a request until there is news; return the CPU seconds on busy cores."""
    until_s, used_s = time.monotonic() + request["seconds"], 0.0
    burners = [burner(until_s) for _ in range(request["cores"])]
    turns = (signal.SIGSTOP, request["stop_s"]), (signal.SIGCONT, request["run_s"])
    try:
        for number, turn_s in itertools.cycle(turns):
            signal_all(workers, number)
            left_s = until_s - time.monotonic()
            if left_s <= 0 or news.poll(1000 * min(turn_s, left_s)):
                break
    finally:
        signal_all(workers, signal.SIGCONT)
        for pid in burners:
            os.kill(pid, signal.SIGKILL)
            used_s += sum(os.wait4(pid, 0)[2][:2])
    for fd in workers:
        os.close(fd)
    return used_s


def signal_all(workers: list, number: int) -> None:  # type: ignore[type-arg]
    """Send a signal to the workers that exist."""
    for fd in workers:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)


def burner(until_s: float) -> int:
    """Start a process that keeps a core busy, at most until then; return its pid."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: it ends with us
        while time.monotonic() < until_s:
            pass
        os._exit(0)
    return pid


if __name__ == "__main__" and os.fork() == 0:  # the child of this process is none of the script
    os.setsid()
    with contextlib.suppress(OSError):  # the script has ended
        main(int(sys.argv[1]))
    os._exit(0)
