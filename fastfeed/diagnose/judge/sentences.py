"""Evidence of causes in words: sentences with the numbers that show each cause."""

from __future__ import annotations

import numpy as np

from fastfeed.diagnose.evidence import (
    DISK,
    LOCK,
    OTHER,
    PIPE,
    RUNNABLE,
    SLEEP,
    SOCKET,
    Evidence,
)
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.diagnose.judge.producer_profile import ProducerProfile

WAIT_WORDS = {
    SLEEP: "asleep",
    SOCKET: "on sockets",
    PIPE: "on pipes",
    LOCK: "on locks",
    OTHER: "for other reasons",
}
MIN_LINE_SHARE = 0.02  # share of the time: shorter lines are not named
MIN_STEAL = 0.05  # cores that the hypervisor keeps: less is not mentioned


def nonempty(*texts: str) -> tuple[str, ...]:
    """Return the texts that say something."""
    return tuple(text for text in texts if text)


def named(producers: ProducerProfile) -> str:
    """Return the producers as a noun: "4 producer threads"."""
    if producers.kind == "trainer":
        return "the training thread"
    if producers.kind == "native":
        return "the framework's own threads"
    one = "producer thread" if producers.kind == "threads" else "worker process"
    many = "producer threads" if producers.kind == "threads" else "worker processes"
    return f"1 {one}" if producers.count == 1 else f"{producers.count} {many}"


def hottest_line(producers: ProducerProfile) -> str:
    """Return the line in which the producers spend most of their time; "" if it is unknown."""
    if producers.place is None:
        return ""
    return f"{producers.place}: {producers.place_share:.0%} of producer time"


def serial(producers: ProducerProfile, share: float) -> tuple[str, ...]:
    """Return the evidence of batches that are made on the training thread."""
    where = f" ({producers.place})" if producers.place else ""
    return (
        f"batches are made on the training thread{where}: nothing else runs for {share:.0%} of the "
        "time",
    )


def latency(evidence: Evidence, producers: ProducerProfile) -> tuple[str, ...]:
    """Return the evidence of producers that wait off the cores."""
    parts = sorted(
        ((producers.share(state), text) for state, text in WAIT_WORDS.items()), reverse=True
    )
    where = ", ".join(f"{share:.0%} {text}" for share, text in parts if share >= signals.MIN_SHARE)
    wait = "waits" if producers.count == 1 else "wait"
    own_lock = producers.share(LOCK) >= signals.OWN_LOCK_SHARE
    return nonempty(
        f"{named(producers)} {wait} off the cores for {producers.waiting:.0%} of the time "
        f"({where})",
        hottest_line(producers),
        "they wait for a lock of their own: more producers would only wait longer"
        if own_lock and not signals.lock_contended(evidence)
        else "",
    )


def disks(evidence: Evidence, producers: ProducerProfile) -> tuple[str, ...]:
    """Return the evidence of producers that wait for block I/O."""
    rate = evidence.machine.disk_read_nbytes_s / 1e6
    return nonempty(
        f"{named(producers)}: {producers.share(DISK):.0%} of the time in block I/O, while "
        f"{rate:.0f} MB/s are read from the disks",
        hottest_line(producers),
    )


def lock(evidence: Evidence, producers: ProducerProfile) -> tuple[str, ...]:
    """Return the evidence of producers that hold the interpreter lock."""
    late_s, line = evidence.gil_late_s, hottest_line(producers)
    return nonempty(
        f"{named(producers)}: {producers.python:.0%} of the time in Python that holds the "
        "interpreter lock or waits for it",
        f"a thread that asks for the interpreter lock gets it {late_s * 1e3:.1f} ms late (idle: "
        "0.1 ms)"
        if late_s is not None and producers.kind != "processes"
        else "",
        line and f"{line}, with the interpreter lock held",
    )


def cores(evidence: Evidence, producers: ProducerProfile) -> tuple[str, ...]:
    """Return the evidence of cores that are all in use."""
    machine = evidence.machine
    pools = ", ".join(f"{name}: {count} threads" for name, count in evidence.pools.items())
    return nonempty(
        f"{named(producers)}: {producers.native + producers.python:.0%} of the time on a core or "
        f"ready for one; {machine.runnable:.1f} threads compete for {machine.cores} cores and use "
        f"{machine.own_cpu:.1f} of them",
        hottest_line(producers),
        f"native thread pools: {pools}"
        if pools and signals.oversubscribed(evidence, producers)
        else "",
    )


def copies(evidence: Evidence, producers: ProducerProfile) -> tuple[str, ...]:
    """Return the evidence of conversions and copies in the producers."""
    leaves = evidence.loop.leaves if evidence.loop is not None else ()
    wide = [leaf for leaf in leaves if leaf.dtype in signals.WIDE_DTYPES]
    return nonempty(
        f"{named(producers)}: {producers.copying:.0%} of the time in conversions and copies"
        if producers.copying
        else "",
        f"first accesses of fresh memory take {producers.faulting:.0%} of their CPU time"
        if producers.faulting >= signals.COPYING_SHARE
        else "",
        hottest_line(producers),
        "; ".join(f"{leaf.path} is {leaf.dtype} {leaf.shape}" for leaf in wide),
    )


