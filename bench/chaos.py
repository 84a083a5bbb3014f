"""Workers are killed at random while batches flow at full rate: `python -m bench.chaos [kills]`.

Every batch carries a checksum over all of its bytes and its record ids. Checked: no batch is torn,
no record lost or repeated, nothing stalls, every slot is accounted for after every kill, and
nothing grows. Exit code 1 on any fault.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.checked import Footprint, Ledger, Stamped, grown, quiet
from fastfeed import FeedRunner

STALL_S = 2.0  # the promise
LONG_S = 20.0
AUDIT_S = 20.0  # a sum that is wrong for so long stays so
LOAD_S, LOADS_S = 6.0, (0.0, 0.0002, 0.001, 0.005)
HELD = 5  # batches that the consumer keeps, as a training loop does


@dataclass(frozen=True)
class Plan:
    """A chaos run: the workers to kill, how often, and over which feed; every `resize_every` kills
    the feed gets another number of workers. With `auto` the runner changes it itself, and the step
    takes another time every LOAD_S."""

    kills: int
    processes: int = 2
    threads: int = 1
    width: int = 4096
    vary: bool = False
    order: str = "kept"
    mean_s: float = 0.08
    resize_every: int = 0
    auto: bool = False
    seed: int = 0


@dataclass
class Outcome:
    """The observations of a chaos run."""

    plan: Plan
    kills: int = 0
    resizes: int = 0
    seconds: float = 0.0
    longest_wait_s: float = 0.0
    audits: int = 0
    copied: int = 0
    set_aside: tuple[str, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    growth: dict[str, float] = field(default_factory=dict)
    at_end: Footprint | None = None

    @property
    def faults(self) -> dict[str, Any]:
        """Everything that must not be."""
        found: dict[str, Any] = dict(self.ledger.faults)
        if self.longest_wait_s > STALL_S:
            found["stall"] = self.longest_wait_s
        if self.set_aside:
            found["set aside"] = self.set_aside
        return found | grown(self.growth)


class Killer:
    """A thread that kills a worker, waits for another one in its place, and audits the slots, again
    and again."""

    def __init__(self, runner: FeedRunner, outcome: Outcome) -> None:
        self._runner = runner
        self._outcome = outcome
        self._random = random.Random(outcome.plan.seed)
        self._per_worker = 0
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self._thread.join()

    def _run(self) -> None:
        plan, outcome = self._outcome.plan, self._outcome
        try:
            self._per_worker = self._slots_of_a_worker()
            while outcome.kills < plan.kills and not self.over.wait(
                self._random.expovariate(1 / plan.mean_s)
            ):
                found = workers()
                if not found:
                    continue
                try:
                    os.kill(self._random.choice(found), signal.SIGKILL)
                except ProcessLookupError:  # its predecessor's death was not heard of yet
                    continue
                outcome.kills += 1
                if plan.resize_every and outcome.kills % plan.resize_every == 0:
                    self._runner.resize(processes=self._random.randint(1, plan.processes + 1))
                    outcome.resizes += 1
                self._audit()
        except Exception as error:
            outcome.ledger.note("killer", repr(error))
        finally:
            self.over.set()

    def _slots_of_a_worker(self) -> int:
        """Return the slots of a worker, once each producer has made a batch: all rings are open."""
        deadline = time.monotonic() + LONG_S
        now = self._runner.snapshot()
        while not now.producers or not all(row.batches for row in now.producers):
            if time.monotonic() > deadline:
                raise TimeoutError(f"producers without a batch: {now.producers}")
            time.sleep(0.01)
            now = self._runner.snapshot()
        return now.slots.all // self._outcome.plan.processes

    def _audit(self) -> None:
        """free + filling + ready + lent are all the slots of the living rings; as a ring opens, its
        slots appear one by one, so that only a sum that stays wrong is."""
        plan = self._outcome.plan
        deadline = time.monotonic() + AUDIT_S
        while True:
            slots = self._runner.snapshot().slots
            # the memory of workers that a resize adds is divided anew
            whole = (
                plan.vary
                or plan.resize_every
                or plan.auto
                or (
                    slots.all % self._per_worker == 0
                    and slots.all <= plan.processes * self._per_worker
                )
            )
            if whole and slots.lent <= HELD + 2:
                self._outcome.audits += 1
                return
            if time.monotonic() > deadline:
                self._outcome.ledger.note(
                    "audit", f"{slots}; a worker's ring has {self._per_worker}"
                )
                return
            time.sleep(0.001)


def workers() -> list[int]:
    """The pids of all grandchildren: the workers."""
    found = []
    for child in below(os.getpid()):
        found += below(child)
    return found


def below(pid: int) -> Iterator[int]:
    """The children of a process."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, (task / "children").read_text().split())
    except OSError:
        return


