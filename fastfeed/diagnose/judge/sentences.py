"""Causes as sentences, with the numbers that show them."""

from __future__ import annotations

import numpy as np

from fastfeed.diagnose.evidence import DISK, LOCK, RUNNABLE, Evidence
from fastfeed.diagnose.judge import signals
from fastfeed.diagnose.judge.figures import StepTable
from fastfeed.diagnose.judge.producer_profile import ProducerProfile

LITTLE = 0.05  # shares below it are not reported


def at(makers: ProducerProfile) -> str:
    return f" ({makers.place})" if makers.place else ""


def who(makers: ProducerProfile) -> str:
    one = {
        "trainer": "the training thread",
        "threads": "1 producer thread",
        "processes": "1 worker process",
    }
    many = {"threads": "producer threads", "processes": "worker processes"}
    if makers.where == "native":
        return "the framework's own threads"
    return one[makers.where] if makers.count == 1 else f"{makers.count} {many[makers.where]}"


def doing(makers: ProducerProfile) -> str:
    return f"{makers.place}: {makers.place_share:.0%} of producer time" if makers.place else ""


def texts(*texts: str) -> tuple[str, ...]:
    return tuple(text for text in texts if text)


def latency(evidence: Evidence, makers: ProducerProfile) -> tuple[str, ...]:
    names = {
        "sleep": "asleep",
        "socket": "on sockets",
        "pipe": "on pipes",
        "lock": "on locks",
        "other": "elsewhere",
    }
    parts = sorted(((makers.share(state), name) for state, name in names.items()), reverse=True)
    where = ", ".join(f"{share:.0%} {name}" for share, name in parts if share >= signals.LEAST)
    locked = makers.share(LOCK) >= 0.3 and not signals.late(evidence)
    return texts(
        f"{who(makers)} wait{'s' * (makers.count == 1)} off the cores for {makers.waiting:.0%} of "
        f"the time ({where})",
        doing(makers),
        "they wait for a lock of their own: more of them would wait longer" if locked else "",
    )


def disks(evidence: Evidence, makers: ProducerProfile) -> tuple[str, ...]:
    return texts(
        f"{who(makers)}: {makers.share(DISK):.0%} of the time in block I/O, "
        f"{evidence.machine.disk_read_nbytes_s / 1e6:.0f} MB/s are read from disks",
        doing(makers),
    )


def lock(evidence: Evidence, makers: ProducerProfile) -> tuple[str, ...]:
    late = evidence.gil_late_s
    probe = (
        ""
        if late is None
        else f"; a thread that asks for the interpreter lock waits {late * 1e3:.1f} ms (idle: 0.1)"
    )
    top = doing(makers)
    return texts(
        f"{who(makers)}: {makers.python:.0%} of the time in Python that holds the interpreter "
        f"lock, or waiting for it{probe if makers.where != 'processes' else ''}",
        top and f"{top}, holding the lock",
    )


def cores(evidence: Evidence, makers: ProducerProfile) -> tuple[str, ...]:
    machine = evidence.machine
    pools = ", ".join(f"{name}: {count} threads" for name, count in evidence.pools.items())
    return texts(
        f"{who(makers)}: {makers.native + makers.python:.0%} of the time on a core or ready for "
        f"one; {machine.runnable:.1f} threads want one of {machine.cores} cores, "
        f"{machine.own_cpu:.1f} are used",
        doing(makers),
        f"native pools: {pools}" if pools and signals.crowded(evidence, makers) else "",
    )


def copies(evidence: Evidence, makers: ProducerProfile) -> tuple[str, ...]:
    leaves = evidence.loop.leaves if evidence.loop is not None else ()
    wide = [
        f"{leaf.path} is {leaf.dtype} {leaf.shape}"
        for leaf in leaves
        if leaf.dtype in ("float64", "object")
    ]
    faults = makers.faulting >= signals.CONVERTS
    return texts(
        f"{who(makers)}: {makers.copying:.0%} of the time in conversions and copies"
        if makers.copying
        else "",
        f"first touches of fresh memory take {makers.faulting:.0%} of their CPU time"
        if faults
        else "",
        doing(makers),
        "; ".join(wide),
    )


def given_back(evidence: Evidence) -> tuple[str, ...]:
    share = signals.given_back(evidence, waits=False)
    return (
        "from_generator makes the process return free memory at once: touching it again takes "
        f"{share:.0%} of a step",
    )


