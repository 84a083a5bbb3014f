"""From a thread at one moment to a state of evidence.py. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample import callee
from fastfeed.probes.procfs import RUNNING

CORE = "core"  # on a core, or ready for one: counters tell how much of which
SLEEPS = frozenset(("sleep", "pause"))
SOCKETS = frozenset(
    (
        *(
            "recv",
            "recv_into",
            "recvfrom",
            "recvmsg",
            "accept",
            "connect",
            "sendall",
            "getaddrinfo",
        ),
        *("do_handshake", "urlopen"),
    )
)
READS = frozenset(("pread", "preadv", "pwrite", "pwritev"))  # of files, and nothing else
LOCKS = frozenset(
    ["acquire", "__enter__", "wait", "wait_for", "join", "result", "as_completed", "exception"]
)
LOCK_FILES = re.compile(
    r"(^|/)(threading|multiprocessing/synchronize|concurrent/futures/_base)\.py$"
)
QUEUES = re.compile(r"(^|/)(queue|multiprocessing/queues|_mp_queue)\.py$")
PIPES = re.compile(r"(^|/)multiprocessing/(connection|popen_\w+)\.py$|(^|/)subprocess\.py$")
SOCKET_FILES = re.compile(r"(^|/)(socket|ssl|http/client|selectors|urllib3/.*|asyncio/.*)\.py$")
SESSIONS = re.compile(r"tensorflow/python/client/session\.py$")
# fastfeed's own producers: they wait for room, or for work
OWN_FULL = frozenset(["_wait_for_room", "_lend", "lend"])
OWN_EMPTY = frozenset(["_wait_for_batch", "take", "get", "read"])
OWN_FILES = re.compile(r"(^|/)fastfeed/(producers|ring|sinks)/")


class ThreadView(NamedTuple):
    """A thread at one moment. `stack`: (function, file) of its frames, innermost first. `called`:
    what the innermost one calls, "" if nothing; None if unknown. `call`: the system call that it
    waits in ("running" on a core, "" unknown), `target`: the kind of its descriptor. `late`:
    another thread held the interpreter lock."""

    stack: Sequence[tuple[str, str]]
    called: str | None = None
    call: str = ""
    target: str = ""
    disk: bool = False
    late: bool = False
    trainer: bool = False


def state_of(seen: ThreadView) -> str:
    """Return the state, CORE if counters must tell more."""
    if seen.call == RUNNING:
        return CORE
    if seen.disk or (seen.call == "futex" and not seen.late and _last(seen.called) in READS):
        # its data arrived while the sampler had the lock, for which it waits now
        return ev.DISK
    # an instruction without a call waits only for the interpreter lock
    if seen.call == "futex" and seen.late and not _locks(seen):
        return ev.LOCK_PYTHON
    return buffer_state(seen) or (_waits(seen) if seen.call else _by_frames(seen))


def buffer_state(seen: ThreadView) -> str:
    """Return FULL or EMPTY, if the thread waits in a queue's put or get, or in the equivalent of
    fastfeed or TensorFlow."""
    found = _queue_state(seen)
    return ev.EMPTY if found == ev.FULL and seen.trainer else found


def _queue_state(seen: ThreadView) -> str:
    name = _last(seen.called)
    if (
        seen.call in ("futex", "", "poll")
        and name in ("put", "get")
        and not _asks_dict(seen.called)
    ):
        return ev.FULL if name == "put" else ev.EMPTY
    for i, (function, file) in enumerate(seen.stack[:8]):
        function = _last(function)
        if QUEUES.search(file) and function in ("put", "get", "_feed"):
            if function != "_feed":
                return ev.FULL if function == "put" else ev.EMPTY
            return (
                ev.FULL
                if any(_last(f).startswith("_send") for f, _ in seen.stack[:i])
                else ev.EMPTY
            )
        if file.endswith("concurrent/futures/thread.py") and function == "_worker" and not i:
            return ev.EMPTY
        if OWN_FILES.search(file) and function in OWN_FULL | OWN_EMPTY:
            return ev.FULL if function in OWN_FULL else ev.EMPTY
        if SESSIONS.search(file) and function == "_call_tf_sessionrun" and not seen.trainer:
            return ev.FULL
    if seen.call == "write" and seen.target in ("pipe", "socket") and _in(PIPES, seen):
        return ev.FULL
    return ""


def _waits(seen: ThreadView) -> str:
    """Return the state by the system call."""
    call = seen.call
    if call in SLEEPS or (call == "select" and _last(seen.called) == "sleep"):
        return ev.SLEEP
    if call == "futex":
        return ev.LOCK
    if call in ("read", "write", "readv", "writev") and seen.target in ("pipe", "socket"):
        return ev.PIPE if seen.target == "pipe" or _in(PIPES, seen) else ev.SOCKET
    if call in ("recv", "send", "accept", "connect"):
        return ev.PIPE if _in(PIPES, seen) else ev.SOCKET
    if call in ("poll", "select"):
        return ev.PIPE if _in(PIPES, seen) else ev.SOCKET
    return ev.PIPE if call == "child" else ev.OTHER


def _by_frames(seen: ThreadView) -> str:
    """Return the state by what the innermost frame calls, if the system call cannot be read."""
    name = _last(seen.called)
    if name == "sleep":
        return ev.SLEEP
    if _in(PIPES, seen):
        return ev.PIPE
    if name in SOCKETS or SOCKET_FILES.search(seen.stack[0][1] if seen.stack else ""):
        return ev.SOCKET
    return ev.LOCK if _locks(seen) else ev.OTHER


def in_socket(stack: Sequence[tuple[str, str]]) -> bool:
    """Return True if a stack, innermost first, is in the library's code for sockets, or in the
    user's, which may be."""
    file = stack[0][1] if stack else ""
    return not PIPES.search(file) and file != "selectors.py"


def _locks(seen: ThreadView) -> bool:
    if seen.called is None:
        return bool(seen.stack) and LOCK_FILES.search(seen.stack[0][1]) is not None
    return _last(seen.called) in LOCKS or (
        _last(seen.called) in ("put", "get") and not _asks_dict(seen.called)
    )


def _in(pattern: re.Pattern[str], seen: ThreadView) -> bool:
    return any(pattern.search(file) for _, file in seen.stack[:4])


def _last(name: str | None) -> str:
    return (name or "").rpartition(".")[2]


def _asks_dict(called: str | None) -> bool:
    return (called or "").startswith(("os.", "requests.", callee.ASKS_DICT))


def shares(
    counts: Mapping[str, float], *, cpu: float, queued: float, python: float
) -> dict[str, float]:
    """Return the shares of the states, with a sum of 1: on a core and in its queue by the counters
    (`cpu` and `queued`, shares of the time; of `cpu`, `python` with the interpreter lock), the rest
    as the samples off the core divide it. `counts`: samples by state."""
    cpu = min(max(cpu, 0.0), 1.0)
    queued = min(max(queued, 0.0), 1.0 - cpu)
    python = min(max(python, 0.0), cpu)
    busy = {ev.PYTHON: python, ev.NATIVE: cpu - python, ev.RUNNABLE: queued}
    waits = {state: count for state, count in counts.items() if state != CORE}
    total = sum(waits.values())
    for state, count in waits.items():
        busy[state] = busy.get(state, 0.0) + (1.0 - cpu - queued) * count / total
    if not total:
        busy[ev.OTHER] = 1.0 - cpu - queued
    return {state: share for state, share in busy.items() if share > 0}
