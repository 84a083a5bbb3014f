"""State of a thread, in the terms of evidence.py, from one observation of it; pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastfeed.diagnose import evidence as ev
from fastfeed.diagnose.sample import callee
from fastfeed.probes.procfs import RUNNING

CORE = "core"  # on a core, or ready for one: the counters tell these apart
SLEEP_CALLS = frozenset(("sleep", "pause"))
SOCKET_CALLS = frozenset(
    [
        "recv",
        "recv_into",
        "recvfrom",
        "recvmsg",
        "accept",
        "connect",
        "sendall",
        "getaddrinfo",
        "do_handshake",
        "urlopen",
    ]
)
FILE_CALLS = frozenset(("pread", "preadv", "pwrite", "pwritev"))  # on files, and on nothing else
LOCK_CALLS = frozenset(
    ["acquire", "__enter__", "wait", "wait_for", "join", "result", "as_completed", "exception"]
)
LOCK_FILES = re.compile(
    r"(^|/)(threading|multiprocessing/synchronize|concurrent/futures/_base)\.py$"
)
QUEUE_FILES = re.compile(r"(^|/)(queue|multiprocessing/queues|_mp_queue)\.py$")
PIPE_FILES = re.compile(r"(^|/)multiprocessing/(connection|popen_\w+)\.py$|(^|/)subprocess\.py$")
SOCKET_FILES = re.compile(r"(^|/)(socket|ssl|http/client|selectors|urllib3/.*|asyncio/.*)\.py$")
SESSION_FILES = re.compile(r"tensorflow/python/client/session\.py$")
# Functions of fastfeed in which a producer waits: for room in a buffer, and for work.
FEED_FULL_FUNCTIONS = frozenset(["_wait_for_room", "_lend", "lend"])
FEED_EMPTY_FUNCTIONS = frozenset(["_wait_for_batch", "take", "read"])
FEED_FILES = re.compile(r"(^|/)fastfeed/(producers|ring|sinks)/")


class ThreadView(NamedTuple):
    """Thread at one moment.

    `stack`: (function, file) of its frames, the innermost first. `called`: the function that the
    innermost frame calls, "" if none, None if unknown. `call`: the system call that it waits in
    ("running" on a core, "" unknown). `target`: the kind of its file descriptor. `late`: another
    thread held the interpreter lock.
    """

    stack: Sequence[tuple[str, str]]
    called: str | None = None
    call: str = ""
    target: str = ""
    disk: bool = False
    late: bool = False
    trainer: bool = False


def state_of(view: ThreadView) -> str:
    """Return the state, or CORE if only the counters can tell."""
    if view.call == RUNNING:
        return CORE
    if view.disk or (view.call == "futex" and not view.late and _last(view.called) in FILE_CALLS):
        # Its data arrived while the sampler held the interpreter lock, for which it waits now.
        return ev.DISK
    # An instruction that calls nothing can only wait for the interpreter lock.
    if view.call == "futex" and view.late and not _takes_lock(view):
        return ev.LOCK_PYTHON
    return buffer_state(view) or (_state_by_call(view) if view.call else _state_by_frames(view))


def buffer_state(view: ThreadView) -> str:
    """Return FULL or EMPTY if the thread waits in a queue's put or get; otherwise "".

    The like of them in fastfeed and TensorFlow counts, too.
    """
    found = _queue_state(view)
    return ev.EMPTY if found == ev.FULL and view.trainer else found


def _queue_state(view: ThreadView) -> str:
    name = _last(view.called)
    if (
        view.call in ("futex", "", "poll")
        and name in ("put", "get")
        and not _is_dict_get(view.called)
    ):
        return ev.FULL if name == "put" else ev.EMPTY
    for i, (function, file) in enumerate(view.stack[:8]):
        function = _last(function)
        if QUEUE_FILES.search(file) and function in ("put", "get", "_feed"):
            if function != "_feed":
                return ev.FULL if function == "put" else ev.EMPTY
            sends = any(_last(inner).startswith("_send") for inner, _ in view.stack[:i])
            return ev.FULL if sends else ev.EMPTY
        if file.endswith("concurrent/futures/thread.py") and function == "_worker" and not i:
            return ev.EMPTY
        if FEED_FILES.search(file) and function in FEED_FULL_FUNCTIONS | FEED_EMPTY_FUNCTIONS:
            return ev.FULL if function in FEED_FULL_FUNCTIONS else ev.EMPTY
        if SESSION_FILES.search(file) and function == "_call_tf_sessionrun" and not view.trainer:
            return ev.FULL
    if view.call == "write" and view.target in ("pipe", "socket") and _is_in(PIPE_FILES, view):
        return ev.FULL
    return ""


def _state_by_call(view: ThreadView) -> str:
    """Return the state by the system call."""
    call = view.call
    if call in SLEEP_CALLS or (call == "select" and _last(view.called) == "sleep"):
        return ev.SLEEP
    if call == "futex":
        return ev.LOCK
    if call in ("read", "write", "readv", "writev") and view.target in ("pipe", "socket"):
        return ev.PIPE if view.target == "pipe" or _is_in(PIPE_FILES, view) else ev.SOCKET
    if call in ("recv", "send", "accept", "connect", "poll", "select"):
        return ev.PIPE if _is_in(PIPE_FILES, view) else ev.SOCKET
    return ev.PIPE if call == "child" else ev.OTHER


def _state_by_frames(view: ThreadView) -> str:
    """Return the state by the innermost frame's call, where the system call cannot be read."""
    name = _last(view.called)
    if name == "sleep":
        return ev.SLEEP
    if _is_in(PIPE_FILES, view):
        return ev.PIPE
    if name in SOCKET_CALLS or SOCKET_FILES.search(view.stack[0][1] if view.stack else ""):
        return ev.SOCKET
    return ev.LOCK if _takes_lock(view) else ev.OTHER


