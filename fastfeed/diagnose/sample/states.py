"""State of a thread, in the terms of evidence.py, from the system call that it waits in."""

from __future__ import annotations

from collections.abc import Mapping

from fastfeed.diagnose import evidence as ev
from fastfeed.probes.procfs import RUNNING

CORE = "core"  # on a core, or ready for one: the counters tell these apart
STREAM_CALLS = ("read", "write", "readv", "writev")
SOCKET_CALLS = ("recv", "send", "accept", "connect", "poll", "select")
CALL_STATES = {"futex": ev.LOCK, "child": ev.PIPE, "sleep": ev.SLEEP, "pause": ev.SLEEP}
TARGET_STATES = {"pipe": ev.PIPE, "socket": ev.SOCKET}
# A helper that waits for a lock or a pipe waits for its queue: for work, or for room.
QUEUE_STATES = (ev.LOCK, ev.PIPE)


def state_of(
    call: str, *, target: str = "", disk: bool = False, wants_gil: bool = False, late: bool = False
) -> str:
    """Return the state, or CORE if only the counters can tell, as of a thread that has ended.

    `call`: the system call ("running" on a core, "" unknown). `target`: the kind of its file
    descriptor; "socket" is one of a network. `wants_gil`: the thread waits for the interpreter
    lock, which another one has held if the sampler was `late`, too; else only the sampler has taken
    it.
    """
    if call in (RUNNING, "") or (wants_gil and not late):
        return CORE
    if disk:
        return ev.DISK
    if wants_gil:
        return ev.LOCK_PYTHON
    if call in STREAM_CALLS or call in SOCKET_CALLS:
        return TARGET_STATES.get(target, ev.OTHER)
    return CALL_STATES.get(call, ev.OTHER)


def shares(
    counts: Mapping[str, float], *, cpu: float, queued: float, python: float, helper: bool = True
) -> dict[str, float]:
    """Return the shares of the states, which add up to 1.

    The counters give the share on a core and ready for one: `cpu` and `queued` are shares of the
    time, and `python` is the part of `cpu` that holds the interpreter lock. The samples off the
    core divide the rest. `counts`: samples by state. Waits of a `helper` for its queue are EMPTY.
    """
    cpu = min(max(cpu, 0.0), 1.0)
    queued = min(max(queued, 0.0), 1.0 - cpu)
    python = min(max(python, 0.0), cpu)
    busy = {ev.PYTHON: python, ev.NATIVE: cpu - python, ev.RUNNABLE: queued}
    waits = {state: count for state, count in counts.items() if state != CORE and count}
    total = sum(waits.values())
    for state, count in waits.items():
        name = ev.EMPTY if helper and state in QUEUE_STATES else state
        busy[name] = busy.get(name, 0.0) + (1.0 - cpu - queued) * count / total
    if not total:
        busy[ev.OTHER] = 1.0 - cpu - queued
    return {state: share for state, share in busy.items() if share > 0}
