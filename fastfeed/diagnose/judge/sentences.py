"""Evidence of causes in words: sentences with the numbers that show each cause."""

from __future__ import annotations

import numpy as np

from fastfeed.diagnose.evidence import (
    DISK,
    LOCK,
    OTHER,
    PIPE,
    PYTHON,
    RUNNABLE,
    SLEEP,
    SOCKET,
)
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.case import Case
from fastfeed.diagnose.judge.producer_profile import ProducerProfile
from fastfeed.model.workload import INPUT_BOUND

WAIT_WORDS = {
    SLEEP: "asleep",
    SOCKET: "on sockets",
    PIPE: "on pipes",
    LOCK: "on locks",
    OTHER: "for other reasons",
}
Texts = tuple[str, ...]


def _nonempty(*texts: str) -> Texts:
    return tuple(text for text in texts if text)


def _named(producers: ProducerProfile) -> str:
    """Return the producers as a noun: "4 producer threads"."""
    if producers.kind == "trainer":
        return "the training thread"
    if producers.kind == "native":
        return "the framework's own threads"
    one, many = ("producer thread", "producer threads")
    if producers.remote == producers.count:
        one, many = ("remote producer", "remote producers")
    elif producers.kind == "processes":
        one, many = ("worker process", "worker processes")
    return f"1 {one}" if producers.count == 1 else f"{producers.count} {many}"


def _hottest_line(producers: ProducerProfile) -> str:
    """Return the line in which the producers spend most of their time; "" if it is unknown."""
    if producers.place is None:
        return ""
    return f"{producers.place}: {producers.place_share:.0%} of producer time"


def serial(case: Case, share: float) -> Texts:
    """Return the evidence of batches that the training thread makes."""
    where = f" ({case.made_by.place})" if case.made_by.place else ""
    return (
        f"batches are made on the training thread{where}: nothing else runs for "
        f"{case.ledger.starvation:.0%} of the time",
    )


def latency(case: Case, share: float) -> Texts:
    """Return the evidence of producers that wait off the cores."""
    producers = case.made_by
    parts = sorted(((producers.share(s), text) for s, text in WAIT_WORDS.items()), reverse=True)
    where = ", ".join(f"{part:.0%} {text}" for part, text in parts if part >= INPUT_BOUND)
    wait = "waits" if producers.count == 1 else "wait"
    return _nonempty(
        f"{_named(producers)} {wait} off the cores for {producers.waiting:.0%} of the time "
        f"({where})",
        _hottest_line(producers),
    )


def disks(case: Case, share: float) -> Texts:
    """Return the evidence of producers that wait for block I/O."""
    rate = case.evidence.machine.disk_read_nbytes_s / 1e6
    return _nonempty(
        f"{_named(case.made_by)}: {case.made_by.share(DISK):.0%} of the time in block I/O, while "
        f"{rate:.0f} MB/s are read from the disks",
        _hottest_line(case.made_by),
    )


def lock(case: Case, share: float) -> Texts:
    """Return the evidence of producers that hold the interpreter lock."""
    producers, late_s = case.made_by, case.evidence.gil_late_s
    line = _hottest_line(producers)
    late = ""
    if late_s is not None and producers.kind != "processes":
        late = (
            f"a thread that asks for the interpreter lock gets it {late_s * 1e3:.1f} ms late "
            "(idle: 0.1 ms)"
        )
    return _nonempty(
        f"{_named(producers)}: {producers.python:.0%} of the time in Python that holds the "
        "interpreter lock or waits for it",
        late,
        line and f"{line}, with the interpreter lock held",
    )


def cores(case: Case, share: float) -> Texts:
    """Return the evidence of work on the cores."""
    producers, machine = case.made_by, case.evidence.machine
    if producers.away:
        return (
            f"{_named(producers)}: {producers.native:.0%} of the time on a core of their nodes",
        )
    return _nonempty(
        f"{_named(producers)}: {producers.native + producers.python:.0%} of the time on a core or "
        f"ready for one; {machine.runnable:.1f} threads at a time want one of {machine.cores} "
        f"cores, and {machine.own_cpu:.1f} are in use by the script",
        _hottest_line(producers),
    )


def crowd(case: Case, share: float) -> Texts:
    """Return the evidence of far more threads than cores."""
    pools = case.evidence.pools.items()
    named = ", ".join(f"{name}: {count} threads" for name, count in pools)
    return _nonempty(*cores(case, share), f"native thread pools: {named}" if named else "")