def run(plan: Plan, *, source: Any = None) -> Outcome:
    """Run a feed until the plan's number of workers was killed.

    `source` replaces the source of correct batches.
    """
    outcome = Outcome(plan)
    options = {"records": False} if source is None else {}
    runner = FeedRunner(
        source or Stamped(10**9, plan.width, plan.vary),
        processes="auto" if plan.auto else plan.processes,
        threads=plan.threads,
        order=plan.order,
        pad=0 if plan.vary else None,
        memory="256MB",
        on_worker_death="restart",
        stall_timeout_s=LONG_S,
        **options,
    )
    began = time.perf_counter()
    with runner.start(), Killer(runner, outcome) as killer:
        _consume(runner, outcome, killer)
        state = runner.snapshot()
        outcome.set_aside, outcome.copied = state.set_aside, state.consumed.copied
        outcome.resizes += len(runner.tuning())
        outcome.seconds = time.perf_counter() - began
    return outcome


def _consume(runner: FeedRunner, outcome: Outcome, killer: Killer) -> None:
    held: deque[dict[str, Any]] = deque(maxlen=HELD)
    early: Footprint | None = None
    stream, loads, load_s, until_s = iter(runner), random.Random(outcome.plan.seed), 0.0, 0.0
    # it goes on after the last death
    while not killer.over.is_set() or outcome.ledger.batches <= outcome.plan.kills:
        since = time.perf_counter()
        batch = next(stream)
        if outcome.ledger.batches:
            outcome.longest_wait_s = max(outcome.longest_wait_s, time.perf_counter() - since)
        if len(held) == HELD:
            # as late as can be: a slot that was lent twice would have changed by now
            outcome.ledger.take(held[0])
        held.append(batch)
        if outcome.plan.auto and since > until_s:
            load_s, until_s = loads.choice(LOADS_S), since + LOAD_S
        if load_s:
            time.sleep(load_s)
        if early is None and outcome.kills * 10 >= outcome.plan.kills:
            early = Footprint.soon(max)
    outcome.at_end = Footprint.soon(min)
    outcome.growth = outcome.at_end - (early or outcome.at_end)


def show(outcome: Outcome) -> None:
    """The figures."""
    ledger = outcome.ledger
    print(
        f"{outcome.plan}\n  {outcome.kills} kills and {outcome.resizes} resizes in "
        f"{outcome.seconds:.1f} s; {ledger.batches} batches, "
        f"{ledger.batches / outcome.seconds:,.0f} a second, {ledger.nbytes / 1e9:.2f} GB; "
        f"longest wait {outcome.longest_wait_s:.3f} s; {outcome.audits} audits; "
        f"{outcome.copied} copied\n  growth from the first tenth to the end: {outcome.growth}\n  "
        f"faults: {outcome.faults or 'none'} {ledger.first or ''}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=4096, help="bytes of a record; a batch has 16")
    parser.add_argument("--vary", action="store_true", help="records of varying width: rings grow")
    parser.add_argument("--mean-s", type=float, default=0.08, help="mean time between two kills")
    parser.add_argument(
        "--resize-every", type=int, default=0, help="kills after which the number changes"
    )
    parser.add_argument(
        "--auto", action="store_true", help="the runner chooses the number; the step varies"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    quiet()
    outcome = run(Plan(**vars(given)))
    show(outcome)
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