def ipc(evidence: Evidence, makers: ProducerProfile) -> tuple[str, ...]:
    """Pickling, and reading what others have pickled."""
    pickled, handed = signals.pickling(evidence, makers), signals.handed_over(evidence, makers)
    reads = (
        f"the training thread spends {handed:.0%} of its waits on reading and unpickling what "
        f"{who(makers)} made"
    )
    return texts(
        f"pickling and copying between processes: {pickled:.0%} of the producers' time"
        if pickled >= LITTLE
        else "",
        reads if handed >= signals.HANDS_OVER else "",
        doing(makers),
    )


def converted(evidence: Evidence, share: float) -> tuple[str, ...]:
    """What a session converts of its feed; and what a loop does to a batch that it gets."""
    if evidence.loop is None or evidence.loop.kind != "session":
        made = max((p for p in evidence.parts if p.kind == "input"), key=lambda part: part.share)
        return (
            f"the training thread prepares what it gets, before the step: {share:.0%} of the time "
            f"({made.place})",
        )
    leaves = evidence.loop.leaves if evidence.loop is not None else ()
    odd = [leaf for leaf in leaves if leaf.dtype in signals.WIDE or leaf.kind in ("list", "tuple")]
    return texts(
        f"the training thread converts what it feeds, inside Session.run: {share:.0%} of the time",
        "; ".join(f"{leaf.path} is a {leaf.kind} of {leaf.dtype} {leaf.shape}" for leaf in odd[:4]),
    )


def noise(evidence: Evidence) -> tuple[str, ...]:
    machine = evidence.machine
    names = ", ".join(f"{name}: {cores:.1f} cores" for name, cores in machine.noisy[:3])
    return texts(
        f"other processes take {machine.other_cpu:.1f} of {machine.cores} cores"
        + (f" ({names})" if names else ""),
        f"the hypervisor keeps {machine.steal:.1f}" if machine.steal >= 0.05 else "",
    )


def noise_of(evidence: Evidence, makers: ProducerProfile) -> tuple[str, ...]:
    return (
        *noise(evidence),
        f"{who(makers)}: ready and without a core for {makers.share(RUNNABLE):.0%} of the time",
    )


def straggling(rows: StepTable, makers: ProducerProfile | None) -> tuple[str, ...]:
    most = np.sort(rows.wait)[::-1][: max(1, len(rows.wait) // 10)]
    share = float(most.sum()) / max(1e-9, float(rows.wait.sum()))
    idle = (
        f"the producers wait at a full buffer for {1 - makers.active:.0%} of the time"
        if makers
        else ""
    )
    return texts(
        f"a tenth of the steps has {share:.0%} of the waiting: up to {rows.wait.max() * 1e3:.0f} "
        f"ms, the median is {np.median(rows.wait) * 1e3:.1f} ms",
        idle if makers is not None and makers.known and 1 - makers.active >= signals.LEAST else "",
    )


def gaps(rows: StepTable) -> tuple[str, ...]:
    gaps = rows.boundary[rows.boundary > 0]
    return (f"{len(gaps)} epochs began with a wait of {float(np.median(gaps)):.2g} s (median)",)


def pauses(rows: StepTable) -> tuple[str, ...]:
    known = [(at, length, what) for at, length, what in rows.pauses if length > 0]
    names = sorted({what for _, _, what in known if what})
    lengths = [length for _, length, _ in known]
    starts = np.diff([at for at, _, _ in known])
    every = f", one every {float(np.median(starts)):.2g} s" if len(starts) else ""
    return (
        f"{len(known)} pauses of {float(np.median(lengths)):.2g} "
        f"s{every}{': ' * bool(names)}{', '.join(names)}",
    )


def host(evidence: Evidence, rows: StepTable) -> tuple[str, ...]:
    steps = signals.simulated(evidence) > 0  # sleeping lines belong to the step
    parts = (
        part
        for part in evidence.parts
        if part.kind == "host" and not (steps and signals.sleeps(part))
    )
    lines = sorted(parts, key=lambda part: -part.share)
    beside = rows.share(rows.host)
    return texts(
        f"steps of {np.median(rows.inside) * 1e3:.2g} ms, most of it Python of the loop and of "
        "the framework's calls",
        f"{beside:.0%} of the time lies between the steps" if beside >= signals.LEAST else "",
        "; ".join(f"{part.place}: {part.share:.0%}" for part in lines[:3] if part.share >= 0.02),
    )


def step(rows: StepTable) -> tuple[str, ...]:
    return (
        f"the step takes {np.median(rows.inside) * 1e3:.3g} ms of "
        f"{np.median(rows.period) * 1e3:.3g} ms; it waits for input for {rows.starvation:.1%} of "
        "the time",
    )