def retouched(evidence: Evidence) -> tuple[str, ...]:
    """Return the evidence of memory that from_generator makes the process return."""
    share = signals.retouched_share(evidence, waits=False)
    return (
        "from_generator makes the process return free memory at once: touching it again takes "
        f"{share:.0%} of a step",
    )


def ipc(evidence: Evidence, producers: ProducerProfile) -> tuple[str, ...]:
    """Return the evidence of batches that are pickled and copied between processes."""
    pickling = signals.pickling_share(evidence, producers)
    handover = signals.handover_share(evidence, producers)
    return nonempty(
        f"pickling and copying between processes take {pickling:.0%} of the producers' time"
        if pickling >= signals.MIN_SHARE
        else "",
        f"the training thread spends {handover:.0%} of its waits on reading and unpickling the "
        f"batches of {named(producers)}"
        if handover >= signals.HANDOVER_SHARE
        else "",
        hottest_line(producers),
    )


def converted(evidence: Evidence, share: float) -> tuple[str, ...]:
    """Return the evidence of a session that converts its feed, or of a loop that prepares its
    batches."""
    loop = evidence.loop
    if loop is None or loop.kind != "session":
        prepares = max(evidence.parts_of("input"), key=lambda part: part.share)
        return (
            f"the training thread prepares its batches before the step, for {share:.0%} of the "
            f"time ({prepares.place})",
        )
    odd = [
        leaf
        for leaf in loop.leaves
        if leaf.dtype in signals.WIDE_DTYPES or leaf.kind in ("list", "tuple")
    ]
    return nonempty(
        f"the training thread converts its feed inside Session.run, for {share:.0%} of the time",
        "; ".join(f"{leaf.path} is a {leaf.kind} of {leaf.dtype} {leaf.shape}" for leaf in odd[:4]),
    )


def noise(evidence: Evidence) -> tuple[str, ...]:
    """Return the evidence of other processes on the cores."""
    machine = evidence.machine
    names = ", ".join(f"{name}: {cores:.1f} cores" for name, cores in machine.noisy[:3])
    return nonempty(
        f"other processes use {machine.other_cpu:.1f} of {machine.cores} cores"
        + (f" ({names})" if names else ""),
        f"the hypervisor keeps {machine.steal:.1f} cores" if machine.steal >= MIN_STEAL else "",
    )


def noise_beside(evidence: Evidence, producers: ProducerProfile) -> tuple[str, ...]:
    """Return the evidence of producers that other processes keep from the cores."""
    return (
        *noise(evidence),
        f"{named(producers)}: ready to run but without a core for {producers.share(RUNNABLE):.0%} "
        "of the time",
    )


def straggling(table: StepTable, producers: ProducerProfile | None) -> tuple[str, ...]:
    """Return the evidence of few long waits."""
    longest = np.sort(table.wait)[::-1][: max(1, len(table.wait) // 10)]
    share = float(longest.sum()) / max(1e-9, float(table.wait.sum()))
    idle = 1 - producers.active if producers is not None and producers.known else 0.0
    return nonempty(
        f"a tenth of the steps have {share:.0%} of the waiting: up to {table.wait.max() * 1e3:.0f} "
        f"ms, with a median of {np.median(table.wait) * 1e3:.1f} ms",
        f"the producers wait at a full buffer for {idle:.0%} of the time"
        if idle >= signals.MIN_SHARE
        else "",
    )


def gaps(table: StepTable) -> tuple[str, ...]:
    """Return the evidence of waits at the start of epochs."""
    gaps_s = table.boundary[table.boundary > 0]
    return (f"{len(gaps_s)} epochs began with a wait of {float(np.median(gaps_s)):.2g} s (median)",)


def pauses(table: StepTable) -> tuple[str, ...]:
    """Return the evidence of pauses between steps."""
    known = [pause for pause in table.pauses if pause[1] > 0]
    names = ", ".join(sorted({name for _, _, name in known if name}))
    length_s = float(np.median([length_s for _, length_s, _ in known]))
    between = np.diff([start_s for start_s, _, _ in known])
    every = f", one every {float(np.median(between)):.2g} s" if len(between) else ""
    return (f"{len(known)} pauses of {length_s:.2g} s{every}{': ' if names else ''}{names}",)


def host(evidence: Evidence, table: StepTable) -> tuple[str, ...]:
    """Return the evidence of Python in the loop itself."""
    simulated = signals.simulated_share(evidence) > 0  # sleeping lines belong to the step
    parts = evidence.parts_of("host")
    lines = [part for part in parts if not (simulated and signals.sleeps(part))]
    lines.sort(key=lambda part: -part.share)
    beside = table.share(table.host)
    return nonempty(
        f"steps take {np.median(table.inside) * 1e3:.2g} ms, mostly in Python of the loop and in "
        "calls of the framework",
        f"{beside:.0%} of the time lies between the steps" if beside >= signals.MIN_SHARE else "",
        "; ".join(
            f"{part.place}: {part.share:.0%}" for part in lines[:3] if part.share >= MIN_LINE_SHARE
        ),
    )


def step(table: StepTable) -> tuple[str, ...]:
    """Return the evidence of an input that keeps up."""
    return (
        f"the step takes {np.median(table.inside) * 1e3:.3g} ms of "
        f"{np.median(table.period) * 1e3:.3g} ms; it waits for input for {table.starvation:.1%} of "
        "the time",
    )