def copies(case: Case, share: float) -> Texts:
    """Return the evidence of conversions and copies."""
    producers, loop = case.made_by, case.evidence.loop
    leaves = loop.leaves if loop is not None else ()
    odd = [
        leaf
        for leaf in leaves
        if leaf.dtype in signals.WIDE_DTYPES or leaf.kind in ("list", "tuple")
    ]
    converted = case.ledger.share(case.ledger.converted)
    inside = "inside Session.run" if case.loop_kind == "session" else "before the step"
    return _nonempty(
        f"the training thread converts its input {inside}, for {converted:.0%} of the time"
        if converted
        else "",
        f"{_named(producers)}: {producers.copying:.0%} of the time in conversions and copies"
        if producers.copying
        else "",
        _hottest_line(producers),
        "; ".join(f"{leaf.path} is a {leaf.kind} of {leaf.dtype} {leaf.shape}" for leaf in odd[:4]),
    )


def ipc(case: Case, share: float) -> Texts:
    """Return the evidence of batches that are pickled and copied between processes."""
    handover = signals.handover_share(case.evidence, case.made_by, waited=case.ledger.waited)
    return _nonempty(
        f"the training thread spends {handover:.0%} of its waits on reading and unpickling the "
        f"batches of {_named(case.made_by)}"
        if handover >= INPUT_BOUND
        else "",
        _hottest_line(case.made_by),
    )


def noise(case: Case, share: float) -> Texts:
    """Return the evidence of other processes on the cores."""
    machine, producers = case.evidence.machine, case.made_by
    names = ", ".join(f"{name}: {cores:.1f} cores" for name, cores in machine.noisy[:3])
    waits = producers.share(RUNNABLE)
    return _nonempty(
        f"other processes use {machine.other_cpu:.1f} of {machine.cores} cores"
        + (f" ({names})" if names else ""),
        f"the hypervisor keeps {machine.steal:.1f} cores" if machine.steal >= 0.05 else "",
        f"{_named(producers)}: ready to run but without a core for {waits:.0%} of the time"
        if waits >= INPUT_BOUND
        else "",
    )


def straggling(case: Case, share: float) -> Texts:
    """Return the evidence of few long waits."""
    wait, producers = case.ledger.wait, case.made_by
    longest = np.sort(wait)[::-1][: max(1, len(wait) // 10)]
    part = float(longest.sum()) / max(1e-9, float(wait.sum()))
    idle = 1 - producers.active if producers.known else 0.0
    return _nonempty(
        f"a tenth of the steps have {part:.0%} of the waiting: up to {wait.max() * 1e3:.0f} ms, "
        f"with a median of {np.median(wait) * 1e3:.1f} ms",
        f"the producers wait at a full buffer for {idle:.0%} of the time"
        if idle >= INPUT_BOUND
        else "",
    )


def gaps(case: Case, share: float) -> Texts:
    """Return the evidence of waits at the start of epochs."""
    gaps_s = case.ledger.start[case.ledger.start > 0]
    return (f"{len(gaps_s)} epochs began with a wait of {float(np.median(gaps_s)):.2g} s (median)",)


def pauses(case: Case, share: float) -> Texts:
    """Return the evidence of pauses between steps."""
    known = case.ledger.pauses
    if not known:
        return ()
    names = ", ".join(sorted({name for _, _, name in known if name}))
    length_s = float(np.median([length_s for _, length_s, _ in known]))
    between = np.diff([start_s for start_s, _, _ in known])
    every = f", one every {float(np.median(between)):.2g} s" if len(between) else ""
    return (f"{len(known)} pauses of {length_s:.2g} s{every}{': ' if names else ''}{names}",)


def host(case: Case, share: float) -> Texts:
    """Return the evidence of Python in the loop itself."""
    lines = [p for p in case.evidence.parts_of("host") if p.share_in(PYTHON) >= INPUT_BOUND]
    beside = case.ledger.share(case.ledger.host)
    lines.sort(key=lambda part: -part.share)
    named = [f"{p.place}: {p.share:.0%}" for p in lines[:3]]
    return _nonempty(
        f"steps take {np.median(case.ledger.inside) * 1e3:.2g} ms, mostly in Python of the loop "
        "and in calls of the framework",
        f"{beside:.0%} of the time lies between the steps" if beside >= INPUT_BOUND else "",
        "; ".join(named),
    )


def step(case: Case, share: float) -> Texts:
    """Return the evidence of an input that keeps up."""
    ledger = case.ledger
    return (
        f"the step takes {np.median(ledger.inside) * 1e3:.3g} ms of "
        f"{np.median(ledger.period) * 1e3:.3g} ms; it waits for input for {ledger.starvation:.1%} "
        "of the time",
    )