def may_be_socket(stack: Sequence[tuple[str, str]]) -> bool:
    """Return True if a stack's innermost code (the first) may wait for a socket.

    Only the code of pipes and selectors cannot.
    """
    file = stack[0][1] if stack else ""
    return not PIPE_FILES.search(file) and file != "selectors.py"


def _takes_lock(view: ThreadView) -> bool:
    if view.called is None:
        return bool(view.stack) and LOCK_FILES.search(view.stack[0][1]) is not None
    return _last(view.called) in LOCK_CALLS or (
        _last(view.called) in ("put", "get") and not _is_dict_get(view.called)
    )


def _is_in(pattern: re.Pattern[str], view: ThreadView) -> bool:
    return any(pattern.search(file) for _, file in view.stack[:4])


def _last(name: str | None) -> str:
    return (name or "").rpartition(".")[2]


def _is_dict_get(called: str | None) -> bool:
    return (called or "").startswith(("os.", "requests.", callee.DICT_GET))


def shares(
    counts: Mapping[str, float], *, cpu: float, queued: float, python: float
) -> dict[str, float]:
    """Return the shares of the states, which add up to 1.

    The counters give the share on a core and ready for one: `cpu` and `queued` are shares of the
    time, and `python` is the part of `cpu` that holds the interpreter lock. The samples off the
    core divide the rest. `counts`: samples by state.
    """
    cpu = min(max(cpu, 0.0), 1.0)
    queued = min(max(queued, 0.0), 1.0 - cpu)
    python = min(max(python, 0.0), cpu)
    busy = {ev.PYTHON: python, ev.NATIVE: cpu - python, ev.RUNNABLE: queued}
    waits = {state: count for state, count in counts.items() if state != CORE and count}
    total = sum(waits.values())
    for state, count in waits.items():
        busy[state] = busy.get(state, 0.0) + (1.0 - cpu - queued) * count / total
    if not total:
        busy[ev.OTHER] = 1.0 - cpu - queued
    return {state: share for state, share in busy.items() if share > 0}
